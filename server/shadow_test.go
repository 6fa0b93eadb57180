package server

import (
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/kvoracle/kvoracle/internal/policy"
)

// TestShadowPolicy: the second policy judges what the first is asked over the socket, changes nothing, and the difference
// is in metrics and in the span.
func TestShadowPolicy(t *testing.T) {
	// Three workers, one request after the other and none ends: least loaded takes turns, round robin too, by another
	// order. The same policy as its own shadow always agrees.
	chosen := map[string]string{}
	for shadow, agreements := range map[string]int64{"": 0, "least_loaded": 6, "round_robin": 6, "random": -1} {
		r := up(t, Config{Policy: "least_loaded", ShadowPolicy: shadow})
		for _, w := range []string{"w0", "w1", "w2"} {
			r.worker(w)
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", sampled)
		var workers []string
		for range 6 {
			m, err := r.route.Route(ctx, prompt(1, 2, 3))
			if err != nil {
				t.Fatal(err)
			}
			workers = append(workers, m.GetTarget().GetWorkerId())
		}
		dry := prompt(1, 2, 3)
		dry.DryRun = true
		if _, err := r.route.Route(ctx, dry); err != nil {
			t.Fatal(err)
		}
		chosen[shadow] = strings.Join(workers, " ")

		all, agreed := r.counted("kvoracle.shadow.decisions"), r.counted("kvoracle.shadow.decisions", "agrees=true", "policy=least_loaded", "shadow="+shadow)
		differed := r.counted("kvoracle.shadow.cost")
		spans := r.spans.Ended()
		if len(spans) != 7 {
			t.Fatalf("%d spans", len(spans))
		}
		if shadow == "" {
			if all != 0 || has(spans[0].Attributes(), []string{"kvoracle.route.shadow.agrees=true"}) {
				t.Errorf("no shadow, and %d comparisons", all)
			}
			continue
		}
		if all != 6 || agreed+differed != 6 || agreements >= 0 && agreed != agreements {
			t.Errorf("%s: compared %d times, agreed %d, want %d; %d costs", shadow, all, agreed, agreements, differed)
		}
		inSpans := int64(0)
		for _, s := range spans[:6] {
			if !has(s.Attributes(), []string{"kvoracle.route.shadow.policy=" + shadow, "kvoracle.route.policy=least_loaded"}) {
				t.Errorf("%s: span %v", shadow, s.Attributes())
			}
			if has(s.Attributes(), []string{"kvoracle.route.shadow.agrees=true"}) {
				inSpans++
			}
		}
		if inSpans != agreed {
			t.Errorf("%s: agreed %d times, in %d spans", shadow, agreed, inSpans)
		}
		if has(spans[6].Attributes(), []string{"kvoracle.route.shadow.policy=" + shadow}) {
			t.Error("a dry run has a shadow")
		}
	}
	for shadow, workers := range chosen {
		if workers != chosen[""] {
			t.Errorf("with shadow %q: %s; without: %s", shadow, workers, chosen[""])
		}
	}
}

// TestEveryPolicyServes: whichever is picked decides over the socket and signs its decisions.
func TestEveryPolicyServes(t *testing.T) {
	for _, name := range policy.Names() {
		r := up(t, Config{Policy: name})
		r.worker("w0")
		r.worker("w1")
		for range 4 {
			m, err := r.route.Route(t.Context(), prompt(1, 2, 3))
			if err != nil || m.GetPolicy() != name || m.GetTarget().GetWorkerId() == "" {
				t.Fatalf("%s: %v, %v", name, m, err)
			}
		}
		if n := r.counted("kvoracle.decisions", "policy="+name, "booked=true"); n != 4 {
			t.Errorf("%s: %d decisions counted", name, n)
		}
	}
}
