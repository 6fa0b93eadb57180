package load

// A gateway that does not tell first tokens would keep every prefill charged until the request ends. So the clock does:
// a target works its prefills off one after the other, and one of such a gateway that has had its time is presumed over.
// Of a gateway that does tell nothing is presumed: when it says nothing the request does wait.
const (
	// presumeAfter is the multiple of its own prefill that a booking is given once its turn has come.
	presumeAfter = 1.25
	// presumeLeast is what every prefill is given at least, in nanoseconds: an iteration or two.
	presumeLeast = 10_000_000

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

// begun is how much of the first prefill of a target has been worked off by the clock, in nanoseconds; 0 when its gateway
// tells.
func (t *Tracker) begun(g *target) int64 {
	b := g.prefills.first
	if b == nil || len(t.habits) == 0 || t.tells(b.Gateway) {
		return 0
	}
	return min(int64(float64(t.clock-max(g.turn, b.came))/presumeAfter), b.amounts.prefill)
}

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
