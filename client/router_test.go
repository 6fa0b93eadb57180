package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// hang waits for the caller to give up.
func hang(ctx context.Context, _ *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

func TestLateOracleIsReplacedInTime(t *testing.T) {
	f := &fake{route: hang, watch: watchAlways(ready("a"), ready("b"), ready("c"))}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn)
		defer running(t, r)()
		synctest.Wait()
		seen := make(map[string]int)
		for i := range 12 {
			start := time.Now()
			d, err := r.Route(context.Background(), ask())
			if err != nil {
				t.Fatal(err)
			}
			seen[d.Worker]++
			want, reason := 20*time.Millisecond, ReasonOracleLate
			if i >= 5 { // the breaker has opened
				want, reason = 0, ReasonBreakerOpen
			}
			if took := time.Since(start); took != want || d.Reason != reason || d.Source != SourceFallback {
				t.Errorf("route %d: took %v, %v, %v; want %v, %v", i, took, d.Source, d.Reason, want, reason)
			}
			if d.Address != d.Worker+":1" || d.ID != "" || d.Raw() != nil || d.PromptTokens != 3 {
				t.Errorf("odd decision %+v", d)
			}
			if i < 5 && status.Code(d.Cause()) != codes.DeadlineExceeded {
				t.Errorf("cause %v", d.Cause())
			}
		}
		// Nothing ends, so least booked is round robin.
		if d := cmp.Diff(map[string]int{"a": 4, "b": 4, "c": 4}, seen); d != "" {
			t.Error(d)
		}
		s := r.Stats()
		if d := cmp.Diff(map[Reason]uint64{ReasonOracleLate: 5, ReasonBreakerOpen: 7}, s.Fallbacks); d != "" {
			t.Error(d)
		}
		if !s.BreakerOpen || s.BreakerOpened != 1 || s.InFlight != 12 || f.called("Route") != 5 {
			t.Errorf("stats %+v after %d calls", s, f.called("Route"))
		}
	})
}

func TestBreakerProbesAndCloses(t *testing.T) {
	f := &fake{route: hang, watch: watchAlways(ready("a"))}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn, WithBreaker(2, time.Second, 8*time.Second))
		defer running(t, r)()
		synctest.Wait()
		start := time.Now()
		// A minute of ten questions a second, all while the oracle hangs.
		for time.Since(start) < time.Minute {
			if _, err := r.Route(context.Background(), ask()); err != nil {
				t.Fatal(err)
			}
			<-time.After(100 * time.Millisecond)
		}
		// Pauses of at most 1, 2, 4 and then 8 s, at least half of that: some 8 to 16 probes.
		if n := f.called("Route"); n < 8 || n > 18 {
			t.Errorf("%d calls in a minute", n)
		}
		f.rewrite(func(f *fake) {
			f.route = func(context.Context, *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
				return chose("1", "a"), nil
			}
		})
		<-time.After(8 * time.Second)
		for range 3 {
			d, err := r.Route(context.Background(), ask())
			if err != nil || d.Source != SourceOracle {
				t.Errorf("after the pause: %v %v", d.Source, err)
			}
		}
		if r.Stats().BreakerOpen {
			t.Error("the breaker is still open")
		}
	})
}

func TestWatchThatComesBackEndsThePause(t *testing.T) {
	f := &fake{route: hang}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		lists := make(chan []*kvoraclev1.Worker)
		f.watch = watchOf(lists)
		r := NewRouter(conn, WithBreaker(1, time.Hour, time.Hour))
		defer running(t, r)()
		lists <- []*kvoraclev1.Worker{ready("a")}
		synctest.Wait()
		for range 2 {
			if _, err := r.Route(context.Background(), ask()); err != nil {
				t.Fatal(err)
			}
		}
		if n := f.called("Route"); n != 1 {
			t.Fatalf("%d calls, want 1: the breaker is open", n)
		}
		lists <- []*kvoraclev1.Worker{ready("a")} // no news of the oracle
		synctest.Wait()
		if _, err := r.Route(context.Background(), ask()); err != nil || f.called("Route") != 1 {
			t.Fatalf("a list of the old watch ended the pause: %v", err)
		}
		next := make(chan []*kvoraclev1.Worker)
		f.rewrite(func(f *fake) { f.watch = watchOf(next) })
		close(lists)
		next <- []*kvoraclev1.Worker{ready("a")}
		synctest.Wait()
		if _, err := r.Route(context.Background(), ask()); err != nil || f.called("Route") != 2 {
			t.Errorf("a new watch did not end the pause: %v", err)
		}
	})
}

