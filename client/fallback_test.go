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

func TestFallbackFilters(t *testing.T) {
	spec := func(change func(*kvoraclev1.WorkerSpec)) func(*kvoraclev1.Worker) {
		return func(w *kvoraclev1.Worker) { change(w.Spec) }
	}
	workers := []*kvoraclev1.Worker{
		ready("plain"),
		ready("ranks", spec(func(s *kvoraclev1.WorkerSpec) { s.DpSize = 2 })),
		ready("labelled", spec(func(s *kvoraclev1.WorkerSpec) { s.Labels = map[string]string{"zone": "z"} })),
		ready("prefill", spec(func(s *kvoraclev1.WorkerSpec) { s.Roles = []Role{RolePrefill} })),
		ready("decode", spec(func(s *kvoraclev1.WorkerSpec) { s.Roles = []Role{RoleDecode} })),
		ready("foreign", spec(func(s *kvoraclev1.WorkerSpec) { s.Model = "other" })),
		ready("draining", func(w *kvoraclev1.Worker) { w.State = kvoraclev1.WorkerState_WORKER_STATE_DRAINING }),
		ready("lost", func(w *kvoraclev1.Worker) { w.State = kvoraclev1.WorkerState_WORKER_STATE_LOST }),
	}
	var f fleet
	f.set(workers, true, true, time.Now())
	for _, c := range []struct {
		name string
		req  Request
		want []string
	}{
		{"any", ask(), []string{"plain/0", "ranks/0", "ranks/1", "labelled/0"}},
		{"allowed", ask(func(r *Request) { r.Allowed = []string{"ranks", "draining", "nobody"} }), []string{"ranks/0", "ranks/1"}},
		{"denied", ask(func(r *Request) { r.Denied = []string{"ranks", "plain"} }), []string{"labelled/0"}},
		{"label", ask(func(r *Request) { r.RequiredLabels = map[string]string{"zone": "z"} }), []string{"labelled/0"}},
		{"wrong label", ask(func(r *Request) { r.RequiredLabels = map[string]string{"zone": "y"} }), nil},
		{"prefill", ask(func(r *Request) { r.Phase = PhasePrefill }), []string{"plain/0", "ranks/0", "ranks/1", "labelled/0", "prefill/0"}},
		{"decode", ask(func(r *Request) { r.Phase = PhaseDecode }), []string{"plain/0", "ranks/0", "ranks/1", "labelled/0", "decode/0"}},
		{"both", ask(func(r *Request) { r.Phase = PhaseBoth }), []string{"plain/0", "ranks/0", "ranks/1", "labelled/0"}},
		{"model", ask(func(r *Request) { r.Model = "other" }), []string{"foreign/0"}},
	} {
		var got []string
		for _, x := range f.candidates(&c.req, time.Now()) {
			got = append(got, fmt.Sprint(x.Worker, "/", x.Rank))
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, d)
		}
	}
}

func TestNothingKnown(t *testing.T) {
	f := &fake{route: hang}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn)
		_, err := r.Route(context.Background(), ask())
		if !errors.Is(err, ErrNoFallback) || !errors.Is(err, ErrUnavailable) || status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		if a := r.Stats().FleetAge; a >= 0 {
			t.Errorf("fleet age %v of a fleet never seen", a)
		}
	})
}

func TestListIsFetchedLazilyWithoutRun(t *testing.T) {
	f := &fake{
		route: func(context.Context, *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
			return chose("1", "a"), nil
		},
		list: func() ([]*kvoraclev1.Worker, error) { return []*kvoraclev1.Worker{ready("a"), ready("b")}, nil },
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn)
		for range 10 {
			if _, err := r.Route(context.Background(), ask()); err != nil {
				t.Fatal(err)
			}
		}
		if n := f.called("ListWorkers"); n != 1 {
			t.Errorf("%d lists for ten routes", n)
		}
		<-time.After(6 * time.Second)
		if _, err := r.Route(context.Background(), ask()); err != nil || f.called("ListWorkers") != 2 {
			t.Errorf("%d lists after six seconds, %v", f.called("ListWorkers"), err)
		}
		f.rewrite(func(f *fake) { f.route = hang })
		d, err := r.Route(context.Background(), ask())
		if err != nil || d.Worker != "b" { // a has bookings
			t.Errorf("got %q, %v; want b", d.Worker, err)
		}
	})
}

func TestPollsWithoutWatch(t *testing.T) {
	f := &fake{route: hang, list: func() ([]*kvoraclev1.Worker, error) { return []*kvoraclev1.Worker{ready("a")}, nil }}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := NewRouter(conn)
		defer running(t, r)()
		<-time.After(time.Minute)
		if n := f.called("ListWorkers"); n < 20 || n > 40 {
			t.Errorf("%d lists in a minute, want one each 1.5 to 3 s", n)
		}
		if n := f.called("WatchWorkers"); n != 1 {
			t.Errorf("WatchWorkers was called %d times", n)
		}
		if d, err := r.Route(context.Background(), ask()); err != nil || d.Worker != "a" {
			t.Errorf("got %q, %v", d.Worker, err)
		}
	})
}

func TestRestartedOracleHasForgottenItsWorkers(t *testing.T) {
	f := &fake{}
	f.route = func(context.Context, *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
		return nil, signed(codes.NotFound, "MODEL_UNKNOWN")
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		lists := make(chan []*kvoraclev1.Worker)
		f.watch = watchOf(lists)
		r := NewRouter(conn)
		defer running(t, r)()
		lists <- []*kvoraclev1.Worker{ready("a")}
		synctest.Wait()
		expect := func(when string, want Reason) {
			t.Helper()
			d, err := r.Route(context.Background(), ask())
			if want == "" {
				if !errors.Is(err, ErrModelUnknown) {
					t.Errorf("%s: got %q, %v; want the oracle's word", when, d.Worker, err)
				}
			} else if err != nil || d.Worker != "a" || d.Reason != want {
				t.Errorf("%s: got %q, %v, %v; want a, %v", when, d.Worker, d.Reason, err, want)
			}
		}
		expect("the list has it", ReasonOracleAmnesia)
		next := make(chan []*kvoraclev1.Worker)
		f.rewrite(func(f *fake) { f.watch = watchOf(next) })
		close(lists)
		synctest.Wait()
		expect("the watch is broken", ReasonOracleAmnesia)
		next <- nil // the new oracle knows nobody
		synctest.Wait()
		expect("the new list is empty", ReasonOracleAmnesia)
		<-time.After(31 * time.Second)
		expect("half a minute later", "")

		next <- []*kvoraclev1.Worker{ready("a")}
		next <- nil // an operator removed it
		synctest.Wait()
		expect("removed", "")
	})
}

// The interval is the least time between two looks at the fleet, and has a least value of its own.
func TestFleetInterval(t *testing.T) {
	for _, tt := range []struct {
		set         time.Duration
		least, most int // lists in a minute
	}{
		{10 * time.Second, 2, 5},
		{time.Nanosecond, 150, 420}, // 100 ms
	} {
		f := &fake{route: hang, list: func() ([]*kvoraclev1.Worker, error) { return []*kvoraclev1.Worker{ready("a")}, nil }}
		inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
			r := NewRouter(conn, WithFleetInterval(tt.set))
			defer running(t, r)()
			<-time.After(time.Minute)
			if n := f.called("ListWorkers"); n < tt.least || n > tt.most {
				t.Errorf("%v: %d lists in a minute, want %d to %d", tt.set, n, tt.least, tt.most)
			}
		})
	}
}
