package index

import "math/bits"

// slab keeps the spans of a ledger's parts, in pieces of a few sizes. It has no pointers, so that a garbage collection does
// not look through the holes of all ledgers.
type slab struct {
	all  []span              // 0 is no piece
	free [slabClasses]uint32 // heads of lists threaded through the pieces' first spans
	used int                 // pieces
}

// slabClasses are enough for a span for each block of a segment.
const slabClasses = 17

// slabClass gives the sizes that are kept: two to each doubling. It follows from how many spans there are, so that nobody
// has to remember it.
func slabClass(n int) (class, size int) {
	if n <= 2 {
		return 0, 2
	}
	e := bits.Len(uint(n - 1)) // 2^(e-1) < n <= 2^e
	if size = 3 << (e - 2); n <= size {
		return 2*e - 3, size
	}
	return 2*e - 2, 1 << e
}

// at are the n spans of a piece, good until the next keep.
func (s *slab) at(pos uint32, n int) []span { return s.all[pos : int(pos)+n : int(pos)+n] }

// keep writes spans into the piece of n that there is, or into another one if that does not have the right size, and says
// where they are. n and the spans may be none. They must not be in the slab.
func (s *slab) keep(pos uint32, n int, now []span) uint32 {
	class, size := slabClass(len(now))
	if before, _ := slabClass(n); n == 0 || len(now) == 0 || before != class {
		s.drop(pos, n)
		if len(now) == 0 {
			return 0
		}
		pos = s.take(class, size)
	}
	copy(s.all[pos:], now)
	return pos
}

func (s *slab) take(class, size int) uint32 {
	s.used++
	if pos := s.free[class]; pos != 0 {
		first := &s.all[pos]
		s.free[class] = uint32(first.from)<<16 | uint32(first.to)
		return pos
	}
	pos := max(len(s.all), 1)
	if want := pos + size; want > cap(s.all) {
		s.all = append(make([]span, 0, want+want/8), s.all...)
	}
	s.all = s.all[:pos+size]
	return uint32(pos)
}

// drop frees a piece; with the last one all memory goes.
func (s *slab) drop(pos uint32, n int) {
	if n == 0 {
		return
	}
	if s.used--; s.used == 0 {
		*s = slab{}
		return
	}
	class, _ := slabClass(n)
	s.all[pos] = span{from: uint16(s.free[class] >> 16), to: uint16(s.free[class])}
	s.free[class] = pos
}
