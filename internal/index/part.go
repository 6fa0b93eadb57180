package index

import (
	"math"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// part is what a ledger has of one segment. Nearly always that is so many leading blocks, once each, in the device: a
// number. Anything else is written down in spans.
//
//	hung(p)     = the segment's first block is held
//	connected   = leading blocks whose way to the start is complete: what is held from the first block on without a
//	              hole, if the segment's parent is the start or is connected itself
//	covers[v]   = leading ones of those with a level of at most v
type part struct {
	segment handle
	up      uint32 // the part that holds the parent; 0 if it is the start, is not held, or the part is not hung
	kid     uint32 // first of the parts whose parents are in this one
	next    uint32 // sibling; in a free part the next free one
	prev    uint32 // sibling
	spans   uint32 // where they are in the ledger's slab, if hasSpans is set
	plain   uint16 // leading blocks held once in the device, and nothing else; if hasSpans is set, how many spans
	held    uint16
	stamp   uint32 // clock when last stored into or touched
	waits   uint16 // held blocks that wait
	kidMost uint16 // no kid hangs on a later block
	joined  uint16 // connected, as above, when last settled
	was     uint16 // held when last settled
	covers  covers
	upIndex uint16 // which block of up is the parent
	flags   flags
}

type flags uint8

const (
	inUse    flags = 1 << iota
	isHung         // as above
	hasSpans       // Ledger.spans tells, see plain
	isDirty        // in Ledger.dirty
)

// span is a sequence of blocks of a segment that are held alike.
type span struct {
	from, to uint16
	copies   [fleet.NumTiers]uint16
	waiting  bool // counts against the orphan limit: was an orphan when it was stored, and still is
}

func (s *span) isLike(o *span) bool { return s.copies == o.copies && s.waiting == o.waiting }

// once is how most blocks are held: one copy, in the device.
func once() [fleet.NumTiers]uint16 { return [fleet.NumTiers]uint16{1} }

// ghost is a block that is not held but follows nothing less: others name it as their parent. It has no parent of its
// own, so that no circle of parents can keep itself alive, and goes with its last child.
type ghost struct {
	kid    uint32 // first of the parts that hang on it
	inside int32  // held blocks that follow it inside a segment
}

// place is where a ledger has a block. Part 0 is nowhere.
type place struct {
	part  uint32
	index int
}

func (l *Ledger) newPart(h handle) uint32 {
	l.branches.Add(1)
	l.ix.parts.Add(1)
	i := l.free
	if i != 0 {
		l.free = l.parts[i].next
	} else {
		if len(l.parts) == 0 {
			l.parts = append(l.parts, part{})
		}
		i = uint32(len(l.parts))
		if len(l.parts) == cap(l.parts) {
			// An eighth at a time: there may be thousands of ledgers.
			l.parts = append(make([]part, 0, len(l.parts)*9/8+8), l.parts...)
		}
		l.parts = append(l.parts, part{})
	}
	l.parts[i] = part{segment: h, stamp: l.ix.clock.Load(), flags: inUse}
	return i
}

func (l *Ledger) freePart(i uint32) {
	l.branches.Add(-1)
	l.ix.parts.Add(-1)
	l.parts[i] = part{next: l.free}
	l.free = i
}

// state gives how a block of a part is held.
func (l *Ledger) how(at place) (copies [fleet.NumTiers]uint16, waiting bool) {
	p := &l.parts[at.part]
	if p.flags&hasSpans == 0 {
		if at.index < int(p.plain) {
			copies = once()
		}
		return copies, false
	}
	for _, s := range l.spans.at(p.spans, int(p.plain)) {
		if at.index < int(s.to) {
			if at.index >= int(s.from) {
				return s.copies, s.waiting
			}
			break
		}
	}
	return copies, false
}

func (l *Ledger) holds(at place) bool {
	if p := &l.parts[at.part]; p.flags&hasSpans == 0 {
		return at.index < int(p.plain)
	}
	c, _ := l.how(at)
	return c != [fleet.NumTiers]uint16{}
}

// all is a part in spans, in order, for reading.
func (l *Ledger) all(i uint32) []span {
	p := &l.parts[i]
	if p.flags&hasSpans != 0 {
		return l.spans.at(p.spans, int(p.plain))
	}
	if p.plain == 0 {
		return nil
	}
	l.single[0] = span{to: p.plain, copies: once()}
	return l.single[:]
}

// reach is where the last block held ends.
func (l *Ledger) reach(i uint32) int {
	all := l.all(i)
	if len(all) == 0 {
		return 0
	}
	return int(all[len(all)-1].to)
}

// set changes how a block is held.
func (l *Ledger) set(at place, copies [fleet.NumTiers]uint16, waiting bool) {
	p := &l.parts[at.part]
	none := [fleet.NumTiers]uint16{}
	if p.flags&hasSpans == 0 {
		switch {
		case at.index == int(p.plain) && copies == once() && !waiting:
			p.plain++
			return
		case at.index == int(p.plain)-1 && copies == none:
			p.plain--
			return
		case at.index < int(p.plain) && copies == once() && !waiting, at.index >= int(p.plain) && copies == none:
			return
		}
	}
	was := l.all(at.part)
	now := l.spare[:0]
	one := span{from: uint16(at.index), to: uint16(at.index) + 1, copies: copies, waiting: waiting}
	push := func(s span) {
		if s.from >= s.to || s.copies == none {
			return
		}
		if n := len(now); n > 0 && now[n-1].to == s.from && now[n-1].isLike(&s) {
			now[n-1].to = s.to
			return
		}
		now = append(now, s)
	}
	isIn := false
	for _, s := range was {
		if !isIn && s.to > one.from {
			left := s
			left.to = min(s.to, one.from)
			push(left)
			push(one)
			isIn = true
		}
		if s.to > one.from {
			s.from = max(s.from, one.to)
		}
		push(s)
	}
	if !isIn {
		push(one)
	}
	l.keepSpans(at.part, now)
}

// keepSpans makes now, which is working memory, what a part has.
func (l *Ledger) keepSpans(i uint32, now []span) {
	p := &l.parts[i]
	l.spare = now
	before := 0
	if p.flags&hasSpans != 0 {
		before = int(p.plain)
	}
	p.flags &^= hasSpans
	switch {
	case len(now) == 0:
		p.plain, now = 0, nil
	case len(now) == 1 && now[0].from == 0 && now[0].copies == once() && !now[0].waiting:
		p.plain, now = now[0].to, nil
	default:
		p.plain = uint16(len(now))
		p.flags |= hasSpans
	}
	p.spans = l.spans.keep(p.spans, before, now)
}

// recount adds a copy to each block from..to of a part, or takes one away, as far as every one of them is held before and
// after, so that nothing else has to be told. It says how many that were.
func (l *Ledger) recount(i uint32, from, to int, tier fleet.Tier, isMore bool) int {
	at := from
	for _, s := range l.all(i) {
		if int(s.to) <= at {
			continue
		}
		n := s.copies[tier]
		if int(s.from) > at || isMore && (n == 0 || n == math.MaxUint16) || !isMore && n < 2 {
			break
		}
		if at = min(int(s.to), to); at == to {
			break
		}
	}
	if to = at; from == to {
		return 0
	}
	d := &l.digests[tier]
	for _, id := range l.ix.blocks(l.parts[i].segment)[from:to] {
		if isMore {
			d.another(block.ID(id))
		} else {
			d.fewer(block.ID(id), 1)
		}
	}
	now := l.spare[:0]
	push := func(s span) {
		if s.from >= s.to {
			return
		}
		if n := len(now); n > 0 && now[n-1].to == s.from && now[n-1].isLike(&s) {
			now[n-1].to = s.to
			return
		}
		now = append(now, s)
	}
	for _, s := range l.all(i) {
		left, middle, right := s, s, s
		left.to = min(s.to, uint16(from))
		middle.from, middle.to = max(s.from, uint16(from)), min(s.to, uint16(to))
		right.from = max(s.from, uint16(to))
		if isMore {
			middle.copies[tier]++
		} else {
			middle.copies[tier]--
		}
		push(left)
		push(middle)
		push(right)
	}
	l.keepSpans(i, now)
	return to - from
}

// find looks for a block that the ledger holds. The caller is a reader.
func (l *Ledger) find(id block.ID) (found place) {
	l.ix.each(id, func(at location) bool {
		i, ok := l.ix.listed(at.segment(), l.key)
		if ok && l.holds(place{i, at.index()}) {
			found = place{i, at.index()}
			return true
		}
		return false
	})
	return found
}

// id names the block at a place that a part reaches to.
func (l *Ledger) id(at place) block.ID {
	return block.ID(l.ix.blocks(l.parts[at.part].segment)[at.index])
}

// parent is what a block follows.
func (l *Ledger) parent(at place) Parent {
	if at.index > 0 {
		return Parent{ID: l.id(place{at.part, at.index - 1})}
	}
	s := l.ix.segment(l.parts[at.part].segment)
	if s.isRoot {
		return Parent{IsRoot: true}
	}
	return Parent{ID: s.parent}
}

// levelOf and isJoined are what has been settled last.
func (p *part) levelOf(i uint16) level {
	v := level(0)
	for v < noLevel && i >= p.covers[v] {
		v++
	}
	return v
}

func (p *part) isJoined(i int) bool { return i < int(p.joined) }
