package load

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// twoTargets has targets 0 and 1.
func twoTargets(cfg Config) *Tracker {
	tr := New(cfg)
	tr.Add(0, "m")
	tr.Add(1, "m")
	return tr
}

func both() []fleet.TargetID { return []fleet.TargetID{0, 1} }

// state reads one target among both.
func state(tr *Tracker, id fleet.TargetID, at time.Duration) State {
	return tr.States(both(), after(at), nil)[id]
}

func mustBook(t *testing.T, tr *Tracker, b Booking, at time.Duration) {
	t.Helper()
	if err := tr.Book(b, after(at)); err != nil {
		t.Fatalf("Book(%+v): %v", b, err)
	}
}

func mustReport(t *testing.T, tr *Tracker, id fleet.TargetID, s Sample, at time.Duration) Belief {
	t.Helper()
	b, err := tr.Report(id, s, after(at))
	if err != nil {
		t.Fatalf("Report(%d, %+v): %v", id, s, err)
	}
	return b
}

// TestNeverHeardIsNotBest: a target that never reported is taken for the median of those that did, so it gets its share
// and not everything, and says so.
func TestNeverHeardIsNotBest(t *testing.T) {
	tr := twoTargets(Config{})
	mustReport(t, tr, 0, Sample{Running: Known(6), Waiting: Known(2), UsedBlocks: Known(500), TotalBlocks: Known(1000)}, 0)
	s := state(tr, 1, 0)
	want := State{
		Confidence: Imputed, InFlight: 8, Prefilling: 2, Decoding: 6, KVUsed: 0.5, ReportAge: -1,
		PendingPrefillTokens: 2 * priorUncached, PendingPrefillSeconds: 2 * priorUncached * 22e-6,
	}
	if s != want {
		t.Errorf("never heard:\ngot  %+v\nwant %+v", s, want)
	}
	if c := state(tr, 0, 0).Confidence; c != Reported {
		t.Errorf("reporting target is %v", c)
	}

	chosen := [2]int{}
	for i := range 20 {
		at := time.Duration(i) * time.Millisecond
		best := fewest(tr.States(both(), after(at), nil))
		chosen[best]++
		mustBook(t, tr, Booking{ID: DecisionID(i), Target: best, PromptTokens: 10, UncachedTokens: 10}, at)
	}
	if chosen != [2]int{10, 10} {
		t.Errorf("20 routes went %v", chosen)
	}

	// Only memory was said: that is imputed, requests are not known of anybody.
	tr = twoTargets(Config{})
	mustReport(t, tr, 0, Sample{UsedBlocks: Known(500), TotalBlocks: Known(1000)}, 0)
	for id, c := range []Confidence{Reported, Imputed} {
		if s := state(tr, fleet.TargetID(id), 0); s.Confidence != c || s.KVUsed != 0.5 || s.InFlight != 0 {
			t.Errorf("target %d: %+v", id, s)
		}
	}
}

// fewest is the plainest of policies: least in flight, then least recently chosen.
func fewest(states []State) fleet.TargetID {
	best := 0
	for i, s := range states {
		b := states[best]
		if s.InFlight < b.InFlight || (s.InFlight == b.InFlight && s.LastChosen < b.LastChosen) {
			best = i
		}
	}
	return fleet.TargetID(best)
}

// TestMedian: the unknown is taken for the middle one, of an even number the busier.
func TestMedian(t *testing.T) {
	for name, c := range map[string]struct {
		running []int
		want    int
	}{
		"one":   {[]int{7}, 7},
		"two":   {[]int{1, 9}, 9},
		"three": {[]int{50, 3, 1}, 3},
		"four":  {[]int{4, 1, 3, 2}, 3},
		"ties":  {[]int{2, 2, 2, 8, 2}, 2},
	} {
		tr := New(Config{})
		ids := []fleet.TargetID{100}
		tr.Add(100, "m")
		for i, n := range c.running {
			id := fleet.TargetID(i)
			tr.Add(id, "m")
			ids = append(ids, id)
			mustReport(t, tr, id, Sample{Running: Known(n)}, 0)
		}
		if got := tr.States(ids, after(0), nil)[0]; got.InFlight != c.want || got.Decoding != c.want || got.Confidence != Imputed {
			t.Errorf("%s: got %+v, want %d", name, got, c.want)
		}
	}
}

