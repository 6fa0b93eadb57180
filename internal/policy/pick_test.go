package policy

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// tableOf makes the rows of candidates, ordered by id as a table must be, and their order.
func tableOf(req *Request, cands []Candidate) (*Table, []Candidate) {
	sorted := slices.Clone(cands)
	slices.SortFunc(sorted, func(a, b Candidate) int { return cmp.Compare(a.Target, b.Target) })
	t := &Table{}
	for i := range sorted {
		c := &sorted[i]
		for len(t.Rows) <= int(c.Target) {
			t.Rows, t.Chosen = append(t.Rows, Row{Base: -1e9}), append(t.Chosen, 0) // absurdly good, and no member
		}
		t.Rows[c.Target], t.Chosen[c.Target] = NewRow(c, req.Prices), c.LastChosen
		t.Members = append(t.Members, c.Target)
		if h := NewHolder(req.PromptTokens, c); h.Cached > 0 || h.Held > 0 || h.Shared > 0 || c.Expected > 0 {
			t.Holders = append(t.Holders, h)
		}
		if c.SameSession {
			t.Session, t.HasSession = c.Target, true
		}
	}
	return t, sorted
}

// TestPickEqualsChoose: the quick way and the long way choose, rank and reason alike, ties included.
func TestPickEqualsChoose(t *testing.T) {
	r := newRand(2)
	model := DefaultCostModel()
	tight := model
	tight.KVTokens, tight.MaxBatch = 4000, 2 // memory and batch are short
	tight.TransferPerToken = [4]float64{0, 1e-6, 2e-6, 3e-6}
	worn := tight
	worn.Again, worn.Returns = 0.3, 4
	free := CostModel{} // everything ties
	seen, owes := map[Reason]int{}, map[int]int{}
	var want Decision
	var got Pick
	for n := range 50_000 {
		req, cands := coarse(r, []*CostModel{&model, &tight, &worn, &free}[r.IntN(4)])
		sessions, isCold := 0, r.IntN(4) == 0
		for i := range cands {
			c := &cands[i]
			if isCold { // nobody holds anything
				c.Cached, c.Expected, c.Held = [fleet.NumTiers]int{}, 0, 0
			}
			c.Preferred = 0 // one that prefers labels goes another way

			if c.SameSession { // a session has one target
				sessions++
				c.SameSession = sessions == 1
			}
			if r.IntN(5) == 0 && !isCold {
				c.Shared, c.HeldTokens, c.OutputToCome = r.IntN(3)*250, float64(r.IntN(4))*1000, float64(r.IntN(2))*500
			}
			if r.IntN(9) == 0 {
				c.Cost = &free
			}
		}
		req.Deepest, req.Debt = r.IntN(5)*250, float64(r.IntN(3))*0.01
		req.Prices = Prices{Prefill: float64(r.IntN(3)), Stall: float64(r.IntN(2)) * 0.1, Decode: float64(r.IntN(2)) * 0.2}
		table, sorted := tableOf(req, cands)
		LeastTime{}.Choose(req, sorted, &want)
		req.Places = r.IntN(len(cands) + 2)
		if r.IntN(2) == 0 {
			withKinds(r, req, table, sorted)
		}
		if r.IntN(2) == 0 {
			table.Least = leastOf(r, table)
		}
		LeastTime{}.Pick(req, table, &got)

		places := req.Places
		if places == 0 {
			places = len(cands)
		}
		if len(got.Top) != min(places, len(cands)) || got.Reason != want.Reason {
			t.Fatalf("input %d: %d places of %d asked: got %+v, want %v %v", n, req.Places, len(cands), got, want.Order, want.Reason)
		}
		for i, p := range got.Top {
			if w := want.Order[i]; p.Member != w || p.Cost != want.Scores[w].Cost {
				t.Fatalf("input %d, place %d: got %+v, want candidate %d at %v\n%+v", n, i, p, w, want.Scores[w].Cost, sorted)
			}
		}
		if owed := want.Owed(); req.Deepest > 0 && math.Abs(got.Owed-owed) > 1e-9*(1+math.Abs(owed)) {
			t.Fatalf("input %d: %v is owed, want %v\n%+v\n%+v", n, got.Owed, owed, *req, sorted)
		}
		owes[cmp.Compare(got.Owed, 0)]++
		seen[got.Reason]++
	}
	for sign := -1; sign <= 1; sign++ {
		if owes[sign] < 1000 {
			t.Errorf("debts grew, stayed, and were paid %v times: the inputs do not exercise it", owes)
		}
	}
	for reason := OnlyCandidate; reason < PolicyOrder; reason++ {
		if seen[reason] < 100 {
			t.Errorf("reason %v was met %d times: the inputs do not exercise it", reason, seen[reason])
		}
	}
	LeastTime{}.Pick(&Request{PromptTokens: 9}, &Table{}, &got)
	if len(got.Top) != 0 || got.Reason != 0 {
		t.Errorf("nobody: %+v", got)
	}
}

// withKinds states what some of the candidates hold as what they have in common with others, and of each other what is its
// own.
func withKinds(r *rand.Rand, req *Request, t *Table, sorted []Candidate) {
	of := func(c *Candidate) Holder {
		h := NewHolder(req.PromptTokens, c)
		h.Target = 0
		return h
	}
	t.Kinds, t.Kind, t.Holders = t.Kinds[:0], make([]uint8, len(sorted)), t.Holders[:0]
	for range 1 + r.IntN(4) {
		if h := of(&sorted[r.IntN(len(sorted))]); h.Transfer == 0 {
			t.Kinds = append(t.Kinds, h)
		}
	}
	isOwn := r.IntN(3)
	for i := range sorted {
		h := of(&sorted[i])
		if k := slices.Index(t.Kinds, h); k >= 0 && (isOwn == 0 || r.IntN(4) > 0) {
			t.Kind[i] = uint8(k)
			continue
		}
		h.Target = sorted[i].Target
		t.Holders = append(t.Holders, h)
	}
	if len(t.Kinds) <= 1 && r.IntN(2) == 0 {
		t.Kind = nil
	}
}

// TestBaseFlows: a row whose pending prefill is changed is the row of a target that had that from the beginning.
func TestBaseFlows(t *testing.T) {
	r := newRand(5)
	model := DefaultCostModel()
	models := []*CostModel{&model, {}, {PrefillPerToken: 1e-4, IterationFixed: 2e-3, ChunkTokens: 16, KVTokens: 900, MaxBatch: 3, Again: 0.5, Returns: 2}, nil}
	for n := range 20_000 {
		_, cands := coarse(r, models[r.IntN(len(models))])
		prices := Prices{Stall: float64(r.IntN(2)) * 0.1, Decode: float64(r.IntN(2)) * 0.2}
		for i := range cands {
			c := &cands[i]
			got, flow := NewFlowingRow(c, prices)
			c.PendingPrefill = []float64{0, -1, r.Float64(), 1e9, math.Inf(1), math.NaN()}[r.IntN(6)]
			if got.Base = flow.Base(c.PendingPrefill); got != NewRow(c, prices) {
				t.Fatalf("input %d: with %v pending %+v, want %+v", n, c.PendingPrefill, got, NewRow(c, prices))
			}
		}
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	req, cands := benchFleet(64)
	req.Places = 3
	table, _ := tableOf(req, cands)
	var d Pick
	LeastTime{}.Pick(req, table, &d)
	if n := testing.AllocsPerRun(100, func() { LeastTime{}.Pick(req, table, &d) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
