package index

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// What happens when the index is full.
//
// Room is made, one round after another, by the ledger that has most, ledgers built aside included and the one that wants
// the room counted as if it had got it: nobody who has less than others gives anything, so one reporter that tells without
// end takes nothing from those with ordinary caches, and as many pictures as possible stay whole. A ledger that is built
// aside is an exception: what it replaces gives first, since that goes soon anyway and a snapshot must not cost others
// blocks, which would have to be told again by snapshots of their own. Blocks that are orphans themselves do not drive
// anybody out: they would be the first to go.
//
// A ledger gives, in this order:
//
//	blocks that have no way to the start, as the hash of their ids says: nobody is credited with them
//	leaves: those least recently stored or touched first, of those the deepest, of those as the hash of their ids says
//
// so no block goes before what follows it, and never one that the new blocks follow.

const (
	// giveShare is the share of a ledger that goes in one round at least, so that looking for the right blocks costs a
	// little for each of them however large the ledger is: one 64th. Of one that has as many blocks as that giveLeast go, or
	// an eighth if that is less, or each store into a full index of many small ledgers would look at all of them for each
	// block.
	giveShare = 64
	giveLeast = 32
	// giveRounds bounds the rounds of one store, should others take what it makes room for.
	giveRounds = 1 << 16
)

// SetClock sets what recency is measured by: any number that grows, in steps as coarse as it likes. Within one step blocks
// count as used at the same time.
func (ix *Index) SetClock(now uint32) { ix.clock.Store(now) }

// IsTight reports whether so much is stored that recency may come to matter.
func (ix *Index) IsTight() bool { return ix.budget.used.Load() > ix.budget.max/2 }

// Limit is Config.MaxBlocks.
func (ix *Index) Limit() int { return int(ix.budget.max) }

// Free is how many entries fit beyond those there are.
func (ix *Index) Free() int { return int(ix.budget.max - ix.budget.used.Load()) }

// Evicted counts the blocks given up because the index was full, ever: those that were driven out and those that were not
// stored.
func (ix *Index) Evicted() uint64 { return ix.evicted.Load() }

// Touch notes that the block is in use, and with it all before it. It does nothing while somebody writes to the ledger: a
// reader does not wait for a hint.
func (l *Ledger) Touch(id block.ID) {
	if !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock()
	q := l.ix.enter()
	defer l.ix.leave(q)
	if at := l.find(id); at.part != 0 {
		// What is before it goes after it in any case.
		l.parts[at.part].stamp = l.ix.clock.Load()
	}
}

// IsPartial reports whether blocks were told that the ledger does not have, because the index was full. What it has is
// true all the same.
func (l *Ledger) IsPartial() bool { return l.isPartial.Load() }

// Missing is how many blocks a partial ledger lacks, or more than that; see Told.
func (l *Ledger) Missing() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for t := range l.lost {
		n += int(l.lost[t].Count)
	}
	return n
}

// Evicted counts the blocks the ledger gave up or did not take because the index was full, ever.
func (l *Ledger) Evicted() uint64 { return l.evictions.Load() }

// Told is the digest of a tier with what a partial ledger lacks: what the reporter's own digest should be. While a ledger
// is partial it may be wrong although nothing was lost on the way, and its count too high: who tells a block again that was
// given up, or removes one that was never there, cannot be told from who does not. Of what it lacks it knows one copy of each.
func (l *Ledger) Told(tier fleet.Tier) Digest {
	l.mu.Lock()
	defer l.mu.Unlock()
	if tier >= fleet.NumTiers {
		return Digest{}
	}
	d, lost := l.digests[tier], &l.lost[tier]
	return Digest{
		Count: d.Count + lost.Count, XOR: d.XOR ^ lost.XOR, Sum: d.Sum + lost.Sum,
		Copies: d.Copies + lost.Copies, CopySum: d.CopySum + lost.CopySum,
	}
}

