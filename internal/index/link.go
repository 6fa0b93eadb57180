package index

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// hang hooks a part whose first block has come on what that follows. up is the parent's place; part 0: not held.
func (l *Ledger) hang(i uint32, up place) {
	p := &l.parts[i]
	p.flags |= isHung
	s := l.ix.segment(p.segment)
	if s.isRoot {
		return
	}
	if up.part != 0 {
		l.hook(i, up)
		return
	}
	g, ok := l.ghosts[s.parent]
	if !ok {
		l.entries++
	}
	p.next, p.prev = g.kid, 0
	if g.kid != 0 {
		l.parts[g.kid].prev = i
	}
	g.kid = i
	l.setGhost(s.parent, g)
}

// hook puts a part among the kids of another.
func (l *Ledger) hook(i uint32, up place) {
	p, u := &l.parts[i], &l.parts[up.part]
	p.up, p.upIndex = up.part, uint16(up.index)
	p.next, p.prev = u.kid, 0
	if u.kid != 0 {
		l.parts[u.kid].prev = i
	}
	u.kid = i
	u.kidMost = max(u.kidMost, uint16(up.index))
}

// unhook takes a part out of its siblings. first is where the list begins.
func (l *Ledger) unhook(i uint32, first *uint32) {
	p := &l.parts[i]
	if p.prev == 0 {
		*first = p.next
	} else {
		l.parts[p.prev].next = p.next
	}
	if p.next != 0 {
		l.parts[p.next].prev = p.prev
	}
	p.up, p.upIndex, p.next, p.prev = 0, 0, 0, 0
}

// unhang undoes hang: the part's first block has gone.
func (l *Ledger) unhang(i uint32) {
	p := &l.parts[i]
	p.flags &^= isHung
	s := l.ix.segment(p.segment)
	switch {
	case s.isRoot:
	case p.up != 0:
		l.unhook(i, &l.parts[p.up].kid)
	default:
		g := l.ghosts[s.parent]
		l.unhook(i, &g.kid)
		l.haunt(s.parent, g)
	}
}

// haunt writes a ghost down, or lets it go if nothing follows it any more.
func (l *Ledger) haunt(id block.ID, g ghost) {
	if g == (ghost{}) {
		delete(l.ghosts, id)
		l.entries--
		return
	}
	l.setGhost(id, g)
}

// soil notes that a part has to be settled.
func (l *Ledger) soil(i uint32) {
	if p := &l.parts[i]; p.flags&isDirty == 0 {
		p.flags |= isDirty
		l.dirty = append(l.dirty, i)
	}
}

// put adds a block that is not held at a place of a part that reaches there in its list. up is where the block it
// follows is held, if it is.
func (l *Ledger) put(at place, id block.ID, up place, copies [fleet.NumTiers]uint16, waiting bool) {
	g, wasGhost := l.ghosts[id]
	if wasGhost {
		delete(l.ghosts, id)
	} else {
		l.entries++
	}
	l.held++
	l.parts[at.part].held++
	if waiting {
		l.waiting++
		l.parts[at.part].waits++
	}
	l.set(at, copies, waiting)
	l.soil(at.part)
	if at.index == 0 {
		l.hang(at.part, up)
	} else if !l.holds(place{at.part, at.index - 1}) {
		before := l.id(place{at.part, at.index - 1})
		b, ok := l.ghosts[before]
		if !ok {
			l.entries++
		}
		b.inside++
		l.setGhost(before, b)
	}
	if wasGhost {
		l.revive(at, id, g)
	}
}

// putPlain is put for blocks that follow one another, nobody has named before, and are held as most are, where all before
// them are held so, too. It does nothing if that is not so.
func (l *Ledger) putPlain(at place, ids []block.ID, up place) bool {
	p := &l.parts[at.part]
	if p.flags&hasSpans != 0 || int(p.plain) != at.index {
		return false
	}
	n := uint16(len(ids))
	p.plain += n
	p.held += n
	l.held += len(ids)
	l.entries += len(ids)
	for _, id := range ids {
		l.digests[fleet.Device].add(id)
	}
	l.soil(at.part)
	if at.index == 0 {
		l.hang(at.part, up)
	}
	return true
}

