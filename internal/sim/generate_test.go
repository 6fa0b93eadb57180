//go:build !race

package sim

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvoracle/kvoracle/internal/block"
)

func TestGeneratedWorkloads(t *testing.T) {
	for name, tt := range map[string]struct {
		make        func(int, uint64) *Trace
		reuse       float64 // share of full blocks seen before
		mean        float64 // prompt tokens
		reuseWithin float64
	}{
		"unshared":     {Unshared, 0, 2000, 0},
		"hot head":     {HotHead, 0.86, 0.9*4096 + 500, 0.04},
		"multi-tenant": {MultiTenant, 0.88, 3280, 0.05},
		"long chat":    {LongChat, 0.55, 1200, 0.05},
		"retrieval":    {Retrieval, 0.58, 9000, 0.05},
		"long agents":  {LongAgents, 0.94, 36_000, 0.03},
	} {
		n := 5000
		if tt.mean > 20_000 {
			n = 1000 // as many blocks
		}
		tr := tt.make(n, 1)
		seen, old, blocks, tokens := map[block.ID]bool{}, 0, 0, 0
		for i, r := range tr.Requests {
			if r.Index != i || i > 0 && r.Arrival < tr.Requests[i-1].Arrival || r.Input < 1 || r.Output < 1 {
				t.Fatalf("%s: request %d: %+v", name, i, r)
			}
			tokens += r.Input
			for _, id := range r.Chain(0, 64) {
				blocks++
				if seen[id] {
					old++
				}
				seen[id] = true
			}
		}
		if got := float64(old) / float64(blocks); math.Abs(got-tt.reuse) > tt.reuseWithin {
			t.Errorf("%s: %.3f of the blocks were there before, want about %v", name, got, tt.reuse)
		}
		if got := float64(tokens) / float64(n); math.Abs(got/tt.mean-1) > 0.15 {
			t.Errorf("%s: %.0f prompt tokens, want about %v", name, got, tt.mean)
		}
		// One seed, one workload; its beginning does not depend on its length.
		short := tt.make(100, 1)
		for i, r := range short.Requests {
			if d := cmp.Diff(r.Chain(0, 64), tr.Requests[i].Chain(0, 64)); d != "" || r.Arrival != tr.Requests[i].Arrival {
				t.Fatalf("%s: request %d of a shorter one differs", name, i)
			}
		}
		if cmp.Equal(tt.make(50, 2).Requests[49].Arrival, tr.Requests[49].Arrival) {
			t.Errorf("%s: the seed changes nothing", name)
		}
	}
}
