package oracle

import (
	"encoding/binary"
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
	at    int  // among the kinds
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
	w.divide(as, length)
	if len(w.holds) > 0 {
		w.creditHolds(length)
	}
}

// divide makes kinds and holds of what was matched, for 64 ids at a time: who holds what is a matter of a few words then,
// and not of each target.
func (w *work) divide(as form, length int) {
	l := &w.lineup
	w.holds = w.holds[:0]
	w.kinds = append(w.kinds[:0], kind{})
	w.kind = slices.Grow(w.kind[:0], len(l.ids))[:len(l.ids)]
	w.slots = [kindSlots]uint8{}
	w.usual(0)
	for k := range w.prompts {
		w.prompts[k].quick.begin(len(l.sets[k]))
	}
	at := 0
	for i := int(l.ids[0] / 64); at < len(l.ids); i++ {
		x := some{word: i, at: at}
		for k := range w.prompts {
			x.all |= l.sets[k].Word(i)
		}
		if x.all == 0 {
			continue
		}
		n := bits.OnesCount64(x.all)
		copy(w.kind[at:at+n], w.pattern[:])
		x.steady = w.roster.steady.at(fleet.TargetID(i * 64)).Load()
		own := uint64(0)
		for k := range w.prompts {
			if in := l.sets[k].Word(i); in != 0 {
				alone := in & w.prompts[k].quick.alone(i, x.steady)
				own |= alone | w.divideAlike(k, &x, in&^alone, length)
			}
		}
		if own != 0 {
			w.divideOwn(as, &x, own, length)
		}
		at += n
	}
}

// layered is what was matched for the quick way.
type layered struct {
	facts, guesses, approx index.Layers

	told  [3]cursor // through them
	named index.Set // who is among the others of any
	table []uint8   // kinds by what layers of facts and guesses say; 0: not known yet
}

// some is the 64 ids from 64*word on.
type some struct {
	word   int
	all    uint64 // those of the lineup
	at     int    // place of the first of them
	steady uint64
}

// isDense says that the ids of the lineup have no gaps here.
func (x *some) isDense() bool {
	in := x.all >> bits.TrailingZeros64(x.all)
	return in&(in+1) == 0
}

// place is that of an id's bit.
func (x *some) place(bit int) int { return x.at + bits.OnesCount64(x.all&(1<<bit-1)) }

// usual makes a kind the one that targets are taken to be of before they are looked at.
func (w *work) usual(k uint8) {
	for i := range w.pattern {
		w.pattern[i] = k
	}
}

// begin makes what divide needs of a prompt, for a lineup that goes over so many words.
func (q *layered) begin(words int) {
	n := (len(q.facts.All) + 1) * (len(q.guesses.All) + 1)
	q.table = slices.Grow(q.table[:0], n)[:n]
	clear(q.table)
	q.named = q.named[:0]
	for _, x := range [...]*index.Layers{&q.facts, &q.guesses, &q.approx} {
		if len(x.Others) == 0 {
			continue
		}
		if len(q.named) == 0 {
			q.named = slices.Grow(q.named, words)[:words]
			clear(q.named)
		}
		for i := range x.Others {
			if id := x.Others[i].Target; int(id/64) < words {
				q.named[id/64] |= 1 << (id % 64)
			}
		}
	}
	q.told = [...]cursor{{of: &q.facts}, {of: &q.guesses}, {of: &q.approx}}
}

// alone is the bits of the ids of which more must be known than the layers that they are in.
func (q *layered) alone(word int, steady uint64) uint64 {
	alone := q.named.Word(word)
	if len(q.facts.All) > 0 {
		alone |= q.facts.All[0].Set.Word(word) &^ steady
	}
	if len(q.approx.All) > 0 {
		alone |= q.approx.All[0].Set.Word(word)
	}
	return alone
}

