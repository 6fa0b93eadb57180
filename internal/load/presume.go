package load

// A target works its prefills off one after the other, by the clock: of the first one that has no first token yet only
// the rest is pending, or a long one would look to the next request as long as it did when it came. One of a gateway
// that does not tell first tokens, which would stay charged until the request ends, is presumed over when it has had its
// time. Of a gateway that does tell nothing is presumed over: when it says nothing the request does wait, and the longer
// it is overdue the more is taken to be left, up to all of it: such an engine is slow, or stuck.
const (
	// presumeAfter is the multiple of its own prefill that a booking is given once its turn has come.
	presumeAfter = 1.25
	// presumeLeast is what every prefill is given at least, in nanoseconds: an iteration or two.
	presumeLeast = 10_000_000
	// workStep is the step of the clock by which work is worked off, in nanoseconds: who follows many targets need not look
	// at each of them more often.
	workStep = 10_000_000

	// A gateway is taken to be silent when fewer than half of its requests that ended had a first token told. silence is
	// the weight of the newest.
	silence = 0.2
	// maxTellers bounds the gateways whose habits are remembered. Beyond it all are taken to tell, anew.
	maxTellers = 4096
)

// tells reports whether a gateway tells first tokens, as far as is known; so does one that was never heard of.
func (t *Tracker) tells(gateway string) bool {
	habit, known := t.habits[gateway]
	return !known || habit >= 0.5
}

// learnHabit notes whether a request that ended had a first token told. Habits move slowly from telling, so that one
// lost report, or a request that failed early, changes nothing.
func (t *Tracker) learnHabit(b *booking) {
	told := 0.0
	if b.told {
		told = 1
	}
	habit, known := t.habits[b.Gateway]
	if !known {
		if b.told {
			return // as taken
		}
		if len(t.habits) >= maxTellers {
			clear(t.habits)
		}
		habit = 1
	}
	habit += silence * (told - habit)
	if habit > 0.99 {
		delete(t.habits, b.Gateway)
		return
	}
	t.habits[b.Gateway] = habit
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

// presume ends the prefills of a target that have had their time.
func (t *Tracker) presume(g *target) {
	if len(t.habits) == 0 {
		return // everybody tells
	}
	for b := g.prefills.first; b != nil && !t.tells(b.Gateway); b = g.prefills.first {
		turn := max(g.turn, b.came) // when it could begin
		given := max(int64(presumeAfter*float64(b.amounts.prefill)), presumeLeast)
		if t.clock-turn < given {
			return
		}
		g.turn = turn + given
		t.change(b, func() { b.decoding = true })
		t.count.Presumed++
	}
}
