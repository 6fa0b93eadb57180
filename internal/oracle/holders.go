package oracle

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// Of a prompt that begins as many do nearly every target of a lineup holds something, but they hold few different things:
// what all begin with, or that and the middle of a conversation. What several hold alike is a kind, worked out once. Only
// who has something farther away than the device, is guessed at, or is not believed in full, is a hold of its own.

// said is what the indexes say of a target, in blocks of its own size, all of them on the device: as reported, and as
// guessed of requests under way. The zero value is nothing.
type said struct{ facts, guesses uint32 }

// apart is said.facts of who is a hold of its own.
const apart = math.MaxUint32

// kind is what several of a lineup hold alike.
type kind struct {
	said  said
	hold  hold // nobody's: its id and blocks mean nothing
	first int  // the first of them, by its place among the members
	n     int  // how many they are
}

// maxKinds bounds the kinds of one decision; who is of another one is a hold of its own. kindSlots is a power of two, so far
// above that two kinds seldom want the same slot.
const (
	maxKinds     = 48
	kindSlotBits = 8
	kindSlots    = 1 << kindSlotBits
)

// slot is where a kind of what is said is looked for first.
func (s said) slot() uint32 {
	return (s.facts*0x9E3779B1 ^ s.guesses*0x85EBCA6B) >> (32 - kindSlotBits)
}

// placeHolders finds what those of the lineup hold of a prompt of so many tokens:
//
//	kinds[kind[i]]  of lineup.ids[i], or if it has one
//	holds           its own, in ascending order
//
// kinds[0] is nothing.
func (w *work) placeHolders(as form, length int) {
	w.gather()
	w.divide(as, length)
	if len(w.holds) > 0 {
		w.creditHolds(length)
	}
}

// gather puts what was matched in the order of the lineup.
func (w *work) gather() {
	l := &w.lineup
	w.said = slices.Grow(w.said[:0], len(l.ids))[:len(l.ids)]
	clear(w.said)
	if len(w.prompts) == 1 && l.isDense() {
		p := &w.prompts[0]
		gatherDense(w.said, l.ids[0], p.facts, p.guesses)
		w.gatherApprox(p)
		return
	}
	said, isAlone := w.said, len(w.prompts) == 1
	for i := range w.prompts {
		p := &w.prompts[i]
		at := 0
		for k := range p.facts {
			m := &p.facts[k]
			if at = l.seek(m.Target, at); at == len(l.ids) {
				break
			}
			if l.ids[at] != m.Target {
				continue
			}
			if isAlone || w.isSize(at, p.size) {
				if said[at].facts = m.Blocks[fleet.Device]; isFarther(m) {
					said[at].facts = apart
				}
			}
			at++
		}
		at = 0
		for k := range p.guesses {
			m := &p.guesses[k]
			if at = l.seek(m.Target, at); at == len(l.ids) {
				break
			}
			if l.ids[at] != m.Target {
				continue
			}
			if isAlone || w.isSize(at, p.size) {
				said[at].guesses = m.Blocks[fleet.Device] // they know no other tier
			}
			at++
		}
		w.gatherApprox(p)
	}
}

// gatherApprox sets apart who does not report and is taken to have something.
func (w *work) gatherApprox(p *promptAt) {
	l, at := &w.lineup, 0
	for k := range p.approx {
		if at = l.seek(p.approx[k].Target, at); at == len(l.ids) {
			break
		}
		if l.ids[at] == p.approx[k].Target {
			w.said[at].facts = apart
		}
	}
}

// gatherDense is gather for targets of one block size whose ids have no gaps: an id is a place, and nothing is looked for.
func gatherDense(said []said, first fleet.TargetID, facts, guesses []index.Match) {
	for k := range facts {
		m := &facts[k]
		at := int(m.Target) - int(first)
		if uint(at) >= uint(len(said)) {
			continue
		}
		n := m.Blocks[fleet.Device]
		if isFarther(m) {
			n = apart
		}
		said[at].facts = n
	}
	for k := range guesses {
		m := &guesses[k]
		if at := int(m.Target) - int(first); uint(at) < uint(len(said)) {
			said[at].guesses = m.Blocks[fleet.Device]
		}
	}
}

