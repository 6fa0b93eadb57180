package policy

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// leastOf makes Table.Least; now and then a bound is lower than it need be.
func leastOf(r *rand.Rand, t *Table) []Least {
	var out []Least
	for some := range slices.Chunk(t.Members, LeastRows) {
		l := NewLeast(t.Rows, some)
		if r.IntN(9) == 0 {
			l.Base, l.Stretch = l.Base*r.Float64(), l.Stretch*r.Float64()
		}
		out = append(out, l)
	}
	return out
}

// TestSieveChangesNothing: what is passed over because it cannot win would not have won.
func TestSieveChangesNothing(t *testing.T) {
	r := newRand(7)
	model := DefaultCostModel()
	tight := model
	tight.KVTokens, tight.MaxBatch, tight.Again = 60_000, 40, 0.2
	tight.TransferPerToken[1] = 1e-5
	passed, all, owes := 0, 0, map[int]int{}
	reasons := map[Reason]int{}
	var got, want Pick
	for n := range 2000 {
		cands := make([]Candidate, 1+r.IntN(300))
		req := &Request{
			PromptTokens: 1 + r.IntN(9000), ExpectedOutput: float64(r.IntN(300)), Places: r.IntN(6),
			Prices: Prices{Prefill: float64(r.IntN(3))},
		}
		gap, isIdle, isEven := 1+r.IntN(2), r.IntN(5) == 0, r.IntN(3) == 0
		for i := range cands {
			c := &cands[i]
			*c = Candidate{Target: target(i * gap), KVUsed: -1, Cost: &model, LastChosen: r.Uint64N(50)}
			if r.IntN(4) == 0 {
				c.Cost = &tight
			}
			if isIdle {
				continue
			}
			c.Prefilling, c.Decoding = r.IntN(4), r.IntN(60)
			if isEven {
				c.Decoding = 10
			}
			c.InFlight = c.Prefilling + c.Decoding
			c.PendingPrefill = float64(c.Prefilling) * 0.05
			if !isEven {
				c.PendingPrefill *= r.Float64()
			}
			c.ActiveTokens = float64(c.InFlight) * 4000
			if r.IntN(4) == 0 {
				c.Cached[r.IntN(2)] = r.IntN(4) * 1000
				c.Shared = c.Cached[0]
			}
			c.SameSession = i == 5
		}
		table, sorted := tableOf(req, cands)
		if r.IntN(3) > 0 {
			withKinds(r, req, table, sorted)
		}
		if r.IntN(2) == 0 {
			req.Deepest, req.Debt = 1+r.IntN(req.PromptTokens), float64(r.IntN(3))*0.02
		}
		LeastTime{}.Pick(req, table, &want)
		counts := make([]int, max(len(table.Kinds), 1))
		for _, k := range table.Kind {
			counts[k]++
		}
		if table.Usual = uint8(slices.Index(counts, slices.Max(counts))); r.IntN(5) == 0 {
			table.Usual = uint8(r.IntN(len(counts)))
		}
		table.Least = leastOf(r, table)
		LeastTime{}.Pick(req, table, &got)
		if !slices.Equal(got.Top, want.Top) || got.Reason != want.Reason || got.Owed != want.Owed {
			t.Fatalf("input %d, %+v of %d:\ngot  %+v, %v, %v\nwant %+v, %v, %v", n, *req, len(cands),
				got.Top, got.Reason, got.Owed, want.Top, want.Reason, want.Owed)
		}
		for _, c := range got.costs {
			if all++; math.IsInf(c, 1) {
				passed++
			}
		}
		reasons[want.Reason]++
		switch {
		case want.Owed < 0:
			owes[-1]++
		case want.Owed > 0:
			owes[1]++
		}
	}
	t.Logf("%d of %d were passed over, %v, %v", passed, all, reasons, owes)
	if passed < all/20 || owes[-1] < 50 || owes[1] < 15 {
		t.Errorf("%d of %d were passed over, debts were paid and grew %v times: too few", passed, all, owes)
	}
	for _, x := range []Reason{LeastCost, TieLeastRecent} {
		if reasons[x] < 50 {
			t.Errorf("reason %v was met %d times: too few", x, reasons[x])
		}
	}
}

// TestUnlike: the bits of kinds that differ are those that a look at each finds.
func TestUnlike(t *testing.T) {
	r := newRand(8)
	for range 20_000 {
		d := Pick{usual: uint8(r.IntN(8)), alike: [3]uint8{uint8(r.IntN(8)), uint8(r.IntN(256)), uint8(r.IntN(8))}}
		if d.numAlike = len(d.alike); r.IntN(3) == 0 { // as findAlike leaves the others
			d.numAlike, d.alike[2] = 2, d.usual
		}
		kinds := make([]uint8, 1+r.IntN(LeastRows))
		if r.IntN(2) == 0 {
			kinds = make([]uint8, LeastRows)
		}
		want := uint32(0)
		for i := range kinds {
			if kinds[i] = uint8(r.IntN(8)); r.IntN(4) == 0 {
				kinds[i] = uint8(r.IntN(256))
			}
			if kinds[i] != d.usual && !slices.Contains(d.alike[:], kinds[i]) {
				want |= 1 << i
			}
		}
		if got := d.unlike(kinds); got != want {
			t.Fatalf("%+v in %v: %b, want %b", d.alike, kinds, got, want)
		}
	}
}
