package clienttest_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/client/clienttest"
	"github.com/kvoracle/kvoracle/server"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// list asks for the workers' names.
func list(t *testing.T, o *clienttest.Oracle) ([]string, error) {
	t.Helper()
	m, err := kvoraclev1.NewFleetServiceClient(o.Conn()).ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
	var names []string
	for _, w := range m.GetWorkers() {
		names = append(names, w.GetSpec().GetWorkerId())
	}
	return names, err
}

func register(t *testing.T, o *clienttest.Oracle, name string) error {
	t.Helper()
	_, err := kvoraclev1.NewFleetServiceClient(o.Conn()).RegisterWorker(t.Context(), &kvoraclev1.RegisterWorkerRequest{
		Spec: &kvoraclev1.WorkerSpec{WorkerId: name, Model: "m", BlockSize: 16},
	})
	return err
}

// inBubble tries everything with and without fake time.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Run("fake time", func(t *testing.T) { synctest.Test(t, test) })
	t.Run("real time", test)
}

func TestLifeOfAnOracle(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		o := clienttest.Start(t)
		expect := func(when string, want int) {
			t.Helper()
			// A cut connection may fail the first call after it; the second one has a new connection.
			names, err := list(t, o)
			for range 100 {
				if err == nil {
					break
				}
				<-time.After(10 * time.Millisecond)
				names, err = list(t, o)
			}
			if err != nil || len(names) != want {
				t.Errorf("%s: %v, %v; want %d", when, names, err, want)
			}
		}
		if err := register(t, o, "w"); err != nil {
			t.Fatal(err)
		}
		expect("at first", 1)
		o.Cut()
		expect("after a cut", 1)
		for _, end := range []func() error{o.Stop, o.Crash} {
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if _, err := list(t, o); status.Code(err) != codes.Unavailable {
				t.Errorf("without an oracle: %v", err)
			}
			if err := end(); err != nil {
				t.Errorf("a second end: %v", err)
			}
			if err := o.Restart(); err != nil {
				t.Fatal(err)
			}
			expect("after a restart", 0)
			if err := register(t, o, "w"); err != nil {
				t.Fatal(err)
			}
			expect("registered again", 1)
		}
		for range 5 { // at once, before it has begun to serve
			if err := o.Restart(); err != nil {
				t.Fatal(err)
			}
		}
		expect("restarted while running", 0)
	})
}

func TestCutBreaksStreams(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		o := clienttest.Start(t)
		stream, err := kvoraclev1.NewFleetServiceClient(o.Conn()).WatchWorkers(t.Context(), &kvoraclev1.WatchWorkersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		o.Cut()
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	})
}

func TestServersConfiguration(t *testing.T) {
	o := clienttest.Start(t, clienttest.WithConfig(func(c *server.Config) { c.MaxWorkers = 1 }))
	if err := register(t, o, "a"); err != nil {
		t.Fatal(err)
	}
	if err := register(t, o, "b"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
	if _, err := clienttest.New(clienttest.WithConfig(func(c *server.Config) { c.Policy = "none such" })); err == nil {
		t.Error("a bad configuration was taken")
	}
}

// TestSecret: ids made with another secret, or with none, name nothing here; tokens need no secret at the reporter.
func TestSecret(t *testing.T) {
	o := clienttest.Start(t, clienttest.WithConfig(func(c *server.Config) { c.Secret = "deployment" }))
	tokens := []uint32{1, 2, 3, 4}
	for name, opts := range map[string][]client.ReporterOption{
		"same":  {client.WithSecret("deployment")},
		"other": {client.WithSecret("another")},
		"none":  nil,
	} {
		r, err := client.NewReporter(o.Conn(), client.Worker{ID: name, Model: "m", BlockSize: 4, Repeats: client.RepeatsSet}, opts...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		if _, err := r.StoreTokens(client.Root(), tokens, client.Variant{}, client.TierDevice); err != nil {
			t.Fatal(err)
		}
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	res, err := kvoraclev1.NewRouteServiceClient(o.Conn()).Route(t.Context(), &kvoraclev1.RouteRequest{
		Model: "m", DryRun: true, Explain: true,
		Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: tokens}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(res.GetCandidates()); n != 3 {
		t.Errorf("%d candidates, want 3", n)
	}
	for _, c := range res.GetCandidates() {
		want := uint64(0)
		if c.GetTarget().GetWorkerId() == "same" {
			want = 4
		}
		if got := c.GetMatched().GetDevice(); got != want {
			t.Errorf("%s: %d tokens matched, want %d", c.GetTarget().GetWorkerId(), got, want)
		}
	}
}

// TestOptionsArriveWhereTheyBelong: the server's options at the server, and the connection's at the connection, also after
// a restart.
func TestOptionsArriveWhereTheyBelong(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var calls atomic.Int64
		var lines atomic.Int64
		o := clienttest.Start(t,
			clienttest.WithServerOptions(server.WithLogger(slog.New(counting{slog.DiscardHandler, &lines}))),
			clienttest.WithDialOptions(grpc.WithChainUnaryInterceptor(
				func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					calls.Add(1)
					return next(ctx, method, req, reply, cc, opts...)
				},
			)))
		for range 2 {
			called, written := calls.Load(), lines.Load()
			if err := register(t, o, "w"); err != nil {
				t.Fatal(err)
			}
			if err := o.Restart(); err != nil {
				t.Fatal(err)
			}
			if calls.Load() != called+1 || lines.Load() == written {
				t.Errorf("the interceptor saw %d calls, the logger %d lines", calls.Load()-called, lines.Load()-written)
			}
		}
	})
}

// counting counts lines.
type counting struct {
	slog.Handler

	lines *atomic.Int64
}

// Enabled implements slog.Handler.
func (counting) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (c counting) Handle(context.Context, slog.Record) error {
	c.lines.Add(1)
	return nil
}

// WithAttrs implements slog.Handler.
func (c counting) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements slog.Handler.
func (c counting) WithGroup(string) slog.Handler { return c }
