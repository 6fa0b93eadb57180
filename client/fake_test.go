package client

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// fake is an oracle that does what a test says, for failures that a real one cannot be brought to. A method without a
// script is UNIMPLEMENTED.
type fake struct {
	kvoraclev1.UnimplementedRouteServiceServer
	kvoraclev1.UnimplementedFleetServiceServer

	route       func(context.Context, *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error)
	routeStream func(kvoraclev1.RouteService_RouteStreamServer) error
	blocks      func(kvoraclev1.RouteService_ReportBlocksServer) error
	load        func(kvoraclev1.RouteService_ReportLoadServer) error
	progress    func(kvoraclev1.RouteService_ReportProgressServer) error
	list        func() ([]*kvoraclev1.Worker, error)
	watch       func(kvoraclev1.FleetService_WatchWorkersServer) error

	mu    sync.Mutex
	calls map[string]int
}

// count counts a call and returns the script as it is now.
func (f *fake) count(name string) *fake {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = make(map[string]int)
	}
	f.calls[name]++
	return &fake{
		route: f.route, routeStream: f.routeStream, blocks: f.blocks, load: f.load, progress: f.progress, list: f.list, watch: f.watch,
	}
}

// rewrite changes the script.
func (f *fake) rewrite(change func(*fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fake) called(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[name]
}

var errUnserved = status.Error(codes.Unimplemented, "not in this test")

func (f *fake) Route(ctx context.Context, m *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
	f = f.count("Route")
	if f.route == nil {
		return nil, errUnserved
	}
	return f.route(ctx, m)
}

func (f *fake) RouteStream(s kvoraclev1.RouteService_RouteStreamServer) error {
	f = f.count("RouteStream")
	if f.routeStream == nil {
		return errUnserved
	}
	return f.routeStream(s)
}

func (f *fake) ReportBlocks(s kvoraclev1.RouteService_ReportBlocksServer) error {
	f = f.count("ReportBlocks")
	if f.blocks == nil {
		return errUnserved
	}
	return f.blocks(s)
}

func (f *fake) ReportLoad(s kvoraclev1.RouteService_ReportLoadServer) error {
	f = f.count("ReportLoad")
	if f.load == nil {
		return errUnserved
	}
	return f.load(s)
}

func (f *fake) ReportProgress(s kvoraclev1.RouteService_ReportProgressServer) error {
	f = f.count("ReportProgress")
	if f.progress == nil {
		return errUnserved
	}
	return f.progress(s)
}

func (f *fake) ListWorkers(context.Context, *kvoraclev1.ListWorkersRequest) (*kvoraclev1.ListWorkersResponse, error) {
	f = f.count("ListWorkers")
	if f.list == nil {
		return nil, errUnserved
	}
	ws, err := f.list()
	return &kvoraclev1.ListWorkersResponse{Workers: ws}, err
}

func (f *fake) WatchWorkers(_ *kvoraclev1.WatchWorkersRequest, s kvoraclev1.FleetService_WatchWorkersServer) error {
	f = f.count("WatchWorkers")
	if f.watch == nil {
		return errUnserved
	}
	return f.watch(s)
}

// inBubble runs a test in a bubble of fake time with a connection to the fake. A goroutine that outlives it fails it.
func inBubble(t *testing.T, f *fake, test func(t *testing.T, conn *grpc.ClientConn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 20)
		srv := grpc.NewServer(grpc.WaitForHandlers(true))
		kvoraclev1.RegisterRouteServiceServer(srv, f)
		kvoraclev1.RegisterFleetServiceServer(srv, f)
		var wg sync.WaitGroup
		wg.Go(func() { _ = srv.Serve(lis) })
		conn, err := grpc.NewClient("passthrough:///fake",
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = conn.Close()
			srv.Stop()
			wg.Wait()
		}()
		test(t, conn)
	})
}

// running is something with a Run, run until the bubble's test ends.
func running(t *testing.T, r interface{ Run(context.Context) error }) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// signed is an error as the oracle makes them.
func signed(code codes.Code, reason string, extra ...protoadapt.MessageV1) error {
	st, err := status.New(code, "said the oracle").WithDetails(append(extra, &errdetails.ErrorInfo{
		Domain: "kvoracle", Reason: reason, Metadata: map[string]string{"field": "some.field"},
	})...)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func retryIn(d time.Duration) protoadapt.MessageV1 {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}

// ready is a worker that can be chosen.
func ready(name string, change ...func(*kvoraclev1.Worker)) *kvoraclev1.Worker {
	w := &kvoraclev1.Worker{
		State: kvoraclev1.WorkerState_WORKER_STATE_READY,
		Spec:  &kvoraclev1.WorkerSpec{WorkerId: name, Model: "m", BlockSize: 4, Address: name + ":1"},
	}
	for _, c := range change {
		c(w)
	}
	return w
}

// watchOf sends lists as they come until the stream or the channel ends.
func watchOf(lists <-chan []*kvoraclev1.Worker) func(kvoraclev1.FleetService_WatchWorkersServer) error {
	return func(s kvoraclev1.FleetService_WatchWorkersServer) error {
		for {
			select {
			case <-s.Context().Done():
				return s.Context().Err()
			case l, ok := <-lists:
				if !ok {
					return status.Error(codes.Unavailable, "gone")
				}
				if err := s.Send(&kvoraclev1.WatchWorkersResponse{Workers: l}); err != nil {
					return err
				}
			}
		}
	}
}

// watchAlways shows one list.
func watchAlways(workers ...*kvoraclev1.Worker) func(kvoraclev1.FleetService_WatchWorkersServer) error {
	return func(s kvoraclev1.FleetService_WatchWorkersServer) error {
		if err := s.Send(&kvoraclev1.WatchWorkersResponse{Workers: workers}); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
}

// chose is an answer.
func chose(id, worker string) *kvoraclev1.RouteResponse {
	return &kvoraclev1.RouteResponse{DecisionId: id, Target: &kvoraclev1.Target{WorkerId: worker}}
}

func ask(change ...func(*Request)) Request {
	r := Request{Model: "m", Tokens: []uint32{1, 2, 3}}
	for _, c := range change {
		c(&r)
	}
	return r
}
