package replay

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/kvoracle/kvoracle/internal/sim"
)

// Scenario is a cell in which something is not as it always was. Its workload is served in an open loop. Times are virtual
// seconds.
type Scenario struct {
	Cell
	// Name is short and unique among the scenarios of a workload, Title says what happens.
	Name, Title string
	// Present is how many engines there are before anything happens, the first ones: they make load 1. 0: all.
	Present int
	// Load is in units of that.
	Load float64
	// Changes are what happens to engines, Surge what comes beside the workload.
	Changes []sim.Change
	Surge   *sim.Surge
	// From and To bound the arrival of the requests that count; To 0: all that come after the warm-up do.
	From, To float64
}

// ScenarioReport is what was measured of one.
type ScenarioReport struct {
	Name, Title    string
	Cell, Workload string // its name, the title of what it serves
	Load           float64
	Scale          Scale
	Points         []Point // of each policy, the mean over seeds; their Result is of the requests that count
	// Touched are the engines to which something happens, and Shares what part of the requests that count they were given,
	// by policy, in units of an even one.
	Touched []int
	Shares  map[string]float64
}

// At finds a policy's point; nil: not measured.
func (r *ScenarioReport) At(policy string) *Point { return find(r.Points, policy, r.Load) }

// before is the cell as it is until something happens.
func (s *Scenario) before() Cell {
	c := s.Cell
	if s.Present > 0 {
		c.Engines = s.Present
		if c.Speeds != nil {
			c.Speeds = c.Speeds[:s.Present]
		}
	}
	return c
}

// touched are the engines that something happens to, or that are not as fast as the model.
func (s *Scenario) touched() []int {
	var out []int
	for i := range s.Engines {
		if slices.ContainsFunc(s.Changes, func(c sim.Change) bool { return c.Engine == i }) || s.Speeds != nil && s.Speeds[i] != 1 {
			out = append(out, i)
		}
	}
	return out
}

// run serves the scenario, and gives the result of the requests that count and the share of them that the touched engines had.
func (s *Scenario) run(p *Contestant, scale *Scale, seed uint64) (sim.Result, float64, error) {
	fail := func(err error) (sim.Result, float64, error) {
		return sim.Result{}, 0, fmt.Errorf("%s, %s, %s: %w", s.Cell.Name(), s.Name, p.Name, err)
	}
	o := sim.RunOptions{Options: s.options(), Warmup: warmup, Seed: seed, Keep: true, Speed: s.Load * scale.Full}
	o.Changes = s.Changes
	tr := s.Workload.Trace
	if s.Surge != nil {
		var err error
		if tr, err = tr.With(o.Speed, *s.Surge); err != nil {
			return fail(err)
		}
		o.Speed = 1
	}
	if s.To > 0 {
		o.Warmup = 0 // From says what counts
		if last := tr.Requests[len(tr.Requests)-1].Arrival / o.Speed; last < s.To {
			return fail(fmt.Errorf("its requests end at %.0f s, want %.0f", last, s.To))
		}
	}
	r, err := sim.Run(tr, p.New(&s.Model, seed), o)
	if err != nil {
		return fail(err)
	}
	if s.To > 0 {
		r = r.Among(s.From, s.To)
	}
	touched := s.touched()
	share := 0.0
	for i := range r.Requests {
		if slices.Contains(touched, r.Requests[i].Engine) {
			share += float64(s.Engines) / float64(len(touched)*len(r.Requests))
		}
	}
	r.Requests = nil
	return r, share, nil
}

// scenarios measures them, a few at a time.
func (w *crew) scenarios(rep *Report) error {
	group, ctx := errgroup.WithContext(w.ctx)
	w.ctx = ctx
	group.SetLimit(cap(w.slots))
	reference, _ := ByName(Contestants(), []string{Informed})
	scales := map[string]func() (Scale, error){}
	for i := range w.plan.Scenarios {
		s := &w.plan.Scenarios[i]
		scale := scales[s.world()]
		if scale == nil {
			scale = sync.OnceValues(func() (out Scale, err error) {
				c := s.before()
				err = w.do(s.world(), func() error {
					out, err = c.scale(&reference[0])
					return err
				})
				return out, err
			})
			scales[s.world()] = scale
		}
		group.Go(func() error { return w.scenario(s, &rep.Scenarios[i], scale) })
	}
	return group.Wait()
}

// scenario measures all policies in one.
func (w *crew) scenario(s *Scenario, rep *ScenarioReport, scale func() (Scale, error)) error {
	*rep = ScenarioReport{
		Name: s.Name, Title: s.Title, Cell: s.Cell.Name(), Workload: s.Workload.Title, Load: s.Load, Touched: s.touched(), Shares: map[string]float64{},
	}
	var err error
	if rep.Scale, err = scale(); err != nil {
		return err
	}
	for _, p := range w.plan.scenarists() {
		if err := w.do(s.Name, func() error {
			seeds := 1
			if p.IsRandom {
				seeds = max(w.plan.Seeds, 1)
			}
			var rs []sim.Result
			for seed := range seeds {
				r, share, err := s.run(p, &rep.Scale, uint64(seed+1))
				if err != nil {
					return err
				}
				rep.Shares[p.Name] += share / float64(seeds)
				rs = append(rs, r)
			}
			rep.Points = append(rep.Points, Point{Policy: p.Name, Load: s.Load, Result: mean(rs)})
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// scenarists are the contestants that scenarios are measured with.
func (p *Plan) scenarists() (out []*Contestant) {
	for i := range p.Contestants {
		if c := &p.Contestants[i]; p.Capacity == nil || p.Capacity(c) {
			out = append(out, c)
		}
	}
	return out
}

// world names what a scenario's load 1 depends on.
func (s *Scenario) world() string {
	c := s.before()
	return fmt.Sprint(c.Name(), c.Speeds)
}