// TestAllStale: without a fresh report there are the bookings, and no error.
func TestAllStale(t *testing.T) {
	tr := twoTargets(Config{MaxReportAge: 5 * time.Second})
	tells(t, tr, "", 0)
	for id := range fleet.TargetID(2) {
		mustReport(t, tr, id, Sample{Running: Known(9), UsedBlocks: Known(1), TotalBlocks: Known(2)}, 0)
	}
	mustBook(t, tr, Booking{ID: 1, Target: 1, PromptTokens: 100, UncachedTokens: 60, PrefillSeconds: 0.5}, time.Second)
	if s := state(tr, 1, 5*time.Second); s.Confidence != Reported || s.InFlight != 10 {
		t.Errorf("at the limit: %+v", s)
	}
	late := 5*time.Second + 1
	want := State{
		Confidence: BookedOnly, InFlight: 1, Booked: 1, Prefilling: 1, PendingPrefillSeconds: 0.5, PendingPrefillTokens: 60,
		ActiveTokens: 100, HeldTokens: 100, UnreportedTokens: 100, OutputToCome: 200, KVUsed: -1, LastChosen: 2, ReportAge: late,
	}
	if s := state(tr, 1, late); s != want {
		t.Errorf("past the limit:\ngot  %+v\nwant %+v", s, want)
	}
	if s := state(tr, 0, late); s.Confidence != BookedOnly || s.InFlight != 0 {
		t.Errorf("past the limit: %+v", s)
	}
}

// TestClocks: freshness goes by receipt. The worker's stamp orders its samples and does nothing else.
func TestClocks(t *testing.T) {
	for name, off := range map[string]time.Duration{"behind": -time.Hour, "ahead a little": 53 * time.Millisecond, "ahead": time.Hour} {
		tr := twoTargets(Config{})
		stamp := after(off).UnixNano()
		if b := mustReport(t, tr, 0, Sample{SampledAt: stamp, Running: Known(4)}, 0); b.Ignored || b.InFlight != 4 {
			t.Errorf("%s: %+v", name, b)
		}
		if s := state(tr, 0, time.Second); s.Confidence != Reported || s.ReportAge != time.Second {
			t.Errorf("%s: %+v", name, s)
		}
		// An older sample that comes later is ignored, and does not count as news.
		if b := mustReport(t, tr, 0, Sample{SampledAt: stamp - 1, Running: Known(99)}, time.Second); !b.Ignored || b.InFlight != 4 {
			t.Errorf("%s: older sample: %+v", name, b)
		}
		if s := state(tr, 0, 2*time.Second); s.InFlight != 4 || s.ReportAge != 2*time.Second {
			t.Errorf("%s: after an older sample: %+v", name, s)
		}
		// One without a stamp is taken as it comes and does not reset the order.
		if b := mustReport(t, tr, 0, Sample{Running: Known(5)}, 3*time.Second); b.Ignored || b.InFlight != 5 {
			t.Errorf("%s: no stamp: %+v", name, b)
		}
		if b := mustReport(t, tr, 0, Sample{SampledAt: stamp - 1, Running: Known(98)}, 3*time.Second); !b.Ignored {
			t.Errorf("%s: older sample after one without a stamp: %+v", name, b)
		}
		if b := mustReport(t, tr, 0, Sample{SampledAt: stamp, Running: Known(6)}, 3*time.Second); b.Ignored || b.InFlight != 6 {
			t.Errorf("%s: equal stamp: %+v", name, b)
		}
		if st := tr.Stats(); st.Samples != 3 || st.SamplesIgnored != 2 {
			t.Errorf("%s: %+v", name, st)
		}
	}
}

