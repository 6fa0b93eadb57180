package sim

import "math/rand/v2"

// RoundRobin chooses each engine in turn, whatever it is asked.
func RoundRobin() Chooser { return new(roundRobin) }

type roundRobin struct{ turn int }

func (c *roundRobin) Choose(_ float64, _ *Request, f *Fleet) int {
	for range f.Engines() {
		c.turn++
		if e := (c.turn - 1) % f.Engines(); f.Takes(e) {
			return e
		}
	}
	return -1
}

// Random chooses evenly; one seed always gives the same choices.
func Random(seed uint64) Chooser { return &random{rand.New(rand.NewPCG(seed, 0))} }

type random struct{ rnd *rand.Rand }

func (c *random) Choose(_ float64, _ *Request, f *Fleet) int {
	all := f.taking()
	if len(all) == 0 {
		return -1
	}
	return all[c.rnd.IntN(len(all))]
}

// LeastLoaded chooses the engine with the fewest requests in flight; of several, the one not chosen for longest.
func LeastLoaded() Chooser { return &leastLoaded{last: map[int]int{}} }

type leastLoaded struct {
	turn int
	last map[int]int // engine to the turn it was chosen
}

func (c *leastLoaded) Choose(_ float64, _ *Request, f *Fleet) int {
	best := -1
	for _, e := range f.taking() {
		if best < 0 {
			best = e
		}
		n, least := f.InFlight(e), f.InFlight(best)
		if n < least || n == least && c.last[e] < c.last[best] {
			best = e
		}
	}
	c.turn++
	c.last[best] = c.turn
	return best
}
