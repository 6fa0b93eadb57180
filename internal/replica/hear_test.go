package replica

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// listener is a node that is not run: what it hears is handed to it.
func listener(t testing.TB) (*Node, *oracle.Oracle) {
	t.Helper()
	o := oracle.New(oracle.Config{}, nil)
	n, err := New(Config{URL: "nats://127.0.0.1:1", Name: "me"}, o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Register(fleet.Spec{Worker: "w", Address: "w:8000", Model: "m", BlockSize: 16, DPSize: 1}, time.Now()); err != nil {
		t.Fatal(err)
	}
	return n, o
}

// says hands one message of a replica to a node.
func says(n *Node, origin string, boot, number uint64, notices ...*replicav1.Notice) {
	n.onNotices(&nats.Msg{Subject: "kvoracle.load." + origin, Data: marshal(&replicav1.Notices{
		Origin: origin, Boot: boot, Number: number, Notices: notices,
	})}, time.Now())
}

func booked(id uint64, worker string) *replicav1.Notice {
	return &replicav1.Notice{What: &replicav1.Notice_Booked{Booked: &replicav1.Booked{
		Decision: id, Worker: worker, PromptTokens: 100, UncachedTokens: 60, PrefillSeconds: 1, ExpectedOutput: 10,
		Marks: []uint64{1, 2}, MarkTokens: 32, CoveredTokens: 64,
	}}}
}

func stepped(id uint64, step replicav1.Step) *replicav1.Notice {
	return &replicav1.Notice{What: &replicav1.Notice_Stepped{Stepped: &replicav1.Stepped{Decision: id, Step: step, Gateway: "g"}}}
}

const theirs = uint64(7) << 32 // a space of ids

func bookings(o *oracle.Oracle) int { return o.Stats(time.Now()).Load.Bookings }

// Steps and bookings come by several ways, in any order.
func TestStepsBeforeTheirBooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, o := listener(t)
		n.heard.space(7, "a", 1)
		e := &oracle.Event{Decision: oracle.DecisionID(theirs + 1), Step: oracle.Cancelled, Cached: -1}
		if out, err := o.Progress(e, time.Now()); err != nil || out != oracle.Applied {
			t.Errorf("a step of a booking that is on its way: %v, %v, want applied", out, err)
		}
		says(n, "c", 1, 1, stepped(theirs+2, replicav1.Step_STEP_DISPATCHED)) // by way of a third
		says(n, "a", 1, 1, booked(theirs+1, "w"), booked(theirs+2, "w"))
		if got := bookings(o); got != 1 {
			t.Errorf("%d bookings, want the one that was not given up", got)
		}
		if got := o.Stats(time.Now()).Load.Gateways; got != 1 {
			t.Errorf("%d gateways, want the one that had dispatched it", got)
		}
		if out, _ := o.Progress(e, time.Now()); out != oracle.UnknownDecision {
			t.Errorf("a step of what is over: %v, want unknown", out)
		}
		e.Decision = oracle.DecisionID(theirs + 9)
		if out, _ := o.Progress(e, time.Now()); out != oracle.Applied {
			t.Errorf("a step of one on its way: %v", out)
		}
		<-time.After(earlyMost + time.Second)
		n.heard.look(n, true, time.Now())
		says(n, "a", 1, 2, booked(theirs+9, "w"))
		if got, s := bookings(o), n.Stats(); got != 2 || s.Held != 3 || s.Unheld != 1 {
			t.Errorf("%d bookings, %d steps held, %d in vain; want 2, 3, 1", got, s.Held, s.Unheld)
		}
		e.Decision = oracle.DecisionID(uint64(8)<<32 + 1)
		if out, _ := o.Progress(e, time.Now()); out != oracle.UnknownDecision {
			t.Errorf("a step of nobody's: %v, want unknown", out)
		}
	})
}

// What is not for this replica, or makes no sense, changes nothing and is counted.
func TestNoticesRefused(t *testing.T) {
	n, o := listener(t)
	says(n, "me", 1, 1, booked(theirs+1, "w"))
	says(n, "a", 2, 5, booked(theirs+1, "w"))
	says(n, "a", 2, 8, booked(theirs+1, "w"), booked(theirs+2, "x")) // known; not here
	says(n, "a", 1, 9, booked(theirs+3, "w"))                        // of a former life
	n.onNotices(&nats.Msg{Subject: "kvoracle.load.b", Data: marshal(&replicav1.Notices{Origin: "a", Boot: 2, Number: 1})}, time.Now())
	n.onNotices(&nats.Msg{Subject: "kvoracle.load.b", Data: []byte{1}}, time.Now())
	bad := booked(theirs+4, "w")
	bad.GetBooked().PrefillSeconds = -1
	says(n, "a", 2, 9, bad, &replicav1.Notice{}, stepped(0, replicav1.Step_STEP_FAILED), stepped(1, 0), stepped(1, 99),
		&replicav1.Notice{What: &replicav1.Notice_Sampled{Sampled: &replicav1.Sampled{Worker: "w"}}})
	if got := bookings(o); got != 1 {
		t.Errorf("%d bookings, want 1", got)
	}
	s := n.Stats()
	got := [...]uint64{s.Heard, s.Missed, s.RefusedNotices, s.MalformedNotices}
	if want := [...]uint64{1, 2, 3, 8}; got != want {
		t.Errorf("heard, missed, refused, malformed: %d, want %d", got, want)
	}
}