// TestClockSetBackIsHeardAgain: after a new stream at once, else when the last accepted sample is too old.
func TestClockSetBackIsHeardAgain(t *testing.T) {
	tr := twoTargets(Config{MaxReportAge: 10 * time.Second})
	mustReport(t, tr, 0, Sample{SampledAt: 1000, Running: Known(1)}, 0)
	if b := mustReport(t, tr, 0, Sample{SampledAt: 10, Running: Known(2)}, 10*time.Second); !b.Ignored {
		t.Errorf("within the age: %+v", b)
	}
	if b := mustReport(t, tr, 0, Sample{SampledAt: 20, Running: Known(3)}, 10*time.Second+1); b.Ignored || b.InFlight != 3 {
		t.Errorf("beyond the age: %+v", b)
	}
	if b := mustReport(t, tr, 0, Sample{SampledAt: 15, Running: Known(4)}, 11*time.Second); !b.Ignored {
		t.Errorf("order after that: %+v", b)
	}
	tr.Reconnected(0)
	tr.Reconnected(77)
	if b := mustReport(t, tr, 0, Sample{SampledAt: 5, Running: Known(5)}, 11*time.Second); b.Ignored || b.InFlight != 5 {
		t.Errorf("new stream: %+v", b)
	}
}

// TestReleasedOnce: however often the end is told, and if it never is, the load goes to 0 and not below.
func TestReleasedOnce(t *testing.T) {
	tr := twoTargets(Config{Lease: 30 * time.Second})
	mustBook(t, tr, Booking{ID: 1, Target: 0, RequestID: "r", PromptTokens: 10, UncachedTokens: 10}, 0)
	if id, ok := tr.Living("r"); !ok || id != 1 {
		t.Errorf("living: %v %v", id, ok)
	}
	if err := tr.Book(Booking{ID: 2, Target: 1, RequestID: "r"}, after(0)); !errors.Is(err, ErrRepeated) {
		t.Errorf("same request twice: %v", err)
	}
	for i, want := range []Outcome{Applied, Unknown, Unknown} {
		if o := tr.Finish(1, 5, after(time.Second)); o != want {
			t.Errorf("finish %d: %v, want %v", i, o, want)
		}
		if s := state(tr, 0, time.Second); s.InFlight != 0 || s.ActiveTokens != 0 || s.PendingPrefillTokens != 0 || s.OutputToCome != 0 {
			t.Errorf("after finish %d: %+v", i, s)
		}
	}
	if _, ok := tr.Living("r"); ok {
		t.Error("the request id lives on")
	}

	// A client that dies after Route: the lease ends it, and only then the id is free.
	mustBook(t, tr, Booking{ID: 3, Target: 0, RequestID: "r"}, 2*time.Second)
	if n := tr.Expire(after(32*time.Second - 1)); n != 0 {
		t.Errorf("expired %d before the lease", n)
	}
	if n := tr.Expire(after(32 * time.Second)); n != 1 {
		t.Errorf("expired %d at the lease", n)
	}
	if o := tr.Finish(3, 5, after(33*time.Second)); o != Unknown {
		t.Errorf("finish after expiry: %v", o)
	}
	mustBook(t, tr, Booking{ID: 4, Target: 0, RequestID: "r"}, 34*time.Second)
	if st := tr.Stats(); st.Finished != 1 || st.Expired != 1 || st.Unknown != 3 || st.Repeated != 1 || st.Bookings != 1 {
		t.Errorf("stats: %+v", st)
	}
}

// TestProgressRenewsLease: a request of twenty minutes keeps its load while there is news of it.
func TestProgressRenewsLease(t *testing.T) {
	tr := twoTargets(Config{Lease: 15 * time.Second})
	mustBook(t, tr, Booking{ID: 1, Target: 0, PromptTokens: 100}, 0)
	mustBook(t, tr, Booking{ID: 2, Target: 0, PromptTokens: 50}, 0)
	const end = 20 * time.Minute
	for at := time.Duration(0); at <= end; at += time.Second {
		if at%(10*time.Second) == 0 {
			if o := tr.Generating(1, int(at/time.Second), after(at)); o != Applied {
				t.Fatalf("progress at %v: %v", at, o)
			}
		}
		want := 0
		if at == 15*time.Second {
			want = 1 // the one without progress
		}
		if n := tr.Expire(after(at)); n != want {
			t.Fatalf("expired %d at %v", n, at)
		}
		if s := state(tr, 0, at); s.ActiveTokens < 100 {
			t.Fatalf("at %v: %+v", at, s)
		}
	}
	if n := tr.Expire(after(end + 15*time.Second)); n != 1 {
		t.Errorf("expired %d a lease after the last progress", n)
	}
}

