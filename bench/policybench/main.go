// Policybench measures what a choice costs and holds it against what is promised of it: one line
//
//	bar NAME MEASURED LIMIT ok|short
//
// per promise. The question is put as the oracle does it: four places are ranked, a fleet in full work holds some of the prompt
// on a quarter of its targets (half of them what others hold as well, half something of their own), and the lack of a copy of
// the deepest match has cost something; or nothing yet, which is the usual case. An idle fleet holds nothing, and everything
// ties. Processor time of the thread, the median of several rounds.
package main

import (
	"math/rand/v2"
	"runtime"
	"slices"
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
		debt  float64 // s
		limit float64 // ns
	}{
		{"choice-64-busy", 64, false, 0, 300},
		{"choice-64-indebted", 64, false, 0.01, 300},
		{"choice-64-idle", 64, true, 0, 300},
		{"choice-1024-busy", 1024, false, 0, 4000},
		{"choice-1024-indebted", 1024, false, 0.01, 4000},
		{"choice-1024-idle", 1024, true, 0, 4000},
	} {
		req, table := question(c.n, c.idle)
		req.Debt = c.debt
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
	req := &policy.Request{PromptTokens: 8000, ExpectedOutput: 200, Places: 4, Prices: policy.Prices{Prefill: 2}}
	t := &policy.Table{Kinds: []policy.Holder{{Uncached: 8000}}, Kind: make([]uint8, n)}
	for _, cached := range []int{1600, 4800, 7200} {
		c := policy.Candidate{Cached: [fleet.NumTiers]int{cached}}
		t.Kinds = append(t.Kinds, policy.NewHolder(req.PromptTokens, &c))
	}
	for i := range n {
		c := policy.Candidate{Target: fleet.TargetID(i), KVUsed: -1, Cost: &model}
		if !idle {
			c.Prefilling, c.Decoding = rnd.IntN(4), rnd.IntN(60)
			c.InFlight = c.Prefilling + c.Decoding
			c.PendingPrefill = float64(c.Prefilling) * 0.05 * rnd.Float64()
			c.ActiveTokens = float64(c.InFlight) * 4000
			switch rnd.IntN(8) {
			case 0:
				t.Kind[i] = uint8(1 + rnd.IntN(3))
				req.Deepest = 800
			case 1:
				c.Cached[0] = rnd.IntN(7000)
				t.Holders = append(t.Holders, policy.NewHolder(req.PromptTokens, &c))
			}
		}
		t.Members = append(t.Members, c.Target)
		t.Rows = append(t.Rows, policy.NewRow(&c, req.Prices))
		t.Chosen = append(t.Chosen, uint64(i*7919%n))
	}
	if idle {
		t.Kinds, t.Kind = nil, nil
	}
	if n >= 100 { // as the oracle does
		for some := range slices.Chunk(t.Members, policy.LeastRows) {
			t.Least = append(t.Least, policy.NewLeast(t.Rows, some))
		}
	}
	return req, t
}
