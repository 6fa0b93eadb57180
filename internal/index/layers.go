package index

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Of a prompt that begins as many do, hundreds of targets hold the same first blocks, and hold them for long. To name each
// of them with a number is most of what a Match costs then; here they are a set, which is read from a list once and kept
// until that changes.

// LayersMost bounds the layers of an answer: who holds on behind the last one is named.
const LayersMost = 16

// Set is a set of targets, a bit for each id.
type Set []uint64

// Has reports whether a target is in it.
func (s Set) Has(id fleet.TargetID) bool {
	return uint(id/64) < uint(len(s)) && s[id/64]>>(id%64)&1 != 0
}

// Word is the bits of the ids from 64*i on.
func (s Set) Word(i int) uint64 {
	if uint(i) < uint(len(s)) {
		return s[i]
	}
	return 0
}

// Layer is the targets that hold so many leading blocks at least, all of them in the device.
type Layer struct {
	Blocks uint32
	Set    Set
}

// Layers says what a Match says: of a target that is among the Others what stands there, and of another the Blocks of the
// last layer that has it, in the device. The caller owns it and may use it again.
type Layers struct {
	// All is ordered by Blocks, and each Set is a part of the one before.
	All []Layer
	// Others are those of whom a layer cannot say it, ordered by target. They may be in sets as well.
	Others []Match
}

// Reset empties it and keeps its memory.
func (l *Layers) Reset() { l.All, l.Others = l.All[:0], l.Others[:0] }

// Add appends an empty layer with room for ids below 64*words, and gives its set.
func (l *Layers) Add(blocks, words int) Set {
	n := len(l.All)
	if n < cap(l.All) {
		l.All = l.All[:n+1] // keeps the memory of an earlier one
	} else {
		l.All = append(l.All, Layer{})
	}
	x := &l.All[n]
	x.Blocks, x.Set = uint32(blocks), slices.Grow(x.Set[:0], words)[:words]
	clear(x.Set)
	return x.Set
}

// even is what a list of many said when it was read, for who reads it again before it has changed.
//
//	members = {newMember(t, cover) : t in set} + {m of over : m.cover() > cover} + odd
type even struct {
	h     handle // 0: none yet
	turns uint64
	view  *view
	cover int // the one that most have who have one member, in the device
	set   Set // whose it is
	over  []uint64
	overs Set // of over
	odd   []uint64
}

const (
	evenBits   = 7
	evenPlaces = 1 << evenBits
	evenLeast  = 16 // members; fewer are read each time
)

// MatchLayers is Match with an answer whose cost does not grow with each target that holds what many hold.
func (ix *Index) MatchLayers(chain []block.ID, dst *Layers) {
	dst.Reset()
	if len(chain) == 0 {
		return
	}
	q := ix.enter()
	q.chain = chain
	ix.matchLayers(q, dst)
	q.chain = nil
	ix.leave(q)
}

// MatchLocalsLayers is to MatchLocals what MatchLayers is to Match.
func (ix *Index) MatchLocalsLayers(first block.ID, locals []block.Local, chain []block.ID, dst *Layers) []block.ID {
	dst.Reset()
	q := ix.enter()
	chain = append(chain[:0], first)
	q.chain, q.locals = chain, locals
	ix.matchLayers(q, dst)
	chain = q.chain
	q.chain, q.locals = nil, nil
	ix.leave(q)
	return chain
}

// matchLayers walks as match does.
func (ix *Index) matchLayers(q *query, dst *Layers) {
	view := ix.view.Load()
	q.reads = 0
	parent := Parent{IsRoot: true}
	for depth := 0; q.has(depth); {
		h := ix.head(parent, q.chain[depth])
		if h == 0 {
			return
		}
		var used int
		var e *even
		for {
			pos, _ := splitBody(ix.segment(h).body.Load())
			used = ix.common(h, q, depth)
			e = ix.read(q, h, view)
			if now, _ := splitBody(ix.segment(h).body.Load()); now == pos {
				break
			}
			// Between the two looks other blocks may have come where these were.
		}
		q.reads++
		if used == 0 || !dst.add(q, view, e, depth, used) {
			return
		}
		depth += used
		parent = Parent{ID: q.chain[depth-1]}
	}
}