// TestPrefillEndsAtFirstToken: it is not charged to the end of the request.
func TestPrefillEndsAtFirstToken(t *testing.T) {
	tr := twoTargets(Config{})
	b := Booking{ID: 1, Target: 0, PromptTokens: 400, UncachedTokens: 400, PrefillSeconds: 0.25, ExpectedOutput: 50}
	mustBook(t, tr, b, 0)
	if s := state(tr, 0, 0); s.PendingPrefillSeconds != 0.25 || s.PendingPrefillTokens != 400 || s.Prefilling != 1 || s.Decoding != 0 {
		t.Errorf("booked: %+v", s)
	}
	if o, waited := tr.FirstToken(1, after(3*time.Second)); o != Applied || waited != 3*time.Second {
		t.Errorf("first token: %v %v", o, waited)
	}
	want := State{
		Confidence: BookedOnly, InFlight: 1, Booked: 1, Decoding: 1, ActiveTokens: 400, HeldTokens: 400, UnreportedTokens: 400,
		OutputToCome: 50, KVUsed: -1, LastChosen: 1, ReportAge: -1,
	}
	if s := state(tr, 0, 3*time.Second); s != want {
		t.Errorf("decoding:\ngot  %+v\nwant %+v", s, want)
	}
	if o, waited := tr.FirstToken(1, after(4*time.Second)); o != Late || waited != 0 {
		t.Errorf("first token again: %v %v", o, waited)
	}
	if o := tr.Generating(1, 20, after(5*time.Second)); o != Applied {
		t.Errorf("generating: %v", o)
	}
	if s := state(tr, 0, 5*time.Second); s.ActiveTokens != 420 || s.OutputToCome != 30 || s.PendingPrefillTokens != 0 {
		t.Errorf("after 20 tokens: %+v", s)
	}
	if o := tr.Generating(1, 19, after(6*time.Second)); o != Late {
		t.Errorf("fewer tokens: %v", o)
	}
	if o := tr.Generating(1, 70, after(6*time.Second)); o != Applied {
		t.Errorf("generating: %v", o)
	}
	if s := state(tr, 0, 6*time.Second); s.ActiveTokens != 470 || s.OutputToCome != 0 {
		t.Errorf("beyond what was expected: %+v", s)
	}
}

// TestGeneratingImpliesFirstToken, but a sign of life without output does not.
func TestGeneratingImpliesFirstToken(t *testing.T) {
	tr := twoTargets(Config{Lease: 10 * time.Second})
	tells(t, tr, "", 0)
	mustBook(t, tr, Booking{ID: 1, Target: 0, UncachedTokens: 9, PromptTokens: 9}, 0)
	if o := tr.Generating(1, 0, after(8*time.Second)); o != Applied {
		t.Errorf("no output: %v", o)
	}
	if s := state(tr, 0, 8*time.Second); s.Prefilling != 1 {
		t.Errorf("no output: %+v", s)
	}
	if n := tr.Expire(after(17 * time.Second)); n != 0 {
		t.Errorf("expired %d: the sign of life did not renew", n)
	}
	tr.Generating(1, 1, after(17*time.Second))
	if s := state(tr, 0, 17*time.Second); s.Prefilling != 0 || s.Decoding != 1 || s.PendingPrefillTokens != 0 {
		t.Errorf("one token: %+v", s)
	}
	if o, _ := tr.FirstToken(1, after(18*time.Second)); o != Late {
		t.Errorf("first token after output: %v", o)
	}
	if o := tr.Dispatched(1, 1, true, "g", after(18*time.Second)); o != Late {
		t.Errorf("dispatched after output: %v", o)
	}
	if b, _ := tr.Lookup(1); b.Target != 0 || b.Gateway != "" {
		t.Errorf("a late event changed the booking: %+v", b)
	}
}