// revive connects what has waited for a block with the place where it has come.
//
// A reporter that names one block in two ways can make successors wait in a segment where the block does not stand now,
// or in one of their own although the block's segment goes on with them, where a chain would be looked for. They are
// strays. Nobody is credited with them before their block is connected, and then they move; not earlier, because moving
// along a circle of parents has no end.
func (l *Ledger) revive(at place, id block.ID, g ghost) {
	next := place{at.part, at.index + 1}
	w := l.ix.blocks(l.parts[at.part].segment)
	isStray := false
	if g.inside > 0 && next.index < l.reach(at.part) && l.holds(next) {
		g.inside--
	}
	for g.kid != 0 {
		k := g.kid
		l.unhook(k, &g.kid)
		l.hook(k, at)
		l.soil(k)
		if s := l.ix.segment(l.parts[k].segment); next.index < len(w) && w[next.index] == uint64(s.head) {
			isStray = true
		}
	}
	if isStray || g.inside > 0 {
		l.strays[id] = g.inside
	}
}

// gatherStrays moves the strays of a block that is connected to where they belong.
func (l *Ledger) gatherStrays(at place, id block.ID) {
	inside, ok := l.strays[id]
	if !ok {
		return
	}
	next := at.index + 1
	w := l.ix.blocks(l.parts[at.part].segment)
	var moves []place
	for k := l.parts[at.part].kid; k != 0; k = l.parts[k].next {
		s := l.ix.segment(l.parts[k].segment)
		if int(l.parts[k].upIndex) == at.index && next < len(w) && w[next] == uint64(s.head) {
			moves = append(moves, place{k, 0})
		}
	}
	if inside > 0 {
		l.ix.each(id, func(there location) bool {
			i, ok := l.ix.listed(there.segment(), l.key)
			if ok && (place{i, there.index()}) != at && there.index()+1 < l.reach(i) && l.holds(place{i, there.index() + 1}) {
				moves = append(moves, place{i, there.index() + 1})
			}
			return false
		})
	}
	for _, from := range moves {
		l.move(from, at)
	}
	delete(l.strays, id)
}

// moved is a block under way.
type moved struct {
	id      block.ID
	copies  [fleet.NumTiers]uint16
	waiting bool
}

// move takes the blocks from a place on to where they belong after up.
func (l *Ledger) move(from, up place) {
	var all []moved
	end := from.index
	for end < l.reach(from.part) && l.holds(place{from.part, end}) {
		at := place{from.part, end}
		copies, waiting := l.how(at)
		all = append(all, moved{l.id(at), copies, waiting})
		end++
	}
	for n := len(all) - 1; n >= 0; n-- {
		l.take(place{from.part, from.index + n}, all[n].id)
	}
	ids := make([]block.ID, len(all))
	for n := range all {
		ids[n] = all[n].id
	}
	parent := Parent{ID: l.id(up)}
	for n := 0; n < len(ids); {
		at, got := l.claim(up, parent, ids[n:], nil)
		if got == 0 {
			// No segment is left in the index: the blocks are given up.
			for _, m := range all[n:] {
				for t, c := range m.copies {
					if c > 0 {
						l.digests[t].remove(m.id, c)
					}
				}
			}
			return
		}
		for range got {
			l.put(at, ids[n], up, all[n].copies, all[n].waiting)
			up, parent = at, Parent{ID: ids[n]}
			at.index++
			n++
		}
	}
}

// take lets a held block go. What follows it waits for it to come back.
func (l *Ledger) take(at place, id block.ID) {
	p := &l.parts[at.part]
	var g ghost
	if at.index <= int(p.kidMost) {
		most := uint16(0)
		for k := p.kid; k != 0; {
			next := l.parts[k].next
			if int(l.parts[k].upIndex) == at.index {
				l.unhook(k, &p.kid)
				l.parts[k].next = g.kid
				if g.kid != 0 {
					l.parts[g.kid].prev = k
				}
				g.kid = k
				l.soil(k)
			} else {
				most = max(most, l.parts[k].upIndex)
			}
			k = next
		}
		p.kidMost = most
	}
	if _, waits := l.how(at); waits {
		l.waiting--
		p.waits--
	}
	l.set(at, [fleet.NumTiers]uint16{}, false)
	l.held--
	p.held--
	l.soil(at.part)
	if at.index+1 < segmentMax && at.index+1 < l.reach(at.part) && l.holds(place{at.part, at.index + 1}) {
		g.inside = 1
	}
	if n, ok := l.strays[id]; ok {
		g.inside += n
		delete(l.strays, id)
	}
	if g == (ghost{}) {
		l.entries--
	} else {
		l.setGhost(id, g)
	}
	if at.index == 0 {
		l.unhang(at.part)
	} else if before := (place{at.part, at.index - 1}); !l.holds(before) {
		name := l.id(before)
		if b, ok := l.ghosts[name]; ok {
			b.inside--
			l.haunt(name, b)
		} else {
			l.strays[name]-- // that block is held elsewhere
		}
	}
}
