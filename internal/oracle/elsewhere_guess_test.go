package oracle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// TestSentElsewhere: a prompt that was sent to another worker than the chosen one (a retry, a gateway that is only watched) is expected
// there and is learned of there, and leaves nothing behind where it was never sent.
func TestSentElsewhere(t *testing.T) {
	const soon = -1
	for name, tt := range map[string]struct {
		prompt Prompt
		size   int // block size of the other worker
		want   int // tokens that it is known to hold in the end
	}{
		"text":                   {words("abcdef"), size, 6 * size},
		"tokens":                 {prompt(1, 2, 3, 4, 5, 6), size, 6 * size},
		"blocks of another size": {words("abcdef"), 2 * size, 0},
		"tokens of another size": {prompt(1, 2, 3, 4, 5, 6), 2 * size, 0},
	} {
		o := New(Config{}, nil)
		for worker, n := range map[string]int{"a": size, "b": tt.size} {
			if _, err := o.Register(fleet.Spec{Worker: worker, Model: "m", BlockSize: n, DPSize: 1}, t0); err != nil {
				t.Fatal(err)
			}
		}
		// What each is believed to hold, or -1: to hold soon.
		held := func(now time.Time) map[string]int {
			a := route(t, o, tt.prompt, func(r *RouteRequest) { r.DryRun, r.Explain = true, true }, now)
			out := make(map[string]int)
			for _, r := range a.Rows {
				if n := r.Matched.Total(); n > 0 {
					out[r.Target.Worker] = n
				} else if r.Expected > 0 {
					out[r.Target.Worker] = soon
				}
			}
			return out
		}
		a := route(t, o, tt.prompt, func(r *RouteRequest) { r.Denied = []string{"b"} }, t0)
		if d := cmp.Diff(map[string]int{"a": soon}, held(t0)); d != "" {
			t.Errorf("%s: decided: %s", name, d)
		}
		want := map[string]int{}
		for _, e := range []*Event{{Step: Dispatched, Worker: "b", Cached: -1}, {Step: FirstToken, Cached: -1}, {Step: Finished, Cached: 0}} {
			if e.Step == FirstToken && tt.prompt.IsText {
				continue // an answer that comes whole has none
			}
			e.Decision = a.Decision
			if out, err := o.Progress(e, t0); err != nil || out != Applied {
				t.Fatalf("%s: %v: %v %v", name, e.Step, out, err)
			}
			if tt.want > 0 {
				want["b"] = tt.want
			}
			if tt.want > 0 && e.Step == Dispatched {
				want["b"] = soon
			}
			if n := o.guesses.blocks; tt.want == 0 && n > 0 {
				t.Errorf("%s: after %v: %d blocks are expected that cannot be", name, e.Step, n)
			}
			if d := cmp.Diff(want, held(t0)); d != "" {
				t.Errorf("%s: after %v: %s", name, e.Step, d)
			}
		}
		o.Tick(t0.Add(time.Hour))
		if d := cmp.Diff(want, held(t0.Add(time.Hour))); d != "" {
			t.Errorf("%s: an hour later: %s", name, d)
		}
	}
}
