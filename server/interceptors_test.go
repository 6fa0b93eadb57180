package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// addMethod registers a service with one unary and one stream method, for behaviour that no real method has.
func (r *rig) addMethod(f func(ctx context.Context) error) {
	r.s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Service", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Unary",
			Handler: func(_ any, ctx context.Context, dec func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
				in := new(emptypb.Empty)
				if err := dec(in); err != nil {
					return nil, err
				}
				return chain(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/test.Service/Unary"}, func(ctx context.Context, _ any) (any, error) {
					return new(emptypb.Empty), f(ctx)
				})
			},
		}},
		Streams: []grpc.StreamDesc{{
			StreamName: "Stream", ServerStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error { return f(s.Context()) },
		}},
	}, nil)
}

func (r *rig) unary() error {
	return r.conn.Invoke(r.t.Context(), "/test.Service/Unary", new(emptypb.Empty), new(emptypb.Empty))
}

func (r *rig) stream() error {
	s, err := r.conn.NewStream(r.t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/test.Service/Stream")
	if err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return s.RecvMsg(new(emptypb.Empty))
}

func TestPanicIsAnErrorAndNoMore(t *testing.T) {
	r := newRig(t, Config{})
	r.addMethod(func(context.Context) error { panic("canary 4711") })
	r.serve()
	for name, call := range map[string]func() error{"Unary": r.unary, "Stream": r.stream} {
		err := call()
		if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: %v, want INTERNAL without the panic's text", name, err)
		}
		if info, _, _, _ := details(t, err); info.GetReason() != "INTERNAL" {
			t.Errorf("%s: ErrorInfo %v", name, info)
		}
		if n := r.counted("kvoracle.panics", "rpc=test.Service/"+name); n != 1 {
			t.Errorf("%s: %d panics counted, want 1", name, n)
		}
		if n := r.counted("kvoracle.requests.refused", "rpc=test.Service/"+name, "reason=INTERNAL"); n != 1 {
			t.Errorf("%s: %d refusals counted, want 1", name, n)
		}
	}
	lines := r.logs.lines(t, "panic in a handler")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2: %s", len(lines), r.logs)
	}
	if stack := fmt.Sprint(lines[0]["stack"]); !strings.Contains(stack, "interceptors_test.go") || lines[0]["panic"] != "canary 4711" {
		t.Errorf("the log does not say where and why: %v", lines[0])
	}
	if err := r.unary(); status.Code(err) != codes.Internal {
		t.Errorf("the server did not go on: %v", err)
	}
}

