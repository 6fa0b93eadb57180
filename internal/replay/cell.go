package replay

import (
	"fmt"
	"math"

	"github.com/kvoracle/kvoracle/internal/sim"
)

// Workload is a trace and how it is served.
type Workload struct {
	Name, Title string
	Trace       *sim.Trace
	// BlockSize is the engines', in tokens; 0: the trace's.
	BlockSize int
	// IsClosed says that its sessions are worked through by users.
	IsClosed bool
	// Horizon is how many virtual seconds a closed loop of 8 engines lasts; 0: 240. Larger fleets serve as many requests
	// in less.
	Horizon float64
}

func (w *Workload) horizon() float64 {
	if w.Horizon > 0 {
		return w.Horizon
	}
	return 240
}

// Cell is a workload on a fleet.
type Cell struct {
	Workload *Workload
	Model    sim.Model
	Engines  int
	// Speeds is how fast each engine is in units of the Model's; nil: all as fast as that. Nobody is told, but who sees the
	// engines' exact state.
	Speeds []float64
}

// Name is unique among cells.
func (c *Cell) Name() string {
	return fmt.Sprintf("%s/%s/%d", c.Workload.Name, c.Model.Name, c.Engines)
}

// Scale is what loads mean in a cell.
type Scale struct {
	// Full is load 1: the speed of arrivals, or the users.
	Full float64
	// TTFT90 and TPOT are the promise, in seconds.
	TTFT90, TPOT float64
	// Unloaded is what the reference measured with hardly any load.
	Unloaded sim.Result
}

// starts reports whether a result keeps what is promised of first tokens.
func (s *Scale) starts(r *sim.Result) bool { return r.N > 0 && r.TTFT.P90 <= s.TTFT90 }

// keeps reports whether a result keeps the whole promise.
func (s *Scale) keeps(r *sim.Result) bool { return s.starts(r) && r.TPOT.Mean <= s.TPOT }

// Capacity is how much load a policy can take, in units of load 1; 0: not even hardly any.
type Capacity struct {
	// TTFT is up to which load p90 TTFT is as promised, Promise up to which mean TPOT is so, too. See Cell.climb.
	TTFT, Promise float64
}

const (
	ttftSlack = 4
	tpotSlack = 3
	// precision is that of searches.
	precision = 1.02
	// warmup is the share that is served and not measured.
	warmup = 0.2
)

// options are those of every run of the cell.
func (c *Cell) options() sim.Options {
	size := c.Workload.BlockSize
	if size == 0 {
		size = c.Workload.Trace.BlockSize
	}
	return sim.Options{Engines: c.Engines, Model: c.Model, BlockSize: size, Keyspace: sim.LiveKeyspace(size), Speeds: c.Speeds}
}

// run serves the cell at a load in the loop's own unit.
func (c *Cell) run(p *Contestant, load float64, seed uint64, keep bool) (sim.Result, error) {
	o := sim.RunOptions{Options: c.options(), Warmup: warmup, Seed: seed, Keep: keep}
	if c.Workload.IsClosed {
		o.Users = max(1, int(math.Round(load)))
		o.Horizon = max(c.Workload.horizon()*8/float64(max(c.Engines, 8)), 60)
	} else {
		o.Speed = load
	}
	r, err := sim.Run(c.Workload.Trace, p.New(&c.Model, seed), o)
	if err != nil {
		return r, fmt.Errorf("%s, %s: %w", c.Name(), p.Name, err)
	}
	return r, nil
}

// light is a load of about a twentieth of what the engines could prefill.
func (c *Cell) light() float64 {
	if c.Workload.IsClosed {
		return math.Ceil(float64(c.Engines) / 4)
	}
	rs := c.Workload.Trace.Requests
	m := c.Model.CostModel()
	work := 0.0
	for _, r := range rs {
		work += m.PrefillTime(r.Input, 0)
	}
	span := max(rs[len(rs)-1].Arrival, 1e-3)
	return min(max(0.05*float64(c.Engines)*span/work, 1e-3), 1e5)
}

// scale finds load 1.
func (c *Cell) scale(reference *Contestant) (Scale, error) {
	light := c.light()
	idle, err := c.run(reference, light, 1, false)
	if err != nil {
		return Scale{}, err
	}
	if idle.N == 0 {
		return Scale{}, fmt.Errorf("%s: no request that is measured fits into an engine's memory of %d tokens", c.Name(), c.Model.KVTokens)
	}
	s := Scale{TTFT90: ttftSlack * idle.TTFT.P90, TPOT: tpotSlack * idle.TPOT.Mean, Unloaded: idle}
	s.Full, err = c.search(c.runs(reference), s.keeps, light*8)
	s.Full = max(s.Full, light) // there it keeps the promise: it was made of it
	return s, err
}

