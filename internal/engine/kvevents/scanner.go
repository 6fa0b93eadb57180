package kvevents

import (
	"bytes"
	"encoding/json"
)

// scanner walks over JSON that json.Valid has approved, without copying it.
type scanner struct {
	b []byte
	i int
}

// peek is the next byte that is no space; 0 at the end.
func (s *scanner) peek() byte {
	for ; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// enter passes an opening bracket, if one is next.
func (s *scanner) enter(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.i++
	return true
}

// more passes to the next member of a list or an object, or behind its end.
func (s *scanner) more(end byte) bool {
	c := s.peek()
	if c == ',' {
		s.i++
		c = s.peek()
	}
	if c == end || c == 0 {
		s.i++
		return false
	}
	return true
}

// key reads a member's name and passes the colon.
func (s *scanner) key() []byte {
	k, _ := s.text()
	if s.peek() == ':' {
		s.i++
	}
	s.peek()
	return k
}

// text reads a string. Without escapes it is a part of the input.
func (s *scanner) text() ([]byte, bool) {
	if s.peek() != '"' {
		return nil, false
	}
	start := s.i
	s.skipText()
	t := s.b[start:s.i:s.i]
	if bytes.IndexByte(t, '\\') < 0 {
		return t[1 : len(t)-1], true
	}
	var v string
	if json.Unmarshal(t, &v) != nil {
		return nil, false
	}
	return []byte(v), true
}

func (s *scanner) skipText() {
	for s.i++; s.i < len(s.b) && s.b[s.i] != '"'; s.i++ {
		if s.b[s.i] == '\\' {
			s.i++
		}
	}
	s.i++
}

func (s *scanner) isNull() bool { return s.peek() == 'n' }

// integer reads a whole number of 64 bits, signed ones as their two's complement.
func (s *scanner) integer() (uint64, bool) {
	isNegative := s.peek() == '-'
	if isNegative {
		s.i++
	}
	start, v := s.i, uint64(0)
	for ; s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9'; s.i++ {
		c := uint64(s.b[s.i] - '0')
		if v > (1<<64-1-c)/10 {
			return 0, false
		}
		v = v*10 + c
	}
	if s.i == start || s.i < len(s.b) && (s.b[s.i] == '.' || s.b[s.i]|0x20 == 'e') || isNegative && v > 1<<63 {
		return 0, false
	}
	if isNegative {
		v = -v
	}
	return v, true
}

// skip passes over one value.
func (s *scanner) skip() {
	switch s.peek() {
	case '"':
		s.skipText()
	case '{', '[':
		s.i++
		s.leave()
	default:
		for ; s.i < len(s.b); s.i++ {
			switch s.b[s.i] {
			case ',', ']', '}', ' ', '\t', '\r', '\n':
				return
			}
		}
	}
}

// leave passes over the rest of the list or object that the position is in.
func (s *scanner) leave() {
	for depth := 1; depth > 0 && s.i < len(s.b); {
		switch s.b[s.i] {
		case '"':
			s.skipText()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		s.i++
	}
}