// TestOwnBookingsCountBetweenReports: the target that looked idle at the last report does not get everything.
func TestOwnBookingsCountBetweenReports(t *testing.T) {
	tr := twoTargets(Config{})
	mustReport(t, tr, 0, Sample{Waiting: Known(0)}, 0)
	mustReport(t, tr, 1, Sample{Waiting: Known(3)}, 0)
	chosen := [2]int{}
	for i := range 20 {
		at := time.Duration(i) * 50 * time.Millisecond / 20
		best := fewest(tr.States(both(), after(at), nil))
		chosen[best]++
		mustBook(t, tr, Booking{ID: DecisionID(i), Target: best, PromptTokens: 4, UncachedTokens: 4}, at)
	}
	// Three more go to the idle one first; then it is even, the first of each pair to the less recently chosen.
	if chosen != [2]int{11, 9} {
		t.Errorf("20 routes went %v", chosen)
	}
}

// TestReportContainsBookings: what the engine shows of our own requests is not counted again.
func TestReportContainsBookings(t *testing.T) {
	tr := twoTargets(Config{PrefillSecondsPerToken: 0.001})
	mustBook(t, tr, Booking{ID: 1, Target: 0, PromptTokens: 100, UncachedTokens: 80, PrefillSeconds: 0.5}, 0)
	for _, c := range []struct {
		name   string
		sample Sample
		want   State // the parts that may differ
	}{
		{"it is ours", Sample{Running: Known(1)}, State{InFlight: 1, Prefilling: 1, PendingPrefillSeconds: 0.5, PendingPrefillTokens: 80}},
		{"it waits there", Sample{Waiting: Known(1)}, State{InFlight: 1, Prefilling: 1, PendingPrefillSeconds: 0.5, PendingPrefillTokens: 80}},
		{"not arrived yet", Sample{Running: Known(0), Waiting: Known(0)}, State{InFlight: 1, Prefilling: 1, PendingPrefillSeconds: 0.5, PendingPrefillTokens: 80}},
		{"one more runs", Sample{Running: Known(2)}, State{InFlight: 2, Prefilling: 1, Decoding: 1, PendingPrefillSeconds: 0.5, PendingPrefillTokens: 80}},
		{
			"one more waits, tokens said",
			Sample{Running: Known(1), Waiting: Known(2), WaitingPrefillTokens: Known(180)},
			State{InFlight: 3, Prefilling: 2, Decoding: 1, PendingPrefillSeconds: 0.6, PendingPrefillTokens: 180},
		},
		{
			"tokens only, at a price of their own",
			Sample{WaitingPrefillTokens: Known(180), SecondsPerToken: 0.01},
			State{InFlight: 1, Prefilling: 1, PendingPrefillSeconds: 1.5, PendingPrefillTokens: 180},
		},
		{"fewer tokens than ours", Sample{WaitingPrefillTokens: Known(10)}, State{InFlight: 1, Prefilling: 1, PendingPrefillSeconds: 0.5, PendingPrefillTokens: 80}},
	} {
		b := mustReport(t, tr, 0, c.sample, 0)
		got := state(tr, 0, 0)
		got = State{
			InFlight: got.InFlight, Prefilling: got.Prefilling, Decoding: got.Decoding,
			PendingPrefillSeconds: got.PendingPrefillSeconds, PendingPrefillTokens: got.PendingPrefillTokens,
		}
		if got != c.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.name, got, c.want)
		}
		if b != (Belief{InFlight: c.want.InFlight, Booked: 1, PendingPrefillSeconds: c.want.PendingPrefillSeconds}) {
			t.Errorf("%s: belief %+v", c.name, b)
		}
	}

	// External work stays while our own ends, until the next report.
	mustReport(t, tr, 0, Sample{Running: Known(3)}, 0)
	tr.Finish(1, 10, after(time.Second))
	if s := state(tr, 0, time.Second); s.InFlight != 2 || s.Booked != 0 {
		t.Errorf("after our own ended: %+v", s)
	}
	mustReport(t, tr, 0, Sample{Running: Known(0)}, 2*time.Second)
	if s := state(tr, 0, 2*time.Second); s.InFlight != 0 {
		t.Errorf("after the next report: %+v", s)
	}
}

