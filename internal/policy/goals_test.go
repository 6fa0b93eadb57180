package policy

import (
	"slices"
	"testing"
)

// TestPreferKeepsTheCheapestThatIsSoonEnough compares with the rule in plain words, on random fleets.
func TestPreferKeepsTheCheapestThatIsSoonEnough(t *testing.T) {
	r := newRand(77)
	model := DefaultCostModel()
	moved, missed := 0, 0
	for n := range 20_000 {
		req := &Request{PromptTokens: 30_000, ExpectedOutput: 100, Prices: Prices{Prefill: float64(r.IntN(5))}}
		cands := make([]Candidate, 1+r.IntN(6))
		for i := range cands {
			cands[i] = Candidate{Target: target(i), PendingPrefill: float64(r.IntN(4)), Decoding: r.IntN(300), KVUsed: -1, Cost: &model}
			cands[i].Cached[0] = r.IntN(2) * 29_000
		}
		var d Decision
		LeastTime{}.Choose(req, cands, &d)
		before := slices.Clone(d.Order)
		reason := d.Reason
		g := Goals{TTFT: r.Float64() * float64(r.IntN(4)), TPOT: r.Float64() * 0.02 * float64(r.IntN(2))}
		soon := func(i int) bool {
			return (g.TTFT == 0 || d.Scores[i].TTFT <= g.TTFT) && (g.TPOT == 0 || TPOT(req, &cands[i]) <= g.TPOT)
		}
		Prefer(req, g, cands, &d)
		want := before
		if k := slices.IndexFunc(before, soon); k > 0 {
			want = nil
			for _, wanted := range []bool{true, false} {
				for _, i := range before {
					if soon(i) == wanted {
						want = append(want, i)
					}
				}
			}
			reason = ReachesGoals
			moved++
		} else if k < 0 {
			missed++
		}
		if !slices.Equal(d.Order, want) || d.Best != want[0] || d.Reason != reason {
			t.Fatalf("input %d, %+v: order %v for %v, want %v for %v", n, g, d.Order, d.Reason, want, reason)
		}
	}
	if moved < 100 || missed < 100 {
		t.Errorf("another was preferred %d times, none was soon enough %d times: the inputs do not exercise it", moved, missed)
	}
}