func TestWhatTheCallerMustFixIsAnError(t *testing.T) {
	for _, c := range []struct {
		err  error
		want error // nil: answered by the fallback
		why  Reason
	}{
		{signed(codes.InvalidArgument, "PROMPT_EMPTY"), ErrInvalid, ""},
		{signed(codes.NotFound, "MODEL_UNKNOWN"), ErrModelUnknown, ""},
		{signed(codes.FailedPrecondition, "BLOCK_SIZE_MISMATCH"), ErrMismatch, ""},
		{signed(codes.Unimplemented, "FIELD_UNSERVED"), ErrUnserved, ""},
		{signed(codes.Unavailable, "NO_ELIGIBLE_WORKER"), ErrNoEligibleWorker, ""},
		{signed(codes.ResourceExhausted, "BOOKINGS_FULL"), nil, ReasonOracleShed},
		{signed(codes.ResourceExhausted, "QUEUE_FULL"), ErrFleetFull, ""},
		{signed(codes.ResourceExhausted, "QUEUE_TIMEOUT"), ErrFleetFull, ""},
		{signed(codes.Internal, "INTERNAL"), nil, ReasonOracleFault},
		{signed(codes.Unavailable, "DRAINING"), nil, ReasonOracleGone},
		{status.Error(codes.Unavailable, "transport"), nil, ReasonOracleGone},
		{status.Error(codes.NotFound, "a proxy's"), nil, ReasonOracleFault},
		{status.Error(codes.PermissionDenied, "expired"), nil, ReasonOracleFault},
		{status.Error(codes.Unauthenticated, "expired"), nil, ReasonOracleFault},
		{status.Error(codes.DeadlineExceeded, "slow"), nil, ReasonOracleLate},
		{status.Error(codes.Aborted, "odd"), nil, ReasonOracleFault},
	} {
		t.Run(fmt.Sprint(status.Code(c.err), c.want != nil), func(t *testing.T) {
			f := &fake{
				route: func(context.Context, *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) { return nil, c.err },
				watch: watchAlways(ready("a", func(w *kvoraclev1.Worker) { w.Spec.Model = "other" }), ready("b")),
			}
			inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
				r := NewRouter(conn)
				defer running(t, r)()
				synctest.Wait()
				req := ask()
				if errors.Is(c.want, ErrModelUnknown) {
					req.Model = "nobody's"
				}
				d, err := r.Route(context.Background(), req)
				if c.want == nil {
					if err != nil || d.Worker != "b" || d.Reason != c.why {
						t.Errorf("got %v %v, %v; want b, %v", d.Worker, d.Reason, err, c.why)
					}
					return
				}
				var e *Error
				if !errors.Is(err, c.want) || !errors.As(err, &e) {
					t.Fatalf("got %v, want %v", err, c.want)
				}
				if !e.FromOracle || e.Field != "some.field" || e.Code != status.Code(c.err) || e.Reason == "" {
					t.Errorf("got %+v", e)
				}
				if status.Code(err) != status.Code(c.err) {
					t.Errorf("status code %v of %v", status.Code(err), err)
				}
				for _, other := range []error{ErrInvalid, ErrModelUnknown, ErrMismatch, ErrUnserved, ErrNoEligibleWorker, ErrFleetFull, ErrNoFallback, ErrUnavailable} {
					if !errors.Is(c.want, other) && errors.Is(err, other) {
						t.Errorf("%v is also %v", err, other)
					}
				}
				if s := r.Stats(); s.BreakerOpen || s.Errors != 1 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

func TestCallersOwnContext(t *testing.T) {
	f := &fake{route: hang, watch: watchAlways(ready("a"))}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn, WithBreaker(1, time.Hour, time.Hour))
		defer running(t, r)()
		synctest.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Millisecond, cancel)
		if _, err := r.Route(ctx, ask()); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		ctx, cancel = context.WithTimeout(context.Background(), 5*time.Millisecond)
		defer cancel()
		start := time.Now()
		d, err := r.Route(ctx, ask())
		if err != nil || d.Reason != ReasonOracleLate || time.Since(start) != 5*time.Millisecond {
			t.Errorf("short of time: %v %v after %v", d.Reason, err, time.Since(start))
		}
		if r.Stats().BreakerOpen {
			t.Error("a caller in a hurry opened the breaker")
		}
	})
}

