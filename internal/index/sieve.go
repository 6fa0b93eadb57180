package index

import "github.com/kvoracle/kvoracle/internal/block"

const (
	sieveBits = 4096
	sieveFull = sieveBits / 2
)

// sieve tells of most ids that they are not among a few, without a look at a map: of a ledger's ghosts there are few, and
// nearly no new block is one. What was added stays until the next renewal.
//
//	has(id) for every id added since
type sieve struct {
	bits [sieveBits / 64]uint64
	used int // bits set
}

func (s *sieve) place(id block.ID) (word int, bit uint64) {
	k := mix(id) >> 52
	return int(k / 64), 1 << (k % 64)
}

func (s *sieve) add(id block.ID) {
	if k, bit := s.place(id); s.bits[k]&bit == 0 {
		s.bits[k] |= bit
		s.used++
	}
}

func (s *sieve) has(id block.ID) bool {
	k, bit := s.place(id)
	return s.bits[k]&bit != 0
}

// isGhost reports whether others name a block that is not held.
func (l *Ledger) isGhost(id block.ID) bool {
	if !l.sieve.has(id) {
		return false
	}
	_, ok := l.ghosts[id]
	return ok
}

// setGhost writes a ghost down.
func (l *Ledger) setGhost(id block.ID, g ghost) {
	l.ghosts[id] = g
	if l.sieve.add(id); l.sieve.used > max(sieveFull, 4*len(l.ghosts)) {
		// Mostly of ghosts that are gone. It takes as many new ones until the next time as there are here at least.
		l.sieve = sieve{}
		for id := range l.ghosts {
			l.sieve.add(id)
		}
	}
}
