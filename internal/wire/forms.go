package wire

import "google.golang.org/protobuf/encoding/protowire"

// forms is a set of the forms that a prompt was sent in, a bit for each field number. A oneof keeps the last and forgets the
// others; a caller who sends two has made a mistake that it would never hear of.
type forms uint8

// names lists the fields in the set, by their numbers.
func (f forms) names() []string {
	var out []string
	for num, name := range [...]string{fieldTokens: "tokens", fieldBlockHashes: "block_hashes", fieldText: "text"} {
		if f&(1<<num) != 0 {
			out = append(out, name)
		}
	}
	return out
}

// formsOf looks for the prompt's forms in the bytes of a RouteRequest, up to the first that are no field: whether they are a
// message is protobuf-go's to say.
func formsOf(b []byte) forms {
	var out forms
	eachField(b, func(num protowire.Number, _ []byte) {
		if num >= fieldTokens && num <= fieldText {
			out |= 1 << num
		}
	})
	return out
}

// formsOfStreamed looks into the questions of a RouteStreamRequest; several are merged into one.
func formsOfStreamed(b []byte) forms {
	var out forms
	eachField(b, func(num protowire.Number, value []byte) {
		if num == fieldRequest {
			out |= formsOf(value)
		}
	})
	return out
}

// eachField calls f with the number and value of each field of bytes that has bytes.
func eachField(b []byte, f func(num protowire.Number, value []byte)) {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(num, kind, b[n:])
		if size < 0 {
			return
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[n:]) // its length has just been checked
			f(num, value)
		}
		b = b[n+size:]
	}
}