// lose notes that a block which was told is not held.
func (l *Ledger) lose(id block.ID, tier fleet.Tier) {
	l.lost[tier].add(id)
	l.isPartial.Store(true)
}

// regain notes that a block which is not held was removed: it may be one that was lost. Of a counted one there may be
// more copies.
func (l *Ledger) regain(id block.ID, tier fleet.Tier) {
	if !l.isCounted && l.lost[tier].Count > 0 {
		l.lost[tier].remove(id, 1)
		l.heal()
	}
}

// heal ends a ledger's being partial when it lacks nothing any more.
func (l *Ledger) heal() {
	if l.lost == [fleet.NumTiers]Digest{} {
		l.isPartial.Store(false)
	}
}

// Restore stores leading blocks of a chain in the device of which is known otherwise, than by a report, that the target
// has them. It changes nothing about blocks that are held in any tier, and returns how many came back.
func (l *Ledger) Restore(chain []block.ID) int {
	n := 0
	for i := 0; i < len(chain); {
		from := i
		if l.Has(chain[i]) {
			i++
			continue
		}
		for i < len(chain) && !l.Has(chain[i]) {
			i++
		}
		p := Parent{IsRoot: true}
		if from > 0 {
			p = Parent{ID: chain[from-1]}
		}
		r := l.store(p, chain[from:i], fleet.Device, true)
		n += r.Stored
		if r.Refused != None {
			break
		}
	}
	return n
}

// Has reports whether any tier holds a block.
func (l *Ledger) Has(id block.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.ix.enter()
	defer l.ix.leave(q)
	return l.find(id).part != 0
}

// isBranchy reports whether there are as many parts as there may be.
func (ix *Index) isBranchy() bool { return ix.parts.Load() >= ix.maxParts }

// giver chooses who makes room for a ledger that wants it and has been granted some already, and how many entries it
// should give at most in this round. It returns nil if nobody is there. Where parts are what is short, it is who has most
// of them.
func (ix *Index) giver(l *Ledger, granted, want int, isOrphan, isBranchy bool) (g *Ledger, n int) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if l.phase == aside {
		if old := ix.visible[l.target]; old != nil && old.size.Load() > 0 {
			return old, max(want, 1)
		}
	}
	if isOrphan {
		return nil, 0
	}
	most, next := int64(0), int64(0)
	for _, o := range ix.living {
		size := o.size.Load()
		if isBranchy {
			size = o.branches.Load()
		} else if o == l {
			size += int64(granted)
		}
		if g == nil || size > most || size == most && (o == l || g != l && o.serial < g.serial) {
			g, most, next = o, size, most
		} else {
			next = max(next, size)
		}
	}
	return g, int(max(1, min(int64(want), most-next)))
}

// makeRoom lets somebody give up some entries, at most as many as fairness asks for, and returns false if nobody can. The
// caller holds the ledger's lock, which may be let go meanwhile: what it knows of the ledger may be out of date afterwards.
// keep is a place whose block the new ones will follow.
func (l *Ledger) makeRoom(q *query, granted, want int, keep place, isOrphan, isBranchy bool) bool {
	g, n := l.ix.giver(l, granted, want, isOrphan, isBranchy)
	if g == nil {
		return false
	}
	if g == l {
		return l.give(l.share(n), keep) > 0
	}
	// Nobody waits for a ledger as a reader: whoever has it may be waiting for readers. As in room, nothing that was found
	// before is used any more.
	q.reader.exit()
	l.mu.Unlock()
	g.mu.Lock()
	if !g.isDead {
		g.give(g.share(n), place{})
	}
	g.mu.Unlock()
	l.mu.Lock()
	q.reader.enter(&l.ix.epochs)
	return true
}

// share is how many entries a ledger gives in a round that asks for n.
func (l *Ledger) share(n int) int {
	if l.entries < giveShare {
		return n
	}
	return max(n, l.entries/giveShare, min(l.entries/8, giveLeast))
}