// divideAlike finds the kinds of targets that are what the layers of prompt k say, and returns those of a kind too many.
func (w *work) divideAlike(k int, x *some, rest uint64, length int) (over uint64) {
	q := &w.prompts[k].quick
	facts, guesses := q.facts.All, q.guesses.All
	for f := len(facts); rest != 0; f-- {
		holds, s := rest, said{}
		if f > 0 {
			if holds &= facts[f-1].Set.Word(x.word); holds == 0 {
				continue
			}
			s.facts = facts[f-1].Blocks
		}
		rest &^= holds
		for g := len(guesses); holds != 0; g-- {
			alike := holds
			if g > 0 {
				if alike &= guesses[g-1].Set.Word(x.word); alike == 0 {
					continue
				}
				s.guesses = guesses[g-1].Blocks
			} else {
				s.guesses = 0
			}
			holds &^= alike
			kind := &q.table[f*(len(guesses)+1)+g]
			if *kind == 0 && s != (said{}) {
				var isTooMany bool
				if *kind, isTooMany = w.kindOf(s, k, length); isTooMany {
					over |= alike
					continue
				}
			}
			w.countAlike(*kind, x, alike)
		}
	}
	return over
}

// countAlike counts targets of a kind and notes it.
func (w *work) countAlike(k uint8, x *some, alike uint64) {
	kind, n := &w.kinds[k], bits.OnesCount64(alike)
	if kind.n == 0 || len(w.prompts) > 1 { // else what comes first has been seen first
		if first := x.place(bits.TrailingZeros64(alike)); kind.n == 0 || first < kind.first {
			kind.first = first
		}
	}
	kind.n += n
	if k == w.pattern[0] {
		return
	}
	if n > 32 {
		w.usual(k)
	}
	if x.isDense() {
		first := bits.TrailingZeros64(x.all)
		list := w.kind[x.at : x.at+bits.OnesCount64(x.all)]
		if alike >>= first; n >= 24 {
			paint(list, k, alike)
			return
		}
		for ; alike != 0; alike &= alike - 1 {
			list[bits.TrailingZeros64(alike)] = k
		}
		return
	}
	for ; alike != 0; alike &= alike - 1 {
		w.kind[x.place(bits.TrailingZeros64(alike))] = k
	}
}

// paint makes those of a list k whose bit is set, eight at a time.
func paint(list []uint8, k uint8, set uint64) {
	const ones, low = 0x0101010101010101, 0x7f7f7f7f7f7f7f7f
	for ; set != 0 && len(list) >= 8; set, list = set>>8, list[8:] {
		if set&0xff == 0 {
			continue
		}
		each := set & 0xff * ones & 0x8040201008040201 // in each byte its own bit
		mask := (each + low) &^ low >> 7 * 0xff
		v := binary.LittleEndian.Uint64(list)
		binary.LittleEndian.PutUint64(list, v&^mask|uint64(k)*ones&mask)
	}
	for ; set != 0; set &= set - 1 {
		list[bits.TrailingZeros64(set)] = k
	}
}

// divideOwn finds the kinds of targets one by one, or gives them a hold of their own.
func (w *work) divideOwn(as form, x *some, own uint64, length int) {
	l := &w.lineup
	for ; own != 0; own &= own - 1 {
		bit := bits.TrailingZeros64(own)
		id, at, size := fleet.TargetID(x.word*64+bit), x.place(bit), 0
		for !l.sets[size].Has(id) {
			size++
		}
		q := &w.prompts[size].quick
		facts, guesses, approx := q.told[0].at(id), q.told[1].at(id), q.told[2].at(id)
		s := said{facts[fleet.Device], guesses[fleet.Device]}
		if isFarther(&facts) || approx != (byTier{}) {
			s.facts = apart
		}
		k, isTooMany := uint8(0), s.facts != 0 && (s.facts == apart || x.steady>>bit&1 == 0)
		if !isTooMany {
			k, isTooMany = w.kindOf(s, size, length)
		}
		if w.kind[at] = k; isTooMany {
			w.addHold(as, at)
			continue
		}
		w.kinds[k].count(at)
	}
}

