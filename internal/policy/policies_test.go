package policy

import (
	"math"
	"slices"
	"testing"
)

func TestByNameKnowsAllNames(t *testing.T) {
	for _, name := range Names() {
		p, ok := ByName(name)
		if !ok || p.Name() != name {
			t.Errorf("ByName(%q) = %v, %v", name, p, ok)
		}
	}
	if p, ok := ByName("best"); ok {
		t.Errorf("ByName of an unknown name = %v", p)
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := OnlyCandidate; r <= TiePreferred; r++ {
		if s := r.String(); s == "unknown" || seen[s] {
			t.Errorf("reason %d is called %q", r, s)
		}
		seen[r.String()] = true
	}
	if s := Reason(0).String(); s != "unknown" {
		t.Errorf("reason 0 is called %q", s)
	}
}

func TestNoCandidates(t *testing.T) {
	for _, name := range Names() {
		p, _ := ByName(name)
		d := Decision{Best: 3, Reason: LeastCost, Order: []int{3}, Scores: make([]Score, 4)}
		p.Choose(&Request{PromptTokens: 5}, nil, &d)
		if d.Best != -1 || d.Reason != 0 || len(d.Order) != 0 || len(d.Scores) != 0 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestChooseDoesNotAllocate(t *testing.T) {
	req, cands := benchFleet(64)
	for i := range cands {
		cands[i].Cost = nil // the default model must not escape either
	}
	for _, name := range Names() {
		p, _ := ByName(name)
		var d Decision
		p.Choose(req, cands, &d)
		if n := testing.AllocsPerRun(100, func() { p.Choose(req, cands, &d) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestDecisionIsOverwritten: a reused Decision holds nothing of the one before.
func TestDecisionIsOverwritten(t *testing.T) {
	reqA, candsA := benchFleet(64)
	reqB, candsB := benchFleet(8)
	for _, name := range Names() {
		p, _ := ByName(name)
		var fresh, used Decision
		p.Choose(reqB, candsB, &fresh)
		p.Choose(reqA, candsA, &used)
		p.Choose(reqB, candsB, &used)
		if used.Best != fresh.Best || used.Reason != fresh.Reason || !slices.Equal(used.Order, fresh.Order) ||
			!slices.Equal(used.Scores, fresh.Scores) {
			t.Errorf("%s: reused %+v, fresh %+v", name, used, fresh)
		}
	}
}

func TestRoundRobinTakesTurns(t *testing.T) {
	cands := make([]Candidate, 3)
	for i := range cands {
		cands[i] = Candidate{Target: target(i), InFlight: 9 * i}
	}
	var d Decision
	for turn := range uint64(7) {
		RoundRobin{}.Choose(&Request{Turn: turn}, cands, &d)
		at := int(turn % 3)
		if want := []int{at, (at + 1) % 3, (at + 2) % 3}; !slices.Equal(d.Order, want) || d.Reason != PolicyOrder {
			t.Errorf("turn %d: %v %v, want %v", turn, d.Order, d.Reason, want)
		}
	}
	RoundRobin{}.Choose(&Request{Turn: math.MaxUint64}, cands, &d)
	if want := []int{0, 1, 2}; !slices.Equal(d.Order, want) { // 2^64-1 is a multiple of 3
		t.Errorf("last turn: %v", d.Order)
	}
}

// TestRandomIsUniform: each candidate comes first, and last, about equally often, and only the seed matters.
func TestRandomIsUniform(t *testing.T) {
	const n, draws = 5, 50_000
	cands := make([]Candidate, n)
	var d, again Decision
	var first, last [n]int
	for seed := range uint64(draws) {
		Random{}.Choose(&Request{Seed: seed}, cands, &d)
		first[d.Order[0]]++
		last[d.Order[n-1]]++
	}
	for i := range n {
		// Five standard deviations of a binomial with p = 1/5 are 447.
		if math.Abs(float64(first[i]-draws/n)) > 450 || math.Abs(float64(last[i]-draws/n)) > 450 {
			t.Errorf("candidate %d: first %d, last %d of %d", i, first[i], last[i], draws)
		}
	}
	Random{}.Choose(&Request{Seed: draws - 1, Turn: 8}, cands, &again)
	if !slices.Equal(d.Order, again.Order) {
		t.Errorf("same seed: %v, %v", d.Order, again.Order)
	}
}

// TestPowerOfTwo: the better of two wins, so of four loads 0..3 the winner is i with probability (3-i)/6.
func TestPowerOfTwo(t *testing.T) {
	const draws = 60_000
	cands := make([]Candidate, 4)
	for i := range cands {
		cands[i] = Candidate{Target: target(i), InFlight: 3 - i, LastChosen: uint64(i)}
	}
	var d Decision
	var wins, seconds [4]int
	for seed := range uint64(draws) {
		PowerOfTwo{}.Choose(&Request{Seed: seed}, cands, &d)
		wins[d.Order[0]]++
		seconds[d.Order[1]]++
		if d.Scores[d.Order[0]].Cost >= d.Scores[d.Order[1]].Cost || d.Reason != LeastCost {
			t.Fatalf("seed %d: %v %v", seed, d.Order, d.Reason)
		}
		if rest := d.Order[2:]; cands[rest[0]].InFlight > cands[rest[1]].InFlight {
			t.Fatalf("seed %d: the rest of %v is not by load", seed, d.Order)
		}
	}
	for i := range cands {
		for what, got := range map[string][2]int{"wins": {wins[i], i}, "loses to the winner": {seconds[i], 3 - i}} {
			if want := draws / 6 * got[1]; math.Abs(float64(got[0]-want)) > 600 { // five standard deviations: 612
				t.Errorf("candidate %d %s %d times, want about %d", i, what, got[0], want)
			}
		}
	}

	for i := range cands {
		cands[i].InFlight = 1
	}
	PowerOfTwo{}.Choose(&Request{Seed: 5}, cands, &d)
	if d.Reason != TieLeastRecent || cands[d.Order[0]].LastChosen > cands[d.Order[1]].LastChosen {
		t.Errorf("equal loads: %v %v", d.Order, d.Reason)
	}
}
