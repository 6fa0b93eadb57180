package index

import (
	"math"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// plan is the working memory of one store.
type plan struct {
	path  []at // entries of the blocks, in order; a repetition of its predecessor is there twice
	fresh []at // those of them that no tier held before
	room  int  // granted entries not used yet
}

// Store adds a chain of blocks to a tier: ids[0] follows p, each other follows the one before it. An id that repeats
// its predecessor is the same block told twice.
//
// If p is a block that is not held, or one that is itself an orphan, the blocks are kept as orphans. A refused store
// changes nothing, except that Capacity may stop in the middle.
func (l *Ledger) Store(p Parent, ids []block.ID, tier fleet.Tier) StoreResult {
	if len(ids) == 0 || tier >= fleet.NumTiers {
		return StoreResult{}
	}
	if !p.IsRoot && p.ID == ids[0] {
		return StoreResult{Refused: SelfParent}
	}
	pl := l.ix.plans.Get().(*plan)
	defer l.ix.plans.Put(pl)
	*pl = plan{path: pl.path[:0], fresh: pl.fresh[:0]}

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isDead {
		return StoreResult{Refused: Dropped}
	}
	// Nothing that Match can see changes before the whole list is known to be good.
	refused := l.link(pl, p, ids)
	if refused == None || refused == Capacity {
		if full := l.admit(pl); full != None {
			refused = full
		}
	}
	l.ix.budget.give(pl.room)
	if refused != None && refused != Capacity {
		l.undo(pl)
		return StoreResult{Refused: refused}
	}
	r := l.apply(pl, tier)
	r.Refused = refused
	return r
}

// link finds or makes an entry for each block and hangs it under its parent.
func (l *Ledger) link(pl *plan, p Parent, ids []block.ID) Refusal {
	parent := root
	if !p.IsRoot {
		i, ok := l.byID[p.ID]
		if !ok {
			if i, ok = l.take(pl, p.ID, len(ids)+1); !ok {
				return Capacity
			}
		}
		parent = i
		defer l.bury(parent)
	}
	for n, id := range ids {
		if n > 0 && id == ids[n-1] {
			pl.path = append(pl.path, parent)
			continue
		}
		i, ok := l.byID[id]
		if !ok {
			if i, ok = l.take(pl, id, len(ids)-n); !ok {
				return Capacity
			}
		}
		if e := l.slab.entry(i); e.parent == nowhere {
			l.slab.link(i, parent)
			pl.fresh = append(pl.fresh, i)
		} else if e.parent != parent {
			return ParentConflict
		}
		pl.path = append(pl.path, i)
		parent = i
	}
	return None
}

// take makes an entry if the index has room; want is how many more the store may need.
func (l *Ledger) take(pl *plan, id block.ID, want int) (at, bool) {
	if pl.room == 0 {
		// A few hundred at once, so that writers do not meet at the counter for each block.
		pl.room = l.ix.room(min(want, 256))
		if pl.room == 0 {
			return nowhere, false
		}
	}
	pl.room--
	i := l.slab.take(id)
	l.byID[id] = i
	return i, true
}

// admit refuses orphans beyond the limit. The blocks of a store are all connected or all not, as their parent is.
func (l *Ledger) admit(pl *plan) Refusal {
	if !l.isLimited || len(pl.fresh) == 0 || l.isConnected(l.slab.entry(pl.path[0]).parent) {
		return None
	}
	if l.waiting+len(pl.fresh) > l.ix.maxOrphans {
		return OrphansFull
	}
	return None
}

// undo takes back what link did.
func (l *Ledger) undo(pl *plan) {
	for n := len(pl.fresh) - 1; n >= 0; n-- {
		l.unlink(pl.fresh[n])
	}
}

// apply adds the copies, then tells the shared table, parents first.
func (l *Ledger) apply(pl *plan, tier fleet.Tier) StoreResult {
	var r StoreResult
	for _, i := range pl.path {
		e := l.slab.entry(i)
		switch c := &e.copies[tier]; {
		case *c == 0:
			*c = 1
			l.digests[tier].add(e.id)
			r.Stored++
		default:
			// A count that has run out of bits loses copies, never invents any: the block may be given up early.
			if l.isCounted && *c < math.MaxUint16 {
				*c++
			}
			r.Repeated++
		}
	}
	l.held += len(pl.fresh)
	for _, i := range pl.path {
		l.settle(i)
	}
	for _, i := range pl.fresh {
		e := l.slab.entry(i)
		if e.flags&orphan == 0 {
			continue
		}
		r.Orphans++
		if l.isLimited {
			e.flags |= waiting
			l.waiting++
		}
	}
	return r
}
