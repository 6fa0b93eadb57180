package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

type streamServer = kvoraclev1.RouteService_RouteStreamServer

func answerTo(m *kvoraclev1.RouteStreamRequest) *kvoraclev1.RouteStreamResponse {
	id := m.GetRequest().GetRequestId()
	return &kvoraclev1.RouteStreamResponse{Tag: m.GetTag(), Result: &kvoraclev1.RouteStreamResponse_Response{Response: chose(id, "w-"+id)}}
}

// viaStream is a router with one stream, once that is open.
func viaStream(t *testing.T, conn *grpc.ClientConn, opts ...RouterOption) *Router {
	t.Helper()
	r := NewRouter(conn, append([]RouterOption{WithStreams(1)}, opts...)...)
	t.Cleanup(running(t, r))
	synctest.Wait()
	return r
}

// routeAll asks concurrently, one question an id, and returns what each got.
func routeAll(r *Router, ids ...string) map[string]Decision {
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := make(map[string]Decision)
	for _, id := range ids {
		wg.Go(func() {
			d, err := r.Route(context.Background(), ask(func(r *Request) { r.ID = id }))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				d.cause = err
			}
			out[id] = d
		})
	}
	wg.Wait()
	return out
}

func TestStreamAnswersFindTheirQuestions(t *testing.T) {
	f := &fake{watch: watchAlways(ready("a"))}
	f.routeStream = func(s streamServer) error {
		for {
			var batch []*kvoraclev1.RouteStreamRequest
			for len(batch) < 4 {
				m, err := s.Recv()
				if err != nil {
					return err
				}
				batch = append(batch, m)
			}
			for i := range batch { // backwards
				m := batch[len(batch)-1-i]
				out := answerTo(m)
				if m.GetRequest().GetRequestId() == "bad" {
					st, _ := status.FromError(signed(codes.InvalidArgument, "FIELD_INVALID"))
					out.Result = &kvoraclev1.RouteStreamResponse_Status{Status: &kvoraclev1.ErrorStatus{
						Code: st.Proto().GetCode(), Message: st.Proto().GetMessage(), Details: st.Proto().GetDetails(),
					}}
				}
				if err := s.Send(out); err != nil {
					return err
				}
			}
		}
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := viaStream(t, conn)
		got := routeAll(r, "1", "2", "3", "bad")
		for _, id := range []string{"1", "2", "3"} {
			if d := got[id]; d.Worker != "w-"+id || d.ID != id || d.Source != SourceOracle {
				t.Errorf("question %s: %+v", id, d)
			}
		}
		var e *Error
		if err := got["bad"].cause; !errors.Is(err, ErrInvalid) || !errors.As(err, &e) || !e.FromOracle || e.Reason != "FIELD_INVALID" {
			t.Errorf("refused question: %v", err)
		}
		if f.called("Route") != 0 || f.called("RouteStream") != 1 {
			t.Errorf("%d single calls, %d streams", f.called("Route"), f.called("RouteStream"))
		}
	})
}

func TestBrokenStreamFailsOverToCalls(t *testing.T) {
	f := &fake{watch: watchAlways(ready("a"))}
	f.route = func(_ context.Context, m *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
		return chose("unary", "w-"+m.GetRequestId()), nil
	}
	f.routeStream = func(s streamServer) error {
		for range 3 {
			if _, err := s.Recv(); err != nil {
				return err
			}
		}
		return status.Error(codes.Unavailable, "cut")
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := viaStream(t, conn)
		for id, d := range routeAll(r, "1", "2", "3") {
			if d.ID != "unary" || d.Worker != "w-"+id || d.Source != SourceOracle {
				t.Errorf("question %s: %+v", id, d)
			}
		}
		if d := routeAll(r, "4")["4"]; d.ID != "unary" {
			t.Errorf("while no stream is up: %+v", d)
		}
		f.rewrite(func(f *fake) {
			f.routeStream = func(s streamServer) error {
				for {
					m, err := s.Recv()
					if err != nil {
						return err
					}
					if err := s.Send(answerTo(m)); err != nil {
						return err
					}
				}
			}
		})
		<-time.After(time.Second)
		if d := routeAll(r, "5")["5"]; d.ID != "5" {
			t.Errorf("after the reconnect: %+v", d)
		}
		long := ask()
		long.Tokens = make([]uint32, laneTokens+1)
		if d, err := r.Route(t.Context(), long); err != nil || d.ID != "unary" {
			t.Errorf("a huge prompt: %+v, %v", d, err)
		}
	})
}