// read puts a segment's members into q.odd, but for those that are in the even that it gives, which may be nil.
func (ix *Index) read(q *query, h handle, view *view) *even {
	s := ix.segment(h)
	turns := s.turns.Load()
	n, pos := splitList(s.list.Load())
	switch {
	case n == 0:
		q.odd = nil
		return nil
	case n == 1:
		q.few = append(q.few[:0], s.only.Load())
		q.odd = q.few
		return nil
	case n < ix.evenLeast:
		q.few = q.few[:0]
		w := ix.words(pos, n)
		for i := range w {
			q.few = append(q.few, atomic.LoadUint64(&w[i]))
		}
		q.odd = q.few
		return nil
	}
	place := uint32(h) * 0x9E3779B1 >> (32 - evenBits)
	e := &q.evens[place]
	if other := &q.evens[place^1]; e.h != h && (other.h == h || other.h == 0) {
		e = other // the other one of two places
	}
	if e.h != h || e.turns != turns || e.view != view {
		e.h = 0
		e.fill(ix.words(pos, n), view)
		if s.turns.Load() == turns {
			e.h, e.turns, e.view = h, turns, view
		}
	}
	q.odd = e.odd
	return e
}

// fill reads a list.
func (e *even) fill(w []uint64, view *view) {
	var count [1 << coverBits]uint32
	e.cover, e.odd = 0, e.odd[:0]
	for i := range w {
		if m := member(atomic.LoadUint64(&w[i])); view.has(m.slot()) {
			e.odd = append(e.odd, uint64(m))
		}
	}
	for i := range e.odd {
		if c := member(e.odd[i]).cover(); c > 0 && isAlone(e.odd, i) {
			if count[c]++; count[c] > count[e.cover] {
				e.cover = c
			}
		}
	}
	words := 0
	if n := len(e.odd); n > 0 {
		words = int(member(e.odd[n-1]).target())/64 + 1
	}
	e.set, e.overs = slices.Grow(e.set[:0], words)[:words], slices.Grow(e.overs[:0], words)[:words]
	clear(e.set)
	clear(e.overs)
	e.over = e.over[:0]
	rest := 0
	for i, w := range e.odd {
		m := member(w)
		t := m.target()
		switch isIt := e.cover > 0 && isAlone(e.odd, i); {
		case isIt && m.cover() == e.cover:
			e.set[t/64] |= 1 << (t % 64)
		case isIt && m.cover() > e.cover:
			e.overs[t/64] |= 1 << (t % 64)
			e.over = append(e.over, w)
		default:
			e.odd[rest] = w
			rest++
		}
	}
	e.odd = e.odd[:rest]
}

// isAlone reports whether a member is all that a list has of its ledger, in the device.
func isAlone(w []uint64, i int) bool {
	m := member(w[i])
	return m.level() == 0 && (i+1 == len(w) || member(w[i+1]).key() != m.key())
}

// add takes in who of those that have all blocks before depth has some of the used ones of a segment, of which q.odd and e
// are the members. It reports whether anybody has them all.
func (l *Layers) add(q *query, view *view, e *even, depth, used int) (isOpen bool) {
	isFirst, open, known := depth == 0, Set(nil), len(l.All)
	if known > 0 && int(l.All[known-1].Blocks) == depth {
		open = l.All[known-1].Set
		if known+2 > LayersMost {
			l.name(open, depth, q)
			open = nil
		}
	}
	words := len(open)
	if isFirst {
		if n := len(q.odd); n > 0 {
			words = int(member(q.odd[n-1]).target())/64 + 1
		}
		if e != nil {
			words = max(words, len(e.set))
		}
	}
	x := piece{view: view, depth: depth, used: used, words: words, isFirst: isFirst, open: open}
	if e != nil {
		has := min(e.cover, used)
		if words > 0 {
			some, anybody := l.Add(depth+has, words), uint64(0)
			for i := range some {
				w := e.set.Word(i) | e.overs.Word(i)
				if !isFirst {
					w &= open[i]
				}
				some[i] = w
				anybody |= w
			}
			if has == used {
				x.all, isOpen = some, anybody != 0
			}
		}
		for i := range l.Others {
			o := &l.Others[i]
			if o.Total() == depth && (e.set.Has(o.Target) || has == used && e.overs.Has(o.Target)) {
				o.Blocks[fleet.Device] += uint32(has)
				isOpen = isOpen || has == used
			}
		}
		if has < used && l.each(q, &x, e.over) {
			isOpen = true
		}
	}
	if l.each(q, &x, q.odd) {
		isOpen = true
	}
	l.tidy(known)
	return isOpen
}

