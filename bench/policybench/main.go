// Policybench measures what a choice costs and holds it against what is promised of it: one line
//
//	bar NAME MEASURED LIMIT ok|short
//
// per promise. A fleet in full work with a quarter of its targets holding some of the prompt, and one without any work or
// holders, in which everything ties; three places are asked for. Processor time of the thread, the median of several rounds.
package main

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/measure"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/policy"
)

const rounds = 5

func main() {
	runtime.LockOSThread() // whose time is measured: others may want the core
	for _, c := range []struct {
		name  string
		n     int
		idle  bool
		limit float64 // ns
	}{
		{"choice-64-busy", 64, false, 300},
		{"choice-64-idle", 64, true, 300},
		{"choice-1024-busy", 1024, false, 4000},
		{"choice-1024-idle", 1024, true, 4000},
	} {
		req, table := question(c.n, c.idle)
		var ns, allocations []float64
		for range rounds {
			var d policy.Pick
			choose := func() { policy.LeastTime{}.Pick(req, table, &d) }
			allocations = append(allocations, testing.AllocsPerRun(100, choose))
			times := 20_000_000 / c.n
			begin := measure.ThreadTime()
			for range times {
				choose()
			}
			ns = append(ns, (measure.ThreadTime()-begin)/float64(times))
		}
		for _, b := range []struct {
			bars.Bar
			all []float64
		}{
			{bars.Bar{Name: c.name, Limit: c.limit, Unit: "ns"}, ns},
			{bars.Bar{Name: c.name + "-allocs", Limit: 0.5, Unit: "allocations; 0 is wanted"}, allocations},
		} {
			b.Print(b.all)
		}
	}
}

// question is a prompt of 8,000 tokens and a fleet of n.
func question(n int, idle bool) (*policy.Request, *policy.Table) {
	rnd := rand.New(rand.NewPCG(1, uint64(n)))
	model := policy.DefaultCostModel()
	req := &policy.Request{PromptTokens: 8000, ExpectedOutput: 200, Places: 3, Prices: policy.Prices{Prefill: 2}}
	t := &policy.Table{}
	for i := range n {
		c := policy.Candidate{Target: fleet.TargetID(i), KVUsed: -1, Cost: &model}
		if !idle {
			c.Prefilling, c.Decoding = rnd.IntN(4), rnd.IntN(60)
			c.InFlight = c.Prefilling + c.Decoding
			c.PendingPrefill = float64(c.Prefilling) * 0.05 * rnd.Float64()
			c.ActiveTokens = float64(c.InFlight) * 4000
			if rnd.IntN(4) == 0 {
				c.Cached[0] = rnd.IntN(8000)
				t.Holders = append(t.Holders, policy.NewHolder(req.PromptTokens, &c))
			}
		}
		t.Members = append(t.Members, c.Target)
		t.Rows = append(t.Rows, policy.NewRow(&c, req.Prices))
		t.Chosen = append(t.Chosen, uint64(i*7919%n))
	}
	return req, t
}
