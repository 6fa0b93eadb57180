package telemetry_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	apitrace "go.opentelemetry.io/otel/trace"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/telemetry"
)

const (
	sampledParent   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampledParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

func attributesOf(s trace.ReadOnlySpan) map[string]any {
	out := make(map[string]any)
	for _, kv := range s.Attributes() {
		out[string(kv.Key)] = kv.Value.AsInterface()
	}
	return out
}

func TestDecisionSpanIsTheGatewaysChild(t *testing.T) {
	clearEnv(t)
	tel, r := traced(t)
	ctx := tel.ContextFromTraceparent(t.Context(), sampledParent)
	_, span := tel.StartDecision(ctx)
	a := &oracle.Answer{
		Decision: 0xab, Target: oracle.TargetRef{Worker: "w1", Rank: 2}, Matched: oracle.TierTokens{fleet.Device: 32, fleet.Disk: 16},
		PromptTokens: 100, TTFT: 0.5, Blocks: oracle.Fresh, Load: oracle.Imputed, Policy: "least_time", Reason: oracle.TieSession,
		Candidates: 3, Uncached: 52, Model: "llama", RequestID: "r",
	}
	a.Terms.Queue, a.Terms.Prefill = 0.25, 0.125
	tel.EndDecision(span, a, nil)

	spans := r.Ended()
	if len(spans) != 1 {
		t.Fatalf("%d spans, want 1", len(spans))
	}
	s := spans[0]
	if s.Name() != "kvoracle.route" || s.SpanKind() != apitrace.SpanKindServer || s.Status().Code != codes.Unset {
		t.Errorf("span %q, kind %v, status %v", s.Name(), s.SpanKind(), s.Status())
	}
	if p := s.Parent(); p.SpanID().String() != "b7ad6b7169203331" || p.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || !p.IsRemote() {
		t.Errorf("parent %v", p)
	}
	want := map[string]any{
		"gen_ai.request.model": "llama", "kvoracle.route.decision_id": "00000000000000ab", "kvoracle.route.repeated": false,
		"kvoracle.route.policy": "least_time", "kvoracle.route.reason": "tie_session", "kvoracle.route.worker": "w1",
		"kvoracle.route.dp_rank": int64(2), "kvoracle.route.candidates": int64(3), "kvoracle.route.prompt_tokens": int64(100),
		"kvoracle.route.matched_tokens.device": int64(32), "kvoracle.route.matched_tokens.host": int64(0),
		"kvoracle.route.matched_tokens.disk": int64(16), "kvoracle.route.matched_tokens.shared": int64(0),
		"kvoracle.route.uncached_tokens": int64(52), "kvoracle.route.predicted_ttft": 0.5, "kvoracle.route.cost.total": 0.375,
		"kvoracle.route.cost.queue": 0.25, "kvoracle.route.cost.prefill": 0.125, "kvoracle.route.cost.fleet": 0.0, "kvoracle.route.cost.evict": 0.0, "kvoracle.route.cost.stay": 0.0,
		"kvoracle.route.cost.decode": 0.0, "kvoracle.route.cost.transfer": 0.0, "kvoracle.route.cost.memory": 0.0,
		"kvoracle.route.cost.batch": 0.0, "kvoracle.route.cost.copy": 0.0, "kvoracle.route.confidence.blocks": "fresh", "kvoracle.route.confidence.load": "imputed",
	}
	if d := cmp.Diff(want, attributesOf(s)); d != "" {
		t.Errorf("attributes (-want +got):\n%s", d)
	}
}

func TestSpansOnlyForSampledParents(t *testing.T) {
	for _, c := range []struct {
		name, sampler, arg, parent string
		want                       int
	}{
		{"sampled parent", "", "", sampledParent, 1},
		{"unsampled parent", "", "", unsampledParent, 0},
		{"no parent", "", "", "", 0},
		{"malformed parent", "", "", "00-zz", 0},
		{"own sampler, no parent", "parentbased_always_on", "", "", 1},
		{"own sampler, unsampled parent", "parentbased_always_on", "", unsampledParent, 0},
		{"always on, unsampled parent", "ALWAYS_ON", "", unsampledParent, 1},
		{"always off, sampled parent", "always_off", "", sampledParent, 0},
		{"ratio 1", "traceidratio", "1", "", 1},
		{"ratio 0", "parentbased_traceidratio", "0", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			clearEnv(t)
			t.Setenv("OTEL_TRACES_SAMPLER", c.sampler)
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", c.arg)
			tel, r := traced(t)
			_, span := tel.StartDecision(tel.ContextFromTraceparent(t.Context(), c.parent))
			tel.EndDecision(span, answer(), nil)
			if n := len(r.Ended()); n != c.want {
				t.Errorf("%d spans, want %d", n, c.want)
			}
		})
	}
}

