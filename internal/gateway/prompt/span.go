package prompt

import "io"

// Span is a part of a body, in bytes from its start. The zero Span is none.
type Span struct{ From, To int }

// Append appends a part of a body that lies in pieces.
func (s Span) Append(dst []byte, body [][]byte) []byte {
	for _, p := range s.cut(nil, body) {
		dst = append(dst, p...)
	}
	return dst
}

// cut appends the pieces of a body that a span is.
func (s Span) cut(dst, body [][]byte) [][]byte {
	at := 0
	for _, p := range body {
		if at >= s.To {
			break
		}
		if end := at + len(p); end > s.From {
			dst = append(dst, p[max(s.From-at, 0):min(s.To-at, len(p))])
		}
		at += len(p)
	}
	return dst
}

// reader reads a body that lies in pieces. It uses up its list, not the pieces.
type reader struct {
	pieces [][]byte
}

// Read implements io.Reader.
func (r *reader) Read(b []byte) (int, error) {
	for len(r.pieces) > 0 {
		if len(r.pieces[0]) == 0 {
			r.pieces = r.pieces[1:]
			continue
		}
		n := copy(b, r.pieces[0])
		if n < len(r.pieces[0]) {
			r.pieces[0] = r.pieces[0][n:]
		} else {
			r.pieces = r.pieces[1:]
		}
		return n, nil
	}
	return 0, io.EOF
}
