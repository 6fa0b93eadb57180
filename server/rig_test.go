package server

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// rig is a server under test, with everything that comes out of it.
type rig struct {
	t       testing.TB
	s       *Server
	conn    *grpc.ClientConn
	route   kvoraclev1.RouteServiceClient
	fleet   kvoraclev1.FleetServiceClient
	logs    *logBook
	metrics *metric.ManualReader
	spans   *tracetest.SpanRecorder
	cancel  context.CancelFunc
	ended   chan error // Run's result
}

// newRig makes a server that is not running yet, so that a test can register services of its own.
func newRig(t testing.TB, cfg Config, opts ...Option) *rig {
	t.Helper()
	clearEnv(t)
	return newRigKeepingEnv(t, cfg, opts...)
}

// newRigKeepingEnv is newRig for a test that has set OTEL_ variables.
func newRigKeepingEnv(t testing.TB, cfg Config, opts ...Option) *rig {
	t.Helper()
	r := &rig{t: t, logs: &logBook{}, metrics: metric.NewManualReader(), spans: tracetest.NewSpanRecorder(), ended: make(chan error, 1)}
	log := slog.New(slog.NewJSONHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := New(cfg, append([]Option{WithLogger(log), WithJournal(newJournal), WithMetricReader(r.metrics), WithSpanProcessor(r.spans)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	r.s = s
	return r
}

// up starts a server in memory and stops it with the test.
func up(t testing.TB, cfg Config, opts ...Option) *rig {
	t.Helper()
	r := newRig(t, cfg, opts...)
	r.serve()
	return r
}

func (r *rig) serve() {
	r.t.Helper()
	lis := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- r.s.Serve(ctx, lis) }()
	r.dial("passthrough:///bufconn", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	r.t.Cleanup(func() {
		_ = r.conn.Close() // of a test that did not
		r.stop()
	})
}

func (r *rig) dial(target string, opts ...grpc.DialOption) {
	r.t.Helper()
	conn, err := grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.conn, r.route, r.fleet = conn, kvoraclev1.NewRouteServiceClient(conn), kvoraclev1.NewFleetServiceClient(conn)
}

// stop ends the server and says how long that took. It may be called again.
func (r *rig) stop() time.Duration {
	r.t.Helper()
	start := time.Now()
	r.cancel()
	err := <-r.ended
	if err != nil {
		r.t.Errorf("the server ended with %v", err)
	}
	r.ended <- err
	return time.Since(start)
}

// worker registers a worker by hand, so that there is something to route to.
func (r *rig) worker(name string) {
	r.t.Helper()
	_, err := r.fleet.RegisterWorker(r.t.Context(), &kvoraclev1.RegisterWorkerRequest{
		Spec: &kvoraclev1.WorkerSpec{WorkerId: name, Address: name + ":8000", Model: "demo", BlockSize: 16},
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func prompt(tokens ...uint32) *kvoraclev1.RouteRequest {
	return &kvoraclev1.RouteRequest{
		Model: "demo", Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: tokens}},
	}
}

// counted reads one counter, or how often a histogram was recorded, over the series whose attributes include all of the
// given "key=value".
func (r *rig) counted(name string, with ...string) int64 {
	r.t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.metrics.Collect(context.Background(), &rm); err != nil {
		r.t.Fatal(err)
	}
	total := int64(0)
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					if has(p.Attributes.ToSlice(), with) {
						total += p.Value
					}
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					if has(p.Attributes.ToSlice(), with) {
						total += p.Value
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					if has(p.Attributes.ToSlice(), with) {
						total += int64(p.Count)
					}
				}
			}
		}
	}
	return total
}

// logBook keeps log lines.
type logBook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// lines finds the lines with a message.
func (b *logBook) lines(t testing.TB, msg string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.SplitSeq(strings.TrimSpace(b.String()), "\n") {
		if line == "" {
			continue
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if m["msg"] == msg {
			out = append(out, m)
		}
	}
	return out
}