// give drives out n blocks and returns how many entries that has freed. The caller holds the lock.
func (l *Ledger) give(n int, keep place) int {
	q := l.ix.enter()
	defer l.ix.leave(q)
	before, held := l.entries, l.held
	goal := before - n
	l.giveOrphans(goal)
	if l.entries > goal {
		l.giveLeaves(goal, keep)
	}
	l.settle()
	l.last = place{}
	l.evictions.Add(uint64(held - l.held))
	l.ix.evicted.Add(uint64(held - l.held))
	l.resize()
	l.ix.budget.give(before - l.entries)
	return before - l.entries
}

// resize tells others how large the ledger is.
func (l *Ledger) resize() { l.size.Store(int64(l.entries)) }

// evict drives out one block.
func (l *Ledger) evict(at place) {
	id := l.id(at)
	copies, waiting := l.how(at)
	for t, n := range copies {
		if n > 0 {
			l.digests[t].remove(id, n)
			l.lose(id, fleet.Tier(t))
		}
	}
	l.change(at, id, [fleet.NumTiers]uint16{}, waiting)
}

// giveOrphans drives out blocks without a way to the start until no more than goal entries are left.
func (l *Ledger) giveOrphans(goal int) {
	// The first so many by hash, without sorting all: buckets by the uppermost bits say where to stop.
	const bits = 10
	type orphan struct {
		hash uint64
		at   place
	}
	var some []orphan
	for l.orphans > 0 && l.entries > goal {
		var buckets [1 << bits]int
		l.eachOrphan(func(_ place, hash uint64) { buckets[hash>>(64-bits)]++ })
		limit, n := uint64(0), 0
		for ; limit < 1<<bits && n < l.entries-goal; limit++ {
			n += buckets[limit]
		}
		if n == 0 {
			return
		}
		some = some[:0]
		l.eachOrphan(func(at place, hash uint64) {
			if hash>>(64-bits) < limit {
				some = append(some, orphan{hash, at})
			}
		})
		slices.SortFunc(some, func(a, b orphan) int { return cmp.Compare(a.hash, b.hash) })
		for _, o := range some {
			if l.entries <= goal {
				break
			}
			l.evict(o.at)
		}
		// One that others follow leaves a ghost behind, so there may be more to do.
		l.settle()
	}
}

// eachOrphan calls f with each block held that has no way to the start.
func (l *Ledger) eachOrphan(f func(at place, hash uint64)) {
	for i := 1; i < len(l.parts); i++ {
		p := &l.parts[i]
		if p.flags&inUse == 0 || p.held == p.joined {
			continue
		}
		w := l.ix.blocks(p.segment)
		for _, s := range l.all(uint32(i)) {
			for k := max(s.from, p.joined); k < s.to; k++ {
				f(place{uint32(i), int(k)}, mix(block.ID(w[k])))
			}
		}
	}
}

// leaf is a part whose last block nothing follows.
type leaf struct {
	stamp uint32
	depth uint32 // blocks up to its last one
	hash  uint64 // of that one's id
	part  uint32
}

// goesBefore is the order in which leaves are driven out.
func (a *leaf) goesBefore(b *leaf) bool {
	if a.stamp != b.stamp {
		return a.stamp < b.stamp
	}
	if a.depth != b.depth {
		return a.depth > b.depth
	}
	return a.hash < b.hash
}

// leaves is a heap of them.
type leaves []leaf

func (h leaves) Len() int           { return len(h) }
func (h leaves) Less(i, j int) bool { return h[i].goesBefore(&h[j]) }
func (h leaves) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *leaves) Push(x any)        { *h = append(*h, x.(leaf)) } //nolint:forcetypeassert // only leaves are pushed
func (h *leaves) Pop() any {
	n := len(*h) - 1
	x := (*h)[n]
	*h = (*h)[:n]
	return x
}

