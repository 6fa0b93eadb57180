package smg

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// field is one field of a message as it is on the wire.
type field struct {
	number int
	kind   protowire.Type
	value  uint64
	bytes  []byte
}

// each calls take for every field of a message. The error is of a message that is no protobuf.
func each(m []byte, take func(field)) error {
	for len(m) > 0 {
		number, kind, n := protowire.ConsumeTag(m)
		if n < 0 {
			return protowire.ParseError(n)
		}
		m = m[n:]
		f := field{number: int(number), kind: kind}
		switch kind {
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(m)
		case protowire.Fixed64Type:
			f.value, n = protowire.ConsumeFixed64(m)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(m)
		case protowire.Fixed32Type, protowire.StartGroupType, protowire.EndGroupType:
			n = protowire.ConsumeFieldValue(number, kind, m)
		default: // a type that protobuf does not have
			return protowire.ParseError(protowire.ConsumeFieldValue(number, kind, m))
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		m = m[n:]
		take(f)
	}
	return nil
}

// count is an int32 or uint32 field as a number that metrics takes; a negative one stays negative, which nothing is.
func (f field) count() float64 { return float64(int32(uint32(f.value))) }

// ratio is a double field.
func (f field) ratio() float64 {
	if f.kind != protowire.Fixed64Type {
		return math.NaN() // which nothing is
	}
	return math.Float64frombits(f.value)
}