// TestUnreportedTokens: a KV gauge is a moment; what came and went since is added to it.
func TestUnreportedTokens(t *testing.T) {
	tr := twoTargets(Config{MaxReportAge: 10 * time.Second})
	kv := Sample{UsedBlocks: Known(40), TotalBlocks: Known(100)}
	steps := []struct {
		name             string
		do               func()
		held, unreported float64
	}{
		{"booked", func() { mustBook(t, tr, Booking{ID: 1, Target: 0, PromptTokens: 100, SharedTokens: 30}, 0) }, 70, 70},
		{"measured", func() { mustReport(t, tr, 0, kv, 0) }, 70, 0},
		{"grew", func() { tr.Generating(1, 5, after(0)) }, 75, 5},
		{"booked again", func() { mustBook(t, tr, Booking{ID: 2, Target: 0, PromptTokens: 10}, 0) }, 85, 15},
		{"the old one ended", func() { tr.Finish(1, 5, after(0)) }, 10, -60},
		{"one moved here", func() {
			mustBook(t, tr, Booking{ID: 3, Target: 1, PromptTokens: 7}, 0)
			mustReport(t, tr, 1, kv, 0)
			tr.Dispatched(3, 0, true, "", after(0))
		}, 17, -53},
		{"measured again", func() { mustReport(t, tr, 0, kv, 0) }, 17, 0},
		{"a sample without memory", func() { mustReport(t, tr, 0, Sample{Running: Known(2)}, 0) }, 17, 17}, // imputed from 1
		{"measured again", func() { mustReport(t, tr, 0, kv, 0) }, 17, 0},
	}
	for _, s := range steps {
		s.do()
		if got := state(tr, 0, 0); got.HeldTokens != s.held || got.UnreportedTokens != s.unreported {
			t.Errorf("%s: held %v, unreported %v; want %v, %v", s.name, got.HeldTokens, got.UnreportedTokens, s.held, s.unreported)
		}
	}
	if got := state(tr, 1, 0); got.UnreportedTokens != -7 {
		t.Errorf("the target it left: %+v", got)
	}
	if got := state(tr, 0, 11*time.Second); got.UnreportedTokens != 17 || got.KVUsed != -1 {
		t.Errorf("a gauge too old: %+v", got)
	}
}

// TestZeroTotal: a capacity of 0 is unknown, and nothing divides by it.
func TestZeroTotal(t *testing.T) {
	for name, s := range map[string]Sample{
		"zero total":     {UsedBlocks: Known(0), TotalBlocks: Known(0)},
		"used of zero":   {UsedBlocks: Known(5), TotalBlocks: Known(0)},
		"total absent":   {UsedBlocks: Known(5)},
		"used absent":    {TotalBlocks: Known(5)},
		"negative total": {UsedBlocks: Known(5), TotalBlocks: Known(-5)},
	} {
		tr := twoTargets(Config{})
		mustReport(t, tr, 0, s, 0)
		mustBook(t, tr, Booking{ID: 1, Target: 0}, 0)
		got := state(tr, 0, 0)
		if got.KVUsed != -1 || got.InFlight != 1 || got.PendingPrefillSeconds != 0 || got.Confidence != Reported {
			t.Errorf("%s: %+v", name, got)
		}
	}
	tr := twoTargets(Config{})
	mustReport(t, tr, 0, Sample{UsedBlocks: Known(9), TotalBlocks: Known(3)}, 0)
	if got := state(tr, 0, 0); got.KVUsed != 1 {
		t.Errorf("more used than there is: %+v", got)
	}
}