func TestRefusalsAreCountedByReason(t *testing.T) {
	r := up(t, Config{})
	_, err := r.route.Route(t.Context(), &kvoraclev1.RouteRequest{Model: "demo"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
	_, err = r.route.Route(t.Context(), prompt(1, 2, 3))
	if status.Code(err) != codes.NotFound {
		t.Errorf("got %v", err)
	}
	const rpc = "rpc=kvoracle.v1.RouteService/Route"
	for reason, want := range map[string]int64{"PROMPT_EMPTY": 1, "MODEL_UNKNOWN": 1} {
		if n := r.counted("kvoracle.requests.refused", rpc, "reason="+reason); n != want {
			t.Errorf("%s: %d, want %d", reason, n, want)
		}
	}
	if n := r.counted("kvoracle.requests.refused"); n != 2 {
		t.Errorf("%d refusals in all, want 2", n)
	}
	lines := r.logs.lines(t, "call failed")
	if len(lines) != 2 || lines[1]["reason"] != "MODEL_UNKNOWN" || lines[1]["field"] != "model" || lines[1]["level"] != "INFO" || lines[1]["peer"] == nil {
		t.Errorf("lines %v", lines)
	}
	if strings.Contains(r.logs.String(), `"demo"`) {
		t.Error("a line quotes what the caller sent")
	}
}

func TestStreamRefusalsAreCounted(t *testing.T) {
	r := up(t, Config{})
	s, err := r.route.ReportLoad(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&kvoraclev1.ReportLoadRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
	if n := r.counted("kvoracle.requests.refused", "rpc=kvoracle.v1.RouteService/ReportLoad", "reason=UNEXPECTED_MESSAGE"); n != 1 {
		t.Errorf("%d counted, want 1", n)
	}
}

func TestCallerThatLeavesIsNotRefused(t *testing.T) {
	r := up(t, Config{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context //nolint:containedctx // a case
		err  error
		want int64
	}{
		{"gone", gone, toStatus(context.Canceled), 0},
		{"gone while the server sent", gone, status.Error(codes.Unavailable, "transport is closing"), 0},
		{"gone, and a fault of ours", gone, toStatus(errors.New("x")), 1},
		{"too late", late, toStatus(context.DeadlineExceeded), 1},
	} {
		before := r.counted("kvoracle.requests.refused")
		r.s.watch.failed(c.ctx, "/x/y", c.err, time.Second)
		if n := r.counted("kvoracle.requests.refused") - before; n != c.want {
			t.Errorf("%s: %d counted, want %d", c.name, n, c.want)
		}
	}
}

func TestFaultsAreLoggedWithTheirCause(t *testing.T) {
	r := newRig(t, Config{})
	r.addMethod(func(context.Context) error { return toStatus(errors.New("disk on fire")) })
	r.serve()
	if err := r.unary(); strings.Contains(err.Error(), "fire") {
		t.Errorf("the caller hears %v", err)
	}
	lines := r.logs.lines(t, "call failed")
	if len(lines) != 1 || lines[0]["level"] != "ERROR" || lines[0]["cause"] != "disk on fire" {
		t.Errorf("lines %v", lines)
	}
}

func TestSlowCallsAreLogged(t *testing.T) {
	for _, c := range []struct {
		slow time.Duration
		want int
	}{{time.Nanosecond, 1}, {time.Hour, 0}, {0, 0}} {
		r := up(t, Config{SlowCall: c.slow})
		r.worker("w1")
		if _, err := r.route.Route(t.Context(), prompt(1, 2, 3)); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, line := range r.logs.lines(t, "slow call") {
			if line["rpc"] == kvoraclev1.RouteService_Route_FullMethodName {
				n++
			}
		}
		if n != c.want {
			t.Errorf("slow from %v: %d lines, want %d", c.slow, n, c.want)
		}
	}
}

func TestOnlyControlCallsHaveALineEach(t *testing.T) {
	r := up(t, Config{})
	r.worker("w1")
	if _, err := r.route.Route(t.Context(), prompt(1, 2, 3)); err != nil {
		t.Fatal(err)
	}
	if _, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	lines := r.logs.lines(t, "finished call")
	if len(lines) != 1 || lines[0]["grpc.service"] != "kvoracle.v1.FleetService" || lines[0]["grpc.method"] != "RegisterWorker" {
		t.Errorf("lines %v", lines)
	}
	if n := r.counted("kvoracle.decisions"); n != 1 {
		t.Errorf("%d decisions counted, want 1", n)
	}
}

// TestReadingIsToldQuietly: a screen that lists the workers each second does not fill the log, unless that fails.
func TestReadingIsToldQuietly(t *testing.T) {
	r := up(t, Config{})
	if _, err := r.fleet.ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.fleet.GetWorker(t.Context(), &kvoraclev1.GetWorkerRequest{WorkerId: "w9"}); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	r.worker("w1")
	var got []string
	for _, line := range r.logs.lines(t, "finished call") {
		got = append(got, fmt.Sprint(line["level"], " ", line["grpc.method"], " ", line["grpc.code"]))
	}
	if want := []string{"DEBUG ListWorkers OK", "INFO GetWorker NotFound", "INFO RegisterWorker OK"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

type authKey struct{}

func TestAuth(t *testing.T) {
	var asked []string
	hook := func(ctx context.Context, rpc string) (context.Context, error) {
		asked = append(asked, rpc)
		switch v := metadata.ValueFromIncomingContext(ctx, "authorization"); {
		case len(v) == 0:
			return nil, errors.New("no token in secret store 4711")
		case v[0] != "Bearer good":
			return nil, status.Error(codes.PermissionDenied, "not with this token")
		}
		return context.WithValue(ctx, authKey{}, "gateway"), nil
	}
	r := newRig(t, Config{}, WithAuth(hook))
	r.addMethod(func(ctx context.Context) error {
		if ctx.Value(authKey{}) != "gateway" {
			return status.Error(codes.DataLoss, "the handler does not see what the hook knows")
		}
		return nil
	})
	r.serve()

	if _, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || len(asked) > 0 {
		t.Errorf("health: %v, asked %v", err, asked)
	}
	err := r.unary()
	if status.Code(err) != codes.Unauthenticated || strings.Contains(err.Error(), "4711") {
		t.Errorf("without a token: %v", err)
	}
	if err := r.stream(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("stream without a token: %v", err)
	}
	bad := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer bad")
	if err := r.conn.Invoke(bad, "/test.Service/Unary", new(emptypb.Empty), new(emptypb.Empty)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("with a bad token: %v", err)
	}
	good := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer good")
	if err := r.conn.Invoke(good, "/test.Service/Unary", new(emptypb.Empty), new(emptypb.Empty)); err != nil {
		t.Errorf("with a good token: %v", err)
	}
	if want := "[/test.Service/Unary /test.Service/Stream /test.Service/Unary /test.Service/Unary]"; fmt.Sprint(asked) != want {
		t.Errorf("asked %v, want %v", asked, want)
	}
	for reason, want := range map[string]int64{"UNAUTHENTICATED": 2, "PERMISSION_DENIED": 1} {
		if n := r.counted("kvoracle.requests.refused", "reason="+reason); n != want {
			t.Errorf("%s: %d counted, want %d", reason, n, want)
		}
	}
}

func TestLinesAreRationed(t *testing.T) {
	var r ration
	at := time.Unix(1000, 0)
	for i := range linesPerSecond {
		if ok, left := r.take(at); !ok || left != 0 {
			t.Fatalf("line %d: %v, %d left out", i, ok, left)
		}
	}
	for range 3 {
		if ok, _ := r.take(at.Add(999 * time.Millisecond)); ok {
			t.Fatal("a line too many")
		}
	}
	if ok, left := r.take(at.Add(time.Second)); !ok || left != 3 {
		t.Errorf("next second: %v, %d left out, want true, 3", ok, left)
	}
	if ok, left := r.take(at.Add(time.Second)); !ok || left != 0 {
		t.Errorf("after it: %v, %d left out, want true, 0", ok, left)
	}
}

func TestHeadersAreLimited(t *testing.T) {
	r := up(t, Config{MaxHeaderBytes: 4 << 10})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-big", strings.Repeat("x", 8<<10))
	if _, err := r.fleet.ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{}); err == nil {
		t.Error("8 KiB of metadata passed a limit of 4 KiB")
	}
	if _, err := r.fleet.ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{}); err != nil {
		t.Error(err)
	}
}

func TestMessagesAreLimited(t *testing.T) {
	r := up(t, Config{MaxPromptTokens: 1024})
	r.worker("w1")
	if _, err := r.route.Route(t.Context(), prompt(make([]uint32, 1024)...)); err != nil {
		t.Errorf("the longest prompt: %v", err)
	}
	_, err := r.route.Route(t.Context(), prompt(make([]uint32, 1025)...))
	if info, _, _, _ := details(t, err); info.GetReason() != "PROMPT_TOO_LONG" {
		t.Errorf("one token more: %v", err)
	}
	if _, err := r.route.Route(t.Context(), prompt(make([]uint32, 1<<20)...)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message beyond the limit: %v", err)
	}
}
