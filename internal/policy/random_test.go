package policy

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

func target(i int) fleet.TargetID { return fleet.TargetID(i) }

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x6b76)) }

// coarse makes a question from few distinct values, so that ties are common.
func coarse(r *rand.Rand, model *CostModel) (*Request, []Candidate) {
	req := &Request{
		PromptTokens:   r.IntN(4) * 500,
		ExpectedOutput: float64(r.IntN(3)) * 100,
		Seed:           r.Uint64(),
		Turn:           r.Uint64N(100),
	}
	n := 1 + r.IntN(9)
	if r.IntN(8) == 0 {
		n = 10 + r.IntN(40)
	}
	cands := make([]Candidate, n)
	ids := r.Perm(50)
	for i := range cands {
		c := &cands[i]
		*c = Candidate{
			Target:      target(ids[i]),
			Prefilling:  r.IntN(2),
			Decoding:    r.IntN(2) * r.IntN(3),
			LastChosen:  r.Uint64N(3),
			SameSession: r.IntN(4) == 0,
			Preferred:   r.IntN(4) / 2,
			KVUsed:      -1,
			Cost:        model,
		}
		c.InFlight = c.Prefilling + c.Decoding
		c.Held = r.IntN(2) * 250
		if r.IntN(2) == 0 {
			c.Cached[r.IntN(2)] = r.IntN(3) * 250
			c.Expected = r.IntN(2) * 250
		}
		if r.IntN(4) == 0 {
			c.PendingPrefill = float64(r.IntN(4)) * 0.4e-6 // inside and outside of the tie band
		}
	}
	return req, cands
}

// TestRankingMatchesSlowTwin compares order and reason with a sort that knows only the documented rule.
func TestRankingMatchesSlowTwin(t *testing.T) {
	r := newRand(1)
	model := DefaultCostModel()
	free := CostModel{} // everything ties
	seen := map[Reason]int{}
	var d Decision
	for n := range 50_000 {
		m := &model
		if r.IntN(3) == 0 {
			m = &free
		}
		req, cands := coarse(r, m)
		p := Policy(DefaultLeastTime())
		if n%3 == 0 {
			p = LeastLoaded{}
		}
		p.Choose(req, cands, &d)
		order, reason := slowRanking(req, cands, d.Scores)
		if !slices.Equal(d.Order, order) || d.Reason != reason || d.Best != order[0] {
			t.Fatalf("input %d: got %v %v, want %v %v\n%+v\n%+v", n, d.Order, d.Reason, order, reason, cands, d.Scores)
		}
		seen[d.Reason]++

		req.Places = 1 + r.IntN(len(cands))
		p.Choose(req, cands, &d)
		if !slices.Equal(d.Order[:req.Places], order[:req.Places]) || d.Reason != reason {
			t.Fatalf("input %d, %d places: got %v %v, want %v %v", n, req.Places, d.Order, d.Reason, order, reason)
		}
		slices.Sort(d.Order)
		slices.Sort(order)
		if !slices.Equal(d.Order, order) {
			t.Fatalf("input %d, %d places: %v is no permutation", n, req.Places, d.Order)
		}
	}
	for _, reason := range []Reason{OnlyCandidate, LeastCost, TieDeeperMatch, TiePreferred, TieSession, TieFewestInFlight, TieLeastRecent} {
		if seen[reason] < 100 {
			t.Errorf("reason %v was met %d times: the inputs do not exercise it", reason, seen[reason])
		}
	}
}

