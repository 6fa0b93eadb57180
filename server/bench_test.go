//go:build unix

package server

import (
	"context"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/metadata"
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
			clearEnv(b)
			s, err := New(Config{Listen: "127.0.0.1:0", SlowCall: time.Second}, c.opts...)
			if err != nil {
				b.Fatal(err)
			}
			if err := s.Listen(b.Context()); err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			r := &rig{t: b, s: s, ended: make(chan error, 1)}
			go func() { r.ended <- s.Run(ctx) }()
			r.dial(s.Addr().String())
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
			_ = r.conn.Close()
			cancel()
			if err := <-r.ended; err != nil {
				b.Error(err)
			}
		})
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
