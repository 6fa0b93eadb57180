package load

import (
	"testing"
	"time"
)

// tells has a gateway tell the life of a request, so that it is known to.
func tells(t *testing.T, tr *Tracker, gateway string, at time.Duration) {
	t.Helper()
	const id = 1 << 40
	mustBook(t, tr, Booking{ID: id, Target: 0, Gateway: gateway}, at)
	if o, _ := tr.FirstToken(id, after(at)); o != Applied {
		t.Fatalf("first token: %v", o)
	}
	if o := tr.Finish(id, 0, after(at)); o != Applied {
		t.Fatalf("finish: %v", o)
	}
}

// TestSilentGatewaysPrefillsEndByTheClock: prefills of a gateway that was never heard to tell a first token are worked off
// by the clock, one after the other. From its first word on it keeps what it has not told; when it falls silent that is
// noticed, and its next word is believed again.
func TestSilentGatewaysPrefillsEndByTheClock(t *testing.T) {
	tr := twoTargets(Config{})
	book := func(id DecisionID, gateway string, at time.Duration) {
		mustBook(t, tr, Booking{ID: id, Target: 0, Gateway: gateway, PromptTokens: 1000, UncachedTokens: 1000, PrefillSeconds: 1}, at)
	}
	pending := func(at time.Duration) float64 { return tr.States(both(), after(at), nil)[0].PendingPrefillSeconds }

	at := time.Second
	for id := DecisionID(11); id <= 13; id++ {
		book(id, "g", at)
	}
	for _, step := range []struct {
		in   time.Duration
		want float64
	}{{0, 3}, {650 * time.Millisecond, 2.48}, {1250 * time.Millisecond, 2}, {2500 * time.Millisecond, 1}, {3750 * time.Millisecond, 0}} {
		if got := pending(at + step.in); got != step.want {
			t.Errorf("%v after three prefills of a second: %v s pending, want %v", step.in, got, step.want)
		}
	}
	at += time.Minute
	if o, _ := tr.FirstToken(11, after(at)); o != Applied {
		t.Errorf("a first token that was presumed: %v", o)
	}
	for id := DecisionID(21); id <= 24; id++ { // until it is known that it tells no more
		book(id, "g", at)
		if got := pending(at + 10*time.Second); got != 1 {
			t.Errorf("request %d of a gateway that tells: %v s pending, want 1", id, got)
		}
		at += 20 * time.Second
		tr.Finish(id, 5, after(at))
	}
	book(31, "g", at)
	if got := pending(at + 2*time.Second); got != 0 {
		t.Errorf("it tells no more: %v s pending, want 0", got)
	}
	for id := DecisionID(41); id <= 44; id++ {
		book(id, "g", at)
		tr.FirstToken(id, after(at))
		tr.Finish(id, 5, after(at))
	}
	book(51, "g", at)
	if got := pending(at + time.Minute); got != 1 {
		t.Errorf("it tells again: %v s pending, want 1", got)
	}
}

// TestSilentGatewaysBookingsEndByTheClock: what a gateway that tells no ends has booked counts for as long as it is predicted
// to take, and lives on; news brings it back.
func TestSilentGatewaysBookingsEndByTheClock(t *testing.T) {
	tr := twoTargets(Config{Lease: time.Hour})
	book := func(id DecisionID, at time.Duration) {
		mustBook(t, tr, Booking{
			ID: id, Target: 0, Gateway: "g", RequestID: string(rune('a' + id)), PromptTokens: 1000, UncachedTokens: 1000,
			PrefillSeconds: 1, DecodeSeconds: 10, ExpectedOutput: 100,
		}, at)
	}
	expect := func(what string, at time.Duration, want int) {
		t.Helper()
		s := tr.States(both(), after(at), nil)[0]
		if s.InFlight != want || s.ActiveTokens > 0 != (want > 0) {
			t.Errorf("%s, at %v: %+v, want %d in flight", what, at, s, want)
		}
	}
	book(1, 0)
	expect("a prefill of 1.25 s and 10 s of output", 11240*time.Millisecond, 1)
	expect("the same, over", 11250*time.Millisecond, 0)
	if id, ok := tr.Living("b"); !ok || id != 1 {
		t.Error("it does not live on")
	}
	if o := tr.Generating(1, 50, after(20*time.Second)); o != Applied {
		t.Errorf("news of it: %v", o)
	}
	expect("a gateway that was heard tells ends", 30*time.Minute, 1)
	if o := tr.Finish(1, 9, after(30*time.Minute)); o != Applied {
		t.Errorf("its end: %v", o)
	}

	// Four that were lost make it one that does not.
	for id := DecisionID(11); id <= 14; id++ {
		book(id, 31*time.Minute)
	}
	expect("nothing is known yet", 90*time.Minute, 4)
	tr.Expire(after(91 * time.Minute))
	at := 2 * time.Hour
	book(21, at)
	expect("it tells no ends", at+11240*time.Millisecond, 1)
	expect("the same, over", at+11250*time.Millisecond, 0)
	tr.Generating(21, 50, after(at+20*time.Second))
	expect("half of its output is there", at+24990*time.Millisecond, 1)
	expect("the other half, too", at+25*time.Second, 0)
	tr.Generating(21, 100, after(at+30*time.Second))
	expect("more than was expected: as long again", at+39990*time.Millisecond, 1)
	expect("the same, over", at+40*time.Second, 0)
	if st := tr.Stats(); st.Outlived != 4 || st.Bookings != 1 {
		t.Errorf("stats: %+v", st)
	}
	if o := tr.Finish(21, 9, after(at+time.Minute)); o != Applied {
		t.Errorf("the end of one that was over: %v", o)
	}
}

// TestSamplesEndWhatIsOver: an engine that has fewer requests than a silent gateway has booked shows which are over: the
// oldest.
func TestSamplesEndWhatIsOver(t *testing.T) {
	tr := twoTargets(Config{})
	for id := DecisionID(1); id <= 4; id++ {
		mustBook(t, tr, Booking{ID: id, Target: 0, PromptTokens: 100 * int(id), DecodeSeconds: 30}, time.Duration(id)*time.Second)
	}
	const at = 5 * time.Second
	mustReport(t, tr, 0, Sample{Running: Known(1)}, at)
	if s := state(tr, 0, at); s.Booked != 4 {
		t.Errorf("nothing said of those that wait: %+v", s)
	}
	mustReport(t, tr, 0, Sample{Running: Known(1), Waiting: Known(1)}, at)
	if s := state(tr, 0, at); s.InFlight != 2 || s.ActiveTokens != 700 {
		t.Errorf("two are left: %+v", s)
	}
	tells(t, tr, "", at)
	mustReport(t, tr, 0, Sample{Running: Known(0), Waiting: Known(0)}, at)
	if s := state(tr, 0, at); s.InFlight != 2 {
		t.Errorf("of a gateway that tells ends: %+v", s)
	}
}
