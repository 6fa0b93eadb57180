package load

import "container/heap"

// A target works its prefills off one after the other, by the clock: of the first one that has no first token yet only
// the rest is pending, or a long one would look to the next request as long as it did when it came. One of a gateway
// that does not tell first tokens, which would stay charged until the request ends, is presumed over when it has had its
// time. Of a gateway that does tell nothing is presumed over: when it says nothing the request does wait, and the longer
// it is overdue the more is taken to be left, up to all of it: such an engine is slow, or stuck.
//
// In the same way a booking of a gateway that tells no ends is presumed over when its output has had its time. It lives
// on, in no sum, so that news of it is news: then it counts again.
//
// A gateway that was never heard of tells nothing. With its first word it is one that tells everything, until it is found
// not to.
const (
	// presumeAfter is the multiple of its own prefill that a booking is given once its turn has come.
	presumeAfter = 1.25
	// presumeLeast is what every prefill is given at least, in nanoseconds: an iteration or two.
	presumeLeast = 10_000_000
	// workStep is the step of the clock by which work is worked off, in nanoseconds: who follows many targets need not look
	// at each of them more often.
	workStep = 10_000_000

	// A gateway is taken to be silent when fewer than half of its requests that ended had a first token, or an end, told.
	// silence is the weight of the newest.
	silence = 0.2
	// maxTellers bounds the gateways whose habits are remembered. Beyond it all are forgotten.
	maxTellers = 4096
	// maxPresumed bounds what is kept for Presumed.
	maxPresumed = 1 << 14
)

// habit is the share of a gateway's requests of which it told the first token, and the end. The zero value is a gateway
// that was never heard of.
type habit struct{ first, end float64 }

// tellsFirst and tellsEnd report whether a gateway tells first tokens and ends, as far as is known.
func (t *Tracker) tellsFirst(gateway string) bool { return t.habits[gateway].first >= 0.5 }
func (t *Tracker) tellsEnd(gateway string) bool   { return t.habits[gateway].end >= 0.5 }

// heard notes a word of a gateway.
func (t *Tracker) heard(gateway string) {
	if _, known := t.habits[gateway]; !known {
		t.setHabit(gateway, habit{1, 1})
	}
}

// learnHabit notes the end of a request, and whether it was told. One that was given up says nothing of first tokens.
func (t *Tracker) learnHabit(b *booking, isTold, isGivenUp bool) {
	h, known := t.habits[b.Gateway]
	if !known {
		return
	}
	h.end = lean(h.end, isTold)
	if !isGivenUp {
		h.first = lean(h.first, b.told)
	}
	t.setHabit(b.Gateway, h)
}

// lean moves a share towards what was met last: slowly, so that one lost report changes nothing.
func lean(share float64, met bool) float64 {
	to := 0.0
	if met {
		to = 1
	}
	return share + silence*(to-share)
}

func (t *Tracker) setHabit(gateway string, h habit) {
	was, known := t.habits[gateway]
	if !known && len(t.habits) >= maxTellers {
		clear(t.habits)
	}
	t.habits[gateway] = h
	if (was.first >= 0.5) != (h.first >= 0.5) || (was.end >= 0.5) != (h.end >= 0.5) {
		t.flips++
	}
}

// Presumption is what was concluded of a booking of which nobody spoke.
type Presumption struct {
	ID DecisionID
	// Ended says that it is over, by the clock, by a sample or by its lease; otherwise only its prefill is.
	Ended bool
}

// Presumed appends what was presumed since the last call in the order in which it was, and forgets it. Of very much some is
// left out.
func (t *Tracker) Presumed(out []Presumption) []Presumption {
	t.mu.Lock()
	defer t.mu.Unlock()
	out = append(out, t.presumed...)
	t.presumed = t.presumed[:0]
	return out
}

// conclude keeps a presumption for Presumed.
func (t *Tracker) conclude(p Presumption) {
	if len(t.presumed) < maxPresumed {
		t.presumed = append(t.presumed, p)
	}
}

// begun is how much of the first prefill of a target counts as worked off by the clock, in nanoseconds.
func (t *Tracker) begun(g *target) int64 {
	b := g.prefills.first
	if b == nil {
		return 0
	}
	had, all := int64(float64(max(t.step()-max(g.turn, b.came), 0))/presumeAfter), b.amounts.prefill
	return max(min(had, 2*all-had), 0)
}

// step is the clock's last whole workStep.
func (t *Tracker) step() int64 { return t.clock - t.clock%workStep }

// presume ends the prefills of a target that have had their time, and then the bookings.
func (t *Tracker) presume(g *target) {
	now := t.step()
	for b := g.prefills.first; b != nil && !t.tellsFirst(b.Gateway); b = g.prefills.first {
		turn := max(g.turn, b.came) // when it could begin
		given := max(int64(presumeAfter*float64(b.amounts.prefill)), presumeLeast)
		if now-turn < given {
			break
		}
		g.turn = turn + given
		t.change(b, func() { b.decoding = true })
		t.count.Presumed++
		t.conclude(Presumption{ID: b.ID})
		t.schedule(b, g.turn)
	}
	for len(g.ends) > 0 && g.ends[0].end <= now {
		b := g.ends[0]
		g.unschedule(b)
		if t.tellsEnd(b.Gateway) {
			continue
		}
		t.outlive(g, b)
	}
}

// outlive takes a booking out of the sums.
func (t *Tracker) outlive(g *target, b *booking) {
	g.uncount(b)
	b.over = true
	t.count.Outlived++
	t.conclude(Presumption{ID: b.ID, Ended: true})
}

// surplus ends those bookings of silent gateways, the oldest first, of which a sample shows that they are over: it has
// fewer requests than are booked. One that is still on its way there may be among them; the next sample shows it.
func (t *Tracker) surplus(g *target, s *Sample) {
	if !s.Running.Known || !s.Waiting.Known {
		return
	}
	for n := g.booked - s.Running.read() - s.Waiting.read(); n > 0 && len(g.ends) > 0; n-- {
		b := g.ends[0]
		g.unschedule(b)
		if !t.tellsEnd(b.Gateway) {
			t.outlive(g, b)
		}
	}
}

// schedule says when a booking that decodes since at will be presumed over. One that has given more than was expected is
// taken to be where it was when it began.
func (t *Tracker) schedule(b *booking, at int64) {
	g := t.targets[b.Target]
	g.unschedule(b)
	if b.amounts.decode == 0 || t.tellsEnd(b.Gateway) {
		return
	}
	b.end = at + b.amounts.decode
	if left := b.amounts.toCome(); left > 0 {
		b.end = at + int64(float64(b.amounts.decode)*(float64(left)/float64(b.amounts.expected)))
	}
	heap.Push(&g.ends, b)
	g.note()
}

func (g *target) unschedule(b *booking) {
	if b.place > 0 {
		heap.Remove(&g.ends, b.place-1)
	}
}

// ends is a heap of bookings by their end.
type ends []*booking

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].end < e[j].end }

func (e ends) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].place, e[j].place = i+1, j+1
}

// Push is container/heap's.
func (e *ends) Push(x any) {
	if b, ok := x.(*booking); ok {
		*e = append(*e, b)
		b.place = len(*e)
	}
}

// Pop is container/heap's.
func (e *ends) Pop() any {
	last := len(*e) - 1
	b := (*e)[last]
	(*e)[last], b.place = nil, 0
	*e = (*e)[:last]
	return b
}