// TestCancelBeforeAnswer: the booking of a request that was given up, or failed, is released.
func TestCancelBeforeAnswer(t *testing.T) {
	for name, end := range map[string]func(*Tracker) Outcome{
		"cancel": func(tr *Tracker) Outcome { return tr.Cancel(1, after(0)) },
		"fail":   func(tr *Tracker) Outcome { return tr.Fail(1, after(0)) },
	} {
		tr := twoTargets(Config{})
		mustBook(t, tr, Booking{ID: 1, Target: 0, RequestID: "r", PromptTokens: 9}, 0)
		if o := end(tr); o != Applied {
			t.Errorf("%s: %v", name, o)
		}
		if s := state(tr, 0, 0); s.InFlight != 0 || s.ActiveTokens != 0 {
			t.Errorf("%s: %+v", name, s)
		}
		if o := end(tr); o != Unknown {
			t.Errorf("%s again: %v", name, o)
		}
		if tr.MeanOutput("m") != priorOutput {
			t.Errorf("%s taught a mean output of %v", name, tr.MeanOutput("m"))
		}
		mustBook(t, tr, Booking{ID: 1, Target: 1, RequestID: "r"}, 0)
	}
}

// TestMeanOutput: what finishes moves the mean, an unknown output does not.
func TestMeanOutput(t *testing.T) {
	tr := twoTargets(Config{})
	finish := func(out int) float64 {
		mustBook(t, tr, Booking{ID: 1, Target: 0}, 0)
		tr.Finish(1, out, after(0))
		return tr.MeanOutput("m")
	}
	if got := finish(0); got != 200 {
		t.Errorf("no output: %v", got)
	}
	if got := finish(300); math.Abs(got-201) > 1e-9 {
		t.Errorf("300: %v", got)
	}
	for range 1000 {
		finish(50)
	}
	if got := tr.MeanOutput("m"); math.Abs(got-50) > 0.1 {
		t.Errorf("50 a thousand times: %v", got)
	}
	mustBook(t, tr, Booking{ID: 1, Target: 0}, 0)
	if s := state(tr, 0, 0); s.OutputToCome != 50 {
		t.Errorf("the mean stands in for an unknown output: %+v", s)
	}
}

// TestModelsAreMetApart: what one model's requests are like says nothing of another's beside it, and is known as long as the model has
// targets.
func TestModelsAreMetApart(t *testing.T) {
	tr := New(Config{})
	for id, name := range []string{"brief", "long", "long"} {
		tr.Add(fleet.TargetID(id), name)
	}
	for range 1000 {
		for target, of := range [][2]int{{10, 100}, {1000, 8000}} { // output, uncached
			mustBook(t, tr, Booking{ID: 1, Target: fleet.TargetID(target), PromptTokens: of[1], UncachedTokens: of[1]}, 0)
			tr.Finish(1, of[0], after(0))
		}
	}
	for target, want := range [][2]float64{{10, 100}, {1000, 8000}, {1000, 8000}} {
		id := fleet.TargetID(target)
		mustBook(t, tr, Booking{ID: 1, Target: id}, 0)
		if got := tr.States([]fleet.TargetID{id}, after(0), nil)[0].OutputToCome; math.Abs(got-want[0]) > 1 {
			t.Errorf("target %d: %v tokens are to come of an output that nobody has said, want %v", id, got, want[0])
		}
		tr.Cancel(1, after(0))
		if _, err := tr.Report(id, Sample{Waiting: Known(2)}, after(0)); err != nil {
			t.Fatal(err)
		}
		if got := tr.States([]fleet.TargetID{id}, after(0), nil)[0].PendingPrefillTokens; math.Abs(got/(2*want[1])-1) > 0.1 {
			t.Errorf("target %d: two requests that nobody has booked wait with %v tokens, want about %v", id, got, 2*want[1])
		}
	}
	tr.Drop(1)
	if got := tr.MeanOutput("long"); math.Abs(got-1000) > 1 {
		t.Errorf("a mean output of %v while the model has a target, want 1000", got)
	}
	tr.Drop(2)
	if got := tr.MeanOutput("long"); got != priorOutput || len(tr.models) != 1 {
		t.Errorf("a mean output of %v of a model that is gone, and %d models", got, len(tr.models))
	}
	if got := tr.MeanOutput("brief"); math.Abs(got-10) > 1 {
		t.Errorf("a mean output of %v beside a model that has gone, want 10", got)
	}
}