// slowRanking takes the best candidate left, again and again.
func slowRanking(req *Request, cands []Candidate, scores []Score) ([]int, Reason) {
	least := math.Inf(1)
	for _, s := range scores {
		least = math.Min(least, s.Cost)
	}
	tied := func(i int) bool { return scores[i].Cost-least <= 1e-6 }
	// features are compared left to right, smaller first; the reason of each for tied ones.
	reasons := []Reason{LeastCost, TieDeeperMatch, TieDeeperMatch, TieDeeperMatch, TiePreferred, TieSession, TieFewestInFlight, TieLeastRecent, TieLeastRecent}
	features := func(i int) []float64 {
		c := &cands[i]
		if !tied(i) {
			return []float64{scores[i].Cost, float64(c.Target)}
		}
		usable := max(req.PromptTokens-1, 0)
		reported := 0
		for _, n := range c.Cached {
			reported = min(reported+n, usable)
		}
		all := min(reported+c.Expected, usable)
		session := 1.0
		if c.SameSession {
			session = 0
		}
		return []float64{
			least, -float64(all), -float64(reported), -float64(c.Held), -float64(c.Preferred), session,
			float64(c.InFlight), float64(c.LastChosen), float64(c.Target),
		}
	}
	var order []int
	for len(order) < len(cands) {
		best := -1
		for i := range cands {
			if !slices.Contains(order, i) && (best < 0 || slices.Compare(features(i), features(best)) < 0) {
				best = i
			}
		}
		order = append(order, best)
	}
	if len(cands) == 1 {
		return order, OnlyCandidate
	}
	if !tied(order[1]) {
		return order, LeastCost
	}
	a, b := features(order[0]), features(order[1])
	for i := range a {
		if a[i] != b[i] {
			return order, reasons[i]
		}
	}
	return order, LeastCost // candidates differ in their target
}