// runs serves the cell with a contestant, once for each load.
func (c *Cell) runs(p *Contestant) func(load float64) (*sim.Result, error) {
	known := map[float64]*sim.Result{}
	return func(load float64) (*sim.Result, error) {
		if r := known[load]; r != nil {
			return r, nil
		}
		r, err := c.run(p, load, 1, false)
		if err != nil {
			return nil, err
		}
		known[load] = &r
		return &r, nil
	}
}

// capacity searches for how much load a contestant can take.
func (c *Cell) capacity(s *Scale, p *Contestant) (Capacity, error) {
	run, find := c.runs(p), c.search
	if !c.Workload.IsClosed {
		find = s.climb
	}
	promise := s.Full // by its definition, of the reference
	if !p.IsReference {
		var err error
		if promise, err = find(run, s.keeps, s.Full); err != nil {
			return Capacity{}, err
		}
	}
	ttft, err := find(run, s.starts, max(promise, s.Full/8))
	return Capacity{TTFT: max(ttft, promise) / s.Full, Promise: promise / s.Full}, err
}

const (
	// climbStep is between two loads of a climb.
	climbStep = 1.01
	// sure is how many loads in a row have to agree for what lies beyond them not to be looked at.
	sure = 4
	// mostSteps bounds a climb in each direction: by a factor of 100 of load.
	mostSteps = 463
)

// climb finds up to which load a contestant's runs keep something, starting from a guess. 0: they keep it at none. Loads are those
// of a ladder that all contestants of a cell climb, climbStep apart. Near its end a promise is kept at one load, broken at the next
// and kept again, as requests happen to fall together, and a single bisection ends at any of these loads. So all of them are looked
// at, from where the promise is kept sure times in a row to where it is broken as often, and each at which it is kept is a step.
func (s *Scale) climb(run func(float64) (*sim.Result, error), keeps func(*sim.Result) bool, guess float64) (float64, error) {
	at := func(k int) float64 { return s.Full * math.Pow(climbStep, float64(k)) }
	isKept := func(k int) (bool, error) {
		r, err := run(at(k))
		return err == nil && keeps(r), err
	}
	lo, err := gallop(int(math.Round(math.Log(guess/s.Full)/math.Log(climbStep))), isKept)
	if err != nil || lo <= -mostSteps {
		return 0, err
	}
	down, below, err := walk(lo, -1, isKept)
	if err != nil {
		return 0, err
	}
	_, above, err := walk(lo+1, 1, isKept)
	return at(down + below + above), err
}

// walk looks at steps in one direction until all of sure in a row are as they are expected to be there, kept below and not above.
// It gives the next one and how many were kept.
func walk(k, by int, isKept func(int) (bool, error)) (next, kept int, err error) {
	for inRow := 0; inRow < sure && max(k, -k) < mostSteps; k += by {
		is, err := isKept(k)
		if err != nil {
			return 0, 0, err
		}
		if is {
			kept++
		}
		if inRow++; is != (by < 0) {
			inRow = 0
		}
	}
	return k, kept, nil
}

// gallop finds a step that is kept and the next one not, starting from a guess; -mostSteps: none is kept.
func gallop(guess int, isKept func(int) (bool, error)) (int, error) {
	lo, hi := -mostSteps, mostSteps
	at, stride := guess, 12
	for hi-lo > 1 {
		is, err := isKept(at)
		if err != nil {
			return 0, err
		}
		if is {
			lo = at
		} else {
			hi = at
		}
		switch {
		case hi == mostSteps:
			at = min(lo+stride, hi-1)
			stride *= 2
		case lo == -mostSteps:
			at = max(hi-stride, lo+1)
			stride *= 2
		default:
			at = (lo + hi) / 2
		}
	}
	return lo, nil
}

// search finds the highest load at which a contestant's runs keep something, starting from a guess. 0: they keep it at none.
func (c *Cell) search(run func(float64) (*sim.Result, error), keeps func(*sim.Result) bool, guess float64) (float64, error) {
	if c.Workload.IsClosed {
		guess = max(math.Round(guess), 1)
	}
	lo, hi := 0.0, math.Inf(1)
	const steps = 40 // more than any search takes
	at, step := guess, 1.25
	for range steps {
		r, err := run(at)
		if err != nil {
			return 0, err
		}
		if keeps(r) {
			lo = at
		} else {
			hi = at
		}
		switch {
		case math.IsInf(hi, 1):
			at *= step
			step = min(step*step, 2)
		case lo == 0:
			at /= step
			step = min(step*step, 2)
		default:
			at = math.Sqrt(lo * hi)
		}
		if c.Workload.IsClosed {
			at = math.Round(at)
			if at <= lo || at >= hi || at < 1 {
				break
			}
		}
		if hi/lo < precision || hi < 1e-3*guess || lo > 1e5 {
			break
		}
	}
	return lo, nil
}
