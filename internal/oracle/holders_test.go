package oracle

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// TestGatherIsWhatWasMatched: what is said of a lineup, with gaps in its ids or without, is what a look into the matches for
// each of its targets says.
func TestGatherIsWhatWasMatched(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	met := map[bool]int{}
	for n := range 3000 {
		w := &work{prompts: []promptAt{{size: 16}}}
		matches := func(tiers int) []index.Match {
			var out []index.Match
			for id := range fleet.TargetID(90) {
				if r.IntN(3) == 0 {
					continue
				}
				m := index.Match{Target: id}
				m.Blocks[fleet.Device] = r.Uint32N(4)
				if tiers > 1 && r.IntN(9) == 0 {
					m.Blocks[1+r.IntN(tiers-1)] = r.Uint32N(3)
				}
				out = append(out, m)
			}
			return out
		}
		p := &w.prompts[0]
		p.facts, p.guesses = matches(int(fleet.NumTiers)), matches(1)
		if r.IntN(3) == 0 {
			p.approx = matches(1)
		}
		gaps := r.IntN(2) == 0
		for id := fleet.TargetID(r.IntN(30)); id < 40+fleet.TargetID(r.IntN(60)); id++ {
			if !gaps || r.IntN(3) > 0 {
				w.lineup.add(id, len(w.lineup.ids))
			}
		}
		if len(w.lineup.ids) == 0 {
			continue
		}
		met[w.lineup.isDense()]++
		w.gather()
		want := make([]said, len(w.lineup.ids))
		for i, id := range w.lineup.ids {
			for _, m := range p.facts {
				if m.Target == id {
					if want[i].facts = m.Blocks[fleet.Device]; m.Total() > int(m.Blocks[fleet.Device]) {
						want[i].facts = apart
					}
				}
			}
			for _, m := range p.approx {
				if m.Target == id {
					want[i].facts = apart
				}
			}
			for _, m := range p.guesses {
				if m.Target == id {
					want[i].guesses = m.Blocks[fleet.Device]
				}
			}
		}
		if d := cmp.Diff(want, w.said, cmp.AllowUnexported(said{})); d != "" {
			t.Fatalf("lineup %d, dense %t: %s", n, w.lineup.isDense(), d)
		}
	}
	if met[true] < 500 || met[false] < 500 {
		t.Errorf("dense lineups %d, others %d: too few of either", met[true], met[false])
	}
}
