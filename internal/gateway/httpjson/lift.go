package httpjson

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"strings"
)

// prompt is an array that was lifted out of a RouteRequest's text.
type prompt struct {
	form form
	// packed is the array as the wire has it: little-endian, form.width() bytes a number.
	packed []byte
	// from and to are where the array's text was.
	from, to int
}

// form is a prompt that has an array in it.
type form uint8

const (
	nothing form = iota
	tokens
	hashes
)

// formOf is the form that a member of RouteRequest is.
func formOf(name []byte) form {
	switch string(name) {
	case "tokens":
		return tokens
	case "block_hashes", "blockHashes":
		return hashes
	}
	return nothing
}

// isArray says whether a member of the prompt is its array.
func (f form) isArray(name []byte) bool {
	switch string(name) {
	case "token_ids", "tokenIds":
		return f == tokens
	case "local_hashes", "localHashes":
		return f == hashes
	}
	return false
}

// width is the size of a number in bytes.
func (f form) width() int {
	if f == hashes {
		return 8
	}
	return 4
}

// field is the array as errors name it.
func (f form) field() string {
	if f == hashes {
		return "block_hashes.local_hashes"
	}
	return "tokens.token_ids"
}

// errBase64 is a string in an array's place that is not one.
var errBase64 = errors.New("want an array of numbers, or base64 of them in little-endian bytes")

// lift finds the one array of token ids or block hashes in the text of a RouteRequest and packs it into p.packed. The form
// is nothing if there is none, or anything is unusual about it: then the text is protojson's to judge, whole.
func (p *prompt) lift(text []byte) error {
	p.form, p.packed = nothing, p.packed[:0]
	found, err := p.find(&scan{text: text})
	if !found {
		p.form, p.packed = nothing, p.packed[:0]
	}
	return err
}

func (p *prompt) find(s *scan) (found bool, err error) {
	if !s.open('{') {
		return false, nil
	}
	for s.member() {
		f := formOf(s.name)
		if f == nothing || s.peek() != '{' {
			if !s.skip() {
				return false, nil
			}
			continue
		}
		s.at++
		for s.member() {
			switch {
			case !f.isArray(s.name):
				if !s.skip() {
					return false, nil
				}
			case found:
				return false, nil
			default:
				if found, err = p.take(s, f); !found {
					return false, err
				}
			}
		}
		if !s.closed {
			return false, nil
		}
	}
	return found && s.closed, nil
}

// take reads the array at hand.
func (p *prompt) take(s *scan, f form) (ok bool, err error) {
	s.space()
	p.form, p.from = f, s.at
	switch s.peek() {
	case '[':
		ok = p.numbers(s)
	case '"':
		ok, err = p.base64(s)
	}
	p.to = s.at
	return ok, err
}

// numbers reads an array of plain numbers; 64-bit ones may be strings, as protojson writes them.
func (p *prompt) numbers(s *scan) bool {
	s.at++
	if s.peek() == ']' {
		s.at++
		return true
	}
	most := uint64(math.MaxUint32)
	if p.form == hashes {
		most = math.MaxUint64
	}
	for {
		isQuoted := s.peek() == '"'
		if isQuoted {
			if p.form != hashes {
				return false
			}
			s.at++
		}
		v, ok := s.number(most)
		if !ok {
			return false
		}
		if isQuoted {
			if s.at >= len(s.text) || s.text[s.at] != '"' {
				return false
			}
			s.at++
		}
		if p.form == tokens {
			p.packed = binary.LittleEndian.AppendUint32(p.packed, uint32(v))
		} else {
			p.packed = binary.LittleEndian.AppendUint64(p.packed, v)
		}
		switch s.peek() {
		case ',':
			s.at++
			s.space()
		case ']':
			s.at++
			return true
		default:
			return false
		}
	}
}

// base64 reads a string of any of base64's usual forms.
func (p *prompt) base64(s *scan) (bool, error) {
	from := s.at
	if !s.str() {
		return false, nil
	}
	in := s.text[from+1 : s.at-1]
	if bytes.IndexByte(in, '\\') >= 0 { // some encoders write a slash as \/
		var plain string
		if json.Unmarshal(s.text[from:s.at], &plain) != nil {
			return false, &fieldError{p.form.field(), errBase64}
		}
		in = []byte(plain)
	}
	enc := base64.StdEncoding
	if bytes.ContainsAny(in, "-_") {
		enc = base64.URLEncoding
	}
	if len(in)%4 != 0 {
		enc = enc.WithPadding(base64.NoPadding)
	}
	out, err := enc.AppendDecode(p.packed, in)
	if err != nil || len(out)%p.form.width() != 0 || bytes.ContainsAny(in, "\r\n") {
		return false, &fieldError{p.form.field(), errBase64}
	}
	p.packed = out
	return true, nil
}

// fieldError is a field that cannot be read.
type fieldError struct {
	field string
	err   error
}

// Error implements error.
func (e *fieldError) Error() string { return e.field + ": " + e.err.Error() }

// scan walks over JSON text. It finds the ends of values in valid text; what is not valid it need not notice.
type scan struct {
	text   []byte
	at     int
	name   []byte // of the member at hand, as written: one with an escape in it is none that is looked for
	closed bool   // the object walked over last has ended
}

// space skips white space.
func (s *scan) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// peek is the next byte that is no space; 0 at the end.
func (s *scan) peek() byte {
	s.space()
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

func (s *scan) open(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.at++
	return true
}

// member moves on to the value of the object's next member. It is false at the object's end, which closed says, and
// where there is neither.
func (s *scan) member() bool {
	s.closed = false
	c := s.peek()
	if c == '}' {
		s.at++
		s.closed = true
		return false
	}
	if c == ',' {
		s.at++
		c = s.peek()
	}
	from := s.at
	if c != '"' || !s.str() {
		return false
	}
	s.name = s.text[from+1 : s.at-1]
	return s.open(':')
}

// str skips a string.
func (s *scan) str() bool {
	for s.at++; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case '\\':
			s.at++
		case '"':
			s.at++
			return true
		}
	}
	return false
}

// skip skips a value.
func (s *scan) skip() bool {
	depth := 0
	for {
		switch c := s.peek(); c {
		case 0:
			return false
		case '"':
			if !s.str() {
				return false
			}
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			if depth--; depth < 0 {
				return false
			}
			s.at++
		case ',', ':':
			if depth == 0 {
				return false
			}
			s.at++
			continue
		default:
			n := bytes.IndexAny(s.text[s.at:], " \t\r\n,:\"{}[]")
			if n < 0 {
				return false
			}
			s.at += n
		}
		if depth == 0 {
			return true
		}
	}
}

// number reads a number that is written in digits only. Nineteen of them fit into 64 bits, whatever they are.
func (s *scan) number(most uint64) (v uint64, ok bool) {
	from := s.at
	for s.at < len(s.text) {
		d := uint64(s.text[s.at] - '0')
		if d > 9 {
			break
		}
		if s.at-from >= 19 && v > (most-d)/10 {
			return 0, false
		}
		v = v*10 + d
		s.at++
	}
	n := s.at - from
	return v, v <= most && (n == 1 || n > 1 && s.text[from] != '0')
}

// longestError bounds what an error quotes of a body: it may be the prompt.
const longestError = 160

// trim is for protojson's errors, whose beginning is made to vary and which quote what they did not expect.
func trim(text string) string {
	text = strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(text, "\u00a0", " "), "proto:"))
	if len(text) > longestError {
		text = strings.ToValidUTF8(text[:longestError], "") + "..."
	}
	return text
}
