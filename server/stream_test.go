package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestEachMessageIsHandledAlone: messages are handled one by one and never while something is sent, none is after close,
// and what ended them is told once.
func TestEachMessageIsHandledAlone(t *testing.T) {
	s := up(t, Config{}).s
	failed := errors.New("failed")
	for _, end := range []error{io.EOF, errors.New("cut off"), failed} {
		n, busy, handled := 0, false, 0
		alone := func() error {
			if busy {
				t.Error("two at once")
			}
			busy = true
			busy = false
			return nil
		}
		in := readEach(t.Context(), s, func() (int, error) {
			if n++; n > 100 && !errors.Is(end, failed) {
				return 0, end
			}
			return n, nil
		}, func(m int) error {
			if handled++; m != handled {
				t.Errorf("message %d, want %d", m, handled)
			}
			if m == 50 && errors.Is(end, failed) {
				return failed
			}
			return alone()
		})
		for range 100 {
			_ = in.send(alone)
		}
		want := end
		if errors.Is(end, io.EOF) {
			want = nil // a half-close is no error
		}
		if err := <-in.over; !errors.Is(err, want) {
			t.Errorf("ended with %v, want %v", err, want)
		}
	}

	// What is read after close is not handled, and what is being handled is waited for.
	messages := make(chan int)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun, done := make(chan bool), false
	in := readEach(ctx, s, func() (int, error) {
		select {
		case m := <-messages:
			return m, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}, func(int) error {
		begun <- true
		done = true
		return nil
	})
	messages <- 1
	<-begun
	in.close()
	if !done {
		t.Error("closed while a message was handled")
	}
	done = false
	messages <- 2
	if err := <-in.over; !errors.Is(err, io.EOF) || done {
		t.Errorf("after close: %v, handled: %v", err, done)
	}
}

// TestPanicInAnotherGoroutine: where a stream's messages are not handled in its handler, a panic is an error of that stream
// all the same, and not the end of the program.
func TestPanicInAnotherGoroutine(t *testing.T) {
	r := up(t, Config{}, WithSpanProcessor(panics{}))
	r.worker("w")
	s, err := r.route.RouteStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&kvoraclev1.RouteStreamRequest{Request: prompt(1), Traceparent: sampled}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "4712") {
		t.Errorf("%v, want INTERNAL without the panic's text", err)
	}
	in := readEach(t.Context(), r.s, func() (int, error) { return 1, nil }, func(int) error { panic("canary 4712") })
	if err := <-in.over; status.Code(err) != codes.Internal || strings.Contains(err.Error(), "4712") {
		t.Errorf("%v, want INTERNAL without the panic's text", err)
	}
	in.close() // it has let go
	if n := r.counted("kvoracle.panics"); n != 2 {
		t.Errorf("%d panics counted, want 2", n)
	}
	if _, err := r.route.Route(t.Context(), prompt(1)); err != nil {
		t.Errorf("the server did not go on: %v", err)
	}
}

// panics is a span processor that does.
type panics struct{}

// OnStart implements trace.SpanProcessor.
func (panics) OnStart(context.Context, trace.ReadWriteSpan) { panic("canary 4712") }

// OnEnd implements trace.SpanProcessor.
func (panics) OnEnd(trace.ReadOnlySpan) {}

// Shutdown implements trace.SpanProcessor.
func (panics) Shutdown(context.Context) error { return nil }

// ForceFlush implements trace.SpanProcessor.
func (panics) ForceFlush(context.Context) error { return nil }
