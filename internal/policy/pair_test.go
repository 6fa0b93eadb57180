package policy

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// randomPair makes a disaggregated fleet with few distinct numbers, so that ties are met.
func randomPair(r *rand.Rand) (Request, []Start, []End) {
	model := DefaultCostModel()
	model.TransferPerToken = [4]float64{0, 1e-6, 2e-6, 3e-6}
	tight := model
	tight.KVTokens, tight.MaxBatch = 9000, 3
	req := Request{
		PromptTokens: 1 + r.IntN(8)*1000, ExpectedOutput: float64(r.IntN(3) * 150),
		Prices: Prices{Prefill: float64(r.IntN(4)), Decode: float64(r.IntN(2)) * 0.5},
	}
	candidate := func(id int) Candidate {
		c := Candidate{
			Target: fleet.TargetID(id), InFlight: r.IntN(5), PendingPrefill: float64(r.IntN(3)) / 10, KVUsed: -1,
			ActiveTokens: float64(r.IntN(4)) * 2000, LastChosen: uint64(r.IntN(9)), Cost: []*CostModel{&model, &tight}[r.IntN(2)],
		}
		c.Decoding = r.IntN(c.InFlight + 1)
		c.Prefilling = c.InFlight - c.Decoding
		if r.IntN(2) == 0 {
			c.Cached = [fleet.NumTiers]int{r.IntN(3) * 1000, r.IntN(2) * 1000}
			c.Held, c.Shared = c.Cached[0]+c.Cached[1], r.IntN(2)*1000
		}
		return c
	}
	place := func() Place { return Place{uint64(r.IntN(4)), uint64(r.IntN(3)), uint64(r.IntN(3))} }
	starts := make([]Start, r.IntN(6))
	for i := range starts {
		starts[i] = Start{Candidate: candidate(i), Place: place()}
	}
	ends := make([]End, r.IntN(7))
	for i := range ends {
		e := End{Candidate: candidate(100 + i), Place: place(), Whole: len(starts) == 0 || r.IntN(3) == 0, AlsoStart: -1}
		e.Takes = !e.Whole || r.IntN(2) == 0
		if i < len(starts) && r.IntN(4) == 0 {
			e.AlsoStart, e.Candidate, e.Place = i, starts[i].Candidate, starts[i].Place
		}
		ends[i] = e
	}
	return req, starts, ends
}

// TestPairIsTheBestOfAll: the pass over each side finds what looking at every pair finds.
func TestPairIsTheBestOfAll(t *testing.T) {
	r := newRand(31)
	links := DefaultLinks()
	var d PairDecision
	whole, apart, self := 0, 0, 0
	for n := range 30_000 {
		req, starts, ends := randomPair(r)
		ChoosePair(&req, starts, ends, &links, &d)
		if len(ends) == 0 {
			if d.Best != -1 {
				t.Fatalf("input %d: chose %d of none", n, d.Best)
			}
			continue
		}
		p := req
		p.Prices.Stall, p.Prices.Decode = 1, max(p.Prices.Decode, 0.2)
		best := math.Inf(1)
		for i := range ends {
			e := &ends[i]
			least := math.Inf(1)
			if e.Whole {
				var s Score
				LeastTime{}.Score(&p, &e.Candidate, &s)
				least = s.Terms.Sum()
			}
			for k := range starts {
				if e.Takes || k == e.AlsoStart {
					least = min(least, pairCost(&p, &starts[k], e, k == e.AlsoStart, &links))
				}
			}
			if got := d.Scores[i]; math.Abs(got.Cost-least) > 2*TieBand*max(1, least) || math.Abs(got.Terms.Sum()-got.Cost) > 1e-9*max(1, got.Cost) {
				t.Fatalf("input %d, end %d: cost %v of terms %+v, want %v", n, i, got.Cost, got.Terms, least)
			}
			best = min(best, least)
		}
		if got := d.Scores[d.Best].Cost; got > best+3*TieBand*max(1, best) {
			t.Fatalf("input %d: chose %v, the best is %v", n, got, best)
		}
		if s := &d.Scores[d.Best]; s.TTFT > s.Cost+1e-9 || s.Uncached < 1 || d.Links[d.Best] < 0 {
			t.Fatalf("input %d: %+v over a link of %v", n, s, d.Links[d.Best])
		}
		switch e := &ends[d.Best]; {
		case d.Starts[d.Best] >= 0:
			apart++
		case e.Whole:
			whole++
		default:
			self++
		}
	}
	if whole < 1000 || apart < 1000 || self < 300 {
		t.Errorf("served whole %d, apart %d, by one that is both %d times: the inputs do not exercise it", whole, apart, self)
	}
}