func TestShedOpensTheBreakerForAsLongAsAsked(t *testing.T) {
	f := &fake{watch: watchAlways(ready("a"))}
	f.route = func(context.Context, *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
		return nil, signed(codes.ResourceExhausted, "BOOKINGS_FULL", retryIn(2*time.Second))
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn)
		defer running(t, r)()
		synctest.Wait()
		for range 19 { // 1.9 s
			if _, err := r.Route(context.Background(), ask()); err != nil {
				t.Fatal(err)
			}
			<-time.After(100 * time.Millisecond)
		}
		if n := f.called("Route"); n != 1 {
			t.Errorf("%d calls while asked to wait", n)
		}
		<-time.After(200 * time.Millisecond)
		if _, err := r.Route(context.Background(), ask()); err != nil || f.called("Route") != 2 {
			t.Errorf("%d calls afterwards, %v", f.called("Route"), err)
		}
	})
}

func TestInvalidRequestsAreNotSent(t *testing.T) {
	f := &fake{route: hang, watch: watchAlways(ready("a"))}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn)
		defer running(t, r)()
		synctest.Wait()
		for field, req := range map[string]Request{
			"Request.Model":          {Tokens: []uint32{1}},
			"Request.Tokens":         {Model: "m"},
			"Request.Hashes":         {Model: "m", Hashes: []LocalHash{1}, BlockSize: 4},
			"Request.Text":           ask(func(r *Request) { r.Text = "x" }),
			"Request.Multimodal":     {Model: "m", Text: "x", Multimodal: []MultimodalItem{{TokenCount: 1}}},
			"Request.CacheSalt":      ask(func(r *Request) { r.CacheSalt = "\xff" }),
			"Request.Denied":         ask(func(r *Request) { r.Denied = []string{"\xff"} }),
			"Request.RequiredLabels": ask(func(r *Request) { r.RequiredLabels = map[string]string{"k": "\xff"} }),
		} {
			_, err := r.Route(context.Background(), req)
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, ErrInvalid) || e.Field != field || e.FromOracle {
				t.Errorf("%s: got %v", field, err)
			}
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: status %v", field, status.Code(err))
			}
		}
		both := ask(func(r *Request) { r.Hashes, r.BlockSize, r.TokenCount = []LocalHash{1}, 4, 4 })
		if _, err := r.Route(context.Background(), both); !errors.Is(err, ErrInvalid) {
			t.Errorf("two prompts: %v", err)
		}
		if n := f.called("Route"); n != 0 {
			t.Errorf("%d were sent", n)
		}
	})
}

func TestSecondRunIsRefused(t *testing.T) {
	inBubble(t, &fake{watch: watchAlways()}, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn)
		stop := running(t, r)
		synctest.Wait()
		if err := r.Run(context.Background()); !errors.Is(err, ErrRunning) {
			t.Errorf("got %v", err)
		}
		stop()
		running(t, r)() // but one after the other is fine
	})
}

func TestOneProbeAtATime(t *testing.T) {
	f := &fake{route: hang, watch: watchAlways(ready("a"))}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn, WithBreaker(1, time.Second, time.Second))
		defer running(t, r)()
		synctest.Wait()
		if _, err := r.Route(t.Context(), ask()); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		reasons := make(chan Reason, 10)
		for range 10 {
			go func() {
				d, err := r.Route(t.Context(), ask())
				if err != nil {
					t.Error(err)
				}
				reasons <- d.Reason
			}()
		}
		got := make(map[Reason]int)
		for range 10 {
			got[<-reasons]++
		}
		if d := cmp.Diff(map[Reason]int{ReasonOracleLate: 1, ReasonBreakerOpen: 9}, got); d != "" {
			t.Error(d)
		}
	})
}

func TestFailedSendOnALivingStreamGivesItUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cut := errors.New("cut")
		if err := hear(func() error { return cut }).lastWord(func() { t.Error("given up") }); !errors.Is(err, cut) {
			t.Errorf("a stream that has ended: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		err := hear(func() error { <-ctx.Done(); return ctx.Err() }).lastWord(cancel)
		if !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("a stream that lives on: %v after %v", err, time.Since(start))
		}
	})
}
