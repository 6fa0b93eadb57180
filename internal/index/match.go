package index

import (
	"cmp"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
)

// query is the working memory of one Match.
type query struct {
	ix     *Index
	places []place
	found  []Match // the part of the caller's slice that this query fills
	open   []open  // a stack of sets
	reads  int     // lists looked at
}

// open is a target whose level is known at two depths and differs there.
type open struct {
	index  int32 // in query.found
	slot   slot
	lo, hi level // at the two depths
	mid    level // at the depth between that was looked at last
}

// Match appends one entry for each visible target that holds the chain's first block in any tier, ordered by target:
// how many leading blocks it has.
//
// While reports are applied it may see less than there is. What it credits was held at some moment of the call, because
// each count rests on one membership read at one depth, and a membership stands for the whole way from the root.
//
// It allocates nothing if dst has capacity.
func (ix *Index) Match(chain []block.ID, dst []Match) []Match {
	if len(chain) == 0 {
		return dst
	}
	q := ix.queries.Get().(*query)
	defer ix.queries.Put(q)
	q.ix = ix
	q.places = appendPlaces(q.places[:0], chain)
	// Held to the end: see Index.mu.
	ix.mu.RLock()
	dst = q.run(dst)
	ix.mu.RUnlock()

	q.finish()
	return dst
}

// run counts up, for each target that has the first block, to where it ends. The caller holds Index.mu.
func (q *query) run(dst []Match) []Match {
	start := len(dst)
	dst = q.begin(dst)
	q.found = dst[start:]
	if last := len(q.places) - 1; last > 0 && len(q.open) > 0 {
		q.read(last, q.open)
		q.bisect(0, last, q.differing(q.open))
	}
	return dst
}

func appendPlaces(dst []place, chain []block.ID) []place {
	p := rootPlace
	for _, id := range chain {
		p = p.child(id)
		dst = append(dst, p)
	}
	return dst
}

// begin makes a match for each visible target at the first block, and opens all of them.
func (q *query) begin(dst []Match) []Match {
	start := len(dst)
	q.open, q.reads = q.open[:0], 1
	p := q.places[0]
	sh := q.ix.shard(p)
	var one [1]member

	sh.mu.RLock()
	defer sh.mu.RUnlock()
	for _, m := range sh.members(p, &one) {
		o := q.ix.owners[m.slot()]
		if !o.isVisible {
			continue
		}
		q.open = append(q.open, open{index: int32(len(dst) - start), slot: m.slot(), lo: m.level()})
		dst = append(dst, Match{Target: o.target})
		credit(&dst[len(dst)-1], 0, m.level())
	}
	return dst
}

// credit notes that at some moment a target had the block at a depth, and all before it, at this level. Until finish,
// Blocks[t] is the number of leading blocks with a level of at most t.
func credit(m *Match, depth int, v level) {
	for t := v; t < noLevel; t++ {
		m.Blocks[t] = max(m.Blocks[t], uint32(depth)+1)
	}
}

// read looks up the levels of a set of targets, ordered by slot, at one depth, and credits them. The set's mid is set.
func (q *query) read(depth int, set []open) {
	q.reads++
	p := q.places[depth]
	sh := q.ix.shard(p)
	var one [1]member

	sh.mu.RLock()
	defer sh.mu.RUnlock()
	list := sh.members(p, &one)
	for i := range set {
		o := &set[i]
		n := gallop(list, o.slot)
		list = list[n:]
		o.mid = noLevel
		if len(list) > 0 && list[0].slot() == o.slot {
			o.mid = list[0].level()
			credit(&q.found[o.index], depth, o.mid)
		}
	}
}

// gallop finds the first member at or after a slot in a number of steps that grows with the logarithm of its position:
// few targets in a long list and many in a short one both cost little.
func gallop(list []member, s slot) int {
	want := newMember(s, 0)
	if len(list) == 0 || list[0] >= want {
		return 0
	}
	end := 2
	for end <= len(list) && list[end-1] < want {
		end *= 2
	}
	from := end / 2
	n, _ := slices.BinarySearch(list[from:min(end, len(list))], want)
	return from + n
}

// bisect narrows down where the levels of a set of targets change between two depths. Levels only grow along a chain, so
// a target with the same level at both ends has it everywhere between and is in the set no more.
func (q *query) bisect(lo, hi int, set []open) {
	if len(set) == 0 || hi-lo < 2 {
		return
	}
	mid := lo + (hi-lo)/2
	q.read(mid, set)
	top := len(q.open)
	for i := range set {
		if o := set[i]; o.lo != o.mid {
			o.hi = o.mid
			q.open = append(q.open, o)
		}
	}
	q.bisect(lo, mid, q.open[top:])
	q.open = q.open[:top]
	for i := range set {
		// Whoever has nothing here has nothing farther on. If a report that came in between made it otherwise, the
		// target has the credit for what was read already.
		if o := set[i]; o.mid != noLevel && o.mid != o.hi {
			o.lo = o.mid
			q.open = append(q.open, o)
		}
	}
	q.bisect(mid, hi, q.open[top:])
	q.open = q.open[:top]
}

// differing keeps, in place, those of a set whose level at the last block is another than at the first.
func (q *query) differing(set []open) []open {
	n := 0
	for _, o := range set {
		if o.lo != o.mid {
			o.hi = o.mid
			set[n] = o
			n++
		}
	}
	return set[:n]
}

// finish turns counts up to each tier into counts of each, orders the matches, and lets go of the caller's slice.
func (q *query) finish() {
	for i := range q.found {
		b := &q.found[i].Blocks
		for t := len(b) - 1; t > 0; t-- {
			b[t] -= b[t-1]
		}
	}
	// Slots are usually in the targets' order already, which the sort notices.
	slices.SortFunc(q.found, func(a, b Match) int { return cmp.Compare(a.Target, b.Target) })
	q.found = nil
}
