package replay

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/kvoracle/kvoracle/internal/sim"
)

// Plan is what to measure.
type Plan struct {
	Cells       []Cell
	Loads       []float64 // in units of load 1
	Contestants []Contestant
	// Degrees run at DegreeLoads in the cells that WithDegrees picks, each at Near times that load, which is averaged: they differ
	// by less than one run does from another at nearly the same load. Near nil, and in closed loops, whose Seeds do that: once.
	Degrees     []Contestant
	DegreeLoads []float64
	Near        []float64
	WithDegrees func(*Cell) bool
	// Scenarios are measured with all Contestants whose capacity is searched for, or all if nobody's is.
	Scenarios []Scenario
	// Capacity says whose to search for; nil: nobody's.
	Capacity func(*Contestant) bool
	// Seeds is how many runs of random contestants, and of all in closed loops, are averaged; 0: 1.
	Seeds int
	// Keep is a load whose requests are kept one by one in the first cell; 0: none.
	Keep float64
	// Progress is told how much is done; nil: nobody.
	Progress func(done, all int, what string)
}

// Report is what was measured. It is complete in itself: pages and bars are made of it alone.
type Report struct {
	Loads    []float64
	Cells    []CellReport
	Policies []Label
	Degrees  []Label

	Scenarios []ScenarioReport
}

// Label is a contestant without its code.
type Label struct {
	Name, Title, Rule         string
	IsRandom, IsOurs, IsRival bool
}

// CellReport is one cell's part.
type CellReport struct {
	Name, Workload, Title, Model string
	Engines, Requests            int
	IsClosed                     bool
	Scale                        Scale
	Points                       []Point
	Capacities                   map[string]Capacity // by policy
	Degrees                      []Point
}

// Point is one policy at one load, the mean over seeds.
type Point struct {
	Policy string
	Load   float64
	Result sim.Result
	Kept   []sim.Served // of the first seed; only where the plan says so
}

// At finds a point; nil: not measured.
func (c *CellReport) At(policy string, load float64) *Point { return find(c.Points, policy, load) }

// Degree finds a point of a degree.
func (c *CellReport) Degree(name string, load float64) *Point { return find(c.Degrees, name, load) }

func find(ps []Point, policy string, load float64) *Point {
	i := slices.IndexFunc(ps, func(p Point) bool { return p.Policy == policy && p.Load == load })
	if i < 0 {
		return nil
	}
	return &ps[i]
}

