package index

import (
	"math/bits"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// query is a reader with working memory, for one Match or one operation of a writer.
type query struct {
	reader *reader
	finds  []addition
	plan   plan
	reads  int // lists looked at

	chain  []block.ID    // the ids of the prompt that are known: of a Match all
	locals []block.Local // the local hash of block i+1 at i; nil in a Match

	evens [evenPlaces]even // lists of many that were read before; see layers.go
	odd   []uint64         // the other members of a list
	few   []uint64         // memory for those of a short one
	more  []Match
}

// addition is what a segment adds to a match.
type addition struct {
	index int32 // of the match
	m     member
}

// compareAll is how long a chain may be to be compared with what is stored block by block. In longer ones the last block
// of a segment vouches for those before it, as it does wherever ids are chained.
const compareAll = 64

// Match appends one entry for each visible target that holds the chain's first block in any tier, ordered by target:
// how many leading blocks it has.
//
// While reports are applied it may see less than there is. What it credits was held at some moment of the call, because
// each count rests on one membership, and a membership stands for the whole way from the root.
//
// Of a chain longer than 64 blocks not every id is looked at: it must be one, each id naming all before it.
// It allocates nothing if dst has capacity.
func (ix *Index) Match(chain []block.ID, dst []Match) []Match {
	if len(chain) == 0 {
		return dst
	}
	q := ix.enter()
	q.chain = chain
	dst = ix.match(q, dst)
	q.chain = nil
	ix.leave(q)
	return dst
}

// MatchLocals is Match for a prompt whose ids have not been made: the id of its first block, and the local hashes of the
// others. Where somebody holds the blocks, their ids are not made but checked (see block.Follow), and behind that none is
// made. It returns the leading ids that it had to know, in chain's memory if that is enough: at least the first.
func (ix *Index) MatchLocals(first block.ID, locals []block.Local, chain []block.ID, dst []Match) ([]block.ID, []Match) {
	q := ix.enter()
	chain = append(chain[:0], first)
	q.chain, q.locals = chain, locals
	dst = ix.match(q, dst)
	chain = q.chain
	q.chain, q.locals = nil, nil
	ix.leave(q)
	return chain, dst
}

// match walks from segment to segment as long as somebody holds all so far.
func (ix *Index) match(q *query, dst []Match) []Match {
	// One look for the whole call: of each target one ledger is seen.
	view := ix.view.Load()
	h := ix.head(Parent{IsRoot: true}, q.chain[0])
	if h == 0 {
		return dst
	}
	start := len(dst)
	var depth int
	for {
		var isOpen bool
		pos, _ := splitBody(ix.segment(h).body.Load())
		depth = ix.common(h, q, 0)
		dst, isOpen = ix.begin(h, view, uint64(depth), dst)
		if now, _ := splitBody(ix.segment(h).body.Load()); now == pos {
			q.reads = 1
			if !isOpen || depth == 0 {
				return dst
			}
			break
		}
		// Between the two looks other blocks may have come where these were.
		dst = dst[:start]
	}
	for q.has(depth) {
		h = ix.head(Parent{ID: q.chain[depth-1]}, q.chain[depth])
		if h == 0 {
			break
		}
		var used int
		for {
			pos, _ := splitBody(ix.segment(h).body.Load())
			used = ix.common(h, q, depth)
			ix.collect(q, h, view, depth, dst[start:])
			if now, _ := splitBody(ix.segment(h).body.Load()); now == pos {
				break
			}
		}
		q.reads++
		if !q.add(depth, used, dst[start:]) {
			break
		}
		depth += used
	}
	return dst
}

// has reports whether the prompt has a block at a depth, and makes its id if need be. Those before it are there.
func (q *query) has(depth int) bool {
	if depth < len(q.chain) {
		return true
	}
	if depth > len(q.locals) {
		return false
	}
	q.chain = append(q.chain, q.chain[depth-1].Child(q.locals[depth-1]))
	return true
}

// common is how many blocks a segment and the prompt have in common from a depth on, and adds their ids to those known.
func (ix *Index) common(h handle, q *query, depth int) int {
	w := ix.blocks(h)
	n := commonIDs(w, q.chain[depth:], len(q.chain) > compareAll)
	if k := depth + n; n > 0 && k == len(q.chain) && k <= len(q.locals) {
		more := block.Follow(q.chain[k-1], q.locals[k-1:], w[n:])
		q.chain = slices.Grow(q.chain, more)[:k+more]
		known := q.chain[k:]
		for i, id := range w[n : n+more] {
			known[i] = block.ID(id)
		}
		n += more
	}
	return n
}

// commonIDs is how many leading ids are the same.
func commonIDs(w []uint64, chain []block.ID, isLong bool) int {
	n := min(len(w), len(chain))
	w, chain = w[:n], chain[:n]
	if n == 0 {
		return 0
	}
	if isLong {
		if w[n-1] == uint64(chain[n-1]) {
			return n
		}
		return sort.Search(n, func(i int) bool { return w[i] != uint64(chain[i]) })
	}
	i := 0
	for ; i+4 <= n; i += 4 {
		a, b := w[i:i+4:i+4], chain[i:i+4:i+4]
		if (a[0]^uint64(b[0]))|(a[1]^uint64(b[1]))|(a[2]^uint64(b[2]))|(a[3]^uint64(b[3])) != 0 {
			break
		}
	}
	for i < n && w[i] == uint64(chain[i]) {
		i++
	}
	return i
}

// begin makes a match for each visible target on a first segment, of whose blocks the chain has used. It reports whether
// anybody has them all.
func (ix *Index) begin(h handle, view *view, used uint64, dst []Match) (_ []Match, isOpen bool) {
	s := ix.segment(h)
	n, pos := splitList(s.list.Load())
	var w []uint64
	var one [1]uint64
	switch n {
	case 0:
		return dst, false
	case 1:
		one[0] = s.only.Load()
		w = one[:]
	default:
		w = ix.words(pos, n)
	}
	k := len(dst)
	dst = slices.Grow(dst, n)
	out := dst[k : k+n]
	// Nearly always every member is of a visible ledger, in the device. Cleared at once and written field by field, which is
	// what a processor does fastest.
	clear(out)
	i, all, has := 0, uint32(view.all)<<coverBits, uint32(used)
	out = out[:len(w)]
	for ; i < len(w); i++ {
		m := atomic.LoadUint64(&w[i])
		// Level, slot, cover.
		low := bits.RotateLeft32(uint32(m), -levelBits)
		cover := low & (1<<coverBits - 1)
		if low >= all || cover == 0 {
			break
		}
		o := &out[i]
		o.Target, o.Blocks[0] = fleet.TargetID(m>>32), min(cover, has)
	}
	// The first one or two, as a rule.
	for k := 0; k < i && !isOpen; k++ {
		isOpen = out[k].Blocks[0] == has
	}
	k += i
	out = dst[:len(dst)+n]
	for ; i < len(w); i++ {
		m := member(atomic.LoadUint64(&w[i]))
		if !view.has(m.slot()) {
			continue
		}
		cover := uint64(m.cover())
		if cover >= used {
			cover = used
			isOpen = true
		}
		v := m.level()
		if v == 0 && cover > 0 {
			out[k] = Match{Target: m.target(), Blocks: [fleet.NumTiers]uint32{uint32(cover)}}
			k++
			continue
		}
		switch {
		case v > 0:
			if o := &out[k-1]; int(cover) > o.Total() {
				o.Blocks[v] += uint32(int(cover) - o.Total())
			}
		case i+1 < n && member(atomic.LoadUint64(&w[i+1])).key() == m:
			out[k] = Match{Target: m.target()}
			k++
		}
	}
	return out[:k], isOpen
}

// collect notes what a segment adds to matches that have all before it.
func (ix *Index) collect(q *query, h handle, view *view, depth int, found []Match) {
	q.finds = q.finds[:0]
	s := ix.segment(h)
	n, pos := splitList(s.list.Load())
	var w []uint64
	var one [1]uint64
	switch n {
	case 0:
		return
	case 1:
		one[0] = s.only.Load()
		w = one[:]
	default:
		w = ix.words(pos, n)
	}
	next := 0
	for i := range w {
		m := member(atomic.LoadUint64(&w[i]))
		if !view.has(m.slot()) {
			continue
		}
		next += gallop(found[next:], m)
		if next == len(found) {
			return
		}
		if o := &found[next]; o.Target == m.target() && o.Total() == depth {
			q.finds = append(q.finds, addition{int32(next), m})
		}
	}
}

// gallop finds the first match at or after a member's target in a number of steps that grows with the logarithm of its
// position: few members for many matches and many for few both cost little.
func gallop(found []Match, m member) int {
	t := m.target()
	if len(found) == 0 || found[0].Target >= t {
		return 0
	}
	lo, hi := 0, 1
	for hi < len(found) && found[hi].Target < t {
		lo, hi = hi, 2*hi
	}
	hi = min(hi, len(found))
	for lo+1 < hi {
		if mid := int(uint(lo+hi) >> 1); found[mid].Target < t {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// add credits what was collected, and reports whether anybody has all the blocks used.
func (q *query) add(depth, used int, found []Match) (isOpen bool) {
	for _, f := range q.finds {
		cover := min(f.m.cover(), used)
		if cover == used && used > 0 {
			isOpen = true
		}
		if o := &found[f.index]; depth+cover > o.Total() {
			o.Blocks[f.m.level()] += uint32(depth + cover - o.Total())
		}
	}
	return isOpen
}
