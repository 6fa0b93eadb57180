package policy

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// benchFleet is n targets in various states, a quarter of them holding some of the prompt.
func benchFleet(n int) (*Request, []Candidate) {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	model := DefaultCostModel()
	cands := make([]Candidate, n)
	for i := range cands {
		c := &cands[i]
		*c = Candidate{Target: target(i), KVUsed: -1, Cost: &model, LastChosen: r.Uint64N(1000)}
		c.Prefilling, c.Decoding = r.IntN(4), r.IntN(60)
		c.InFlight = c.Prefilling + c.Decoding
		c.PendingPrefill = float64(c.Prefilling) * 0.05 * r.Float64()
		c.ActiveTokens = float64(c.InFlight) * 4000
		if r.IntN(4) == 0 {
			c.Cached[0] = r.IntN(8000)
			c.Cached[1] = r.IntN(500)
		}
	}
	return &Request{PromptTokens: 8000, ExpectedOutput: 200, Seed: 7, Turn: 3}, cands
}

func BenchmarkChoose(b *testing.B) {
	for _, name := range Names() {
		p, _ := ByName(name)
		for _, n := range []int{8, 64, 1024} {
			for _, places := range []int{0, 3} {
				if places > 0 && name != "least_time" {
					continue
				}
				b.Run(fmt.Sprintf("%s/candidates=%d/places=%d", name, n, places), func(b *testing.B) {
					req, cands := benchFleet(n)
					req.Places = places
					var d Decision
					b.ReportAllocs()
					for b.Loop() {
						p.Choose(req, cands, &d)
					}
				})
			}
		}
	}
}

// BenchmarkChooseIdle is a fleet in which everything ties.
func BenchmarkChooseIdle(b *testing.B) {
	for _, places := range []int{0, 3} {
		b.Run(fmt.Sprintf("candidates=1024/places=%d", places), func(b *testing.B) {
			cands := make([]Candidate, 1024)
			for i := range cands {
				cands[i].Target, cands[i].LastChosen = target(i), uint64(i*7919%1024)
			}
			req := &Request{PromptTokens: 8000, ExpectedOutput: 200, Places: places}
			var d Decision
			b.ReportAllocs()
			for b.Loop() {
				DefaultLeastTime().Choose(req, cands, &d)
			}
		})
	}
}

// BenchmarkPick is the quick way over the same fleets; half of the holders hold what the others do too.
func BenchmarkPick(b *testing.B) {
	for _, n := range []int{8, 64, 1024} {
		for _, idle := range []bool{false, true} {
			b.Run(fmt.Sprintf("candidates=%d/idle=%t", n, idle), func(b *testing.B) {
				req, cands := benchFleet(n)
				if idle {
					for i := range cands {
						cands[i] = Candidate{Target: target(i), LastChosen: uint64(i * 7919 % n)}
					}
				}
				req.Places = 3
				if !idle { // a copy of what the deepest holder has is worth thinking about
					req.Deepest, req.Debt = 500, 0.01
				}
				table, _ := tableOf(req, cands)
				var d Pick
				b.ReportAllocs()
				for b.Loop() {
					LeastTime{}.Pick(req, table, &d)
				}
			})
		}
	}
}
