//go:build !race

package replay

import (
	"math"
	"testing"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/policy"
	"github.com/kvoracle/kvoracle/internal/sim"
)

// TestCapacityIsWhatWasKept holds capacities against the loads at which the promise is kept, all of which are run here, of first
// tokens alone and of both apart. What breaks first in this cell is the time of output tokens, so they differ.
func TestCapacityIsWhatWasKept(t *testing.T) {
	p := small(t)
	p.Loads, p.Degrees, p.DegreeLoads, p.Keep = nil, nil, nil, 0
	p.Cells = []Cell{{Workload: &Workload{Name: "retrieval", Trace: sim.Retrieval(200, 1)}, Model: sim.Model8B(), Engines: 2}}
	p.Contestants, _ = ByName(p.Contestants, []string{Ours, "random"})
	rep, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	c := &rep.Cells[0]
	for k := range p.Contestants {
		const lowest, highest = -20, 36 // by a factor of 0.82 and 1.43
		first, both := 0, 0
		for step := lowest; step <= highest; step++ {
			r, err := p.Cells[0].run(&p.Contestants[k], c.Scale.Full*math.Pow(climbStep, float64(step)), 1, false)
			if err != nil {
				t.Fatal(err)
			}
			if r.TTFT.P90 <= c.Scale.TTFT90 {
				first++
				if r.TPOT.Mean <= c.Scale.TPOT {
					both++
				}
			}
		}
		load := func(kept int) float64 { return math.Pow(climbStep, float64(lowest-1+kept)) }
		got := c.Capacities[p.Contestants[k].Name]
		if math.Abs(got.TTFT/load(first)-1) > 1e-9 || math.Abs(got.Promise/load(both)-1) > 1e-9 {
			t.Errorf("%s: %+v, want %v and %v", p.Contestants[k].Name, got, load(first), load(both))
		}
		if first == both || both == 0 || first > highest-lowest {
			t.Errorf("%s: p90 TTFT is as promised at %d loads, both are at %d: the cell does not exercise it", p.Contestants[k].Name, first, both)
		}
	}
}

// stalling is the default policy with a price on a second by which a prefill stalls each sequence that decodes there.
type stalling struct {
	policy.LeastTime

	price float64
}

func (s stalling) Choose(req *policy.Request, cands []policy.Candidate, d *policy.Decision) {
	priced := *req
	priced.Prices.Stall = s.price
	s.LeastTime.Choose(&priced, cands, d)
}

// TestCapacityEndsByStalls: what breaks first as load rises is the mean TPOT, and p90 TTFT is far from its promise then. A price
// on stalls moves that end, and costs time to first token.
func TestCapacityEndsByStalls(t *testing.T) {
	plan, err := Suite("../../bench/traces", false)
	if err != nil {
		t.Fatal(err)
	}
	for i := range plan.Cells {
		c := &plan.Cells[i]
		if c.Name() != "gen_toolagent/70b/32" {
			continue
		}
		promise := Scale{Full: 9.93, TTFT90: 5.319, TPOT: 57.4e-3} // as docs/results.md has it
		run := func(name string, at float64, chooser sim.Chooser) sim.Result {
			r, err := c.run(&Contestant{New: func(*sim.Model, uint64) sim.Chooser { return chooser }}, at*promise.Full, 1, false)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("load %.2f, %s: p90 TTFT %.2f and mean TPOT %.2f of what is promised; mean TTFT %.3f s, cached %.3f",
				at, name, r.TTFT.P90/promise.TTFT90, r.TPOT.Mean/promise.TPOT, r.TTFT.Mean, r.CachedShare)
			return r
		}
		const beyond = 1.12
		live := run("kvoracle", beyond, sim.NewLive(sim.LiveOptions{}))
		if live.TPOT.Mean < promise.TPOT || live.TTFT.P90 > promise.TTFT90/2 {
			t.Error("it does not end by TPOT alone")
		}
		priced := run("stalls cost 0.05", beyond, sim.NewLive(sim.LiveOptions{Oracle: oracle.Config{Policy: stalling{price: 0.05}}}))
		if !promise.keeps(&priced) || priced.TTFT.Mean < 1.02*live.TTFT.Mean {
			t.Error("a price on stalls does not move the end, or costs nothing")
		}
		return
	}
	t.Fatal("no such cell")
}