// isSize reports whether the target at a place of the lineup has blocks of a size.
func (w *work) isSize(at, size int) bool {
	return w.roster.seats[w.lineup.seats[at]].worker.BlockSize == size
}

// isFarther reports whether some of what is matched is not on the device.
func isFarther(m *index.Match) bool {
	var sum uint32
	for _, n := range m.Blocks[fleet.Device+1:] {
		sum |= n
	}
	return sum != 0
}

// divide makes kinds and holds of what was gathered. Those of a lineup differ from one to the next in no foreseeable way, so
// the loop has no branch that depends on it: each looks into the slot where its kind should be, nearly always finds it, and
// counts.
func (w *work) divide(as form, length int) {
	l := &w.lineup
	w.holds = w.holds[:0]
	w.kinds = append(w.kinds[:0], kind{})
	w.kind = slices.Grow(w.kind[:0], len(l.ids))[:len(l.ids)]
	w.slots = [kindSlots]uint8{}
	all, kinds, isAlone := w.said[:len(l.ids)], w.kind[:len(l.ids)], len(w.prompts) == 1
	var steady uint64 // of the 64 targets around an id
	around := fleet.TargetID(math.MaxUint32)
	for at, id := range l.ids {
		s := all[at]
		if id/64 != around {
			around, steady = id/64, w.roster.steady.at(id).Load()
		}
		if (s.facts == apart || steady>>(id%64)&1 == 0) && s.facts != 0 {
			kinds[at] = 0
			w.addHold(as, at)
			continue
		}
		k := w.slots[s.slot()]
		if w.kinds[k].said != s || !isAlone {
			var isTooMany bool
			if k, isTooMany = w.kindOf(s, at, length); isTooMany {
				kinds[at] = 0
				w.addHold(as, at)
				continue
			}
		}
		kinds[at] = k
		w.kinds[k].count(at)
	}
}

func (k *kind) count(at int) {
	if k.n == 0 {
		k.first = at
	}
	k.n++
}

// kindOf finds or makes the kind of the target at a place, or says that it is one too many.
func (w *work) kindOf(s said, at, length int) (k uint8, isTooMany bool) {
	if s == (said{}) {
		return 0, false
	}
	size := 0
	if len(w.prompts) > 1 {
		size = w.promptFor(w.roster.seats[w.lineup.seats[at]].worker.BlockSize)
	}
	slot := (s.slot() + uint32(size)) % kindSlots
	for ; w.slots[slot] != 0; slot = (slot + 1) % kindSlots {
		if x := &w.kinds[w.slots[slot]]; x.said == s && x.hold.size == size {
			return w.slots[slot], false
		}
	}
	if len(w.kinds) == maxKinds {
		return 0, true
	}
	k = uint8(len(w.kinds))
	w.slots[slot] = k
	p := &w.prompts[size]
	most := block.Usable(length, p.size) * p.size
	h := hold{size: size, credit: 1}
	h.holds(&[fleet.NumTiers]uint32{fleet.Device: s.facts}, p.size, most)
	h.expects(&[fleet.NumTiers]uint32{fleet.Device: s.guesses}, p.size, most)
	w.kinds = append(w.kinds, kind{said: s, hold: h})
	return k, false
}

// addHold adds the target at a place to those with a hold of their own.
func (w *work) addHold(as form, at int) {
	s := &w.roster.seats[w.lineup.seats[at]]
	w.placeAt(s.id, len(w.holds))
	w.holds = append(w.holds, hold{size: w.promptFor(s.worker.BlockSize)})
	w.holds[len(w.holds)-1].believe(s.feed, as, w.now)
}

