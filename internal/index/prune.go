package index

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Shrink gives up blocks until no more than limit entries are left, in the order in which a full index takes them; a 64th
// of all at least if there are more. It returns how many entries are left.
func (l *Ledger) Shrink(limit int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries > limit {
		l.give(max(l.entries-limit, l.entries/giveShare), place{})
	}
	return l.entries
}

// Prune removes a block with all that follows it without a hole, whatever tiers that is in, and returns how many blocks those were.
// Orphans whose reporter has told a block in two ways may be left behind.
func (l *Ledger) Prune(id block.ID) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.ix.enter()
	defer l.ix.leave(q)
	before, held := l.entries, l.held
	var from []place
	if at := l.find(id); at.part != 0 {
		from = append(from, at)
	}
	for len(from) > 0 {
		at := from[len(from)-1]
		from = from[:len(from)-1]
		end := at.index
		for end < l.reach(at.part) && l.holds(place{at.part, end}) {
			end++
		}
		for k := l.parts[at.part].kid; k != 0; k = l.parts[k].next {
			if i := int(l.parts[k].upIndex); i >= at.index && i < end {
				from = append(from, place{k, 0})
			}
		}
		for i := end - 1; i >= at.index; i-- {
			one := place{at.part, i}
			copies, waiting := l.how(one)
			name := l.id(one)
			for t, n := range copies {
				if n > 0 {
					l.digests[t].remove(name, n)
				}
			}
			l.change(one, name, [fleet.NumTiers]uint16{}, waiting)
		}
	}
	l.settle()
	l.last = place{}
	l.resize()
	l.ix.budget.give(before - l.entries)
	return held - l.held
}