// piece is what add does with the used blocks of a segment.
type piece struct {
	view        *view
	depth, used int
	words       int  // of a layer; 0: nobody is in any
	isFirst     bool // everybody is asked
	open        Set  // else who has all blocks before
	all         Set  // who has the used ones as well; nil: nobody yet
}

// each takes in members one by one, and reports whether any has all the used blocks.
func (l *Layers) each(q *query, x *piece, members []uint64) (isOpen bool) {
	q.more = q.more[:0]
	at := 0
	for len(members) > 0 {
		m, n := member(members[0]), 1
		for n < len(members) && member(members[n]).key() == m.key() {
			n++
		}
		own, t := members[:n], m.target()
		members = members[n:]
		if !x.view.has(m.slot()) {
			continue
		}
		if at += gallop(l.Others[at:], m); at < len(l.Others) && l.Others[at].Target == t {
			if o := &l.Others[at]; o.Total() == x.depth && o.add(own, x.depth, x.used) {
				isOpen = true
			}
			continue
		}
		if !x.isFirst && !x.open.Has(t) {
			continue
		}
		if m.level() == 0 && n == 1 && m.cover() >= x.used {
			if x.all == nil {
				x.all = l.Add(x.depth+x.used, x.words)
			}
			x.all[t/64] |= 1 << (t % 64)
			isOpen = true
			continue
		}
		o := Match{Target: t, Blocks: [fleet.NumTiers]uint32{uint32(x.depth)}}
		if o.add(own, x.depth, x.used) {
			isOpen = true
		}
		if o.Total() > x.depth {
			q.more = append(q.more, o)
		}
	}
	l.merge(q.more)
	return isOpen
}

// add credits a ledger's members of a segment to who has all blocks before, and reports whether that has all the used ones.
func (m *Match) add(members []uint64, depth, used int) (isOpen bool) {
	for _, w := range members {
		x := member(w)
		cover := min(x.cover(), used)
		isOpen = isOpen || cover == used
		if more := depth + cover - m.Total(); more > 0 {
			m.Blocks[x.level()] += uint32(more)
		}
	}
	return isOpen
}

// tidy leaves out of the layers behind the known ones those in which nobody is, and those before which another one with
// the same targets stands.
func (l *Layers) tidy(known int) {
	n := known
	for i := known; i < len(l.All); i++ {
		x := &l.All[i]
		isEmpty, isSame := true, n > 0 && len(l.All[n-1].Set) == len(x.Set)
		for k, w := range x.Set {
			isEmpty = isEmpty && w == 0
			isSame = isSame && w == l.All[n-1].Set[k]
		}
		switch {
		case isEmpty:
		case isSame:
			l.All[n-1].Blocks = x.Blocks
		default:
			l.All[n], l.All[i] = l.All[i], l.All[n]
			n++
		}
	}
	l.All = l.All[:n]
}

// name makes Others of a layer's targets, which have so many blocks.
func (l *Layers) name(s Set, blocks int, q *query) {
	q.more = q.more[:0]
	at := 0
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			t := fleet.TargetID(i*64 + bits.TrailingZeros64(w))
			for at < len(l.Others) && l.Others[at].Target < t {
				at++
			}
			if at == len(l.Others) || l.Others[at].Target != t {
				q.more = append(q.more, Match{Target: t, Blocks: [fleet.NumTiers]uint32{uint32(blocks)}})
			}
		}
	}
	l.merge(q.more)
}

// merge adds to the Others. Both are ordered and have nobody in common.
func (l *Layers) merge(more []Match) {
	if len(more) == 0 {
		return
	}
	i, k := len(l.Others)-1, len(more)-1
	l.Others = append(l.Others, more...)
	for at := len(l.Others) - 1; k >= 0; at-- {
		if i >= 0 && l.Others[i].Target > more[k].Target {
			l.Others[at] = l.Others[i]
			i--
		} else {
			l.Others[at] = more[k]
			k--
		}
	}
}
