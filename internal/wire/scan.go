package wire

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvoracle/kvoracle/internal/block"
)

// scanner reads a message that lies in several pieces of memory.
type scanner struct {
	pieces [][]byte // those not read yet; the first is rest
	rest   []byte
	left   int // bytes not read yet
}

func newScanner(pieces [][]byte) scanner {
	s := scanner{pieces: pieces, left: block.PackedLen(pieces)}
	s.next()
	return s
}

// next moves on to the next piece that is not empty.
func (s *scanner) next() {
	for len(s.rest) == 0 && len(s.pieces) > 0 {
		s.rest, s.pieces = s.pieces[0], s.pieces[1:]
	}
}

// varint reads a number of at most 10 bytes.
func (s *scanner) varint() (v uint64, ok bool) {
	if len(s.rest) > 0 && s.rest[0] < 0x80 {
		v = uint64(s.rest[0])
		s.skip(1)
		return v, true
	}
	var buf [binary.MaxVarintLen64]byte
	for n := range buf {
		if s.left == 0 {
			return 0, false
		}
		buf[n] = s.rest[0]
		s.skip(1)
		if buf[n] < 0x80 {
			v, read := protowire.ConsumeVarint(buf[:n+1])
			return v, read == n+1
		}
	}
	return 0, false
}

// skip moves on by n bytes of the piece at hand.
func (s *scanner) skip(n int) {
	s.rest = s.rest[n:]
	s.left -= n
	s.next()
}

// copyTo appends the next n bytes to dst.
func (s *scanner) copyTo(dst []byte, n int) []byte {
	for n > 0 {
		k := min(n, len(s.rest))
		dst = append(dst, s.rest[:k]...)
		s.skip(k)
		n -= k
	}
	return dst
}

// span appends the next n bytes to dst as they lie.
func (s *scanner) span(dst [][]byte, n int) [][]byte {
	for n > 0 {
		k := min(n, len(s.rest))
		dst = append(dst, s.rest[:k])
		s.skip(k)
		n -= k
	}
	return dst
}

// field reads a field's number and kind, and for one with a length the length, which the message has. What protobuf-go
// refuses, and groups, which nobody sends, are not ok.
func (s *scanner) field() (num protowire.Number, kind protowire.Type, size int, ok bool) {
	tag, ok := s.varint()
	if !ok {
		return 0, 0, 0, false
	}
	num, kind = protowire.DecodeTag(tag)
	if !num.IsValid() {
		return 0, 0, 0, false
	}
	switch kind {
	case protowire.VarintType:
		return num, kind, 0, true
	case protowire.Fixed32Type:
		size = 4
	case protowire.Fixed64Type:
		size = 8
	case protowire.BytesType:
		n, ok := s.varint()
		if !ok || n > uint64(s.left) {
			return 0, 0, 0, false
		}
		return num, kind, int(n), true
	case protowire.StartGroupType, protowire.EndGroupType:
		return 0, 0, 0, false
	default:
		return 0, 0, 0, false
	}
	return num, kind, size, size <= s.left
}

// keep appends a field whose beginning has been read to dst.
func (s *scanner) keep(dst []byte, num protowire.Number, kind protowire.Type, size int) (_ []byte, ok bool) {
	dst = protowire.AppendTag(dst, num, kind)
	if kind == protowire.VarintType {
		v, ok := s.varint()
		return protowire.AppendVarint(dst, v), ok
	}
	if kind == protowire.BytesType {
		dst = protowire.AppendVarint(dst, uint64(size))
	}
	return s.copyTo(dst, size), true
}
