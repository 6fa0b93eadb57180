package oracle

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// TestWhatIsRememberedIsWhatWasSaid: a decision that is looked up later, or asked for again under its name, is the one that was
// answered, whatever was asked for and whatever has happened to the fleet since; and an answer in memory that was used before
// is like one in memory of its own.
func TestWhatIsRememberedIsWhatWasSaid(t *testing.T) {
	same := []cmp.Option{cmp.AllowUnexported(Answer{}), cmpopts.EquateEmpty()}
	met := map[string]int{}
	var room Answer
	for seed := range uint64(10) {
		v := newTown(t, 100+seed)
		if seed%3 == 0 {
			v.o.SetPolicy(policy.DefaultLeastTime(), policy.RoundRobin{})
		}
		if seed%2 == 0 {
			for i, name := range v.names {
				s := v.specs[name]
				s.Roles = []fleet.Roles{fleet.Prefill, fleet.Decode | fleet.Aggregated, fleet.Decode}[i%3]
				v.specs[name] = s
			}
		}
		said := map[DecisionID]*Answer{}
		for n := range 200 {
			v.step()
			_, p := v.prompt(1 + v.r.IntN(9))
			q := v.question(p)
			q.DryRun, q.Room = false, &room
			if n%5 == 0 {
				q.RequestID = string(rune('a' + n/5))
			}
			if n%4 == 0 {
				q.Goals = policy.Goals{TTFT: v.r.Float64()}
			}
			if n%3 == 0 && seed%2 == 0 {
				q.IsPair, q.Role, q.Labels = true, fleet.Decode, nil
			}
			a, err := v.o.Route(context.Background(), q, v.now)
			if err != nil {
				continue
			}
			if a != &room {
				t.Fatal("the answer is not where it was wanted")
			}
			kept := *a
			kept.Alternatives = append([]Alternative(nil), a.Alternatives...)
			said[a.Decision] = &kept
			if q.RequestID != "" {
				again, err := v.o.Route(context.Background(), q, v.now)
				if err != nil {
					t.Fatal(err)
				}
				want := kept
				want.Repeated = true
				if diff := cmp.Diff(&want, again, same...); diff != "" {
					t.Fatalf("seed %d, asked again (-said +again):\n%s", seed, diff)
				}
				met["repeated"]++
			}
			for what, isSo := range map[string]bool{
				"pair": a.Prefill != nil, "pair that may be one": a.Prefill == nil && slices.ContainsFunc(a.Alternatives, func(x Alternative) bool { return x.Prefill != nil }), "goal": a.Goals.IsSet(), "shadow": a.Shadow != nil, "text": a.IsText, "many": len(a.Alternatives) > fewAlternatives,
				"few": len(a.Alternatives) == fewAlternatives, "plain": v.o.history.find(a.Decision).more == nil,
			} {
				if isSo {
					met[what]++
				}
			}
		}
		for id, want := range said {
			if diff := cmp.Diff(want, v.o.history.get(id), same...); diff != "" {
				t.Fatalf("seed %d (-said +kept):\n%s", seed, diff)
			}
		}
	}
	for _, need := range []string{"repeated", "pair", "pair that may be one", "goal", "shadow", "text", "many", "few", "plain"} {
		if met[need] < 8 {
			t.Errorf("%q was met %d times: the questions do not exercise it", need, met[need])
		}
	}
	if t.Failed() {
		t.Log(met)
	}
}

// TestNothingIsKeptOfNoDecision: the id of none finds nothing, also where places are made and empty.
func TestNothingIsKeptOfNoDecision(t *testing.T) {
	o := New(Config{}, nil)
	open(t, o, "w1", 1, t0)
	a := route(t, o, prompt(1, 2), nil, t0)
	if o.history.get(0) != nil || o.history.get(a.Decision+1) != nil || o.history.get(a.Decision) == nil {
		t.Error("found a decision that was not made, or not the one that was")
	}
	if out, err := o.Progress(&Event{Decision: 0, Step: Finished, Cached: -1}, t0.Add(time.Second)); err != nil || out != UnknownDecision {
		t.Errorf("progress of no decision: %v, %v", out, err)
	}
}

// isNearly reports whether a number that was kept with seven digits is the one that was meant.
func isNearly(got, want float64) bool { return math.Abs(got-want) <= 1e-6*math.Abs(want) }
