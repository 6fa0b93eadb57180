//go:build !race

package replay

import (
	"testing"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/policy"
	"github.com/kvoracle/kvoracle/internal/sim"
)

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