// isFarther reports whether some of what is matched is not on the device.
func isFarther(blocks *byTier) bool {
	var sum uint32
	for _, n := range blocks[fleet.Device+1:] {
		sum |= n
	}
	return sum != 0
}

func (k *kind) count(at int) {
	if k.n == 0 || at < k.first {
		k.first = at
	}
	k.n++
}

// kindOf finds or makes the kind of who holds something of a prompt, or says that it is one too many.
func (w *work) kindOf(s said, size, length int) (k uint8, isTooMany bool) {
	if s == (said{}) {
		return 0, false
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
	w.kinds = append(w.kinds, kind{})
	x := &w.kinds[k]
	x.said, x.at, x.hold.size, x.hold.credit = s, int(k), size, 1
	x.hold.holds(&byTier{fleet.Device: s.facts}, p.size, most)
	x.hold.expects(&byTier{fleet.Device: s.guesses}, p.size, most)
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
		facts, approx, guesses := cursor{of: &p.quick.facts}, cursor{of: &p.quick.approx}, cursor{of: &p.quick.guesses}
		for k := range w.holds {
			h := &w.holds[k]
			if h.size != i {
				continue
			}
			if m := facts.at(h.id); m != (byTier{}) {
				h.holds(&m, p.size, most)
			}
			if m := approx.at(h.id); m != (byTier{}) && h.blocks == Approximate {
				h.holds(&m, p.size, most)
			}
			if m := guesses.at(h.id); m != (byTier{}) {
				h.expects(&m, p.size, most)
			}
		}
	}
}

// byTier is blocks by tier, as in an index.Match.
type byTier = [fleet.NumTiers]uint32

// cursor goes through what was matched.
type cursor struct {
	of   *index.Layers
	next int
}

// at is what was matched of a target, in blocks by tier. Targets are asked for in ascending order.
func (c *cursor) at(id fleet.TargetID) byTier {
	others := c.of.Others
	for c.next < len(others) && others[c.next].Target < id {
		c.next++
	}
	if c.next < len(others) && others[c.next].Target == id {
		return others[c.next].Blocks
	}
	for k := len(c.of.All) - 1; k >= 0; k-- {
		if x := &c.of.All[k]; x.Set.Has(id) {
			return byTier{fleet.Device: x.Blocks}
		}
	}
	return byTier{}
}

// tell describes the kinds and holds to the policy, for a prompt of so many tokens, and finds the deepest match among
// them; nil: nobody holds anything.
func (w *work) tell(t *policy.Table, length int, b *board) (deepest *hold) {
	w.table, w.common = w.table[:0], w.common[:0]
	var c policy.Candidate
	for i := range w.holds {
		h := &w.holds[i]
		h.tell(&c)
		c.Cost = nil
		if h.usable[fleet.Device] < h.usable.Total() { // its rates matter
			c.Cost = b.posts[h.id].cost
		}
		w.table = append(w.table, policy.NewHolder(length, &c))
		deepest = w.deeper(deepest, h)
	}
	t.Holders, c.Cost = w.table, nil
	for i := range w.kinds {
		k := &w.kinds[i]
		k.hold.tell(&c)
		w.common = append(w.common, policy.NewHolder(length, &c))
		if len(w.kinds) > 1 && k.n > 0 {
			deepest = w.deeper(deepest, &k.hold)
		}
	}
	if len(w.kinds) > 1 {
		t.Kinds = w.common
	}
	return deepest
}

// tell puts into c what the policy is told of a hold.
func (h *hold) tell(c *policy.Candidate) {
	c.Target, c.Cached, c.Expected, c.Held, c.Shared = h.id, h.usable, h.guess, h.held.Total(), h.shared
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