// TestCostMatchesPlainFormula writes the formula down a second time, without clamps.
func TestCostMatchesPlainFormula(t *testing.T) {
	r := newRand(2)
	memory, batch, copies := 0, 0, 0
	var d Decision
	for n := range 20_000 {
		m := DefaultCostModel()
		m.ChunkTokens, m.KVTokens, m.MaxBatch = 512<<r.IntN(4), 50_000+r.IntN(400_000), 1+r.IntN(64)
		if r.IntN(2) == 0 {
			m.Again, m.Returns = r.Float64(), r.Float64()*20
		}
		c := Candidate{
			Cached:           [fleet.NumTiers]int{r.IntN(3000), r.IntN(500), r.IntN(200), r.IntN(100)},
			Expected:         r.IntN(500),
			Shared:           r.IntN(1000),
			Prefilling:       r.IntN(4),
			Decoding:         r.IntN(60),
			PendingPrefill:   r.Float64(),
			ActiveTokens:     r.Float64() * 300_000,
			KVUsed:           -1,
			UnreportedTokens: (r.Float64() - 0.5) * 100_000,
			Cost:             &m,
		}
		c.InFlight = c.Prefilling + c.Decoding
		req := &Request{PromptTokens: 4400 + r.IntN(5000), ExpectedOutput: r.Float64() * 500}
		held, read, toCome := c.ActiveTokens, c.ActiveTokens, 0.0
		if r.IntN(2) == 0 {
			c.HeldTokens = 1 + r.Float64()*100_000
			held = c.HeldTokens
		}
		if r.IntN(2) == 0 {
			c.OutputToCome = 1 + r.Float64()*10_000
			toCome = c.OutputToCome
		}
		if r.IntN(2) == 0 {
			c.KVUsed = r.Float64()
			held = math.Max(0, c.KVUsed*float64(m.KVTokens)+c.UnreportedTokens)
			read = math.Max(read, held)
		}
		p := Prices{Prefill: r.Float64() * 4, Stall: r.Float64(), Decode: r.Float64()}
		req.Prices = p
		req.Deepest, req.Debt = r.IntN(4000), r.Float64()*0.3
		DefaultLeastTime().Choose(req, []Candidate{c}, &d)

		cached := c.Cached[0] + c.Cached[1] + c.Cached[2] + c.Cached[3]
		ctx := float64(cached + c.Expected)
		tokens := float64(req.PromptTokens) - ctx
		own := 22e-6*tokens + 1.17e-9*tokens*(ctx+tokens/2)
		s := float64(c.Decoding)
		load := 22e-6*s + 52e-9*read
		step := 3e-3 + load
		want := Terms{
			Queue:    c.PendingPrefill,
			Prefill:  own + (1+(c.PendingPrefill+own)/(22e-6*float64(m.ChunkTokens)))*step,
			Fleet:    p.Prefill*own + p.Stall*own*s,
			Decode:   p.Decode * req.ExpectedOutput * load,
			Transfer: float64(c.Cached[1])*5.2e-6 + float64(c.Cached[2])*18.7e-6 + float64(c.Cached[3])*13.1e-6,
		}
		// What it pushes out and is asked for again costs what this does, without the iteration that is under way.
		want.Evict = m.Again * (own*(1+step/(22e-6*float64(m.ChunkTokens))) + want.Fleet)
		want.Stay = m.Returns * step
		kv := float64(m.KVTokens)
		if over := held + float64(req.PromptTokens-c.Shared) + toCome + req.ExpectedOutput - 0.95*kv; over > 0 {
			want.Memory = req.ExpectedOutput * (7.5e-3 + step) * over / (0.05 * kv)
			memory++
		}
		if q := float64(c.InFlight + 1 - m.MaxBatch); q > 0 {
			want.Batch = req.ExpectedOutput * step * q / float64(m.MaxBatch)
			batch++
		}
		saved := 0.0
		if deep := float64(req.Deepest); deep > 0 && deep < tokens {
			// With deep tokens to compute, Prefill, Fleet and Evict would be those of less work and fewer iterations.
			less := 22e-6*deep + 1.17e-9*deep*(float64(req.PromptTokens)-deep/2)
			saved = math.Min(req.Debt, (1+m.Again)*(1+step/(22e-6*float64(m.ChunkTokens))+p.Prefill+p.Stall*s)*(own-less))
			copies++
		}
		got := d.Scores[0]
		wantTTFT := want.Queue + want.Prefill + want.Transfer + want.Memory + want.Batch
		for _, v := range [][2]float64{
			{got.Terms.Queue, want.Queue},
			{got.Terms.Prefill, want.Prefill},
			{got.Terms.Fleet, want.Fleet},
			{got.Terms.Evict, want.Evict},
			{got.Terms.Stay, want.Stay},
			{got.Terms.Decode, want.Decode},
			{got.Terms.Transfer, want.Transfer},
			{got.Terms.Memory, want.Memory},
			{got.Terms.Batch, want.Batch},
			{got.TTFT, wantTTFT},
			{got.Terms.Copy, saved},
			{got.Cost, wantTTFT + want.Fleet + want.Evict + want.Stay + want.Decode - saved},
			{float64(got.Uncached), tokens},
			{float64(got.Cached), float64(cached)},
			{slowRowCost(NewRow(&c, p), NewHolder(req.PromptTokens, &c), req), wantTTFT + want.Fleet + want.Evict + want.Stay + want.Decode},
			{m.PrefillTime(got.Uncached, int(ctx)), own},
		} {
			if math.Abs(v[0]-v[1]) > 1e-9*(1+math.Abs(v[1])) {
				t.Fatalf("input %d: got %+v, want %+v (ttft %v)\n%+v\n%+v", n, got, want, wantTTFT, *req, c)
			}
		}
	}
	if memory < 1000 || batch < 1000 || copies < 1000 {
		t.Errorf("memory term met %d times, batch term %d, copy %d: the inputs do not exercise them", memory, batch, copies)
	}
}

// slowRowCost is the formula of Row's comment.
func slowRowCost(r Row, h Holder, req *Request) float64 {
	n, prompt, out := float64(h.Uncached), float64(req.PromptTokens), req.ExpectedOutput
	pairs := n * (prompt - n + n/2)
	over := math.Max(0, prompt-float64(h.Shared)+out-r.Room)
	return r.Base + out*r.PerOut + (r.Stretch+req.Prices.Prefill)*(r.PerToken*n+r.PerPair*pairs) + out*r.PerOver*over + h.Transfer
}

