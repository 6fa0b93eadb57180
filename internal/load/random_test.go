package load

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// TestTrackerMatchesTwin runs random operations on both and compares every answer and every state, bit for bit.
func TestTrackerMatchesTwin(t *testing.T) {
	const ops = 220_000
	cfg := Config{MaxBookings: 24, Lease: 30 * time.Second}
	tr, w := New(cfg), newTwin(cfg)
	r := rand.New(rand.NewPCG(4, 2))
	now := time.Duration(0)
	const targets = 9
	gauge := func(n int) Gauge {
		if r.IntN(3) == 0 {
			return Gauge{}
		}
		return Known(r.IntN(n))
	}
	gateway := func() string { return []string{"", "g1", "g2", "g3"}[r.IntN(4)] }
	done, living := map[string]int{}, 0
	check := func(n int, what string, got, want any) {
		t.Helper()
		done[fmt.Sprintf("%s %v", what, got)]++
		if got != want {
			t.Fatalf("op %d, %s: got %+v, want %+v", n, what, got, want)
		}
	}
	tr.Add(0, modelOf(0))
	w.targets[0] = &twinTarget{}
	var dst []State
	for n := range ops {
		switch r.IntN(8) {
		case 0:
			now += time.Duration(r.Int64N(int64(2 * time.Second)))
		case 1:
			now -= time.Duration(r.Int64N(int64(time.Second))) // a late caller
		}
		at := after(now)
		tick := func() { w.clock = max(w.clock, at.Sub(after(0))) } // not every call reads the clock
		if n == 0 {
			now, at = 0, after(0)
		}
		id := DecisionID(r.IntN(60))
		target := fleet.TargetID(r.IntN(targets))
		switch op := r.IntN(100); {
		case op < 25:
			tick()
			b := Booking{
				ID: id, Target: target, Gateway: gateway(), PromptTokens: r.IntN(9000) - 50, UncachedTokens: r.IntN(9000) - 50,
				SharedTokens: r.IntN(4000) - 50, PrefillSeconds: r.Float64() - 0.05, ExpectedOutput: r.IntN(300) - 50,
				DecodeSeconds: 20*r.Float64() - 1,
			}
			if r.IntN(2) == 0 {
				b.RequestID = fmt.Sprint("r", r.IntN(60))
			}
			var m Marks
			if r.IntN(2) == 0 {
				m = Marks{Tokens: 256, Covered: r.IntN(3000)}
				for _, x := range r.Perm(12)[:r.IntN(6)] {
					m.Blocks = append(m.Blocks, uint64(x))
				}
				if m.Covered == 0 {
					m = Marks{}
				}
			}
			check(n, "book", tr.BookMarked(b, m, at), w.book(b, m))
		case op < 37:
			tick()
			has, g := r.IntN(2) == 0, gateway()
			o := w.dispatched(id, target, has, g)
			w.tell(o)
			check(n, "dispatched", tr.Dispatched(id, target, has, g, at), o)
		case op < 49:
			tick()
			o, waited := tr.FirstToken(id, at)
			wo, wWaited := w.firstToken(id)
			w.tell(wo)
			check(n, "first token", o, wo)
			if waited != wWaited {
				t.Fatalf("op %d: waited %v, want %v", n, waited, wWaited)
			}
		case op < 61:
			tick()
			out := r.IntN(400) - 20
			o := w.generating(id, out)
			w.tell(o)
			check(n, "generating", tr.Generating(id, out, at), o)
		case op < 65:
			tick()
			out := r.IntN(400) - 20
			o := w.end(id, out, &w.count.Finished)
			w.tell(o)
			check(n, "finish", tr.Finish(id, out, at), o)
		case op < 66:
			tick()
			o := w.end(id, 0, &w.count.Cancelled)
			w.tell(o)
			check(n, "cancel", tr.Cancel(id, at), o)
		case op < 67:
			tick()
			o := w.end(id, 0, &w.count.Failed)
			w.tell(o)
			check(n, "fail", tr.Fail(id, at), o)
		case op < 68:
			tick()
			w.inferred = true
			o := w.end(id, 0, &w.count.Finished)
			w.inferred = false
			w.tell(o)
			check(n, "complete", tr.Complete(id, at), o)
		case op < 83:
			tick()
			s := Sample{Running: gauge(20), Waiting: gauge(20), WaitingPrefillTokens: gauge(20_000), UsedBlocks: gauge(900), TotalBlocks: gauge(600)}
			if r.IntN(2) == 0 {
				s.SampledAt = 1 + r.Int64N(20)
			}
			if r.IntN(3) == 0 {
				s.SecondsPerToken = r.Float64() / 1e4
			}
			got, err := tr.Report(target, s, at)
			want, wErr := w.report(target, s)
			if got != want {
				t.Fatalf("op %d, report: got %+v, want %+v", n, got, want)
			}
			check(n, "report", err, wErr)
		case op < 84:
			tr.Reconnected(target)
			if g := w.targets[target]; g != nil {
				g.sampled = 0
			}
		case op < 94:
			tick()
			got := tr.Expire(at)
			want := w.expire()
			w.count.Expired += uint64(want)
			check(n, "expire", got, want)
		case op < 95 && r.IntN(3) == 0:
			g := gateway()
			want := w.drop(func(b *twinBooking) bool { return g != "" && b.Gateway == g })
			w.count.GatewayGone += uint64(want)
			check(n, "release gateway", tr.ReleaseGateway(g), want)
		case op < 97 && r.IntN(2) == 0:
			want := w.drop(func(b *twinBooking) bool { return b.Target == target })
			w.count.Dropped += uint64(want)
			w.forget(target)
			check(n, "drop", tr.Drop(target), want)
		default:
			tr.Add(target, modelOf(target))
			if w.targets[target] == nil {
				w.targets[target] = &twinTarget{}
			}
		}

		request := fmt.Sprint("r", r.IntN(60))
		if lives := w.find(func(b *twinBooking) bool { return b.RequestID == request }); lives != nil {
			got, ok := tr.Living(request)
			if !ok || got != lives.ID {
				t.Fatalf("op %d: Living(%s) = %v %v, want %v", n, request, got, ok, lives.ID)
			}
			if b, ok := tr.Lookup(lives.ID); !ok || b != lives.Booking {
				t.Fatalf("op %d: Lookup(%v) = %+v %v, want %+v", n, lives.ID, b, ok, lives.Booking)
			}
		} else if got, ok := tr.Living(request); ok {
			t.Fatalf("op %d: Living(%s) = %v, want none", n, request, got)
		}

		ids := make([]fleet.TargetID, 0, targets+1)
		for _, i := range r.Perm(targets + 1)[:r.IntN(targets+2)] {
			ids = append(ids, fleet.TargetID(i))
		}
		tick()
		peers := ids
		if r.IntN(2) == 0 {
			peers = nil
			for _, i := range r.Perm(targets + 1)[:r.IntN(targets+2)] {
				peers = append(peers, fleet.TargetID(i))
			}
			dst = tr.StatesAmong(ids, peers, at, dst)
		} else {
			dst = tr.States(ids, at, dst)
		}
		want := w.states(ids, peers)
		if !slices.Equal(dst, want) {
			t.Fatalf("op %d: states of %v:\ngot  %+v\nwant %+v", n, ids, dst, want)
		}
		for _, s := range dst {
			done["confidence "+s.Confidence.String()]++
			if s.InFlight != s.Prefilling+s.Decoding || s.Prefilling < 0 || s.Decoding < 0 {
				t.Fatalf("op %d: %+v", n, s)
			}
		}
		living += len(w.bookings)
		presumed := tr.Presumed(nil)
		slices.SortStableFunc(presumed, presumedOrder)
		slices.SortStableFunc(w.presumed, presumedOrder)
		if !slices.Equal(presumed, w.presumed) {
			t.Fatalf("op %d: presumed %v, want %v", n, presumed, w.presumed)
		}
		w.presumed = nil
		gateways := map[string]bool{}
		for _, b := range w.bookings {
			gateways[b.Gateway] = true
		}
		delete(gateways, "")
		if got, want := tr.Stats(), (Stats{w.count, len(w.targets), len(w.bookings), len(gateways)}); got != want {
			t.Fatalf("op %d: stats\ngot  %+v\nwant %+v", n, got, want)
		}
		if got, want := tr.MeanOutput(modelOf(target)), w.model(target).output; got != want {
			t.Fatalf("op %d: mean output %v, want %v", n, got, want)
		}
	}
	for _, need := range []string{
		"book <nil>", "book " + ErrFull.Error(), "book " + ErrRepeated.Error(), "book " + ErrUnknownTarget.Error(),
		"dispatched applied", "dispatched late", "dispatched unknown", "first token applied", "first token late",
		"generating applied", "generating late", "generating unknown", "finish applied", "finish unknown",
		"cancel applied", "fail applied", "complete applied", "expire 0", "expire 1", "expire 2", "drop 0", "drop 1", "drop 2",
		"release gateway 1", "release gateway 2", "report <nil>", "report " + ErrUnknownTarget.Error(),
		"confidence reported", "confidence booked_only", "confidence imputed",
	} {
		if done[need] < 20 {
			t.Errorf("%q was met %d times: the operations do not exercise it", need, done[need])
		}
	}
	if mean := float64(living) / ops; mean < 10 {
		t.Errorf("%.1f bookings lived on average: the operations do not exercise sums", mean)
	}
	if w.count.Presumed < 100 {
		t.Errorf("%d prefills presumed over: the operations do not exercise it", w.count.Presumed)
	}
	if w.count.Outlived < 100 {
		t.Errorf("%d bookings presumed over: the operations do not exercise it", w.count.Outlived)
	}
	if w.count.SamplesIgnored < 100 {
		t.Errorf("%d samples ignored: the operations do not exercise it", w.count.SamplesIgnored)
	}
}

// presumedOrder puts ends, several of which may come at one time and then do so in no order, behind prefills, which end one
// after the other.
func presumedOrder(a, b Presumption) int {
	switch {
	case a.Ended && b.Ended:
		return cmp.Compare(a.ID, b.ID)
	case a.Ended:
		return 1
	case b.Ended:
		return -1
	default:
		return 0
	}
}
