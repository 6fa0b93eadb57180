package index

import (
	"sync"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// state is a ledger's place in its life. It only goes forward.
type state uint8

const (
	aside     state = iota // being filled
	published              // visible
	dropped                // out of use
)

// Ledger is what one target holds, as its reports tell it. Methods may be called from any number of goroutines and are
// applied one after another; a tier that does not exist holds nothing and takes nothing.
//
// A dropped ledger is empty, refuses stores and knows no block.
type Ledger struct {
	ix        *Index
	target    fleet.TargetID
	slot      slot
	isCounted bool
	state     state // guarded by ix.mu

	mu        sync.Mutex
	isDead    bool // dropped; what it had is garbage
	isLimited bool // the orphan limit applies
	slab      slab
	byID      map[block.ID]at
	held      int // blocks, each once
	orphans   int
	waiting   int // orphans that count against the limit
	digests   [fleet.NumTiers]Digest
}

// reset empties the ledger without a look at what was there.
func (l *Ledger) reset() {
	l.slab = newSlab()
	l.byID = make(map[block.ID]at)
	l.held, l.orphans, l.waiting = 0, 0, 0
	l.digests = [fleet.NumTiers]Digest{}
}

// Remove takes blocks out of a tier; in a counted ledger one copy of each. It returns how many the tier holds no longer
// and how many it did not hold. Blocks that follow a removed one stay, and count again once it is stored again.
func (l *Ledger) Remove(ids []block.ID, tier fleet.Tier) (removed, unknown int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if tier >= fleet.NumTiers {
		return 0, len(ids)
	}
	for _, id := range ids {
		i, ok := l.byID[id]
		if !ok || l.slab.entry(i).copies[tier] == 0 {
			unknown++
			continue
		}
		e := l.slab.entry(i)
		e.copies[tier]--
		if e.copies[tier] == 0 {
			l.digests[tier].remove(id)
			l.settle(i)
			removed++
		}
	}
	l.compact()
	return removed, unknown
}

// Clear empties a tier and returns how many blocks it held.
func (l *Ledger) Clear(tier fleet.Tier) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if tier >= fleet.NumTiers {
		return 0
	}
	n := int(l.digests[tier].Count)
	for i := at(0); i < l.slab.end && l.digests[tier].Count > 0; i++ {
		// Free entries have no copies.
		if e := l.slab.entry(i); e.copies[tier] > 0 {
			e.copies[tier] = 0
			l.digests[tier].remove(e.id)
			l.settle(i)
		}
	}
	l.compact()
	return n
}

// ClearAll empties all tiers and returns how many blocks were held, each counted once.
func (l *Ledger) ClearAll() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isDead {
		return 0
	}
	for i := at(0); i < l.slab.end; i++ {
		if e := l.slab.entry(i); e.flags&inUse != 0 && e.level != noLevel {
			l.ix.shard(e.place).remove(e.place, l.slot)
		}
	}
	l.ix.budget.give(l.slab.used)
	n := l.held
	l.reset()
	return n
}

// Digest sums up a tier, at no cost.
func (l *Ledger) Digest(tier fleet.Tier) Digest {
	l.mu.Lock()
	defer l.mu.Unlock()
	if tier >= fleet.NumTiers {
		return Digest{}
	}
	return l.digests[tier]
}

// Held is the number of blocks in a tier.
func (l *Ledger) Held(tier fleet.Tier) int { return int(l.Digest(tier).Count) }

// Orphans is the number of blocks held that are not connected to a prompt's start: stored under an unknown parent, or
// cut off by the removal of a block before them. They are not credited.
func (l *Ledger) Orphans() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.orphans
}

// Each calls yield for each block and tier that holds it, in no particular order, until it returns false. The ledger is
// locked meanwhile: yield must not call anything in this package.
func (l *Ledger) Each(yield func(id block.ID, tier fleet.Tier, copies int) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := at(0); i < l.slab.end; i++ {
		e := l.slab.entry(i)
		for t, n := range e.copies {
			if n > 0 && !yield(e.id, fleet.Tier(t), int(n)) {
				return
			}
		}
	}
}