// pairCost writes the formula of ChoosePair out.
func pairCost(p *Request, start *Start, e *End, isSame bool, l *Links) float64 {
	var s Score
	first := *p
	first.ExpectedOutput = min(p.ExpectedOutput, 1)
	LeastTime{}.Score(&first, &start.Candidate, &s)
	cost := s.Terms.Sum()
	m := e.model()
	h := newHolder(p.PromptTokens, &e.Candidate, &m)
	if moved := p.PromptTokens - int(h.Cached); !isSame {
		cost += h.Transfer
		if moved > 0 {
			cost += l.Setup + l.PerToken[start.Place.To(e.Place)]*float64(moved)
		}
	}
	there := e.Candidate
	there.PendingPrefill = 0
	LeastTime{}.Score(p, &there, &s)
	return cost + s.Terms.Decode + s.Terms.Memory + s.Terms.Batch
}

// TestPairStaysWholeWhenThatIsFaster: a short prompt, or one that is cached where it decodes, is not sent away; a long one
// is, and to the nearer of two equal prefill workers.
func TestPairStaysWholeWhenThatIsFaster(t *testing.T) {
	links := DefaultLinks()
	waits := func(id fleet.TargetID) Candidate {
		return Candidate{Target: id, KVUsed: -1, InFlight: 1, Prefilling: 1, PendingPrefill: 0.02}
	}
	starts := []Start{{Candidate: waits(1), Place: Place{Rack: 1}}, {Candidate: waits(2), Place: Place{Rack: 2}}}
	busy := Candidate{Target: 3, KVUsed: -1, InFlight: 8, Decoding: 8, ActiveTokens: 40_000}
	end := End{Candidate: busy, Place: Place{Rack: 2}, Whole: true, Takes: true, AlsoStart: -1}
	var d PairDecision
	for _, tt := range []struct {
		name           string
		prompt, cached int
		start          int
	}{
		{"short", 64, 0, -1}, {"long", 30_000, 0, 1}, {"long and cached", 30_000, 29_952, -1},
	} {
		e := end
		e.Cached[fleet.Device] = tt.cached
		ChoosePair(&Request{PromptTokens: tt.prompt, ExpectedOutput: 200}, starts, []End{e}, &links, &d)
		if got := d.Starts[0]; got != tt.start {
			t.Errorf("%s: start %d, want %d: %+v", tt.name, got, tt.start, d.Scores[0])
		}
	}
}

func TestDistances(t *testing.T) {
	for _, tt := range []struct {
		p, q Place
		want Distance
	}{
		{Place{}, Place{}, SameZone},
		{Place{Zone: 1}, Place{}, SameZone},
		{Place{Zone: 1}, Place{Zone: 2}, OtherZone},
		{Place{Rack: 1, Zone: 1}, Place{Rack: 1, Zone: 1}, SameRack},
		{Place{Rack: 1, Zone: 1}, Place{Rack: 2, Zone: 1}, SameZone},
		{Place{Domain: 3, Rack: 1}, Place{Domain: 3, Rack: 2}, SameDomain},
	} {
		if got := tt.p.To(tt.q); got != tt.want || tt.q.To(tt.p) != tt.want {
			t.Errorf("%+v to %+v: %d, want %d", tt.p, tt.q, got, tt.want)
		}
	}
}

func BenchmarkPair(b *testing.B) {
	for _, n := range []int{16, 256} {
		b.Run(map[int]string{16: "16x16", 256: "256x256"}[n], func(b *testing.B) {
			starts, ends := make([]Start, n), make([]End, n)
			for i := range n {
				at := Place{uint64(i/8 + 1), uint64(i/32 + 1), uint64(i/128 + 1)}
				starts[i] = Start{Candidate{Target: fleet.TargetID(i), PendingPrefill: float64(i%7) / 10, KVUsed: -1}, at}
				ends[i] = End{Candidate: Candidate{Target: fleet.TargetID(n + i), Decoding: i % 5, KVUsed: -1}, Place: at, Takes: true, AlsoStart: -1}
			}
			req, links := Request{PromptTokens: 8192, ExpectedOutput: 200, Places: 3}, DefaultLinks()
			var d PairDecision
			b.ReportAllocs()
			for b.Loop() {
				ChoosePair(&req, starts, ends, &links, &d)
			}
		})
	}
}
