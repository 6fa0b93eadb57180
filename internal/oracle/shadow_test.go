package oracle

import (
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/policy"
)

// TestShadowJudgesByTheSameTerms: least_time as the shadow of a policy that looks at nothing is never dearer, and where
// one worker holds the prompt and the other is asked, cheaper by what it saves.
func TestShadowJudgesByTheSameTerms(t *testing.T) {
	now := time.Unix(1, 0)
	o := New(Config{Policy: policy.RoundRobin{}, Shadow: policy.DefaultLeastTime()}, nil)
	open(t, o, "w0", 1, now)
	s := open(t, o, "w1", 1, now)
	store(t, s, 1, chain(1, 2, 3, 4, 5, 6, 7, 8), now)
	p := prompt(1, 2, 3, 4, 5, 6, 7, 8, 9)
	agreed := 0
	for i := range 4 {
		a := route(t, o, p, nil, now)
		x := a.Shadow
		if x == nil || x.Policy != "least_time" || x.Agrees != (x.Target == a.Target) {
			t.Fatalf("decision %d: %+v", i, x)
		}
		if x.Agrees {
			agreed++
		}
		if x.Agrees && (x.Cost != 0 || x.TTFT != 0) || !x.Agrees && !(x.Cost < 0) {
			t.Errorf("decision %d on %s: %+v", i, a.Target.Worker, x)
		}
		if _, err := o.Progress(&Event{Decision: a.Decision, Step: Cancelled}, now); err != nil {
			t.Fatal(err)
		}
	}
	if agreed != 2 {
		t.Errorf("agreed %d times of 4 in turn", agreed)
	}
	if a := route(t, o, p, dry, now); a.Shadow != nil {
		t.Errorf("a dry run has a shadow: %+v", a.Shadow)
	}
}
