package oracle

import (
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/policy"
)

// goalsSeen counts what an observer is told of goals.
type goalsSeen struct {
	NopObserver

	reached, missed int
}

func (g *goalsSeen) Goal(reached bool) {
	if reached {
		g.reached++
	} else {
		g.missed++
	}
}

// TestGoalsAreReachedOrSaidToBeMissed: the holder with a long queue is cheapest, another is soon enough; where nobody is,
// the cheapest serves and the answer says so; and what came of it is told.
func TestGoalsAreReachedOrSaidToBeMissed(t *testing.T) {
	seen := &goalsSeen{}
	o := New(Config{}, seen)
	held := make([]uint32, 5000)
	for i := range held {
		held[i] = uint32(100 + i)
	}
	s := open(t, o, "holder", 1, t0)
	store(t, s, 1, chain(held...), t0)
	store(t, open(t, o, "idle", 1, t0), 1, chain(9), t0)
	busy := make([]uint32, 6000)
	for i := range busy {
		busy[i] = uint32(50_000 + i)
	}
	for range 2 { // one of them waits at each
		route(t, o, prompt(busy...), func(r *RouteRequest) { r.Denied = []string{"idle"} }, t0)
	}
	ask := func(g policy.Goals) *Answer {
		return route(t, o, prompt(append(held, 7)...), func(r *RouteRequest) { r.Goals, r.DryRun = g, true }, t0)
	}
	plain := ask(policy.Goals{})
	if plain.Target.Worker != "holder" || plain.TPOT != 0 {
		t.Fatalf("without a goal: %v, %v a token", plain.Target, plain.TPOT)
	}
	other := route(t, o, prompt(append(held, 7)...), func(r *RouteRequest) { r.Denied, r.DryRun = []string{"holder"}, true }, t0)
	for _, tt := range []struct {
		name       string
		goals      policy.Goals
		worker     string
		ttft, tpot bool
	}{
		{"the holder is soon enough", policy.Goals{TTFT: plain.TTFT + 1}, "holder", false, false},
		{"nobody is", policy.Goals{TTFT: min(plain.TTFT, other.TTFT) / 2}, "holder", true, false},
		{"another is", policy.Goals{TTFT: (plain.TTFT + other.TTFT) / 2}, "idle", false, false},
		{"output at once", policy.Goals{TPOT: 1e-6}, "holder", false, true},
	} {
		if a := ask(tt.goals); a.Target.Worker != tt.worker || a.MissesTTFT != tt.ttft || a.MissesTPOT != tt.tpot || a.TPOT <= 0 {
			t.Errorf("%s: %v, misses %v and %v, %v a token", tt.name, a.Target, a.MissesTTFT, a.MissesTPOT, a.TPOT)
		}
	}

	for _, late := range []time.Duration{0, time.Hour} {
		a := route(t, o, prompt(3), func(r *RouteRequest) { r.Goals.TTFT = 60 }, t0)
		if _, err := o.Progress(&Event{Decision: a.Decision, Step: FirstToken}, t0.Add(late)); err != nil {
			t.Fatal(err)
		}
	}
	if seen.reached != 1 || seen.missed != 1 {
		t.Errorf("told: %d reached, %d missed", seen.reached, seen.missed)
	}
}
