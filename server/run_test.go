package server

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

func hello(worker string) *kvoraclev1.BlocksHello {
	return &kvoraclev1.BlocksHello{
		Worker: &kvoraclev1.WorkerSpec{WorkerId: worker, Address: worker + ":8000", Model: "demo", BlockSize: 16}, Incarnation: 1,
		NextSequence: 1, HashScheme: "xxh3-64/1337", Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
	}
}

// longStreams opens one stream of every kind that lasts, each of a client that never ends it, and waits until the server
// has seen it. It returns, for each, what reads its messages to the end.
func (r *rig) longStreams(ctx context.Context) map[string]func() (goAway bool, err error) {
	r.t.Helper()
	must := func(err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatal(err)
		}
	}
	blocks := r.report(ctx, "w1")
	_, err := blocks.Recv()
	must(err)

	load, err := r.route.ReportLoad(ctx)
	must(err)
	must(load.Send(&kvoraclev1.ReportLoadRequest{Message: &kvoraclev1.ReportLoadRequest_Hello{
		Hello: &kvoraclev1.LoadHello{Target: &kvoraclev1.Target{WorkerId: "w1"}, Incarnation: 1},
	}}))
	must(load.Send(&kvoraclev1.ReportLoadRequest{Message: &kvoraclev1.ReportLoadRequest_Sample{Sample: &kvoraclev1.LoadSample{}}}))
	_, err = load.Recv()
	must(err)

	route, err := r.route.RouteStream(ctx)
	must(err)
	must(route.Send(&kvoraclev1.RouteStreamRequest{Tag: 1, Request: prompt(1, 2, 3)}))
	_, err = route.Recv()
	must(err)

	progress, err := r.route.ReportProgress(ctx)
	must(err)
	must(progress.Send(&kvoraclev1.ReportProgressRequest{Sequence: 1, Message: &kvoraclev1.ReportProgressRequest_Hello{
		Hello: &kvoraclev1.ProgressHello{GatewayId: "g1", Incarnation: 1},
	}}))
	_, err = progress.Recv()
	must(err)

	workers, err := r.fleet.WatchWorkers(ctx, &kvoraclev1.WatchWorkersRequest{})
	must(err)
	_, err = workers.Recv()
	must(err)

	records, err := r.fleet.RecordRequests(ctx, &kvoraclev1.RecordRequestsRequest{})
	must(err)
	_, err = records.Recv()
	must(err)

	health, err := healthpb.NewHealthClient(r.conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	must(err)
	_, err = health.Recv()
	must(err)

	return map[string]func() (bool, error){
		"ReportBlocks": readAll(blocks.Recv), "ReportLoad": readAll(load.Recv), "RouteStream": readAll(route.Recv),
		"ReportProgress": readAll(progress.Recv), "WatchWorkers": readAll(workers.Recv),
		"RecordRequests": readAll(records.Recv), "health.Watch": readAll(health.Recv),
	}
}

// readAll reads to the end and says whether a GoAway came before it.
func readAll[M any](recv func() (M, error)) func() (bool, error) {
	return func() (goAway bool, err error) {
		for {
			m, err := recv()
			if err != nil {
				return goAway, err
			}
			if g, ok := any(m).(interface{ GetGoAway() *kvoraclev1.GoAway }); ok && g.GetGoAway() != nil {
				goAway = true
			}
		}
	}
}