// creditHolds gives the holds what was matched of a prompt of so many tokens.
func (w *work) creditHolds(length int) {
	for i := range w.prompts {
		p := &w.prompts[i]
		most := block.Usable(length, p.size) * p.size
		facts, approx, guesses := cursor{all: p.facts}, cursor{all: p.approx}, cursor{all: p.guesses}
		for k := range w.holds {
			h := &w.holds[k]
			if h.size != i {
				continue
			}
			if m := facts.of(h.id); m != nil {
				h.holds(&m.Blocks, p.size, most)
			}
			if m := approx.of(h.id); m != nil && h.blocks == Approximate {
				h.holds(&m.Blocks, p.size, most)
			}
			if m := guesses.of(h.id); m != nil {
				h.expects(&m.Blocks, p.size, most)
			}
		}
	}
}

// cursor goes through matches, which are ordered by target.
type cursor struct {
	all  []index.Match
	next int
}

// of finds the match of a target, or nil. Targets are asked for in ascending order.
func (c *cursor) of(id fleet.TargetID) *index.Match {
	for c.next < len(c.all) && c.all[c.next].Target < id {
		c.next++
	}
	if c.next == len(c.all) || c.all[c.next].Target != id {
		return nil
	}
	return &c.all[c.next]
}

// tell describes the kinds and holds to the policy, for a prompt of so many tokens, and finds the deepest match among
// them; nil: nobody holds anything.
func (w *work) tell(t *policy.Table, length int, b *board) (deepest *hold) {
	w.table, w.common = w.table[:0], w.common[:0]
	for i := range w.holds {
		h := &w.holds[i]
		c := h.candidate()
		if h.usable[fleet.Device] < h.usable.Total() { // its rates matter
			c.Cost = b.posts[h.id].cost
		}
		w.table = append(w.table, policy.NewHolder(length, &c))
		deepest = w.deeper(deepest, h)
	}
	t.Holders = w.table
	if len(w.kinds) == 1 {
		return deepest
	}
	for i := range w.kinds {
		k := &w.kinds[i]
		c := k.hold.candidate()
		w.common = append(w.common, policy.NewHolder(length, &c))
		if k.n > 0 {
			deepest = w.deeper(deepest, &k.hold)
		}
	}
	t.Kinds = w.common
	return deepest
}

// candidate is what the policy is told of a hold.
func (h *hold) candidate() policy.Candidate {
	return policy.Candidate{Target: h.id, Cached: h.usable, Expected: h.guess, Held: h.held.Total(), Shared: h.shared}
}

// steadiness says of targets, by id, whether what they reported counts in full, now and until their signs change: in one
// bit each, so that a decision that meets a thousand holders need not look at a thousand feeds. Words are shared by all
// copies of it; it grows under feedsMu.
type steadiness []*[steadyWords]atomic.Uint64

const steadyWords = 64

// cover makes room for an id.
func (s *steadiness) cover(id fleet.TargetID) {
	for int(id) >= len(*s)*steadyWords*64 {
		*s = append(*s, new([steadyWords]atomic.Uint64))
	}
}

// at is the word of an id's bit, which is id%64.
func (s steadiness) at(id fleet.TargetID) *atomic.Uint64 {
	return &s[id/(steadyWords*64)][id/64%steadyWords]
}

func (s steadiness) has(id fleet.TargetID) bool { return s.at(id).Load()>>(id%64)&1 != 0 }

// others goes through the ids of which it is not so, those that are nobody's among them.
func (s steadiness) others(yield func(fleet.TargetID) bool) {
	for i, page := range s {
		for j := range page {
			first := fleet.TargetID((i*steadyWords + j) * 64)
			for rest := ^page[j].Load(); rest != 0; rest &= rest - 1 {
				if !yield(first + fleet.TargetID(bits.TrailingZeros64(rest))) {
					return
				}
			}
		}
	}
}
