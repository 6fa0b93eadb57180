package policy

import (
	"math"
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

func TestDebtsAddUpAndFade(t *testing.T) {
	var d Debts
	if got := d.Of(7, 5); got != 0 {
		t.Errorf("before anything: %v", got)
	}
	for range 4 {
		d.Add(7, 100, 0.5)
	}
	if got, want := d.Of(7, 100+DebtMemory), 2*math.Exp(-1); math.Abs(got-want) > 1e-9 {
		t.Errorf("after one time constant: %v, want %v", got, want)
	}
	d.Add(7, 100+DebtMemory, -0.1)
	if got, want := d.Of(7, 100+DebtMemory), 2*math.Exp(-1)-0.1; math.Abs(got-want) > 1e-9 {
		t.Errorf("after 0.1 s were paid: %v, want %v", got, want)
	}
	d.Add(7, 100+DebtMemory, -100)
	if got := d.Of(7, 100+DebtMemory); got != 0 {
		t.Errorf("after more was paid than owed: %v", got)
	}
	d.Add(7, 200, math.NaN())
	d.Add(0, 200, 1)
	if d.Of(7, 200) != 0 || d.Of(0, 200) != 0 {
		t.Errorf("what is no number, or no prefix: %v, %v", d.Of(7, 200), d.Of(0, 200))
	}
	d.Add(7, 200, math.Inf(1))
	if got := d.Of(7, 200); got != MaxTerm {
		t.Errorf("an endless debt: %v", got)
	}
}

// TestDebtsOfOnePlace: of two prefixes on one place the one that owes more is kept, and gives way in the end.
func TestDebtsOfOnePlace(t *testing.T) {
	var d Debts
	d.Add(7, 100, 1)
	other := uint64(8)
	for d.slot(7, 100) != d.slot(other, 100) {
		other++
	}
	d.Add(other, 100, -5) // of one that is not there nothing is paid
	d.Add(other, 100, 0.6)
	if d.Of(7, 100) != 0.4 || d.Of(other, 100) != 0 {
		t.Errorf("after the first: %v and %v, want 0.4 and nothing", d.Of(7, 100), d.Of(other, 100))
	}
	d.Add(other, 100, 0.6)
	if d.Of(7, 100) != 0 || d.Of(other, 100) != 0.6 {
		t.Errorf("after the second: %v and %v, want nothing and 0.6", d.Of(7, 100), d.Of(other, 100))
	}
}

// hotFleet is a holder of a prompt's first 4,000 tokens with so many sequences decoding, and an idle one beside it.
func hotFleet(decoding int) []Candidate {
	model := DefaultCostModel()
	return []Candidate{
		{
			Target: 1, Cached: [fleet.NumTiers]int{4000}, InFlight: decoding, Decoding: decoding,
			ActiveTokens: float64(decoding) * 4500, KVUsed: -1, Cost: &model,
		},
		{Target: 2, KVUsed: -1, Cost: &model},
	}
}

// TestHotPrefixIsCopiedWhenItHasPaid: each request that stays with a holder in company leaves what it lost by that, and
// when all have lost what a copy costs, the next one makes it and takes the debt with it. It is the ski rental rule: at
// most twice the copy's cost is spent.
func TestHotPrefixIsCopiedWhenItHasPaid(t *testing.T) {
	cands := hotFleet(20)
	req := &Request{PromptTokens: 4400, ExpectedOutput: 100, Prices: Prices{Prefill: 1}, Deepest: 400}
	var d Decision
	LeastTime{}.Choose(req, cands, &d)
	m := cands[0].Cost
	// What 400 tokens lose by the company of 20: an iteration's share of it each time.
	company := m.PrefillPerToken*20 + m.DecodePerKVToken*20*4500
	own := m.PrefillTime(400, 4000)
	lost := (1 + own/(m.PrefillPerToken*float64(m.ChunkTokens))) * company
	if got := d.Owed(); d.Best != 0 || math.Abs(got-lost) > 1e-9 {
		t.Fatalf("the first stays at %d and leaves %v, want 0 and %v", d.Best, got, lost)
	}
	costs := (1 + 1/(m.PrefillPerToken*float64(m.ChunkTokens))*m.IterationFixed + 1) * (m.PrefillTime(4400, 0) - own)
	var debts Debts
	stayed := 0
	for ; stayed < 1000; stayed++ {
		req.Debt = debts.Of(9, 50)
		LeastTime{}.Choose(req, cands, &d)
		if d.Best != 0 {
			break
		}
		debts.Add(9, 50, d.Owed())
	}
	if want := int(math.Ceil((costs - lost) / lost)); stayed != want {
		t.Errorf("%d stayed before the copy, want %d of %v s each for the %v s that it costs", stayed, want, lost, costs)
	}
	if got := d.Owed(); got != -req.Debt || d.Scores[1].Terms.Copy != req.Debt || d.Scores[1].Terms.Sum() >= d.Scores[1].TTFT {
		t.Errorf("the copy takes %v of a debt of %v: %+v", got, req.Debt, d.Scores[1])
	}
}

// TestNobodyOwesForWhatIsNoWorse: a holder that is as idle as the others, a prefix that nobody holds, and one that
// everybody holds leave no debt.
func TestNobodyOwesForWhatIsNoWorse(t *testing.T) {
	for name, c := range map[string]struct {
		cands   []Candidate
		deepest int
	}{
		"an idle holder": {hotFleet(0), 400},
		"nobody holds":   {hotFleet(20)[1:], 0},
		"all hold":       {hotFleet(20)[:1], 400},
	} {
		req := &Request{PromptTokens: 4400, ExpectedOutput: 100, Prices: Prices{Prefill: 1}, Deepest: c.deepest}
		var d Decision
		LeastTime{}.Choose(req, c.cands, &d)
		table, _ := tableOf(req, c.cands)
		var p Pick
		LeastTime{}.Pick(req, table, &p)
		if d.Owed() > 1e-12 || p.Owed > 1e-12 {
			t.Errorf("%s: owes %v, by Pick %v", name, d.Owed(), p.Owed)
		}
	}
}
