package policy

import (
	"math"
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// FuzzChoose: whatever the numbers, every policy keeps the invariants of the package comment.
func FuzzChoose(f *testing.F) {
	inf, nan := math.Inf(1), math.NaN()
	f.Add(1000, 200.0, uint64(1), 250, 3, 0.5, 9000.0, 0.5, 22e-6, 1e-9, 3e-3, 2048, 400_000, uint8(3))
	f.Add(0, 0.0, uint64(0), 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, uint8(1))
	f.Add(-1, -1.0, uint64(0), -1, -1, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1, -1, uint8(2))
	f.Add(math.MaxInt, inf, uint64(math.MaxUint64), math.MaxInt, math.MaxInt, inf, inf, inf, inf, inf, inf, math.MaxInt, math.MaxInt, uint8(5))
	f.Add(math.MinInt, -inf, uint64(9), math.MinInt, math.MinInt, -inf, -inf, -inf, -inf, -inf, -inf, math.MinInt, 1, uint8(4))
	f.Add(7, nan, uint64(9), 3, 1, nan, nan, nan, nan, nan, nan, 1, 1, uint8(4))
	f.Add(1<<30, 1e300, uint64(9), 0, 1<<30, 1e-300, 1e300, 1e-300, 5e-324, 1e300, 5e-324, 1, 1, uint8(4))
	f.Add(0, 0.0, uint64(0), 0, 0, 1e9, 0.0, -1.0, 5e-324, 0.0, 0.0, 1, 0, uint8(1))     // infinitely many free iterations
	f.Add(69, 0.0, uint64(0), 0, 0, 1e9, 0.0, -1.0, 5e-324, 0.0, 44.0, 1, -40, uint8(1)) // work that is nearly free
	f.Fuzz(func(t *testing.T, prompt int, out float64, seed uint64, cached, requests int, pending, active, used,
		perToken, perContext, fixed float64, chunk, kv int, n uint8,
	) {
		model := CostModel{
			PrefillPerToken: perToken, PrefillPerTokenContext: perContext, IterationFixed: fixed,
			IterationBase: fixed * 2, DecodePerKVToken: perContext * 50, ChunkTokens: chunk, KVTokens: kv, MaxBatch: kv / 1000,
			TransferPerToken: [fleet.NumTiers]float64{0, perToken, fixed, perContext}, Again: pending, Returns: active,
		}
		req := &Request{PromptTokens: prompt, ExpectedOutput: out, Seed: seed, Turn: seed >> 7}
		cands := make([]Candidate, 1+n%9)
		for i := range cands {
			// Each candidate takes another part of the values, so that some tie and some do not.
			c := &cands[i]
			*c = Candidate{Target: target(i), LastChosen: seed >> (i % 3), SameSession: i == 2, Cost: &model}
			if i%2 == 0 {
				c.Cached = [fleet.NumTiers]int{cached, cached / 2, prompt, requests}
				c.Expected, c.Shared, c.PendingPrefill = cached/3, cached, pending
			}
			if i%3 == 0 {
				c.InFlight, c.Prefilling, c.Decoding, c.ActiveTokens = requests, requests, requests/2, active
			}
			if i%4 == 0 {
				c.KVUsed, c.HeldTokens, c.OutputToCome, c.UnreportedTokens = used, active/2, pending, active*float64(i-2)
			}
			if i%5 == 4 {
				c.Cost = nil
			}
		}
		for _, name := range Names() {
			p, _ := ByName(name)
			var d Decision
			p.Choose(req, cands, &d)
			checkDecision(t, p, req, cands, &d)
		}
		p := DefaultLeastTime()
		req.Prices = Prices{Prefill: active, Stall: pending, Decode: used}
		req.Deepest, req.Debt = cached/2, pending
		var d Decision
		p.Choose(req, cands, &d)
		checkDecision(t, p, req, cands, &d)
		table, sorted := tableOf(req, cands)
		p.Choose(req, sorted, &d)
		var quick Pick
		p.Pick(req, table, &quick)
		if quick.Top[0].Member != d.Best || quick.Reason != d.Reason {
			t.Fatalf("Pick chose %+v, Choose %d for %v: %+v", quick, d.Best, d.Reason, d.Scores)
		}
		starts, ends := make([]Start, len(cands)/2), make([]End, len(cands))
		for i := range starts {
			starts[i] = Start{Candidate: cands[i], Place: Place{Rack: seed >> i % 3}}
		}
		for i := range ends {
			ends[i] = End{Candidate: cands[i], Place: Place{Zone: seed >> i % 2}, Whole: i%2 == 0 || len(starts) == 0, Takes: i%2 == 1, AlsoStart: -1}
		}
		var pair PairDecision
		ChoosePair(req, starts, ends, &Links{PerToken: [numDistances]float64{0, perToken, fixed, pending, active}, Setup: used}, &pair)
		checkPair(t, &pair, len(ends))
		if v := model.PrefillTime(prompt, cached); !(v >= 0 && v <= MaxTerm) {
			t.Errorf("PrefillTime(%d, %d) = %v", prompt, cached, v)
		}
	})
}

// checkPair checks that a pair's ranking is whole and its numbers are finite.
func checkPair(t *testing.T, d *PairDecision, ends int) {
	t.Helper()
	if len(d.Scores) != ends || len(d.Starts) != ends || len(d.Links) != ends || d.Best != d.Order[0] || d.Reason < OnlyCandidate {
		t.Fatalf("%d ends: %+v", ends, d)
	}
	for i, v := range slices.Sorted(slices.Values(d.Order)) {
		if i != v {
			t.Fatalf("order %v is no permutation", d.Order)
		}
	}
	for i := range d.Scores {
		s := &d.Scores[i]
		if !(s.Cost >= 0) || math.IsInf(s.Cost, 0) || !(s.TTFT >= 0) || math.IsInf(s.TTFT, 0) || !(d.Links[i] >= 0) || math.IsInf(d.Links[i], 0) {
			t.Fatalf("end %d over a link of %v: %+v", i, d.Links[i], s)
		}
	}
}

// checkDecision checks the invariants of the package comment.
func checkDecision(t *testing.T, p Policy, req *Request, cands []Candidate, d *Decision) {
	t.Helper()
	if len(d.Scores) != len(cands) || len(d.Order) != len(cands) || d.Best != d.Order[0] {
		t.Fatalf("%s: %d candidates, %d scores, order %v, best %d", p.Name(), len(cands), len(d.Scores), d.Order, d.Best)
	}
	sorted := slices.Sorted(slices.Values(d.Order))
	for i, v := range sorted {
		if i != v {
			t.Fatalf("%s: order %v is no permutation", p.Name(), d.Order)
		}
	}
	if d.Reason < OnlyCandidate || d.Reason > PolicyOrder || (len(cands) == 1) != (d.Reason == OnlyCandidate) {
		t.Errorf("%s: reason %v with %d candidates", p.Name(), d.Reason, len(cands))
	}
	least := math.Inf(1)
	for i := range d.Scores {
		s := &d.Scores[i]
		terms := s.Terms.Named()
		terms[NumTerms-1].Seconds = s.Terms.Copy // which is shown taken away
		for _, x := range terms {
			if v := x.Seconds; !(v >= 0 && v <= MaxTerm) {
				t.Fatalf("%s: candidate %d: term out of range: %+v", p.Name(), i, *s)
			}
		}
		if !(s.TTFT >= 0 && s.TTFT <= 7*MaxTerm) || !(s.Cost >= 0) || math.IsInf(s.Cost, 0) {
			t.Fatalf("%s: candidate %d: %+v", p.Name(), i, *s)
		}
		if lo := min(max(req.PromptTokens, 0), 1); s.Uncached < lo || s.Uncached > max(req.PromptTokens, 0) ||
			s.Cached < 0 || s.Cached+s.Uncached > max(req.PromptTokens, 0) {
			t.Fatalf("%s: candidate %d of %d tokens: %+v", p.Name(), i, req.PromptTokens, *s)
		}
		least = min(least, s.Cost)
	}
	if _, ok := p.(LeastTime); ok {
		for i := range d.Scores {
			s := &d.Scores[i]
			sum := s.Terms.Sum()
			if all := sum + 2*s.Terms.Copy; all < MaxTerm && math.Abs(s.Cost-sum) > 1e-9*all+1e-300 {
				t.Fatalf("candidate %d: cost is not the sum of terms %v: %+v", i, sum, *s)
			}
		}
	}
	if p.Name() == "power_of_two" {
		return // only the drawn two are compared
	}
	for k := 1; k < len(d.Order); k++ {
		a, b := d.Scores[d.Order[k-1]].Cost, d.Scores[d.Order[k]].Cost
		if a > b && a-least > TieBand {
			t.Fatalf("%s: place %d costs %v, place %d %v, least %v", p.Name(), k-1, a, k, b, least)
		}
	}
}
