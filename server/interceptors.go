package server

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvoracle/kvoracle/internal/gateway/extproc"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// AuthFunc decides whether a call may go on. It gets the call's context (metadata, peer) and full method name and
// returns the context for the handler, or an error: a gRPC status is sent as it is, anything else becomes UNAUTHENTICATED
// without its text. It is called for every method but health checks, concurrently, and once for each call: a stream
// is not asked again.
type AuthFunc func(ctx context.Context, fullMethod string) (context.Context, error)

// interceptors stand between gRPC and the handlers. A call of the control service goes, outermost first, through
//
//	watch         counts and logs what comes out, whoever made it: so around everything else
//	controlSpans  the caller's trace; before auth so that a hook may start spans of its own
//	logging       a line for each call; of one that only reads, at level debug, for who watches a fleet asks each second
//	audit         a line for each action of an operator, refused ones too
//	guard         refuses whom the access file does not let in; most were refused by the tap
//	auth          the embedder's hook refuses before any handler runs
//	recovery      innermost: nothing outside the handler should ever see a panic
//
// and every other stream through watch, audit, guard, auth, endForeign (which ends streams of other services when the server is going)
// and recovery. Every other unary call, Route among them, has the same in one function, lean, for a chain costs closures.
func (s *Server) interceptors() (grpc.UnaryServerInterceptor, []grpc.StreamServerInterceptor) {
	rescue := recovery.WithRecoveryHandlerContext(s.recovered)

	unary := []grpc.UnaryServerInterceptor{s.watch.unary}
	stream := []grpc.StreamServerInterceptor{s.watch.stream}
	if s.tel.TracerProvider() != nil {
		s.parents = newParents(s.tel, s.auth != nil)
		spans := newControlSpans(s.tel)
		unary = append(unary, spans.unary)
		stream = append(stream, spans.stream)
	}
	for _, isAction := range []bool{false, true} {
		calls := selector.MatchFunc(func(_ context.Context, c interceptors.CallMeta) bool {
			return isControl(c.FullMethod()) && s.audit.wants(c.FullMethod()) == isAction
		})
		how := []logging.Option{logging.WithLogOnEvents(logging.FinishCall)}
		if !isAction {
			how = append(how, logging.WithLevels(levelOfReading))
		}
		unary = append(unary, selector.UnaryServerInterceptor(logging.UnaryServerInterceptor(logTo(s.log), how...), calls))
		stream = append(stream, selector.StreamServerInterceptor(logging.StreamServerInterceptor(logTo(s.log), how...), calls))
	}
	unary = append(unary, s.audit.unary, s.guard.unary)
	stream = append(stream, s.audit.stream, s.guard.stream)
	if s.auth != nil {
		guarded := selector.MatchFunc(func(_ context.Context, c interceptors.CallMeta) bool { return !isHealth(c.FullMethod()) })
		unary = append(unary, auth.UnaryServerInterceptor(ask(s.auth)))
		stream = append(stream, selector.StreamServerInterceptor(auth.StreamServerInterceptor(ask(s.auth)), guarded))
	}
	stream = append(stream, s.endForeign)
	unary = append(unary, recovery.UnaryServerInterceptor(rescue))
	stream = append(stream, recovery.StreamServerInterceptor(rescue))
	full := chained(unary)
	route := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if isControl(info.FullMethod) {
			return full(ctx, req, info, handler)
		}
		return s.lean(ctx, req, info, handler)
	}
	return route, stream
}

// chained makes one interceptor of many, the first one outermost.
func chained(all []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for _, outer := range slices.Backward(all) {
			inner := handler
			handler = func(ctx context.Context, req any) (any, error) { return outer(ctx, req, info, inner) }
		}
		return handler(ctx, req)
	}
}

// lean is watch, the caller's trace, guard, auth and recovery of a unary call.
func (s *Server) lean(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	start := time.Now()
	resp, err := s.admitted(ctx, req, info, handler)
	s.watch.done(ctx, info.FullMethod, err, time.Since(start))
	return resp, err
}

