package index

import "github.com/kvoracle/kvoracle/internal/block"

// settle brings the parts that were changed, and what hangs on them, up to date: covers, counters and lists.
//
// What a list says rests on what the parent's list says already, so a part never shows more than its parents do; on the
// way down it may show more for a moment, which was true when the operation began.
func (l *Ledger) settle() {
	// It grows on the way.
	for n := 0; n < len(l.dirty); {
		i := l.dirty[n]
		n++
		l.parts[i].flags &^= isDirty
		l.update(i)
		if p := &l.parts[i]; p.held == 0 && p.flags&(inUse|isDirty) == inUse {
			l.freePart(i)
		}
	}
	l.dirty = l.dirty[:0]
}

// update computes a part's covers anew, tells its list, and soils the kids they concern.
func (l *Ledger) update(i uint32) {
	p := &l.parts[i]
	covers, joined := l.cover(i)
	if l.waiting > 0 && p.waits > 0 && joined > 0 {
		l.awake(i, int(joined))
	}
	reach := l.reach(i)
	l.ix.report(p.segment, l.key, i, reach, &covers)
	least := uint16(segmentMax)
	for v, c := range covers {
		if c != p.covers[v] {
			least = min(least, c, p.covers[v])
		}
	}
	if joined != p.joined {
		least = min(least, joined, p.joined)
	}
	l.orphans -= int(p.was) - int(p.joined)
	l.orphans += int(p.held) - int(joined)
	before := p.joined
	p.covers, p.joined, p.was = covers, joined, p.held
	if least <= p.kidMost {
		for k := p.kid; k != 0; k = l.parts[k].next {
			if l.parts[k].upIndex >= least {
				l.soil(k)
			}
		}
	}
	if len(l.strays) > 0 && before < joined {
		for k, id := range l.ix.blocks(p.segment)[before:joined] {
			l.gatherStrays(place{i, int(before) + k}, block.ID(id))
		}
	}
}

// report writes a ledger's covers into a segment's list.
func (ix *Index) report(h handle, key member, i uint32, reach int, c *covers) {
	sh := ix.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ix.enlist(h, key, i, reach, c)
}

// cover computes covers and connected blocks from what is held and the parent's.
func (l *Ledger) cover(i uint32) (c covers, joined uint16) {
	p := &l.parts[i]
	var v level
	switch {
	case p.flags&isHung == 0:
		return c, 0
	case p.up != 0:
		u := &l.parts[p.up]
		if !u.isJoined(int(p.upIndex)) {
			return c, 0
		}
		v = u.levelOf(p.upIndex)
	case !l.ix.segment(p.segment).isRoot:
		return c, 0
	default: // the start
	}
	for _, s := range l.all(i) {
		if s.from != joined {
			break
		}
		joined = s.to
		for v < noLevel && s.copies[v] == 0 {
			v++
		}
		for t := v; t < noLevel; t++ {
			c[t] = s.to
		}
	}
	return c, joined
}

// awake ends the waiting of blocks that are connected now.
func (l *Ledger) awake(i uint32, joined int) {
	p := &l.parts[i]
	for k := range joined {
		at := place{i, k}
		if copies, waits := l.how(at); waits {
			l.set(at, copies, false)
			l.waiting--
			p.waits--
		}
	}
}
