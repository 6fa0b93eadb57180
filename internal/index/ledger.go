package index

import (
	"sync"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// phase is a ledger's place in its life. It only goes forward.
type phase uint8

const (
	aside     phase = iota // being filled
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
	key       member // what its members have in common
	isCounted bool
	serial    uint64 // in the order they were made
	phase     phase  // guarded by ix.mu, as is the next
	livingAt  int    // place in ix.living

	size      atomic.Int64  // entries, for others
	branches  atomic.Int64  // parts in use
	isPartial atomic.Bool   // lost is not empty
	evictions atomic.Uint64 // see Evicted

	mu        sync.Mutex
	isDead    bool // dropped; what it had is garbage
	isLimited bool // the orphan limit applies
	parts     []part
	free      uint32 // head of the list of free parts
	spans     slab
	ghosts    map[block.ID]ghost
	sieve     sieve              // of all ghosts
	strays    map[block.ID]int32 // held blocks whose successors are not where they belong; how many are inside segments
	dirty     []uint32           // parts to be settled at the end of the operation
	single    [1]span            // see all
	spare     []span             // working memory of set and recount
	last      place              // where the last operation ended: the next one often goes on there
	growing   handle             // the segment it claimed blocks of last; 0: none
	isRoomy   bool               // that has more room than it needs; see roomy
	held      int                // blocks, each once
	entries   int                // blocks and ghosts
	orphans   int
	waiting   int // orphans that count against the limit
	digests   [fleet.NumTiers]Digest
	lost      [fleet.NumTiers]Digest // told and not held, because the index was full; see Told
}

// reset empties the ledger without a look at what was there.
func (l *Ledger) reset() {
	l.parts, l.free, l.dirty = nil, 0, nil
	l.branches.Store(0)
	l.spans = slab{}
	l.ghosts = make(map[block.ID]ghost)
	l.sieve = sieve{}
	l.strays = make(map[block.ID]int32)
	l.last = place{}
	l.turnTo(0)
	l.held, l.entries, l.orphans, l.waiting = 0, 0, 0, 0
	l.digests, l.lost = [fleet.NumTiers]Digest{}, [fleet.NumTiers]Digest{}
	l.isPartial.Store(false)
	l.resize()
}

// Remove takes blocks out of a tier; in a counted ledger one copy of each. It returns how many the tier holds no longer
// and how many it did not hold. Blocks that follow a removed one stay, and count again once it is stored again.
func (l *Ledger) Remove(ids []block.ID, tier fleet.Tier) (removed, unknown int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.ix.enter()
	defer l.ix.leave(q)
	if tier >= fleet.NumTiers || l.isDead {
		return 0, len(ids)
	}
	before := l.entries
	q.plan.warm(l.ix, ids, 0)
	for n := 0; n < len(ids); n++ {
		id := ids[n]
		at := l.near(id)
		if at.part == 0 {
			at = l.find(id)
		}
		if at.part == 0 {
			unknown++
			l.regain(id, tier)
			continue
		}
		l.last = at
		if l.isCounted {
			if run := l.recount(at.part, at.index, at.index+l.along(at, ids[n:]), tier, false); run > 0 {
				n += run - 1
				l.last.index += run - 1
				continue
			}
		}
		copies, waiting := l.how(at)
		if copies[tier] == 0 {
			unknown++
			l.regain(id, tier)
			continue
		}
		copies[tier]--
		if copies[tier] == 0 {
			l.digests[tier].remove(id, 1)
			removed++
		} else {
			l.digests[tier].fewer(id, 1)
		}
		l.change(at, id, copies, waiting)
	}
	l.settle()
	l.resize()
	l.ix.budget.give(before - l.entries)
	return removed, unknown
}

// along is how many of the ids stand in a row from a place on, the first being there.
func (l *Ledger) along(at place, ids []block.ID) int {
	w := l.ix.blocks(l.parts[at.part].segment)[at.index:]
	n := 1
	for n < min(len(w), len(ids)) && w[n] == uint64(ids[n]) {
		n++
	}
	return n
}

// near looks beside the place of the last operation: engines evict from a chain's end, block by block.
func (l *Ledger) near(id block.ID) place {
	if l.last.part == 0 || int(l.last.part) >= len(l.parts) || l.parts[l.last.part].flags&inUse == 0 {
		return place{}
	}
	w := l.ix.blocks(l.parts[l.last.part].segment)
	for _, i := range [3]int{l.last.index - 1, l.last.index, l.last.index + 1} {
		if at := (place{l.last.part, i}); i >= 0 && i < len(w) && w[i] == uint64(id) && l.holds(at) {
			return at
		}
	}
	return place{}
}

// change sets how a held block is held from now on; without copies it goes.
func (l *Ledger) change(at place, id block.ID, copies [fleet.NumTiers]uint16, waiting bool) {
	if copies == [fleet.NumTiers]uint16{} {
		l.take(at, id)
		return
	}
	l.set(at, copies, waiting)
	l.soil(at.part)
}

// Clear empties a tier and returns how many blocks it held.
func (l *Ledger) Clear(tier fleet.Tier) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.ix.enter()
	defer l.ix.leave(q)
	if tier >= fleet.NumTiers {
		return 0
	}
	before := l.entries
	n := int(l.digests[tier].Count)
	for i := 1; i < len(l.parts) && l.digests[tier].Count > 0; i++ {
		if l.parts[i].flags&inUse == 0 {
			continue
		}
		// From the end, so that what remains is plain as long as it can be.
		for k := l.reach(uint32(i)) - 1; k >= 0; k-- {
			at := place{uint32(i), k}
			copies, waiting := l.how(at)
			if copies[tier] == 0 {
				continue
			}
			id := l.id(at)
			l.digests[tier].remove(id, copies[tier])
			copies[tier] = 0
			l.change(at, id, copies, waiting)
		}
	}
	l.settle()
	l.resize()
	l.lost[tier] = Digest{}
	l.heal()
	l.ix.budget.give(before - l.entries)
	return n
}

// ClearAll empties all tiers and returns how many blocks were held, each counted once.
func (l *Ledger) ClearAll() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.ix.enter()
	defer l.ix.leave(q)
	if l.isDead {
		return 0
	}
	for i := range l.parts {
		if l.parts[i].flags&inUse != 0 {
			l.ix.unlist(l.parts[i].segment, l.key)
		}
	}
	l.ix.budget.give(l.entries)
	l.ix.parts.Add(-l.branches.Load())
	n := l.held
	l.reset()
	return n
}

// unlist takes a ledger off a segment. The caller is a reader.
func (ix *Index) unlist(h handle, key member) {
	sh := ix.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ix.enlist(h, key, 0, 0, nil)
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
	q := l.ix.enter()
	defer l.ix.leave(q)
	for i := range l.parts {
		if l.parts[i].flags&inUse == 0 {
			continue
		}
		w := l.ix.blocks(l.parts[i].segment)
		for _, s := range l.all(uint32(i)) {
			for _, id := range w[s.from:s.to] {
				for t, n := range s.copies {
					if n > 0 && !yield(block.ID(id), fleet.Tier(t), int(n)) {
						return
					}
				}
			}
		}
	}
}