func TestRefusedDecisionSaysWhyAndNoMore(t *testing.T) {
	for _, c := range []struct {
		err    error
		reason string
		status codes.Code
	}{
		{oracle.Fault(oracle.NotFound, oracle.ReasonModelUnknown, "model", "secret", "no"), "MODEL_UNKNOWN", codes.Unset},
		{oracle.Fault(oracle.Exhausted, oracle.ReasonBookingsFull, "", "", "secret"), "BOOKINGS_FULL", codes.Error},
		{errors.New("secret"), "INTERNAL", codes.Error},
	} {
		clearEnv(t)
		tel, r := traced(t)
		_, span := tel.StartDecision(tel.ContextFromTraceparent(t.Context(), sampledParent))
		tel.EndDecision(span, nil, c.err)
		s := r.Ended()[0]
		if d := cmp.Diff(map[string]any{"error.type": c.reason}, attributesOf(s)); d != "" {
			t.Errorf("%v: attributes (-want +got):\n%s", c.err, d)
		}
		if s.Status().Code != c.status || s.Status().Description == "secret" || len(s.Events()) != 0 {
			t.Errorf("%v: status %+v, events %v", c.err, s.Status(), s.Events())
		}
	}
}

func TestNoTracingCostsNothing(t *testing.T) {
	clearEnv(t)
	tel := start(t, telemetry.Config{})
	if tel.TracerProvider() != nil {
		t.Error("a tracer provider without an exporter")
	}
	ctx := t.Context()
	if tel.ContextFromTraceparent(ctx, sampledParent) != ctx {
		t.Error("the traceparent was parsed for nothing")
	}
	got, span := tel.StartDecision(ctx)
	if got != ctx || span.IsRecording() {
		t.Errorf("a span without an exporter: %v", span)
	}
	tel.EndDecision(span, nil, nil)
}

func TestUnsampledDecisionAllocatesNothing(t *testing.T) {
	clearEnv(t)
	tel, _ := traced(t)
	ctx := tel.ContextFromTraceparent(t.Context(), unsampledParent)
	if n := testing.AllocsPerRun(100, func() {
		_, span := tel.StartDecision(ctx)
		tel.EndDecision(span, nil, nil)
	}); n != 0 {
		t.Errorf("%v allocations, want 0: the sampler was asked though its answer is known", n)
	}
}

// FuzzTraceparent: whatever a gateway sends is either a parent, taken as it is, or nothing.
func FuzzTraceparent(f *testing.F) {
	f.Add(sampledParent)
	f.Add(unsampledParent)
	f.Add("")
	f.Add("00-00000000000000000000000000000000-b7ad6b7169203331-01")
	f.Add("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	tel, err := telemetry.New(context.Background(), telemetry.Config{SpanProcessors: []trace.SpanProcessor{tracetest.NewSpanRecorder()}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sc := apitrace.SpanContextFromContext(tel.ContextFromTraceparent(t.Context(), s))
		if !sc.IsValid() {
			return
		}
		if len(s) < 55 || s[3:35] != sc.TraceID().String() || s[36:52] != sc.SpanID().String() || !sc.IsRemote() {
			t.Errorf("%q became %v", s, sc)
		}
	})
}

func TestPropagatorsFollowTheEnvironment(t *testing.T) {
	clearEnv(t)
	t.Setenv("OTEL_PROPAGATORS", "b3,tracecontext")
	tel := start(t, telemetry.Config{})
	fields := tel.Propagator().Fields()
	for _, want := range []string{"b3", "traceparent"} {
		if !slices.Contains(fields, want) {
			t.Errorf("the headers %v lack %s", fields, want)
		}
	}
}

func TestResourceNamesTheService(t *testing.T) {
	for name, want := range map[string]string{"": "kvoracle", "other": "other"} {
		clearEnv(t)
		t.Setenv("OTEL_SERVICE_NAME", name)
		r := tracetest.NewSpanRecorder()
		tel := start(t, telemetry.Config{Version: "v1.2.3", SpanProcessors: []trace.SpanProcessor{r}})
		_, span := tel.StartDecision(tel.ContextFromTraceparent(t.Context(), sampledParent))
		tel.EndDecision(span, answer(), nil)
		res := r.Ended()[0].Resource().Set()
		for key, want := range map[attribute.Key]string{"service.name": want, "service.version": "v1.2.3"} {
			if v, _ := res.Value(key); v.AsString() != want {
				t.Errorf("%s is %q, want %q", key, v.AsString(), want)
			}
		}
	}
}
