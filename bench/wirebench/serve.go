package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/transport"
	"github.com/kvoracle/kvoracle/internal/wire"
	"github.com/kvoracle/kvoracle/server"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// serve is the measured process: the real server, an echo beside it on the same port, and on a second port the same echo
// on a gRPC server as it comes out of the box. It ends when its input does.
func serve(core int, as options) error {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(server.GCPercent) // as the program does
	if err := pin(core); err != nil {
		fmt.Fprintln(os.Stderr, "not pinned:", err)
	}
	cfg := server.DefaultConfig()
	cfg.Listen, cfg.OpsListen = "127.0.0.1:0", ""
	cfg.ShadowPolicy = as.shadow
	if !as.sheds {
		cfg.QueueTarget = -1
	}
	opts := []server.Option{server.WithService(&echoService, echo{})}
	if as.traced {
		opts = append(opts, server.WithSpanProcessor(dropped{}))
	}
	s, err := server.New(cfg, opts...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := s.Listen(ctx); err != nil {
		return err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	plain := grpc.NewServer(grpc.MaxRecvMsgSize(cfg.MaxPromptTokens*4 + 64<<10))
	plain.RegisterService(&plainService, echo{})
	go func() { _ = plain.Serve(lis) }()
	if as.profiles != "" {
		runtime.SetMutexProfileFraction(100)
		mux := http.NewServeMux()
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		go func() { _ = http.ListenAndServe(as.profiles, mux) }()
	}
	fmt.Printf("listening %s %s\n", s.Addr(), lis.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
		plain.Stop()
	}()
	return s.Run(ctx)
}

// echo answers each question with the same answer.
type echo struct{}

var answer = &oracle.Answer{
	Decision:     0x0123456789abcdef,
	Target:       oracle.TargetRef{Worker: "worker-0042", Address: "10.0.0.42:8000"},
	Matched:      oracle.TierTokens{256},
	PromptTokens: 512, TTFT: 0.0125, Policy: "least_time", Reason: oracle.LeastCost, Blocks: oracle.Fresh, Load: oracle.BookedOnly,
	Alternatives: []oracle.Alternative{
		{Target: oracle.TargetRef{Worker: "worker-0007", Address: "10.0.0.7:8000"}, Matched: oracle.TierTokens{128}, TTFT: 0.0135},
		{Target: oracle.TargetRef{Worker: "worker-0008", Address: "10.0.0.8:8000"}, Matched: oracle.TierTokens{128}, TTFT: 0.0145},
	},
	Lease: time.Minute,
}

// message is the same for a server without our codec.
var message = wire.EncodeAnswer(answer, false)

const (
	echoName  = "kvoracle.bench.Echo"
	plainName = "kvoracle.bench.PlainEcho"
)

// echoService takes the question as Route does: read in place, freed afterwards.
var echoService = grpc.ServiceDesc{
	ServiceName: echoName,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		{MethodName: "Route", Handler: echoOne},
		{MethodName: "Usage", Handler: unary("/"+echoName+"/Usage", func() any { return new(emptypb.Empty) }, func() any { return usage() })},
	},
	Streams: []grpc.StreamDesc{{StreamName: "Stream", ClientStreams: true, ServerStreams: true, Handler: echoStream}},
}

var plainService = grpc.ServiceDesc{
	ServiceName: plainName,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		{MethodName: "Route", Handler: unary("/"+plainName+"/Route", func() any { return new(kvoraclev1.RouteRequest) }, func() any { return message })},
	},
}

var (
	questionPool sync.Pool
	echoInfo     = &grpc.UnaryServerInfo{FullMethod: echoMethod}
)

func echoOne(_ any, ctx context.Context, dec func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
	q, ok := questionPool.Get().(*transport.Question)
	if !ok {
		q = &transport.Question{}
	}
	defer func() {
		q.Free()
		questionPool.Put(q)
	}()
	if err := dec(q); err != nil {
		return nil, err
	}
	return chain(ctx, q, echoInfo, answered)
}

func answered(context.Context, any) (any, error) { return answer, nil }

func unary(name string, newIn, reply func() any) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
		if err := dec(newIn()); err != nil {
			return nil, err
		}
		if chain == nil {
			return reply(), nil
		}
		return chain(ctx, nil, &grpc.UnaryServerInfo{Server: srv, FullMethod: name}, func(context.Context, any) (any, error) {
			return reply(), nil
		})
	}
}

func echoStream(_ any, s grpc.ServerStream) error {
	q := transport.Question{IsStreamed: true}
	defer q.Free()
	var out transport.StreamAnswer
	for {
		if err := s.RecvMsg(&q); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		out = transport.StreamAnswer{Tag: q.Tag(), Answer: answer}
		q.Free()
		if err := s.SendMsg(&out); err != nil {
			return err
		}
	}
}

// usage is what the process has used so far: processor seconds, allocations, and what it has in memory, in bytes.
func usage() *structpb.ListValue {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	l, _ := structpb.NewList([]any{processorTime().Seconds(), float64(m.Mallocs), float64(resident())})
	return l
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resident is the process's resident memory in bytes, 0 where the system does not say.
func resident() (bytes int64) {
	stat, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(strings.TrimSpace(string(stat)), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// dropped is a span processor that keeps nothing: the cost of making spans, without that of sending them.
type dropped struct{}

// OnStart implements trace.SpanProcessor.
func (dropped) OnStart(context.Context, trace.ReadWriteSpan) {}

// OnEnd implements trace.SpanProcessor.
func (dropped) OnEnd(trace.ReadOnlySpan) {}

// Shutdown implements trace.SpanProcessor.
func (dropped) Shutdown(context.Context) error { return nil }

// ForceFlush implements trace.SpanProcessor.
func (dropped) ForceFlush(context.Context) error { return nil }