// TestDrainWithLongStreams: clients that never end their streams are told to go, and cannot hold the server up.
func TestDrainWithLongStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := up(t, Config{DrainDelay: 5 * time.Second, DrainTimeout: 10 * time.Second})
		streams := r.longStreams(t.Context())
		ready, err := healthpb.NewHealthClient(r.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "readiness"})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := ready.Recv(); err != nil || m.GetStatus() != serving {
			t.Fatalf("before: %v, %v", m, err)
		}
		start := time.Now()
		r.cancel()

		if m, err := ready.Recv(); err != nil || m.GetStatus() != notServing || time.Since(start) != 0 {
			t.Errorf("after %v: %v, %v, want NOT_SERVING at once", time.Since(start), m, err)
		}
		wait(nil, 4*time.Second) // virtual
		if _, err := r.route.Route(t.Context(), prompt(1, 2, 3)); err != nil {
			t.Errorf("calls are refused before the delay is over: %v", err)
		}
		for name, read := range streams {
			goAway, err := read()
			var want codes.Code
			switch name {
			case "ReportBlocks", "ReportLoad", "RouteStream":
				if !goAway || status.Code(err) != codes.Unknown || err.Error() != "EOF" { // a good end
					t.Errorf("%s: go away %v, then %v, want true, EOF", name, goAway, err)
				}
				continue
			case "ReportProgress", "WatchWorkers", "RecordRequests":
				want = codes.Unavailable
			case "health.Watch":
				want = codes.Canceled
			}
			if status.Code(err) != want {
				t.Errorf("%s: ended with %v, want %v", name, err, want)
			}
		}
		if took := time.Since(start); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("the streams ended after %v, want 5 s of delay and at most 1 s to say goodbye", took)
		}
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
		r.ended <- nil
		if took := time.Since(start); took > 6*time.Second {
			t.Errorf("the server ended after %v, though every stream had", took)
		}
		if _, err := r.route.Route(t.Context(), prompt(1, 2, 3)); err == nil {
			t.Error("an ended server answers")
		}
	})
}

// flood reports the same batch again and again without reading the acks until nothing more goes out: the server is stuck in
// sending. It is for a synctest bubble.
func (r *rig) flood() {
	r.t.Helper()
	s := r.report(r.t.Context(), "flood")
	store := &kvoraclev1.StoreBlocks{Content: &kvoraclev1.StoreBlocks_Tokens{Tokens: &kvoraclev1.BlockTokens{TokenIds: make([]uint32, 1024)}}}
	batch := &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{
		Sequence: 1, Ops: []*kvoraclev1.BlockOp{{Op: &kvoraclev1.BlockOp_Store{Store: store}}},
	}}}
	sent := make(chan error, 1)
	go func() {
		for {
			if err := s.Send(batch); err != nil {
				sent <- err
				return
			}
		}
	}()
	synctest.Wait()
	select {
	case err := <-sent:
		r.t.Fatalf("the stream ended: %v", err)
	default:
	}
}

// TestDrainCutsWhoDoesNotRead: a client that neither reads nor ends is cut when the time is over, and holds up nobody else.
func TestDrainCutsWhoDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := up(t, Config{DrainDelay: 2 * time.Second, DrainTimeout: 10 * time.Second})
		r.worker("w1")
		r.flood()
		watch, err := r.fleet.WatchWorkers(t.Context(), &kvoraclev1.WatchWorkersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		r.cancel()
		if _, err := readAll(watch.Recv)(); status.Code(err) != codes.Unavailable || time.Since(start) != 2*time.Second {
			t.Errorf("another stream ended after %v with %v", time.Since(start), err)
		}
		if r.stop(); time.Since(start) != 12*time.Second {
			t.Errorf("took %v, want 2 s of delay and the timeout of 10 s", time.Since(start))
		}
	})
}

// TestDrainCutsWhatDoesNotEnd: a handler that goes on for ever holds the server up until the deadline and no longer.
func TestDrainCutsWhatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{DrainTimeout: 10 * time.Second})
		entered := make(chan struct{})
		r.addMethod(func(ctx context.Context) error { close(entered); <-ctx.Done(); return ctx.Err() })
		r.serve()
		cut := make(chan error, 1)
		go func() { cut <- r.unary() }()
		<-entered
		if took := r.stop(); took != 10*time.Second {
			t.Errorf("took %v, want the drain timeout of 10 s", took)
		}
		if err := <-cut; status.Code(err) != codes.Unavailable {
			t.Errorf("the call ended with %v", err)
		}
		if len(r.logs.lines(t, "calls are cut: they did not end in time")) != 1 {
			t.Errorf("the log does not say so: %s", r.logs)
		}
	})
}

func TestDrainLetsCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{DrainTimeout: 10 * time.Second})
		entered := make(chan struct{})
		r.addMethod(func(ctx context.Context) error {
			close(entered)
			wait(ctx.Done(), 3*time.Second)
			return ctx.Err()
		})
		r.serve()
		ended := make(chan error, 1)
		go func() { ended <- r.unary() }()
		<-entered
		if took := r.stop(); took != 3*time.Second {
			t.Errorf("took %v, want the call's 3 s", took)
		}
		if err := <-ended; err != nil {
			t.Errorf("the call ended with %v", err)
		}
	})
}

func TestIdleServerStopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := up(t, Config{})
		r.worker("w1")
		if took := r.stop(); took != 0 {
			t.Errorf("took %v", took)
		}
	})
}

func TestNothingRunsAfterRun(t *testing.T) {
	r := up(t, Config{OpsListen: "127.0.0.1:0"})
	r.longStreams(t.Context())
	_ = r.conn.Close()
	r.stop()
	var left []string
	for range 100 { // one that has nothing left to do may not be gone yet
		if left = running(t); len(left) == 0 {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("still running:\n%s", strings.Join(left, "\n\n"))
}

// running finds the goroutines that are inside the server.
func running(t *testing.T) []string {
	t.Helper()
	var stacks bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
		t.Fatal(err)
	}
	var out []string
	for g := range strings.SplitSeq(stacks.String(), "\n\n") {
		inside, _, _ := strings.Cut(g, "\ncreated by")
		if strings.Contains(inside, "/server.(*Server)") || strings.Contains(inside, "grpc.(*Server)") {
			out = append(out, g)
		}
	}
	return out
}

func TestEndedBeforeItBegan(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // which goroutine comes first is up to the scheduler
		r := newRig(t, Config{OpsListen: "127.0.0.1:0"})
		if err := r.s.Serve(ctx, bufconn.Listen(1<<10)); err != nil {
			t.Fatal(err)
		}
		if up, _ := r.s.health.check(healthLiveness); up {
			t.Fatal("alive after the end")
		}
	}
}

func TestRunOnRealPorts(t *testing.T) {
	r := newRig(t, Config{Listen: "127.0.0.1:0", OpsListen: "127.0.0.1:0"})
	if r.s.Addr() != nil || r.s.OpsAddr() != nil {
		t.Error("an address before there is one")
	}
	if err := r.s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.s.Listen(t.Context()); err != nil {
		t.Errorf("listening twice: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { r.ended <- r.s.Run(ctx) }()
	r.dial(r.s.Addr().String())
	r.worker("w1")
	resp, err := r.route.Route(t.Context(), prompt(1, 2, 3))
	if err != nil || resp.GetTarget().GetWorkerId() != "w1" {
		t.Errorf("got %v, %v", resp, err)
	}
	ops := r.s.OpsAddr().String()
	cancel()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	for _, address := range []string{r.s.Addr().String(), ops} {
		if c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address); err == nil {
			t.Errorf("%s is still open", address)
			_ = c.Close()
		}
	}
	if err := r.s.Run(t.Context()); !errors.Is(err, errUsed) {
		t.Errorf("a second run: %v", err)
	}
	if err := r.s.Serve(t.Context(), bufconn.Listen(1)); !errors.Is(err, errUsed) {
		t.Errorf("a second serve: %v", err)
	}
	if err := r.s.Listen(t.Context()); !errors.Is(err, errUsed) {
		t.Errorf("listening after the end: %v", err)
	}
	if err := r.s.Close(); err != nil {
		t.Errorf("closing after the end: %v", err)
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	for field, cfg := range map[string]Config{
		"Listen:":    {Listen: lis.Addr().String()},
		"OpsListen:": {Listen: "127.0.0.1:0", OpsListen: lis.Addr().String()},
	} {
		r := newRig(t, cfg)
		if err := r.s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s got %v", field, err)
		}
	}
}

func TestCloseInsteadOfRun(t *testing.T) {
	r := newRig(t, Config{Listen: "127.0.0.1:0", OpsListen: "127.0.0.1:0"})
	if err := r.s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.s.Close(); err != nil {
		t.Error(err)
	}
	if err := r.s.Run(t.Context()); !errors.Is(err, errUsed) {
		t.Errorf("run after close: %v", err)
	}
}

// TestFailureEndsEverything: when one part cannot go on, Run says so and leaves nothing running.
func TestFailureEndsEverything(t *testing.T) {
	r := newRig(t, Config{OpsListen: "127.0.0.1:0"})
	lis := bufconn.Listen(1 << 10)
	go func() { r.ended <- r.s.Serve(context.Background(), lis) }()
	for r.s.OpsAddr() == nil { // Serve opens it
		if _, err := lis.DialContext(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.s.mu.Lock()
	ops := r.s.ops
	r.s.mu.Unlock()
	if err := ops.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-r.ended; err == nil || errors.Is(err, http.ErrServerClosed) {
		t.Errorf("got %v, want what broke the operator's port", err)
	}
}