// TestWhatIsPresumedSilencesNobody: a prefill that the clock has ended is news to nobody. Its dispatch is still applied, and
// a retry elsewhere begins a prefill there.
func TestWhatIsPresumedSilencesNobody(t *testing.T) {
	tr := twoTargets(Config{})
	book := func(id DecisionID, at time.Duration) {
		mustBook(t, tr, Booking{ID: id, Target: 0, Gateway: "silent", PromptTokens: 1000, UncachedTokens: 1000, PrefillSeconds: 1}, at)
	}
	for id := DecisionID(1); id <= 4; id++ {
		book(id, 0)
		tr.Finish(id, 5, after(0))
	}
	book(11, 0)
	const later = 5 * time.Second
	if s := state(tr, 0, later); s.Prefilling != 0 || s.Decoding != 1 {
		t.Fatalf("after its time: %+v", s)
	}
	if o := tr.Dispatched(11, 0, false, "", after(later)); o != Applied {
		t.Errorf("its dispatch: %v", o)
	}
	if o := tr.Dispatched(11, 0, true, "", after(later)); o != Late {
		t.Errorf("the same again: %v", o)
	}
	if s := state(tr, 0, later); s.Prefilling != 0 || s.Decoding != 1 {
		t.Errorf("dispatched where it was booked: %+v", s)
	}
	if o := tr.Dispatched(11, 1, true, "", after(later)); o != Applied {
		t.Errorf("a retry: %v", o)
	}
	if s := tr.States(both(), after(later), nil); s[0].InFlight != 0 || s[1].Prefilling != 1 || s[1].PendingPrefillSeconds != 1 {
		t.Errorf("a retry: %+v", s)
	}
	if s := state(tr, 1, later+2*time.Second); s.Prefilling != 0 || s.Decoding != 1 {
		t.Errorf("a retry that has had its time: %+v", s)
	}
}

// TestSharedMemoryOutlivesItsFirstUser: what two requests share is held until the second ends, whoever came first.
func TestSharedMemoryOutlivesItsFirstUser(t *testing.T) {
	tr := twoTargets(Config{})
	held := func() float64 { return tr.States(both(), after(0), nil)[0].HeldTokens }
	blocks := []uint64{1, 2, 3, 4, 5}
	for id := DecisionID(1); id <= 2; id++ {
		b := Booking{ID: id, Target: 0, PromptTokens: 5100, UncachedTokens: 100}
		if err := tr.BookMarked(b, Marks{Blocks: blocks, Tokens: 1000, Covered: 5000}, after(0)); err != nil {
			t.Fatal(err)
		}
	}
	blocks[0] = 9 // the tracker has its own
	for ended, want := range []float64{5200, 5100, 0} {
		if ended > 0 {
			tr.Finish(DecisionID(ended), 1, after(0))
		}
		if got := held(); got != want {
			t.Errorf("%d of two requests for the same 5,000 tokens have ended: %v tokens held, want %v", ended, got, want)
		}
	}
}

// TestGaugeDoesNotContainTheQueue: requests that wait in the engine's queue have no memory yet, so that the gauge of a
// sample cannot explain them away.
func TestGaugeDoesNotContainTheQueue(t *testing.T) {
	tr := twoTargets(Config{})
	for id := DecisionID(1); id <= 3; id++ {
		mustBook(t, tr, Booking{ID: id, Target: 0, PromptTokens: 1000, UncachedTokens: 1000, PrefillSeconds: 1}, 0)
	}
	if _, err := tr.Report(0, Sample{Running: Known(1), Waiting: Known(2), UsedBlocks: Known(10), TotalBlocks: Known(100)}, after(0)); err != nil {
		t.Fatal(err)
	}
	if got := tr.States(both(), after(0), nil)[0]; got.KVUsed != 0.1 || got.UnreportedTokens != 2000 {
		t.Errorf("one runs, two wait: KV use %v and %v tokens beyond it, want 0.1 and 2000", got.KVUsed, got.UnreportedTokens)
	}
}