// Run measures the plan, as many runs at a time as there are processors.
func Run(ctx context.Context, p Plan) (*Report, error) {
	rep := &Report{Loads: p.Loads, Cells: make([]CellReport, len(p.Cells)), Policies: labels(p.Contestants), Degrees: labels(p.Degrees)}
	rep.Scenarios = make([]ScenarioReport, len(p.Scenarios))
	w := &crew{plan: &p, ctx: ctx, slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
	for i := range p.Cells {
		w.all += w.jobs(&p.Cells[i])
	}
	worlds := map[string]bool{}
	for i := range p.Scenarios {
		worlds[p.Scenarios[i].world()] = true
	}
	w.all += len(worlds) + len(p.Scenarios)*len(p.scenarists())
	// Cells one after the other but for the ends, where slots would be idle: two are under way.
	cells, cellsCtx := errgroup.WithContext(ctx)
	w.ctx = cellsCtx
	cells.SetLimit(2)
	for i := range p.Cells {
		cells.Go(func() error { return w.cell(&p.Cells[i], &rep.Cells[i], i == 0) })
	}
	if err := cells.Wait(); err != nil {
		return nil, err
	}
	w.ctx = ctx
	return rep, w.scenarios(rep)
}

func labels(cs []Contestant) []Label {
	var out []Label
	for _, c := range cs {
		out = append(out, Label{c.Name, c.Title, c.Rule, c.IsRandom, c.IsOurs, !c.IsOurs && !c.IsReference})
	}
	return out
}

// crew shares the processors among the runs.
type crew struct {
	plan  *Plan
	ctx   context.Context //nolint:containedctx // of the one call of Run that the crew lives in
	slots chan struct{}

	mu        sync.Mutex
	done, all int
}

func (w *crew) jobs(c *Cell) int {
	n := 1 + len(w.plan.Contestants)*len(w.plan.Loads)
	for i := range w.plan.Contestants {
		if w.plan.Capacity != nil && w.plan.Capacity(&w.plan.Contestants[i]) {
			n++
		}
	}
	if w.plan.WithDegrees != nil && w.plan.WithDegrees(c) {
		n += len(w.plan.Degrees) * len(w.plan.DegreeLoads)
	}
	return n
}

// do runs f when there is a slot, and says so.
func (w *crew) do(what string, f func() error) error {
	select {
	case w.slots <- struct{}{}:
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
	err := f()
	<-w.slots
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done++
	if w.plan.Progress != nil && err == nil {
		w.plan.Progress(w.done, w.all, what)
	}
	return err
}

// cell measures one cell.
func (w *crew) cell(c *Cell, rep *CellReport, isFirst bool) error {
	*rep = CellReport{
		Name: c.Name(), Workload: c.Workload.Name, Title: c.Workload.Title, Model: c.Model.Name, Engines: c.Engines,
		Requests: len(c.Workload.Trace.Requests), IsClosed: c.Workload.IsClosed, Capacities: map[string]Capacity{},
	}
	reference, _ := ByName(Contestants(), []string{Informed})
	if err := w.do(c.Name(), func() (err error) {
		rep.Scale, err = c.scale(&reference[0])
		return err
	}); err != nil {
		return err
	}
	var group errgroup.Group
	var mu sync.Mutex
	for i := range w.plan.Contestants {
		p := &w.plan.Contestants[i]
		for _, load := range w.plan.Loads {
			group.Go(func() error {
				return w.do(c.Name(), func() error {
					point, err := w.point(c, rep, p, load, nil, isFirst && load == w.plan.Keep)
					mu.Lock()
					defer mu.Unlock()
					rep.Points = append(rep.Points, point)
					return err
				})
			})
		}
		if w.plan.Capacity != nil && w.plan.Capacity(p) {
			group.Go(func() error {
				return w.do(c.Name(), func() error {
					v, err := c.capacity(&rep.Scale, p)
					mu.Lock()
					defer mu.Unlock()
					rep.Capacities[p.Name] = v
					return err
				})
			})
		}
	}
	if w.plan.WithDegrees != nil && w.plan.WithDegrees(c) {
		for i := range w.plan.Degrees {
			for _, load := range w.plan.DegreeLoads {
				group.Go(func() error {
					return w.do(c.Name(), func() error {
						point, err := w.point(c, rep, &w.plan.Degrees[i], load, w.plan.Near, false)
						mu.Lock()
						defer mu.Unlock()
						rep.Degrees = append(rep.Degrees, point)
						return err
					})
				})
			}
		}
	}
	err := group.Wait()
	order(rep.Points, w.plan.Contestants)
	order(rep.Degrees, w.plan.Degrees)
	return err
}

// order puts points as contestants and loads are listed, whichever run was done first.
func order(ps []Point, cs []Contestant) {
	place := map[string]int{}
	for i := range cs {
		place[cs[i].Name] = i
	}
	slices.SortFunc(ps, func(a, b Point) int {
		if a.Policy != b.Policy {
			return place[a.Policy] - place[b.Policy]
		}
		if a.Load < b.Load {
			return -1
		}
		return 1
	})
}

// point is one contestant at one load, or near it.
func (w *crew) point(c *Cell, rep *CellReport, p *Contestant, load float64, near []float64, keep bool) (Point, error) {
	if near == nil || c.Workload.IsClosed { // there several orders of sessions do that
		near = []float64{1}
	}
	point := Point{Policy: p.Name, Load: load}
	seeds := 1 // but where something is drawn: choices, or the order of sessions
	if p.IsRandom || c.Workload.IsClosed {
		seeds = max(w.plan.Seeds, 1)
	}
	var rs []sim.Result
	for s := range seeds {
		for _, factor := range near {
			r, err := c.run(p, load*factor*rep.Scale.Full, uint64(s+1), keep && s == 0)
			if err != nil {
				return point, err
			}
			if s == 0 {
				point.Kept = r.Requests
			}
			r.Requests = nil
			rs = append(rs, r)
		}
	}
	point.Result = mean(rs)
	return point, nil
}

// mean is the mean of each number that pages show; counts are those of the first run.
func mean(rs []sim.Result) sim.Result {
	out := rs[0]
	if len(rs) == 1 {
		return out
	}
	of := func(get func(*sim.Result) *float64) {
		sum := 0.0
		for i := range rs {
			sum += *get(&rs[i])
		}
		*get(&out) = sum / float64(len(rs))
	}
	for _, pick := range []func(*sim.Result) *sim.Summary{
		func(r *sim.Result) *sim.Summary { return &r.TTFT }, func(r *sim.Result) *sim.Summary { return &r.TPOT },
	} {
		of(func(r *sim.Result) *float64 { return &pick(r).Mean })
		of(func(r *sim.Result) *float64 { return &pick(r).P50 })
		of(func(r *sim.Result) *float64 { return &pick(r).P90 })
		of(func(r *sim.Result) *float64 { return &pick(r).P99 })
	}
	of(func(r *sim.Result) *float64 { return &r.CachedShare })
	of(func(r *sim.Result) *float64 { return &r.Imbalance })
	of(func(r *sim.Result) *float64 { return &r.Utilisation })
	return out
}
