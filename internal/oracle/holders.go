package oracle

import (
	"math/bits"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// placeHolders lists those of the lineup of which any index says something of their own, in ascending order, and notes
// where. What most of them hold alike is said once, in alike.
func (w *work) placeHolders(as form) {
	w.holds, w.alike = w.holds[:0], alike{}
	for i := range w.prompts {
		w.spoken.addAll(w.prompts[i].approx)
	}
	if !w.setCommonApart() {
		for i := range w.prompts {
			w.spoken.addAll(w.prompts[i].facts)
			w.spoken.addAll(w.prompts[i].guesses)
		}
	}
	l, at := &w.lineup, 0
	for word := range w.spoken {
		for set := w.spoken[word]; set != 0 && at < len(l.ids); set &= set - 1 {
			id := fleet.TargetID(64*word + bits.TrailingZeros64(set))
			if at = l.find(id, at); at == len(l.ids) || l.ids[at] != id {
				continue
			}
			s := &w.roster.seats[l.seats[at]]
			w.placeAt(id, len(w.holds))
			w.holds = append(w.holds, hold{size: w.promptFor(s.worker.BlockSize)})
			w.holds[len(w.holds)-1].believe(s.feed, as, w.now)
		}
		w.spoken[word] = 0
	}
}

// alike is what most of a lineup hold of a prompt, as of one that begins with what all prompts begin with: in blocks of
// the only block size, on the device, as reported and as guessed of requests under way. The zero value is nothing.
type alike struct{ facts, guesses uint32 }

// setCommonApart finds whether most of the lineup hold the same. If so it leaves among the matches, and adds to those
// spoken of, only who differs: in what it holds, in that more is known of it, or in how far it is believed.
func (w *work) setCommonApart() bool {
	p, l := &w.prompts[0], &w.lineup
	if len(w.prompts) > 1 {
		return false
	}
	w.alike = alike{majority(p.facts, len(l.ids)), majority(p.guesses, len(l.ids))}
	if w.alike == (alike{}) {
		return false
	}
	facts, guesses := cursor{all: p.facts}, cursor{all: p.guesses}
	for at, id := range l.ids {
		fact, guess := facts.of(id), guesses.of(id)
		if isOnly(fact, w.alike.facts) && isOnly(guess, w.alike.guesses) && !w.spoken.has(id) &&
			(w.alike.facts == 0 || w.roster.seats[l.seats[at]].feed.isSteady.Load()) {
			continue
		}
		w.spoken.add(id)
		facts.keep(fact)
		guesses.keep(guess)
	}
	p.facts, p.guesses = p.facts[:facts.kept], p.guesses[:guesses.kept]
	return true
}

// majority is how many blocks, all on the device, more than half of so many targets hold, if there is such a number.
func majority(all []index.Match, of int) uint32 {
	if 2*len(all) <= of {
		return 0
	}
	// Who outvotes all others is found in one pass; if nobody does, any of them is as good.
	most, votes := uint32(0), 0
	for i := range all {
		switch n := all[i].Blocks[fleet.Device]; {
		case n == most:
			votes++
		case votes == 0:
			most, votes = n, 1
		default:
			votes--
		}
	}
	return most
}

// isOnly reports whether a match, or none, is one of so many blocks on the device and nothing farther away.
func isOnly(m *index.Match, blocks uint32) bool {
	if m == nil {
		return blocks == 0
	}
	return m.Blocks == [fleet.NumTiers]uint32{fleet.Device: blocks}
}

// cursor goes through matches, which are ordered by target, and keeps some of them in the same memory.
type cursor struct {
	all        []index.Match
	next, kept int
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

func (c *cursor) keep(m *index.Match) {
	if m != nil {
		c.all[c.kept] = *m
		c.kept++
	}
}

// commonHold is what a target holds that is not among the holders; false: nothing.
func (w *work) commonHold(length int) (h hold, ok bool) {
	if w.alike == (alike{}) {
		return hold{}, false
	}
	p := &w.prompts[0]
	most := block.Usable(length, p.size) * p.size
	h.credit = 1
	h.holds(&[fleet.NumTiers]uint32{fleet.Device: w.alike.facts}, p.size, most)
	h.expects(&[fleet.NumTiers]uint32{fleet.Device: w.alike.guesses}, p.size, most)
	return h, true
}

// bitset is a set of targets.
type bitset []uint64

func (s *bitset) add(id fleet.TargetID) {
	word := int(id / 64)
	if word >= len(*s) {
		*s = append(*s, make([]uint64, word+1-len(*s))...)
	}
	(*s)[word] |= 1 << (id % 64)
}

func (s *bitset) addAll(matches []index.Match) {
	for i := range matches {
		s.add(matches[i].Target)
	}
}

func (s *bitset) has(id fleet.TargetID) bool {
	word := int(id / 64)
	return word < len(*s) && (*s)[word]&(1<<(id%64)) != 0
}
