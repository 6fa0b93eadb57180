package server

import (
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/metadata"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

const (
	gatewayTrace = "0af7651916cd43dd8448eb211c80319c"
	gatewaySpan  = "b7ad6b7169203331"
	sampled      = "00-" + gatewayTrace + "-" + gatewaySpan + "-01"
	unsampled    = "00-" + gatewayTrace + "-" + gatewaySpan + "-00"
)

// isGatewaysChild says whether a span's direct parent is the gateway's span.
func isGatewaysChild(s trace.ReadOnlySpan) bool {
	return s.Parent().TraceID().String() == gatewayTrace && s.Parent().SpanID().String() == gatewaySpan && s.Parent().IsRemote()
}

// TestOneSpanADecision: however it was asked, a sampled decision is one span, right under the gateway's.
func TestOneSpanADecision(t *testing.T) {
	r := up(t, Config{})
	r.worker("w1")
	route := func(traceparent string) {
		t.Helper()
		ctx := t.Context()
		if traceparent != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", traceparent)
		}
		if _, err := r.route.Route(ctx, prompt(1, 2, 3)); err != nil {
			t.Fatal(err)
		}
	}
	route("")
	route(unsampled)
	route("nonsense")
	if n := len(r.spans.Ended()); n != 0 {
		t.Fatalf("%d spans without a sampled parent", n)
	}
	route(sampled)
	spans := r.spans.Ended()
	if len(spans) != 1 || spans[0].Name() != "kvoracle.route" || !isGatewaysChild(spans[0]) {
		t.Fatalf("spans %v", spans)
	}
	if !has(spans[0].Attributes(), []string{"kvoracle.route.worker=w1", "gen_ai.request.model=demo", "kvoracle.route.prompt_tokens=3"}) {
		t.Errorf("attributes %v", spans[0].Attributes())
	}

	// On a stream each message has its own parent, and the stream's metadata none of them.
	s, err := r.route.RouteStream(metadata.AppendToOutgoingContext(t.Context(), "traceparent", sampled))
	if err != nil {
		t.Fatal(err)
	}
	for tag, traceparent := range []string{"", sampled, unsampled, "nonsense"} {
		if err := s.Send(&kvoraclev1.RouteStreamRequest{Tag: uint64(tag), Request: prompt(1, 2, 3), Traceparent: traceparent}); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Recv(); err != nil || m.GetResponse() == nil {
			t.Fatalf("%v, %v", m, err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err == nil {
		t.Fatal("the stream goes on")
	}
	spans = r.spans.Ended()
	if len(spans) != 2 || spans[1].Name() != "kvoracle.route" || !isGatewaysChild(spans[1]) {
		t.Errorf("spans %v", spans)
	}
	if n := r.counted("kvoracle.decisions"); n != 8 {
		t.Errorf("%d decisions counted, want 8", n)
	}
}

func TestRefusedDecisionIsASpanToo(t *testing.T) {
	r := up(t, Config{})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", sampled)
	if _, err := r.route.Route(ctx, prompt(1)); err == nil {
		t.Fatal("no error")
	}
	spans := r.spans.Ended()
	if len(spans) != 1 || !has(spans[0].Attributes(), []string{"error.type=MODEL_UNKNOWN"}) {
		t.Errorf("spans %v", spans)
	}
}

func TestControlCallsHaveRPCSpans(t *testing.T) {
	r := up(t, Config{})
	if _, err := r.fleet.ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{}); err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", sampled)
	if _, err := r.fleet.ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.fleet.GetWorker(ctx, &kvoraclev1.GetWorkerRequest{WorkerId: "nobody"}); err == nil {
		t.Fatal("no error")
	}
	watch, err := r.fleet.WatchWorkers(ctx, &kvoraclev1.WatchWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	r.stop() // ends the watch
	want := []string{"ListWorkers OK", "GetWorker NOT_FOUND", "WatchWorkers UNAVAILABLE"}
	var got []string
	for _, s := range r.spans.Ended() {
		if !isGatewaysChild(s) {
			t.Errorf("%s has the parent %v", s.Name(), s.Parent())
		}
		code := ""
		for _, kv := range s.Attributes() {
			if kv.Key == "rpc.response.status_code" {
				code = kv.Value.AsString()
			}
		}
		got = append(got, strings.TrimPrefix(s.Name(), "kvoracle.v1.FleetService/")+" "+code)
	}
	if !slices.Equal(got, want) {
		t.Errorf("spans %q, want %q", got, want)
	}
}

func TestReportStreamsHaveNoSpans(t *testing.T) {
	r := up(t, Config{})
	s := r.report(metadata.AppendToOutgoingContext(t.Context(), "traceparent", sampled), "w1")
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	r.stop()
	if spans := r.spans.Ended(); len(spans) != 0 {
		t.Errorf("spans %v", spans)
	}
}

func TestPropagatorsOfTheEnvironmentAreUsed(t *testing.T) {
	clearEnv(t)
	t.Setenv("OTEL_PROPAGATORS", "b3")
	r := newRigKeepingEnv(t, Config{})
	r.serve()
	r.worker("w1")
	ctx := metadata.AppendToOutgoingContext(t.Context(), "b3", gatewayTrace+"-"+gatewaySpan+"-1")
	if _, err := r.route.Route(ctx, prompt(1)); err != nil {
		t.Fatal(err)
	}
	if spans := r.spans.Ended(); len(spans) != 1 || !isGatewaysChild(spans[0]) {
		t.Errorf("spans %v", spans)
	}
}
