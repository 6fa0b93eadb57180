package kvevents

import "encoding/binary"

// protoKind is a wire type of protobuf.
type protoKind uint8

const (
	protoVarint  protoKind = 0
	protoFixed64 protoKind = 1
	protoBytes   protoKind = 2
	protoFixed32 protoKind = 5
)

// protoField is one field as it is on the wire.
type protoField struct {
	number uint64
	kind   protoKind
	value  uint64 // of a number
	bytes  []byte // of anything else
}

// protoReader reads a message field by field (protobuf.dev/programming-guides/encoding). Groups, which proto3 does not have,
// are broken.
type protoReader struct {
	b        []byte
	i        int
	isBroken bool
}

// next is the next field; false at the end, and where the message is broken.
func (r *protoReader) next() (f protoField, ok bool) {
	if r.isBroken || r.i == len(r.b) {
		return f, false
	}
	tag, ok := r.varint()
	f.number, f.kind = tag>>3, protoKind(tag&7)
	ok = ok && f.number > 0 && f.number < 1<<29
	switch f.kind {
	case protoVarint:
		if ok {
			f.value, ok = r.varint()
		}
	case protoFixed64:
		if ok = ok && len(r.b)-r.i >= 8; ok {
			f.value = binary.LittleEndian.Uint64(r.b[r.i:])
			r.i += 8
		}
	case protoFixed32:
		if ok = ok && len(r.b)-r.i >= 4; ok {
			f.value = uint64(binary.LittleEndian.Uint32(r.b[r.i:]))
			r.i += 4
		}
	case protoBytes:
		var n uint64
		if ok {
			n, ok = r.varint()
		}
		if ok = ok && n <= uint64(len(r.b)-r.i); ok {
			f.bytes = r.b[r.i : r.i+int(n) : r.i+int(n)]
			r.i += int(n)
		}
	default:
		ok = false
	}
	r.isBroken = !ok
	return f, ok
}

func (r *protoReader) varint() (uint64, bool) {
	v, n := binary.Uvarint(r.b[r.i:])
	if n <= 0 {
		return 0, false
	}
	r.i += n
	return v, true
}