func (s *Server) admitted(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if s.parents != nil && info.FullMethod == kvoraclev1.RouteService_Route_FullMethodName {
		ctx = s.parents.of(ctx)
	}
	v := visitOf(ctx)
	v.isHere()
	if err := s.guard.entered(v, info.FullMethod); err != nil {
		return nil, err
	}
	if s.auth != nil && !isHealth(info.FullMethod) {
		var err error
		if ctx, err = ask(s.auth)(ctx); err != nil {
			return nil, err
		}
	}
	return s.rescued(ctx, req, handler)
}

// rescued is a handler whose panics are errors.
func (s *Server) rescued(ctx context.Context, req any, handler grpc.UnaryHandler) (resp any, err error) {
	finished := false
	defer func() {
		if !finished { // panic(nil) is one too
			resp, err = nil, s.recovered(ctx, recover())
		}
	}()
	resp, err = handler(ctx, req)
	finished = true
	return resp, err
}

// rescuedLoop is the same for what a stream's handler leaves to another goroutine, where its own recovery sees nothing.
func (s *Server) rescuedLoop(ctx context.Context, f func() error) (err error) {
	finished := false
	defer func() {
		if !finished {
			err = s.recovered(ctx, recover())
		}
	}()
	err = f()
	finished = true
	return err
}

// recovered makes an error of a panic. The panic's text may hold anything, so it goes to the log and not to the peer.
func (s *Server) recovered(ctx context.Context, p any) error {
	rpc, _ := grpc.Method(ctx)
	s.tel.Panicked(rpc)
	s.log.LogAttrs(ctx, slog.LevelError, "panic in a handler", slog.String("rpc", rpc),
		slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
	return toStatus(oracle.Fault(oracle.Internal, oracle.ReasonInternal, "", "", "internal error"))
}

// ask turns the hook into what the middleware wants.
func ask(hook AuthFunc) auth.AuthFunc {
	return func(ctx context.Context) (context.Context, error) {
		rpc, _ := grpc.Method(ctx)
		next, err := hook(ctx, rpc)
		if err == nil {
			return next, nil
		}
		if _, ok := status.FromError(err); ok {
			return nil, err
		}
		return nil, &statusError{status: status.New(codes.Unauthenticated, "not authenticated"), cause: err}
	}
}

// isHealth says whether a method belongs to the gRPC health service, which probes call without credentials.
func isHealth(fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/"+healthpb.Health_ServiceDesc.ServiceName+"/")
}

// endForeign ends streams of services that are not ours when the server is going: a health Watch would otherwise hold
// a graceful stop until its deadline. Our own streams see Server.going and say goodbye; those of ext_proc are HTTP requests
// under way, which end by themselves.
func (s *Server) endForeign(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if isOurs(info.FullMethod) {
		return handler(srv, stream)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	go func() { // ends with the handler at the latest
		select {
		case <-s.going:
			cancel()
		case <-ctx.Done():
		}
	}()
	return handler(srv, &streamIn{stream, ctx})
}

func isOurs(fullMethod string) bool {
	const route = kvoraclev1.RouteService_Route_FullMethodName // a constant's beginning: nothing is put together for each call
	return fullMethod == extproc.Process || strings.HasPrefix(fullMethod, route[:len(route)-len("Route")]) || isControl(fullMethod)
}

// levelOfReading is how loudly the end of a call is told that changes nothing; who is gone has read enough.
func levelOfReading(c codes.Code) logging.Level {
	if c == codes.OK || c == codes.Canceled {
		return logging.LevelDebug
	}
	return logging.DefaultServerCodeToLevel(c)
}

// logTo adapts slog to the middleware. Its levels are slog's numbers; its fields hold method, code, peer and time.
func logTo(log *slog.Logger) logging.Logger {
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		log.Log(ctx, slog.Level(level), msg, fields...)
	})
}