// TestCostIsMonotone: more cached on the device never costs more; more of anything else never costs less.
func TestCostIsMonotone(t *testing.T) {
	r := newRand(3)
	model := DefaultCostModel()
	cost := func(req *Request, c Candidate) float64 {
		var d Decision
		DefaultLeastTime().Choose(req, []Candidate{c}, &d)
		return d.Scores[0].Cost
	}
	for range 5_000 {
		req := &Request{
			PromptTokens: 1 + r.IntN(50_000), ExpectedOutput: r.Float64() * 1000,
			Prices: Prices{r.Float64() * 3, r.Float64() * 0.2, r.Float64() * 0.3},
		}
		c := Candidate{
			Cached:         [fleet.NumTiers]int{r.IntN(20_000), 0, 0, 0},
			Decoding:       r.IntN(300),
			PendingPrefill: r.Float64() * 5,
			ActiveTokens:   r.Float64() * 500_000,
			KVUsed:         r.Float64()*2 - 1,
			Cost:           &model,
		}
		c.InFlight = c.Decoding
		base := cost(req, c)
		for name, v := range map[string]struct {
			change func(*Candidate)
			down   bool
		}{
			"cached":   {func(c *Candidate) { c.Cached[0] += 500 }, true},
			"expected": {func(c *Candidate) { c.Expected += 500 }, true},
			"shared":   {func(c *Candidate) { c.Shared += 500 }, true},
			"pending":  {func(c *Candidate) { c.PendingPrefill += 0.1 }, false},
			"decoding": {func(c *Candidate) { c.Decoding++; c.InFlight++ }, false},
			"active":   {func(c *Candidate) { c.ActiveTokens += 5000 }, false},
			"new":      {func(c *Candidate) { c.UnreportedTokens += 5000 }, false},
			"returns":  {func(c *Candidate) { m := model; m.Returns = 3; c.Cost = &m }, false},
			"again":    {func(c *Candidate) { m := model; m.Again = 0.1; c.Cost = &m }, false},
			"to come":  {func(c *Candidate) { c.OutputToCome = float64(c.Decoding)*req.ExpectedOutput + 5000 }, false},
		} {
			next := c
			v.change(&next)
			got := cost(req, next)
			if (v.down && got > base*(1+1e-12)) || (!v.down && got < base*(1-1e-12)) {
				t.Fatalf("more %s: cost went from %v to %v\n%+v", name, base, got, c)
			}
		}
	}
}

// TestEachCandidateHasItsModel: a score does not depend on the company.
func TestEachCandidateHasItsModel(t *testing.T) {
	slow := DefaultCostModel()
	slow.PrefillPerToken *= 3
	_, cands := benchFleet(12)
	for i := range cands {
		cands[i].Cost = []*CostModel{nil, &slow, cands[i].Cost}[i%3]
	}
	req := &Request{PromptTokens: 9000, ExpectedOutput: 100}
	var all, one Decision
	DefaultLeastTime().Choose(req, cands, &all)
	for i := range cands {
		DefaultLeastTime().Choose(req, cands[i:i+1], &one)
		if all.Scores[i] != one.Scores[0] {
			t.Errorf("candidate %d: %+v among others, %+v alone", i, all.Scores[i], one.Scores[0])
		}
	}
	if fallback := (*CostModel)(nil).PrefillTime(100, 10); fallback != cands[2].Cost.PrefillTime(100, 10) {
		t.Errorf("a nil model takes %v", fallback)
	}
}

// TestGaugeGoesBeforeBookings: what the engine says of its memory replaces our own sum, also when it says none is used.
func TestGaugeGoesBeforeBookings(t *testing.T) {
	req := &Request{PromptTokens: 1000, ExpectedOutput: 100}
	memory := func(kvUsed float64) float64 {
		var d Decision
		DefaultLeastTime().Choose(req, []Candidate{{KVUsed: kvUsed, ActiveTokens: 1e6}}, &d)
		return d.Scores[0].Terms.Memory
	}
	if got := memory(-1); got == 0 {
		t.Error("1M tokens in flight and no gauge: no memory term")
	}
	if got := memory(math.NaN()); got != memory(-1) {
		t.Errorf("a gauge that is no number: %v, want %v as without one", got, memory(-1))
	}
	if got := memory(0); got != 0 {
		t.Errorf("the engine says it is empty: %v", got)
	}
	if got := memory(7); got != memory(1) || got == 0 {
		t.Errorf("seven times full: %v, want %v as for full", got, memory(1))
	}
}