func TestLateStreamAnswerIsGivenBack(t *testing.T) {
	var heard told
	f := &fake{watch: watchAlways(ready("a"))}
	f.routeStream = func(s streamServer) error {
		for {
			m, err := s.Recv()
			if err != nil {
				return err
			}
			if m.GetTimeoutMs() != 20 {
				return status.Errorf(codes.Internal, "timeout_ms %d", m.GetTimeoutMs())
			}
			<-time.After(50 * time.Millisecond)
			if err := s.Send(answerTo(m)); err != nil {
				return err
			}
		}
	}
	f.progress = func(s kvoraclev1.RouteService_ReportProgressServer) error { return heard.hear(s, 100, true) }
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := viaStream(t, conn)
		start := time.Now()
		d := routeAll(r, "1")["1"]
		if took := time.Since(start); d.Source != SourceFallback || d.Reason != ReasonOracleLate || took != 20*time.Millisecond {
			t.Errorf("%+v after %v", d, took)
		}
		<-time.After(time.Second)
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(heard.events) != 1 || heard.events[0] != "1 Cancelled" || r.Stats().LateAnswers != 1 {
			t.Errorf("heard %v, stats %+v", heard.events, r.Stats())
		}
	})
}

func TestStreamThatGoesAwayFinishesFirst(t *testing.T) {
	f := &fake{watch: watchAlways(ready("a"))}
	f.route = func(context.Context, *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
		return chose("unary", "a"), nil
	}
	f.routeStream = func(s streamServer) error {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if err := s.Send(&kvoraclev1.RouteStreamResponse{Result: &kvoraclev1.RouteStreamResponse_GoAway{
			GoAway: &kvoraclev1.GoAway{Reason: "draining", ReconnectAfterMs: 3000},
		}}); err != nil {
			return err
		}
		<-time.After(10 * time.Millisecond)
		if err := s.Send(answerTo(m)); err != nil {
			return err
		}
		_, err = s.Recv() // the goodbye
		return err
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := viaStream(t, conn)
		if d := routeAll(r, "1")["1"]; d.ID != "1" {
			t.Errorf("the question under way: %+v", d)
		}
		<-time.After(2900 * time.Millisecond)
		if n := f.called("RouteStream"); n != 1 {
			t.Errorf("%d streams, asked to wait 3 s", n)
		}
		if d := routeAll(r, "2")["2"]; d.ID != "unary" {
			t.Errorf("meanwhile: %+v", d)
		}
		<-time.After(200 * time.Millisecond)
		if n := f.called("RouteStream"); n != 2 {
			t.Errorf("%d streams after 3 s", n)
		}
	})
}

func TestOracleWithoutStreams(t *testing.T) {
	f := &fake{watch: watchAlways(ready("a"))}
	f.route = func(context.Context, *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
		return chose("unary", "a"), nil
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := viaStream(t, conn)
		<-time.After(time.Hour)
		if d := routeAll(r, "1")["1"]; d.ID != "unary" || f.called("RouteStream") != 1 {
			t.Errorf("%+v, %d streams", d, f.called("RouteStream"))
		}
	})
}

func TestTraceTravels(t *testing.T) {
	former := otel.GetTextMapPropagator()
	otel.SetTextMapPropagator(propagation.TraceContext{})
	t.Cleanup(func() { otel.SetTextMapPropagator(former) })
	ctx := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
	const want = "00-01000000000000000000000000000000-0200000000000000-01"
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "token")

	var inCall, inStream, auth string
	f := &fake{watch: watchAlways(ready("a"))}
	f.route = func(ctx context.Context, _ *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		inCall, auth = carrier(md).Get("traceparent"), carrier(md).Get("authorization")
		return chose("1", "a"), nil
	}
	f.routeStream = func(s streamServer) error {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		inStream = m.GetTraceparent()
		return s.Send(answerTo(m))
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		if _, err := NewRouter(conn).Route(ctx, ask()); err != nil || inCall != want || auth != "token" {
			t.Errorf("in a call: %q, %q, %v", inCall, auth, err)
		}
		r := viaStream(t, conn)
		if _, err := r.Route(ctx, ask()); err != nil || inStream != want {
			t.Errorf("in a stream: %q, %v", inStream, err)
		}
	})
}
