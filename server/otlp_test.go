package server

import (
	"context"
	"encoding/hex"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// collector is a real OTLP receiver.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer

	got chan *tracepb.ResourceSpans
}

// Export implements the collector's service.
func (c *collector) Export(_ context.Context, m *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	for _, rs := range m.GetResourceSpans() {
		c.got <- rs
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// TestDecisionReachesATraceBackend goes the whole way over real sockets: a gateway's call with a traceparent, the
// server configured by nothing but the standard environment, a collector at the other end.
func TestDecisionReachesATraceBackend(t *testing.T) {
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{got: make(chan *tracepb.ResourceSpans, 16)}
	backend := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(backend, c)
	go func() { _ = backend.Serve(lis) }()
	defer backend.Stop()

	clearEnv(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+lis.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	t.Setenv("OTEL_METRICS_EXPORTER", "none")
	t.Setenv("OTEL_SERVICE_NAME", "oracle-a")
	s, err := New(Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()

	r := &rig{t: t, s: s}
	r.dial(s.Addr().String())
	r.worker("w1")
	resp, err := r.route.Route(metadata.AppendToOutgoingContext(t.Context(), "traceparent", sampled), prompt(make([]uint32, 100)...))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil { // what was still held has been sent
		t.Fatal(err)
	}

	var rs *tracepb.ResourceSpans
	select {
	case rs = <-c.got:
	default:
		t.Fatal("no span had arrived when the server ended")
	}
	if name := otlpValue(rs.GetResource().GetAttributes(), "service.name"); name != "oracle-a" {
		t.Errorf("service.name is %q", name)
	}
	var spans []*tracepb.Span
	for _, ss := range rs.GetScopeSpans() {
		spans = append(spans, ss.GetSpans()...)
	}
	if len(spans) != 1 || len(c.got) != 0 {
		t.Fatalf("%d spans and %d batches more, want one span in all", len(spans), len(c.got))
	}
	span := spans[0]
	if span.GetName() != "kvoracle.route" || hex.EncodeToString(span.GetParentSpanId()) != gatewaySpan || hex.EncodeToString(span.GetTraceId()) != gatewayTrace {
		t.Errorf("span %v", span)
	}
	for key, want := range map[string]string{
		"gen_ai.request.model": "demo", "kvoracle.route.worker": "w1", "kvoracle.route.prompt_tokens": "100",
		"kvoracle.route.candidates": "1", "kvoracle.route.uncached_tokens": "100", "kvoracle.route.policy": "least_time",
		"kvoracle.route.reason": "only_candidate", "kvoracle.route.decision_id": resp.GetDecisionId(),
		"kvoracle.route.confidence.blocks": "silent", "kvoracle.route.confidence.load": "booked_only",
	} {
		if got := otlpValue(span.GetAttributes(), key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}
