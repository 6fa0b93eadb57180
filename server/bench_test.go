//go:build unix

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// BenchmarkRoute is a unary Route of 512 tokens over a real socket, client and server in this process. cpu-us/op is
// the processor time of both, which says more than the clock on a machine that does other things.
func BenchmarkRoute(b *testing.B) {
	for _, c := range []struct {
		name        string
		opts        []Option
		traceparent string
	}{
		{"untraced", nil, ""},
		{"traced, no parent", []Option{WithSpanProcessor(dropped{})}, ""},
		{"traced, unsampled parent", []Option{WithSpanProcessor(dropped{})}, unsampled},
		{"traced, sampled parent", []Option{WithSpanProcessor(dropped{})}, sampled},
	} {
		b.Run(c.name, func(b *testing.B) {
			r, stop := upBench(b, Config{Listen: "127.0.0.1:0", SlowCall: time.Second}, c.opts...)
			defer stop()
			for _, name := range []string{"w1", "w2", "w3", "w4"} {
				r.worker(name)
			}
			m := prompt(make([]uint32, 512)...)
			m.DryRun = true // bookings would pile up
			call := b.Context()
			if c.traceparent != "" {
				call = metadata.AppendToOutgoingContext(call, "traceparent", c.traceparent)
			}
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				if _, err := r.route.Route(call, m); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}

// BenchmarkPick is one request of a proxy over a real socket: a stream, a chat request of 8 kB in its body, the answer, the stream's
// end. Beside it the same calls of a picker that answers without looking: what gRPC costs.
func BenchmarkPick(b *testing.B) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("What is it all about? ", 360) + `"}],"max_tokens":1}`)
	ask := &extprocv3.ProcessingRequest{
		Request:        &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: true}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: extprocfilterv3.ProcessingMode_BUFFERED},
		Attributes: map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
			"request.method": structpb.NewStringValue("POST"), "request.path": structpb.NewStringValue("/v1/chat/completions"),
		}}},
	}
	pick := func(b *testing.B, address string) {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		client := extprocv3.NewExternalProcessorClient(conn)
		b.ReportAllocs()
		before := cpu(b)
		for b.Loop() {
			stream, err := client.Process(b.Context())
			if err == nil {
				err = stream.Send(ask)
			}
			if err == nil {
				_, err = stream.Recv()
			}
			if err == nil {
				err = stream.CloseSend()
			}
			if err == nil {
				if _, e := stream.Recv(); !errors.Is(e, io.EOF) {
					err = fmt.Errorf("want the stream's end: %w", e)
				}
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
	}
	b.Run("at once", func(b *testing.B) {
		lis, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		g := grpc.NewServer()
		extprocv3.RegisterExternalProcessorServer(g, atOnce{})
		go func() { _ = g.Serve(lis) }()
		defer g.Stop()
		pick(b, lis.Addr().String())
	})
	b.Run("kvoracle", func(b *testing.B) {
		s, stop := servingFour(b, Config{Listen: "127.0.0.1:0", SlowCall: time.Second})
		defer stop()
		pick(b, s.Addr().String())
	})
}

// BenchmarkAuthz is one question of Envoy's ext_authz over a real socket: the head and 8 kB of body in one write, the answer in one read,
// by a caller who does nothing else. Beside it the same exchange with a server that does not look: what the way there and back costs.
func BenchmarkAuthz(b *testing.B) {
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("What is it all about? ", 360) + `"}],"max_tokens":1}`
	question := []byte("POST /envoy/v1/chat/completions HTTP/1.1\r\nhost: kvoracle\r\ncontent-length: " + strconv.Itoa(len(body)) +
		"\r\nx-request-id: 9c1f0b3e-0d7e-4a70-b3c1-0d7e9c1f4a70\r\nauthorization: none\r\nx-envoy-internal: true\r\n" +
		"x-forwarded-for: 10.1.2.3\r\nx-envoy-expected-rq-timeout-ms: 100\r\n\r\n" + body)
	ask := func(b *testing.B, address string) {
		conn, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", address)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		answer := make([]byte, 4096)
		b.ReportAllocs()
		before := cpu(b)
		for b.Loop() {
			n := 0
			if _, err = conn.Write(question); err == nil {
				n, err = conn.Read(answer)
			}
			if err != nil || !bytes.HasPrefix(answer[:n], []byte("HTTP/1.1 200 ")) {
				b.Fatalf("%v %s", err, answer[:n])
			}
		}
		b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
	}
	b.Run("at once", func(b *testing.B) {
		lis, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = lis.Close() }()
		go func() {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			in := make([]byte, len(question))
			for err == nil {
				if _, err = io.ReadFull(conn, in); err == nil {
					_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX-Gateway-Destination-Endpoint: 10.0.0.1:80\r\nContent-Length: 0\r\n\r\n")
				}
			}
		}()
		ask(b, lis.Addr().String())
	})
	b.Run("kvoracle", func(b *testing.B) {
		s, stop := servingFour(b, Config{Listen: "127.0.0.1:0", HTTPListen: "127.0.0.1:0", SlowCall: time.Second})
		defer stop()
		ask(b, s.HTTPAddr().String())
	})
}

// upBench is a server with a connection to it; stop ends both.
func upBench(b *testing.B, cfg Config, opts ...Option) (r *rig, stop func()) {
	b.Helper()
	clearEnv(b)
	s, err := New(cfg, opts...)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Listen(b.Context()); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	r = &rig{t: b, s: s, ended: make(chan error, 1)}
	go func() { r.ended <- s.Run(ctx) }()
	r.dial(s.Addr().String())
	return r, func() {
		_ = r.conn.Close()
		cancel()
		if err := <-r.ended; err != nil {
			b.Error(err)
		}
	}
}

// servingFour is upBench with four workers that proxies can send to.
func servingFour(b *testing.B, cfg Config) (s *Server, stop func()) {
	b.Helper()
	r, stop := upBench(b, cfg)
	for i := range 4 {
		spec := &kvoraclev1.WorkerSpec{WorkerId: fmt.Sprint("w", i), Address: fmt.Sprintf("10.0.0.%d:80", i), Model: "m", BlockSize: 16}
		if _, err := r.fleet.RegisterWorker(b.Context(), &kvoraclev1.RegisterWorkerRequest{Spec: spec}); err != nil {
			b.Fatal(err)
		}
	}
	return r.s, stop
}

// atOnce is a picker that does not look.
type atOnce struct {
	extprocv3.UnimplementedExternalProcessorServer
}

// Process implements the ext_proc service.
func (atOnce) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return nil //nolint:nilerr // the caller has left
		}
		if err := stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{}}); err != nil {
			return err
		}
	}
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// dropped is a span processor that keeps nothing.
type dropped struct{}

// OnStart implements trace.SpanProcessor.
func (dropped) OnStart(context.Context, trace.ReadWriteSpan) {}

// OnEnd implements trace.SpanProcessor.
func (dropped) OnEnd(trace.ReadOnlySpan) {}

// Shutdown implements trace.SpanProcessor.
func (dropped) Shutdown(context.Context) error { return nil }

// ForceFlush implements trace.SpanProcessor.
func (dropped) ForceFlush(context.Context) error { return nil }
