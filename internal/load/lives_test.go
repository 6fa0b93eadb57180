package load

import (
	"errors"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// TestDispatchedMoves: the load goes where the request went, also on a retry, until the first token.
func TestDispatchedMoves(t *testing.T) {
	tr := twoTargets(Config{})
	tr.Add(2, "m")
	mustBook(t, tr, Booking{ID: 1, Target: 0, PromptTokens: 10, UncachedTokens: 10, PrefillSeconds: 1}, 0)
	all := []fleet.TargetID{0, 1, 2}
	for i, step := range []struct {
		to   fleet.TargetID
		has  bool
		want Outcome
		at   fleet.TargetID
	}{
		{9, true, Unknown, 0}, // no such target: stays
		{0, false, Applied, 0},
		{0, true, Late, 0},
		{0, false, Late, 0},
		{1, true, Applied, 1}, // a retry elsewhere
		{1, true, Late, 1},
		{1, false, Late, 1},
		{2, true, Applied, 2},
	} {
		if o := tr.Dispatched(1, step.to, step.has, "", after(0)); o != step.want {
			t.Errorf("step %d: %v, want %v", i, o, step.want)
		}
		for id, s := range tr.States(all, after(0), nil) {
			want := 0
			if fleet.TargetID(id) == step.at {
				want = 1
			}
			if s.InFlight != want || s.ActiveTokens != float64(10*want) || s.PendingPrefillSeconds != float64(want) {
				t.Errorf("step %d, target %d: %+v", i, id, s)
			}
		}
	}
	tr.Finish(1, 1, after(0))
	for id, s := range tr.States(all, after(0), nil) {
		if s.InFlight != 0 {
			t.Errorf("at the end, target %d: %+v", id, s)
		}
	}
}

// TestDropReleasesToTheBooking: a reborn target starts from nothing, and progress of its former life cannot touch it.
func TestDropReleasesToTheBooking(t *testing.T) {
	tr := twoTargets(Config{})
	mustBook(t, tr, Booking{ID: 1, Target: 0, RequestID: "a", PromptTokens: 10}, 0)
	mustBook(t, tr, Booking{ID: 2, Target: 0, RequestID: "b", PromptTokens: 10}, 0)
	mustBook(t, tr, Booking{ID: 3, Target: 1, RequestID: "c", PromptTokens: 10}, 0)
	mustReport(t, tr, 0, Sample{SampledAt: 99, Running: Known(50), UsedBlocks: Known(1), TotalBlocks: Known(1)}, 0)
	if n := tr.Drop(0); n != 2 {
		t.Errorf("released %d", n)
	}
	if n := tr.Drop(0); n != 0 {
		t.Errorf("released %d the second time", n)
	}
	if err := tr.Book(Booking{ID: 4, Target: 0}, after(0)); !errors.Is(err, ErrUnknownTarget) {
		t.Errorf("booking on a dropped target: %v", err)
	}
	if _, err := tr.Report(0, Sample{}, after(0)); !errors.Is(err, ErrUnknownTarget) {
		t.Errorf("sample of a dropped target: %v", err)
	}
	empty := State{Confidence: BookedOnly, KVUsed: -1, ReportAge: -1}
	if s := state(tr, 0, 0); s != empty {
		t.Errorf("dropped: %+v", s)
	}
	tr.Add(0, "m")
	mustBook(t, tr, Booking{ID: 5, Target: 0, RequestID: "a", PromptTokens: 7}, 0)
	for _, id := range []DecisionID{1, 2} {
		if o := tr.Finish(id, 9, after(0)); o != Unknown {
			t.Errorf("finish of %d: %v", id, o)
		}
		if o, _ := tr.FirstToken(id, after(0)); o != Unknown {
			t.Errorf("first token of %d: %v", id, o)
		}
	}
	tr.Add(0, "m") // known: left as it is
	if s := state(tr, 0, 0); s.InFlight != 1 || s.ActiveTokens != 7 || s.Confidence != BookedOnly {
		t.Errorf("reborn: %+v", s)
	}
	if b := mustReport(t, tr, 0, Sample{SampledAt: 1, Running: Known(1)}, 0); b.Ignored {
		t.Error("the former life's stamps order the new one's")
	}
	if st := tr.Stats(); st.Dropped != 2 || st.Targets != 2 || st.Bookings != 2 {
		t.Errorf("stats: %+v", st)
	}
}

// TestReleaseGateway: what a gateway reports on goes with it, wherever it was; the rest stays.
func TestReleaseGateway(t *testing.T) {
	tr := twoTargets(Config{})
	mustBook(t, tr, Booking{ID: 1, Target: 0, Gateway: "g"}, 0)
	mustBook(t, tr, Booking{ID: 2, Target: 1}, 0)
	mustBook(t, tr, Booking{ID: 3, Target: 1, Gateway: "h"}, 0)
	mustBook(t, tr, Booking{ID: 4, Target: 1}, 0)
	mustBook(t, tr, Booking{ID: 5, Target: 1, Gateway: "g"}, 0)
	tr.Dispatched(2, 0, true, "g", after(0))
	tr.Dispatched(5, 0, false, "h", after(0)) // another gateway took it over
	if st := tr.Stats(); st.Gateways != 2 {
		t.Errorf("stats: %+v", st)
	}
	for i, c := range []struct {
		gateway string
		want    int
	}{{"", 0}, {"nobody", 0}, {"g", 2}, {"g", 0}, {"h", 2}} {
		if n := tr.ReleaseGateway(c.gateway); n != c.want {
			t.Errorf("step %d: released %d of %q, want %d", i, n, c.gateway, c.want)
		}
	}
	if a, b := state(tr, 0, 0), state(tr, 1, 0); a.InFlight != 0 || b.InFlight != 1 {
		t.Errorf("left: %+v, %+v", a, b)
	}
	if st := tr.Stats(); st.Gateways != 0 || st.GatewayGone != 4 || st.Bookings != 1 {
		t.Errorf("stats: %+v", st)
	}
}

// TestFull: beyond the bound bookings are refused, and room made is room.
func TestFull(t *testing.T) {
	tr := twoTargets(Config{MaxBookings: 2})
	mustBook(t, tr, Booking{ID: 1}, 0)
	mustBook(t, tr, Booking{ID: 2}, 0)
	if err := tr.Book(Booking{ID: 3, RequestID: "r"}, after(0)); !errors.Is(err, ErrFull) {
		t.Errorf("third of two: %v", err)
	}
	if _, ok := tr.Living("r"); ok {
		t.Error("a refused booking lives")
	}
	tr.Cancel(1, after(0))
	mustBook(t, tr, Booking{ID: 3, RequestID: "r"}, 0)
}

// TestExpiryCostsWhatItReleases: a sweep looks at overdue bookings only.
func TestExpiryCostsWhatItReleases(t *testing.T) {
	tr := twoTargets(Config{Lease: 10 * time.Second})
	for i := range 1000 {
		mustBook(t, tr, Booking{ID: DecisionID(i), Target: 0}, time.Duration(i)*time.Millisecond)
	}
	tr.Generating(0, 1, after(2*time.Second)) // the oldest is now the freshest
	if n := tr.Expire(after(10*time.Second + 100*time.Millisecond)); n != 100 {
		t.Errorf("released %d, want bookings 1 to 100", n)
	}
	if first := tr.leases.first; first.ID != 101 {
		t.Errorf("the list begins with %d", first.ID)
	}
	last := tr.leases.last
	if last.ID != 0 {
		t.Errorf("the list ends with %d", last.ID)
	}
	for b := tr.leases.first; b.links[byLease].next != nil; b = b.links[byLease].next {
		if b.renewed > b.links[byLease].next.renewed {
			t.Fatalf("booking %d is out of order", b.ID)
		}
	}
}

// TestSteadyStateDoesNotAllocate: ended bookings are reused, States fills what it is given.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	tr := twoTargets(Config{})
	mustBook(t, tr, Booking{ID: 999, Target: 0, Gateway: "g"}, 0)
	ids := both()
	for id := range fleet.TargetID(9) { // target 1 is imputed
		tr.Add(id, "m")
		if id != 1 {
			ids = append(ids, id)
			mustReport(t, tr, id, Sample{Running: Known(int(id * 5 % 7)), UsedBlocks: Known(int(id)), TotalBlocks: Known(9)}, 0)
		}
	}
	b := Booking{ID: 1, Target: 0, RequestID: "r", Gateway: "g", PromptTokens: 100}
	var dst []State
	life := func() {
		_ = tr.Book(b, after(0))
		tr.Dispatched(1, 1, true, "g", after(0))
		tr.FirstToken(1, after(0))
		tr.Generating(1, 5, after(0))
		_, _ = tr.Report(0, Sample{Running: Known(3)}, after(0))
		dst = tr.States(ids, after(0), dst)
		tr.Expire(after(0))
		tr.Finish(1, 5, after(0))
	}
	life()
	if n := testing.AllocsPerRun(200, life); n != 0 {
		t.Errorf("%v allocations in a life", n)
	}
	if st := tr.Stats(); st.Finished < 200 || st.Late+st.Unknown > 0 {
		t.Errorf("the life did not happen: %+v", st)
	}
}

// TestTimeOnlyMovesForward: a late caller's clock is read as the latest seen.
func TestTimeOnlyMovesForward(t *testing.T) {
	tr := twoTargets(Config{Lease: 10 * time.Second})
	mustBook(t, tr, Booking{ID: 1, Target: 0}, 5*time.Second)
	mustBook(t, tr, Booking{ID: 2, Target: 0}, 3*time.Second)
	if n := tr.Expire(after(14 * time.Second)); n != 0 {
		t.Errorf("released %d", n)
	}
	if n := tr.Expire(after(15 * time.Second)); n != 2 {
		t.Errorf("released %d", n)
	}
	mustBook(t, tr, Booking{ID: 3, Target: 0}, -time.Hour)
	if _, waited := tr.FirstToken(3, after(-2*time.Hour)); waited != 0 {
		t.Errorf("waited %v", waited)
	}
}
