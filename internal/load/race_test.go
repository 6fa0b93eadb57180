package load

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// audit recomputes every sum and list from the living bookings.
func audit(t *testing.T, tr *Tracker) {
	t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	sums, listed, timed := make([]target, len(tr.targets)), make([]int, len(tr.targets)), make([]int, len(tr.targets))
	named, onGateway := 0, 0
	for id, b := range tr.bookings.All {
		if b.ID != id || tr.targets[b.Target] == nil {
			t.Fatalf("booking %d is filed as %d on target %d", b.ID, id, b.Target)
		}
		if b.RequestID != "" {
			named++
			if tr.requests[b.RequestID] != b {
				t.Errorf("request %q does not lead to booking %d", b.RequestID, id)
			}
		}
		if b.Gateway != "" {
			onGateway++
		}
		listed[b.Target]++
		if !b.over {
			sums[b.Target].add(b, 1)
		}
		if b.place > 0 {
			timed[b.Target]++
			if b.over || !b.decoding || tr.targets[b.Target].ends[b.place-1] != b {
				t.Errorf("booking %d is to be over at place %d: over %v, decoding %v", id, b.place, b.over, b.decoding)
			}
		}
	}
	if len(tr.requests) != named {
		t.Errorf("%d requests, %d named bookings", len(tr.requests), named)
	}
	count := func(l *list) (n int) {
		for b := l.first; b != nil; b = b.links[l.which].next {
			n++
		}
		return n
	}
	if n := count(&tr.leases); n != tr.bookings.Len() {
		t.Errorf("%d leases, %d bookings", n, tr.bookings.Len())
	}
	for name, l := range tr.gateways {
		n := count(l)
		if n == 0 {
			t.Errorf("gateway %q has no bookings", name)
		}
		onGateway -= n
	}
	if onGateway != 0 {
		t.Errorf("gateways' lists are short of %d bookings", onGateway)
	}
	fresh, all := 0, 0
	for g, before := tr.believed.first, (*target)(nil); g != nil; g, before = g.newer, g {
		if all++; !g.isIn || g.older != before || tr.target(g.id) != g || before != nil && before.report.at > g.report.at {
			t.Fatalf("target %d is believed after %+v", g.id, before)
		}
		if tr.isFresh(&g.report) {
			fresh++
		}
	}
	for id, g := range tr.targets {
		if g == nil {
			continue
		}
		if tr.isFresh(&g.report) {
			fresh--
		}
		if g.isIn {
			all--
		}
		want := sums[id]
		if n := count(&g.bookings); n != listed[id] || len(g.ends) != timed[id] {
			t.Errorf("target %d lists %d bookings, want %d; %d will be over, want %d", id, n, listed[id], len(g.ends), timed[id])
		}
		got := target{
			booked: g.booked, prefilling: g.prefilling, pending: g.pending, pendingTok: g.pendingTok, active: g.active,
			held: g.held, toCome: g.toCome,
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("target %d:\ngot  %+v\nwant %+v", id, got, want)
		}
	}
	if fresh != 0 || all != 0 {
		t.Errorf("%d believed reports and %d targets are not listed as believed", -fresh, -all)
	}
}

// TestConcurrentUse: many goroutines on the same bookings; afterwards all sums are exact, and after everything ended
// they are zero.
func TestConcurrentUse(t *testing.T) {
	const goroutines, ops, targets = 16, 3000, 6
	tr := New(Config{Lease: 200 * time.Millisecond})
	for id := range fleet.TargetID(targets) {
		tr.Add(id, "m")
	}
	ids := []fleet.TargetID{0, 1, 2, 3, 4, 5}
	var wg sync.WaitGroup
	for g := range uint64(goroutines) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 1))
			var dst []State
			for n := range ops {
				now := after(time.Duration(n) * time.Millisecond)
				id, to := DecisionID(r.IntN(400)), fleet.TargetID(r.IntN(targets))
				switch r.IntN(16) {
				default:
					_ = tr.Book(Booking{
						ID: id, Target: to, RequestID: strconv.Itoa(r.IntN(300)), Gateway: fmt.Sprint("g", id%4), PromptTokens: r.IntN(900),
						UncachedTokens: r.IntN(900), SharedTokens: r.IntN(900), PrefillSeconds: r.Float64(), ExpectedOutput: r.IntN(99),
					}, now)
				case 4:
					tr.Dispatched(id, to, true, fmt.Sprint("g", r.IntN(4)), now)
				case 5:
					tr.FirstToken(id, now)
				case 6:
					tr.Generating(id, r.IntN(99), now)
				case 7:
					tr.Finish(id, r.IntN(99), now)
				case 8:
					tr.Cancel(id, now)
				case 9:
					_, _ = tr.Report(to, Sample{Running: Known(r.IntN(9)), UsedBlocks: Known(1), TotalBlocks: Known(r.IntN(3))}, now)
				case 10:
					tr.Expire(now)
				case 11, 12:
					dst = tr.States(ids, now, dst)
					for _, s := range dst {
						if s.InFlight < 0 || s.Prefilling < 0 || s.Decoding < 0 || s.PendingPrefillSeconds < 0 || s.ActiveTokens < 0 {
							t.Errorf("negative: %+v", s)
						}
					}
				case 13:
					tr.Living(strconv.Itoa(r.IntN(300)))
					tr.Lookup(id)
					tr.Stats()
				case 14:
					if r.IntN(50) == 0 {
						tr.ReleaseGateway(fmt.Sprint("g", r.IntN(4)))
					}
				case 15:
					if r.IntN(20) == 0 {
						tr.Drop(to)
						tr.Add(to, "m")
					}
				}
			}
		})
	}
	wg.Wait()
	audit(t, tr)
	st := tr.Stats()
	if ended := st.Finished + st.Cancelled + st.Failed + st.Expired + st.GatewayGone + st.Dropped; st.Booked != ended+uint64(st.Bookings) {
		t.Errorf("bookings do not add up: %+v", st)
	}
	for what, n := range map[string]uint64{"booked": st.Booked, "expired": st.Expired, "dropped": st.Dropped, "gateway": st.GatewayGone} {
		if n < 10 {
			t.Errorf("%s: %d times: the operations do not exercise it", what, n)
		}
	}
	tr.Expire(after(time.Hour))
	audit(t, tr)
	for id, s := range tr.States(ids, after(time.Hour), nil) {
		if s.Booked != 0 || s.ActiveTokens != 0 || s.PendingPrefillSeconds != 0 || s.OutputToCome != 0 || s.HeldTokens != 0 {
			t.Errorf("target %d after the end: %+v", id, s)
		}
	}
}
