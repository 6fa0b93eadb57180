package oracle

import (
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// TestInferredEndsSayNothingOfAGateway: the prefill of a pair ends with the first token, and other replicas hear of that end.
// It is not one that the gateway told: where it tells none, its bookings still end by the clock.
func TestInferredEndsSayNothingOfAGateway(t *testing.T) {
	for _, tt := range []struct {
		name       string
		isInferred bool
		left       int
	}{{"inferred", true, 0}, {"told", false, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			o := New(Config{}, nil)
			silent(t, o, 1000)
			now, next := t0, FirstOf(o.Space()+1)
			book := func() DecisionID {
				next++
				errs := make([]error, 1)
				o.BookElsewhere([]Booked{{
					Decision: next, Worker: "w", PromptTokens: 100, UncachedTokens: 100, PrefillSeconds: 0.1, ExpectedOutput: 10, DecodeSeconds: 0.5,
				}}, now, errs)
				if out := o.StepElsewhere(&Event{Decision: next, Step: Dispatched, Gateway: "g", Cached: -1}, now); errs[0] != nil || out != Applied {
					t.Fatal(errs[0], out)
				}
				return next
			}
			for range 4 { // nobody speaks of their ends
				book()
				now = now.Add(2 * time.Minute)
				o.Tick(now)
			}
			for range 4 {
				id := book()
				for _, e := range []*Event{
					{Decision: id, Step: FirstToken, Cached: -1}, {Decision: id, Step: Finished, Cached: -1, IsInferred: tt.isInferred},
				} {
					if out := o.StepElsewhere(e, now); out != Applied {
						t.Fatal(e.Step, out)
					}
				}
			}
			book()
			id := o.fleet.View().Worker("w").Targets[0]
			states := o.load.States([]fleet.TargetID{id}, now.Add(20*time.Second), nil)
			if states[0].Booked != tt.left {
				t.Errorf("%d booked 20 s later, want %d", states[0].Booked, tt.left)
			}
		})
	}
}
