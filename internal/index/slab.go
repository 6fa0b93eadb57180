package index

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// at is the position of an entry in its ledger's slab.
type at int32

const (
	nowhere at = -1 // no such entry; as a parent: the entry is not held
	root    at = -2 // as a parent: the prompt's start
)

const (
	chunkBits = 10
	chunkLen  = 1 << chunkBits
)

// entry is a block that a ledger holds, or a ghost: a parent that blocks hang on although it is not held.
//
//	held(e)      = some copies[t] > 0 = (parent != nowhere)
//	connected(e) = held(e) and (parent is the root or connected(parent))
//	level(e)     = least t >= level(parent) with copies[t] > 0, where level(root) is Device; noLevel if there is
//	               no such t, if the parent has none, or if e is not connected
//	place(e)     = place(parent).child(id) if connected(e), meaningless otherwise
//
// A ghost has a child. Entries hold no pointers, so the garbage collector does not look at them.
type entry struct {
	id     block.ID
	place  place
	parent at
	first  at // of the children
	next   at // sibling; in a free entry the next free one
	prev   at // sibling
	copies [fleet.NumTiers]uint16
	level  level
	flags  flags
}

type flags uint8

const (
	inUse     flags = 1 << iota // not free
	connected                   // as above
	orphan                      // held but not connected
	waiting                     // counts against the orphan limit: was an orphan when it was stored, and still is
)

func (e *entry) isHeld() bool { return e.parent != nowhere }

// hasCopies reports whether some tier has the block.
func (e *entry) hasCopies() bool { return e.copies != [fleet.NumTiers]uint16{} }

// slab is a ledger's entries, in chunks so that growing copies nothing and Reclaim can return it piece by piece.
type slab struct {
	chunks []*[chunkLen]entry
	end    at // first position never used
	free   at // head of the list of free entries
	used   int
}

func newSlab() slab { return slab{free: nowhere} }

func (s *slab) entry(i at) *entry { return &s.chunks[i>>chunkBits][i&(chunkLen-1)] }

// take makes an entry that is not held and hangs nowhere.
func (s *slab) take(id block.ID) at {
	i := s.free
	if i != nowhere {
		s.free = s.entry(i).next
	} else {
		i = s.end
		s.end++
		if int(i>>chunkBits) == len(s.chunks) {
			s.chunks = append(s.chunks, new([chunkLen]entry))
		}
	}
	*s.entry(i) = entry{id: id, parent: nowhere, first: nowhere, next: nowhere, prev: nowhere, level: noLevel, flags: inUse}
	s.used++
	return i
}

// give frees an entry.
func (s *slab) give(i at) {
	*s.entry(i) = entry{next: s.free}
	s.free = i
	s.used--
}

// isSparse reports whether compacting would return most of the memory.
func (s *slab) isSparse() bool { return len(s.chunks) > 4 && s.used < len(s.chunks)*chunkLen/4 }

// link hangs a child that hangs nowhere under a parent.
func (s *slab) link(child, parent at) {
	e := s.entry(child)
	e.parent = parent
	if parent == root {
		return
	}
	p := s.entry(parent)
	if p.first != nowhere {
		s.entry(p.first).prev = child
	}
	e.next, e.prev = p.first, nowhere
	p.first = child
}

// unlink takes a child off its parent.
func (s *slab) unlink(child at) {
	e := s.entry(child)
	if e.parent == nowhere {
		return
	}
	if e.parent != root {
		if e.prev == nowhere {
			s.entry(e.parent).first = e.next
		} else {
			s.entry(e.prev).next = e.next
		}
		if e.next != nowhere {
			s.entry(e.next).prev = e.prev
		}
	}
	e.parent, e.next, e.prev = nowhere, nowhere, nowhere
}
