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

// TestPolicyMayChange: decisions follow SetPolicy at once, and after a time under another policy the quick way finds what the
// long way finds.
func TestPolicyMayChange(t *testing.T) {
	now := time.Unix(1, 0)
	o := New(Config{}, nil)
	for _, name := range []string{"w0", "w1", "w2"} {
		s := open(t, o, name, 1, now)
		store(t, s, 1, chain(1, 2, 3, 4), now)
	}
	p := prompt(1, 2, 3, 4, 5, 6, 7, 8, 9)
	for i := range 60 {
		now = now.Add(50 * time.Millisecond)
		want := "least_time"
		switch i % 20 {
		case 0:
			o.SetPolicy(policy.RoundRobin{}, nil)
		case 7:
			o.SetPolicy(policy.DefaultLeastTime(), policy.Random{})
		case 14:
			o.SetPolicy(policy.DefaultLeastTime(), nil)
		}
		if i%20 < 7 {
			want = "round_robin"
		}
		short := route(t, o, p, dry, now)
		long := route(t, o, p, func(r *RouteRequest) { r.DryRun, r.Explain = true, true }, now)
		if short.Policy != want || long.Policy != want {
			t.Fatalf("decision %d by %s and %s, want %s", i, short.Policy, long.Policy, want)
		}
		if want == "least_time" && (short.Target != long.Target || short.TTFT != long.TTFT) {
			t.Errorf("decision %d: %s in %v, the long way %s in %v", i, short.Target.Worker, short.TTFT, long.Target.Worker, long.TTFT)
		}
		a := route(t, o, p, nil, now)
		if hasShadow := i%20 >= 7 && i%20 < 14; (a.Shadow != nil) != hasShadow {
			t.Errorf("decision %d: shadow %v", i, a.Shadow)
		}
	}
}