// A worker's other life is another worker.
func TestBookingOfAnotherLife(t *testing.T) {
	n, o := listener(t)
	session, _, err := o.OpenBlocks(&oracle.Hello{
		Spec: fleet.Spec{Worker: "v", Address: "v:8000", Model: "m", BlockSize: 16, DPSize: 1}, Incarnation: 5, NextSequence: 1,
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(time.Now())
	for i, life := range []uint64{4, 5, 6} {
		b := booked(theirs+uint64(i), "v")
		b.GetBooked().Incarnation = life
		says(n, "a", 1, uint64(i+1), b)
	}
	if got := bookings(o); got != 1 {
		t.Errorf("%d bookings, want that of the life that is known", got)
	}
}

// Two processes whose ids fall together part when one hears of the other.
func TestSpacesPart(t *testing.T) {
	n, o := listener(t)
	was := o.Space()
	says(n, "a", 1, 1, booked(uint64(oracle.FirstOf(was))+1, "w"))
	if o.Space() == was {
		t.Error("both go on with the same ids")
	}
	if bookings(o) != 1 {
		t.Error("the booking is not there")
	}
}

// What is put into a message comes out of it.
func TestNoticesKeepEverything(t *testing.T) {
	b := oracle.Booked{
		Decision: 1, Worker: "w", Rank: 2, Incarnation: 3, RequestID: "r", PromptTokens: 4, UncachedTokens: 5, SharedTokens: 6, ExpectedOutput: 7,
		PrefillSeconds: 8, DecodeSeconds: 7.5, Decoding: 9, ReadTokens: 10, Transfer: 11, Marks: []uint64{12, 13}, MarkTokens: 14, Covered: 15,
	}
	x := item{booked: b, from: 1, to: 3}
	x.booked.Marks = nil
	if got, ok := decodeBooked(x.encode([]uint64{0, 12, 13, 0}).GetBooked()); !ok || !cmp.Equal(got, b) {
		t.Error(cmp.Diff(b, got))
	}
	for step := oracle.Dispatched; step <= oracle.Failed; step++ {
		for _, cached := range []int{-1, 0, 9} {
			e := oracle.Event{Decision: 1, Step: step, Gateway: "g", Worker: "w", Rank: 2, TTFT: 0.5, OutputTokens: 3, Cached: cached, PromptTokens: 4, IsInferred: cached == 9}
			x := item{event: e}
			if got, ok := decodeStepped(x.encode(nil).GetStepped()); !ok || !cmp.Equal(*got, e) {
				t.Error(cmp.Diff(e, got))
			}
		}
	}
	for i := range 6 {
		var g [5]oracle.Gauge
		if i < 5 {
			g[i] = oracle.Known(i)
		}
		s := oracle.Sampled{Worker: "w", Rank: 1, Incarnation: 2, Sample: oracle.Sample{
			SampledAt: 3, Running: g[0], Waiting: g[1], WaitingPrefillTokens: g[2], UsedBlocks: g[3], TotalBlocks: g[4],
		}}
		x := item{sampled: s}
		if got, ok := decodeSampled(x.encode(nil).GetSampled()); !ok || !cmp.Equal(got, s) {
			t.Error(cmp.Diff(s, got))
		}
	}
}

// Whatever comes by core NATS, nothing breaks and everything is bounded.
func FuzzNotices(f *testing.F) {
	f.Add(marshal(&replicav1.Notices{Origin: "a", Boot: 1, Number: 1, Notices: []*replicav1.Notice{
		booked(theirs+1, "w"), stepped(theirs+1, replicav1.Step_STEP_FINISHED), stepped(theirs+2, replicav1.Step_STEP_GENERATING),
		{What: &replicav1.Notice_Sampled{Sampled: &replicav1.Sampled{Worker: "w", Sample: &kvoraclev1.LoadSample{RunningRequests: new(uint32)}}}},
		{What: &replicav1.Notice_Gateway{Gateway: &replicav1.Gateway{Gateway: "g", Incarnation: 1}}},
	}}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		n, o := listener(t)
		for range 2 {
			n.onNotices(&nats.Msg{Subject: "kvoracle.load.a", Data: data}, time.Now())
		}
		n.heard.gone("a", time.Now())
		o.Tick(time.Now().Add(time.Hour))
		if s := o.Stats(time.Now()).Load; s.Bookings != 0 {
			t.Errorf("%d bookings outlive their leases", s.Bookings)
		}
		if len(n.heard.gateways)+len(n.heard.deciders) != 0 {
			t.Error("what is gone is remembered")
		}
	})
}
