package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// event makes a step or, with sign, a Generating; its decision id is its name.
func event(name string, sign bool) *kvoraclev1.ProgressEvent {
	e := &kvoraclev1.ProgressEvent{DecisionId: name, Step: &kvoraclev1.ProgressEvent_Cancelled{}}
	if sign {
		e.Step = &kvoraclev1.ProgressEvent_Generating{Generating: &kvoraclev1.Generating{}}
	}
	return e
}

// drain takes everything that is to be sent, numbered from a sequence on.
func drain(q *progressQueue, sequence uint64) (names []string) {
	for {
		e := q.next(sequence)
		if e == nil {
			return names
		}
		names = append(names, e.GetDecisionId())
		sequence++
	}
}

func TestProgressQueueKeepsOrderAndSendsStepsAgain(t *testing.T) {
	q := newProgressQueue(10)
	for i, sign := range []bool{false, true, false, true, false} {
		q.put(event(fmt.Sprint(i), sign))
	}
	if d := cmp.Diff([]string{"0", "1", "2", "3", "4"}, drain(q, 2)); d != "" {
		t.Error(d)
	}
	q.acked(2) // only "0"
	q.rewind()
	q.put(event("5", false))
	if d := cmp.Diff([]string{"2", "4", "5"}, drain(q, 2)); d != "" {
		t.Errorf("on a new stream: %s", d)
	}
	q.acked(4)
	if n, dropped := q.size(); n != 0 || dropped != 0 {
		t.Errorf("%d left, %d dropped", n, dropped)
	}
}

func TestProgressQueueDropsSignsFirst(t *testing.T) {
	q := newProgressQueue(4)
	q.put(event("sent", false))
	drain(q, 2)
	q.put(event("sign1", true))
	q.put(event("step1", false))
	q.put(event("sign2", true))
	q.put(event("step2", false)) // sign1 goes
	q.put(event("step3", false)) // sign2 goes
	q.put(event("step4", false)) // the one that was sent goes
	q.put(event("step5", false)) // step1 goes
	if d := cmp.Diff([]string{"step2", "step3", "step4", "step5"}, drain(q, 3)); d != "" {
		t.Error(d)
	}
	if _, dropped := q.size(); dropped != 4 {
		t.Errorf("%d dropped, want 4", dropped)
	}
}

// told is what a ReportProgress stream of the fake heard.
type told struct {
	events []string
	hello  *kvoraclev1.ProgressHello
}

func stepName(e *kvoraclev1.ProgressEvent) string {
	name := strings.TrimPrefix(fmt.Sprintf("%T", e.GetStep()), "*kvoraclev1.ProgressEvent_")
	return e.GetDecisionId() + " " + name
}