// fringe is what giveLeaves knows of a part: the last block that others hang on, how many do, and its depth.
type fringe struct {
	kids  uint32
	most  uint16 // index of the last block with kids, if there are any
	at    uint16 // how many kids hang on that
	depth uint32 // blocks before the part's first; 0 and not isKnown: not computed yet
	known bool
}

// giveLeaves drives out connected blocks that nothing follows until no more than goal entries are left, or none is left
// but keep and what is before it. There are no orphans.
func (l *Ledger) giveLeaves(goal int, keep place) {
	all := make([]fringe, len(l.parts))
	for i := range l.parts {
		if p := &l.parts[i]; p.flags&inUse != 0 && p.up != 0 {
			all[p.up].add(p.upIndex)
		}
	}
	var h leaves
	for i := 1; i < len(l.parts); i++ {
		if l.parts[i].flags&inUse != 0 {
			if x, ok := l.leafOf(uint32(i), all, keep); ok {
				h = append(h, x)
			}
		}
	}
	heap.Init(&h)
	for len(h) > 0 && l.entries > goal {
		i := h[0].part
		p := &l.parts[i]
		up, upIndex, stamp := p.up, p.upIndex, p.stamp
		l.evict(place{i, int(h[0].depth-all[i].depth) - 1})
		if x, ok := l.leafOf(i, all, keep); ok {
			h[0] = x
			heap.Fix(&h, 0)
			continue
		}
		heap.Pop(&h)
		if p.held > 0 || up == 0 {
			continue
		}
		// The part is empty: its parent's block may be a leaf now. It was in use as long as this one was.
		u := &l.parts[up]
		u.stamp = max(u.stamp, stamp)
		f := &all[up]
		wasLeaf := l.isLeaf(up, f, keep)
		f.kids--
		if upIndex == f.most {
			if f.at--; f.at == 0 && f.kids > 0 {
				f.recount(l, up)
			}
		}
		if !wasLeaf {
			if x, ok := l.leafOf(up, all, keep); ok {
				heap.Push(&h, x)
			}
		}
	}
}

// add counts a kid.
func (f *fringe) add(index uint16) {
	f.kids++
	switch {
	case f.at == 0 || index > f.most:
		f.most, f.at = index, 1
	case index == f.most:
		f.at++
	}
}

// recount looks for the last block with kids, when the last kid of that has gone.
func (f *fringe) recount(l *Ledger, i uint32) {
	*f = fringe{depth: f.depth, known: f.known}
	for k := l.parts[i].kid; k != 0; k = l.parts[k].next {
		f.add(l.parts[k].upIndex)
	}
}

// isLeaf reports whether a part's last block may go.
func (l *Ledger) isLeaf(i uint32, f *fringe, keep place) bool {
	last := int(l.parts[i].held) - 1 // no orphans, hence no holes
	return last >= 0 && (f.kids == 0 || last > int(f.most)) && (i != keep.part || last > keep.index)
}

// leafOf describes a part for the heap, if its last block may go.
func (l *Ledger) leafOf(i uint32, all []fringe, keep place) (leaf, bool) {
	f := &all[i]
	if !l.isLeaf(i, f, keep) {
		return leaf{}, false
	}
	l.measure(i, all)
	last := int(l.parts[i].held) - 1
	return leaf{
		stamp: l.parts[i].stamp, depth: f.depth + uint32(last) + 1,
		hash: mix(l.id(place{i, last})), part: i,
	}, true
}

// measure computes how many blocks are before a part's first, once for each part.
func (l *Ledger) measure(i uint32, all []fringe) {
	var way []uint32
	for !all[i].known {
		if l.parts[i].up == 0 {
			all[i].known = true
			break
		}
		way = append(way, i)
		i = l.parts[i].up
	}
	for k := len(way) - 1; k >= 0; k-- {
		p := &l.parts[way[k]]
		all[way[k]].depth = all[p.up].depth + uint32(p.upIndex) + 1
		all[way[k]].known = true
	}
}