// hear reads n messages and acknowledges them if asked.
func (h *told) hear(s kvoraclev1.RouteService_ReportProgressServer, n int, ack bool) error {
	for range n {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if hello := m.GetHello(); hello != nil {
			h.hello = hello
		} else {
			h.events = append(h.events, stepName(m.GetEvent()))
		}
		if ack {
			if err := s.Send(&kvoraclev1.ReportProgressResponse{AckedSequence: m.GetSequence(), LateEvents: m.GetSequence() - 1}); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestStepsSurviveACutStream(t *testing.T) {
	var heard []*told
	f := &fake{watch: watchAlways(ready("a"))}
	f.route = func(_ context.Context, m *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
		return chose(m.GetRequestId(), "a"), nil
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		f.rewrite(func(f *fake) {
			f.progress = func(s kvoraclev1.RouteService_ReportProgressServer) error {
				h := &told{}
				heard = append(heard, h)
				if len(heard) > 1 {
					return h.hear(s, 1000, true)
				}
				if err := h.hear(s, 2, true); err != nil { // hello and one step
					return err
				}
				if err := h.hear(s, 2, false); err != nil {
					return err
				}
				return status.Error(codes.Unavailable, "cut")
			}
		})
		r := NewRouter(conn, WithGatewayID("g"))
		defer running(t, r)()
		d, err := r.Route(t.Context(), ask(func(r *Request) { r.ID = "x" }))
		if err != nil {
			t.Fatal(err)
		}
		r.Dispatched(d)
		r.FirstToken(d, time.Second)
		r.Generating(d, 3)
		synctest.Wait()
		r.Failed(d, "out of memory")
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(heard) != 2 || heard[1].hello.GetGatewayId() != "g" || heard[1].hello.GetIncarnation() != heard[0].hello.GetIncarnation() {
			t.Fatalf("streams: %v", heard)
		}
		if d := cmp.Diff([]string{"x Dispatched", "x FirstToken", "x Generating"}, heard[0].events); d != "" {
			t.Errorf("first stream: %s", d)
		}
		if d := cmp.Diff([]string{"x FirstToken", "x Failed"}, heard[1].events); d != "" {
			t.Errorf("second stream: %s", d)
		}
		// The totals of both streams add up: 1 and 2.
		if s := r.Stats(); s.ProgressLate != 3 || s.ProgressQueued != 0 || s.InFlight != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestFlushEndsWithItsContext(t *testing.T) {
	inBubble(t, &fake{}, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn)
		if err := r.Flush(t.Context()); err != nil {
			t.Errorf("nothing to flush: %v", err)
		}
		r.progress.put(event("x", false))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestRefusedGatewayNameEndsRun(t *testing.T) {
	f := &fake{watch: watchAlways()}
	f.progress = func(kvoraclev1.RouteService_ReportProgressServer) error {
		return signed(codes.InvalidArgument, "FIELD_TOO_LONG")
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn, WithGatewayID(strings.Repeat("g", 300)))
		if err := r.Run(t.Context()); !errors.Is(err, ErrInvalid) {
			t.Errorf("got %v", err)
		}
	})
}

func TestOracleWithoutProgress(t *testing.T) {
	f := &fake{watch: watchAlways(ready("a"))}
	f.route = func(context.Context, *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
		return chose("1", "a"), nil
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		var log lines
		r := NewRouter(conn, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		d, err := r.Route(t.Context(), ask())
		if err != nil || d.Source != SourceOracle {
			t.Errorf("route: %v, %v", d, err)
		}
		r.Dispatched(d) // before anybody knows
		defer running(t, r)()
		for range 60 {
			<-time.After(time.Minute)
			r.Generating(d, 1)
		}
		r.Finished(d, 2, 0)
		if err := r.Flush(t.Context()); !errors.Is(err, ErrUnserved) {
			t.Errorf("flush: %v", err)
		}
		if n := f.called("ReportProgress"); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if n, all := log.count("takes no progress reports"), log.count("level="); n != 1 || all != 1 {
			t.Errorf("%d lines about it, %d in all", n, all)
		}
		if s := r.Stats(); s.ProgressQueued != 0 || s.ProgressDropped != 62 {
			t.Errorf("%d steps wait, %d were dropped, want none and 62", s.ProgressQueued, s.ProgressDropped)
		}
		if d, err := r.Route(t.Context(), ask()); err != nil || d.Source != SourceOracle {
			t.Errorf("route: %v, %v", d, err)
		}
	})
}

func TestUsageIsTold(t *testing.T) {
	var got []*kvoraclev1.Finished
	f := &fake{watch: watchAlways(ready("a"))}
	f.route = func(_ context.Context, m *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
		return chose(m.GetRequestId(), "a"), nil
	}
	f.progress = func(s kvoraclev1.RouteService_ReportProgressServer) error {
		for {
			m, err := s.Recv()
			if err != nil {
				return err
			}
			if e := m.GetEvent().GetFinished(); e != nil {
				got = append(got, e)
			}
			if err := s.Send(&kvoraclev1.ReportProgressResponse{AckedSequence: m.GetSequence()}); err != nil {
				return err
			}
		}
	}
	none, some := uint64(0), uint64(8)
	want := []*kvoraclev1.Finished{
		{OutputTokens: 5, CachedTokens: &some, PromptTokens: 12}, {OutputTokens: 5, CachedTokens: &none}, {OutputTokens: 1}, {OutputTokens: 2, CachedTokens: &some},
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn)
		defer running(t, r)()
		for i, end := range []func(Decision){
			func(d Decision) { r.FinishedUsage(d, Usage{Output: 5, Cached: 8, Prompt: 12}) },
			func(d Decision) { r.FinishedUsage(d, Usage{Output: 5}) },
			func(d Decision) { r.FinishedUsage(d, Usage{Output: 1, Cached: CachedUnknown, Prompt: -1}) },
			func(d Decision) { r.Finished(d, 2, 8) },
		} {
			d, err := r.Route(t.Context(), ask(func(r *Request) { r.ID = fmt.Sprint(i) }))
			if err != nil {
				t.Fatal(err)
			}
			end(d)
		}
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestFallbackDecisionsMoveLocalBookingsOnly(t *testing.T) {
	f := &fake{route: hang, watch: watchAlways(ready("a"), ready("b"))}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn, WithBookingLease(10*time.Second))
		defer running(t, r)()
		synctest.Wait()
		route := func(change ...func(*Request)) Decision {
			t.Helper()
			d, err := r.Route(t.Context(), ask(change...))
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		first, second := route(), route()
		if first.Worker == second.Worker {
			t.Fatal("both went to one worker")
		}
		r.Dispatched(first, second.Target) // the gateway knew better
		if third := route(); third.Worker != first.Worker {
			t.Errorf("went to %s, which has two", third.Worker)
		}
		dry := route(func(r *Request) { r.DryRun, r.Alternatives = true, 1 })
		if len(dry.Alternatives) != 1 || dry.Alternatives[0].Worker == dry.Worker {
			t.Errorf("dry run %+v", dry)
		}
		r.Finished(dry, 1, CachedUnknown)
		r.Finished(Decision{}, 1, CachedUnknown)
		if n := r.Stats().InFlight; n != 3 {
			t.Errorf("%d in flight, want 3", n)
		}
		<-time.After(6 * time.Second)
		r.Generating(second, 10) // alive
		<-time.After(6 * time.Second)
		route(func(r *Request) { r.DryRun = true }) // looks at the leases
		if n := r.Stats().InFlight; n != 1 {
			t.Errorf("%d in flight after the lease, want the one that was heard of", n)
		}
		r.Cancelled(second)
		r.Cancelled(second)
		if s := r.Stats(); s.InFlight != 0 || s.ProgressQueued != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func FuzzCut(f *testing.F) {
	f.Add("out of memory", 5)
	f.Add("日本語", 4)
	f.Add("\xff\xfe", 256)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = max(min(n, 1024), 0)
		got := cut(s, n)
		if len(got) > n || !utf8.ValidString(got) {
			t.Errorf("cut(%q, %d) = %q", s, n, got)
		}
		if utf8.ValidString(s) && len(s) <= n && got != s {
			t.Errorf("cut(%q, %d) = %q, nothing had to go", s, n, got)
		}
	})
}
