package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/policy"
)

func TestChangesAreChecked(t *testing.T) {
	for want, o := range map[string]Options{
		"Options.Speeds: got 1": {Engines: 2, Speeds: []float64{1}},
		"Options.Speeds: got 0": {Engines: 1, Speeds: []float64{0}},
		"Change.Engine":         {Engines: 2, Changes: []Change{{Engine: 2}}},
		"Change.At":             {Engines: 2, Changes: []Change{{At: 3}, {At: 2}}},
		"Change.Speed":          {Engines: 2, Changes: []Change{{Kind: Pace, Speed: math.NaN()}}},
		"Change.Kind":           {Engines: 2, Changes: []Change{{Kind: Pace + 1}}},
	} {
		if _, err := NewFleet(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// An engine of half the speed takes twice as long for everything, and one that changes its pace does so with its next
// iteration.
func TestPaceOfAnEngine(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 40, 30, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9), row(0, 40, 30, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
	serve := func(o Options) (a, b *Job) {
		o.Engines, o.Model, o.BlockSize = 2, dyadic(), 4
		o.Model.KVTokens = 4096
		f := newTestFleet(t, o)
		a, b = submit(t, f, 0, tr.Requests[0], 0), submit(t, f, 1, tr.Requests[1], 0)
		drain(t, f)
		return a, b
	}
	a, b := serve(Options{Speeds: []float64{1, 0.5}})
	if b.FirstToken != 2*a.FirstToken || b.Finished != 2*a.Finished || a.Finished <= a.FirstToken {
		t.Errorf("at half the speed %v and %v, want twice %v and %v", b.FirstToken, b.Finished, a.FirstToken, a.Finished)
	}
	// In the middle of its output: the iteration under way is done at the old pace, the others at the new one.
	at := (a.FirstToken + a.Finished) / 2
	_, c := serve(Options{Changes: []Change{{At: at, Engine: 1, Kind: Pace, Speed: 0.5}}})
	if want := at + 2*(a.Finished-at); c.FirstToken != a.FirstToken || c.Finished >= want || c.Finished < want-0.2*(a.Finished-at) {
		t.Errorf("half the pace from %v on: done at %v, want %v less one iteration", at, c.Finished, want)
	}
	_, d := serve(Options{Changes: []Change{{At: at, Engine: 1, Kind: Pace, Speed: 0.5}, {At: at + 1e-9, Engine: 1, Kind: Pace, Speed: 1}}})
	if math.Abs(d.Finished-a.Finished) > 1e-9 {
		t.Errorf("a change taken back: done at %v, want %v", d.Finished, a.Finished)
	}
}

// choosersOfAll are one of each kind.
func choosersOfAll() map[string]func() Chooser {
	all := map[string]func() Chooser{
		"live":        func() Chooser { return NewLive(LiveOptions{}) },
		"live, blind": func() Chooser { return NewLive(LiveOptions{NoEvents: true, NoFirstToken: true, NoFinish: true}) },
		"live, load":  func() Chooser { return NewLive(LiveOptions{LoadEvery: 1}) },
		"informed":    func() Chooser { return NewInformed() },
		"round robin": RoundRobin, "least": LeastLoaded, "random": func() Chooser { return Random(1) },
	}
	for name, o := range map[string]RouterOptions{
		"block_cost": {}, "weighted_scorers": {Index: Routed, ScrapeEvery: 0.05}, "cache_aware": {Index: RoutedAll}, "exploit_explore": {Window: 10},
	} {
		p, _ := policy.ByName(name)
		all[name] = func() Chooser { return NewRouter(p, o) }
	}
	return all
}

// Whoever chooses, every request is served, and none by an engine that is not there for it.
func TestEverythingIsServedWhateverChanges(t *testing.T) {
	tr := MultiTenant(500, 5)
	const speed = 20 // 25 s
	changes := []Change{
		{At: 2, Engine: 6, Kind: Join},
		{At: 5, Engine: 0, Kind: Drain},
		{At: 6, Engine: 1, Kind: Kill},
		{At: 7, Engine: 2, Kind: Pace, Speed: 0.3},
		{At: 8, Engine: 3, Kind: Vanish},
		{At: 9, Engine: 1, Kind: Join},
		{At: 11, Engine: 3, Kind: Join},
		{At: 12, Engine: 0, Kind: Join},
		{At: 12, Engine: 4, Kind: Vanish},
		{At: 14, Engine: 2, Kind: Pace, Speed: 1},
		{At: 15, Engine: 6, Kind: Kill},
		{At: 16, Engine: 4, Kind: Kill},
		{At: 18, Engine: 4, Kind: Join},
	}
	there := []struct {
		engine   int
		from, to float64
	}{{6, 0, 2}, {0, 5, 12}, {1, 6, 9}, {3, 8, 11}, {4, 12, 18}, {6, 15, 1e9}}
	for name, c := range choosersOfAll() {
		o := RunOptions{Options: Options{Engines: 7, BlockSize: 64, Keyspace: LiveKeyspace(64), Changes: changes}, Speed: speed, Keep: true}
		chooser := c()
		r := mustRun(t, tr, chooser, o)
		if r.N != len(tr.Requests) {
			t.Errorf("%s: %d of %d are served", name, r.N, len(tr.Requests))
		}
		used := map[int]bool{}
		for _, s := range r.Requests {
			used[s.Engine] = true
			for _, w := range there {
				at := s.FirstToken
				if w.engine == 0 { // it finishes what it has
					at = s.Arrived
				}
				if s.Engine == w.engine && at >= w.from && at < w.to {
					t.Errorf("%s: one of second %.1f went to engine %d, which takes none from %v to %v", name, s.Arrived, s.Engine, w.from, w.to)
				}
			}
			if s.FirstToken < s.Arrived || s.Finished < s.FirstToken {
				t.Errorf("%s: %+v", name, s)
			}
		}
		if len(used) != 7 {
			t.Errorf("%s: only engines %v were used", name, used)
		}
	}
}

// What the oracle believes of engines that came and went is what they hold, and of their former lives nothing is left.
func TestLiveKnowsTheNewLife(t *testing.T) {
	tr := MultiTenant(600, 5)
	live := NewLive(LiveOptions{})
	mustRun(t, tr, live, RunOptions{
		Options: Options{
			Engines: 3, BlockSize: 64, Keyspace: LiveKeyspace(64),
			Changes: []Change{{At: 8, Engine: 1, Kind: Kill}, {At: 12, Engine: 1, Kind: Join}, {At: 16, Engine: 2, Kind: Kill}},
		},
		Speed: 24,
	})
	now := moment(live.ticked)
	for i, r := range live.reporters[:2] {
		v, err := live.oracle.Verify(fmt.Sprint("engine-", i), 0, now)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := slices.Sorted(slices.Values(v.IDs[fleet.Device])), slices.Sorted(maps.Keys(r.held)); len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("engine %d holds %d blocks, the oracle believes %d", i, len(want), len(got))
		}
	}
	if _, err := live.oracle.Worker("engine-2", now); err == nil {
		t.Error("the dead one is still known")
	}
	if n := live.oracle.Stats(now).Load.Bookings; n != 0 {
		t.Errorf("%d bookings are left of the lost requests", n)
	}
}

// An engine that was slow and is well again is asked as the others are, also where these are idle most of the time and
// could do without it.
func TestSlowEngineIsTriedAgain(t *testing.T) {
	all := mustRun(t, Unshared(1200, 3), NewLive(LiveOptions{}), RunOptions{
		Options: Options{
			Engines: 4, BlockSize: 64, Keyspace: LiveKeyspace(64),
			Changes: []Change{{At: 10, Engine: 3, Kind: Pace, Speed: 0.25}, {At: 30, Engine: 3, Kind: Pace, Speed: 1}},
		},
		Speed: 5, Keep: true,
	})
	for _, w := range []struct{ from, to, least, most float64 }{{20, 30, 0, 0.4}, {200, 240, 0.6, 1.5}} {
		r := all.Among(w.from, w.to)
		n := 0
		for _, s := range r.Requests {
			if s.Engine == 3 {
				n++
			}
		}
		if share := 4 * float64(n) / float64(r.N); share < w.least || share > w.most {
			t.Errorf("from second %v on it is given %.2f of an even share, want %v to %v", w.from, share, w.least, w.most)
		}
	}
}

// firstOf chooses the first engine that is there.
type firstOf struct{}

func (firstOf) Choose(_ float64, _ *Request, f *Fleet) int { return f.taking()[0] }

// TestVanishedEngineFailsWhatItIsSent: who is gone and not known to be looks as if it took requests. Each fails after a second and
// goes elsewhere then, its time counting from when it came; those that it had fail at once. When it is known nobody goes there.
func TestVanishedEngineFailsWhatItIsSent(t *testing.T) {
	const at, known, second = 10.5, 20.5, 1.0
	var rows []string
	for i := range 30 {
		head := uint32(10 * i)
		rows = append(rows, row(float64(1000*i+500), 40, 1, head, head+1, head+2, head+3, head+4, head+5, head+6, head+7, head+8, head+9))
	}
	rows = append(rows, row(9999, 40, 3000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010)) // under way at that moment
	tr := readLines(t, ReadOptions{BlockSize: 4}, slices.Concat(rows[:10], rows[30:], rows[10:30])...)
	o := RunOptions{Options: Options{Engines: 3, BlockSize: 4, Keyspace: testKeyspace}, Keep: true}
	usual := mustRun(t, tr, firstOf{}, o)
	o.Changes = []Change{{At: at, Engine: 0, Kind: Vanish}, {At: known, Engine: 0, Kind: Kill}, {At: known + 5, Engine: 0, Kind: Join}}
	r := mustRun(t, tr, firstOf{}, o)
	if r.N != usual.N {
		t.Fatalf("%d of %d are served", r.N, usual.N)
	}
	prefill := usual.Requests[0].FirstToken - usual.Requests[0].Arrived
	for _, s := range r.Requests {
		engine, late := 0, 0.0
		switch {
		case s.Finished > at && s.Arrived <= at: // what it had, and what that had given is lost
			if s.Engine != 1 || s.FirstToken-at > 0.1 {
				t.Errorf("the one that was under way goes on with engine %d at %v, want 1 at %v", s.Engine, s.FirstToken, at)
			}
			continue
		case s.Arrived > at && s.Arrived < known:
			engine, late = 1, second
		case s.Arrived > known && s.Arrived < known+5:
			engine = 1
		}
		if got := s.FirstToken - s.Arrived; s.Engine != engine || math.Abs(got-late-prefill) > 0.1 {
			t.Errorf("the one of second %v has its first token after %v s from engine %d, want %v + %v from %d", s.Arrived, got, s.Engine, late, prefill, engine)
		}
	}
	for _, s := range mustRun(t, tr, NewInformed(), o).Requests {
		if s.Arrived > at && s.Arrived < known && s.FirstToken-s.Arrived >= second {
			t.Errorf("informed greedy, which sees it, sends the one of second %v there", s.Arrived)
		}
	}
}

// TestWhatFailsIsNotInFlight: until it fails it is, and so is what is on its way when the end becomes known.
func TestWhatFailsIsNotInFlight(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 4, 3000, 0), row(0, 4, 1, 0), row(0, 4, 1, 0))
	model := dyadic()
	model.KVTokens = 4096
	f := newTestFleet(t, Options{Engines: 2, BlockSize: 4, Model: model, Changes: []Change{
		{At: 1, Engine: 0, Kind: Vanish}, {At: 4, Engine: 0, Kind: Kill}, {At: 8, Engine: 0, Kind: Join},
	}})
	submit(t, f, 0, tr.Requests[0], 0)
	for _, c := range []struct {
		at, until float64
		want      int
	}{{at: 2, until: 2.9, want: 1}, {until: 3.1}, {at: 4.5, until: 5.4, want: 1}, {until: 5.6}} {
		if c.at > 0 {
			f.Advance(c.at)
			if n := f.InFlight(0); n != 0 {
				t.Errorf("%d in flight at %v, want what it had to have failed", n, c.at)
			}
			submit(t, f, 0, tr.Requests[1], c.at)
		}
		f.Advance(c.until)
		if n := f.InFlight(0); n != c.want {
			t.Errorf("%d in flight at %v, want %d", n, c.until, c.want)
		}
	}
	f.Advance(9)
	if j := submit(t, f, 0, tr.Requests[2], 9); !f.Takes(0) || len(f.lost) != 3 {
		t.Errorf("it is back, takes requests: %v, and %d have failed", f.Takes(0), len(f.lost))
	} else if drain(t, f); j.Finished == 0 {
		t.Error("it is back, and does nothing")
	}
}

// witness is a Live whose failures are noted down.
type witness struct {
	*Live

	failed []float64
	at     map[*Request][]int
}

func (w *witness) Attach(o *Options) error {
	err := w.Live.Attach(o)
	o.Watcher = w
	return err
}

func (w *witness) Failed(t float64, j *Job) {
	w.failed = append(w.failed, t)
	w.at[j.Request] = append(w.at[j.Request], j.Engine)
	w.Live.Failed(t, j)
}

// TestLiveGoesByTheLease: of an engine that vanishes the oracle is told nothing but that its streams have ended. It sends requests
// there until the lease is over, and none after it, whatever the fleet is told then.
func TestLiveGoesByTheLease(t *testing.T) {
	const at, lease = 5, 6
	w := &witness{Live: NewLive(LiveOptions{Oracle: oracle.Config{WorkerLease: lease * time.Second}}), at: map[*Request][]int{}}
	r := mustRun(t, MultiTenant(600, 5), w, RunOptions{
		Options: Options{
			Engines: 3, BlockSize: 64, Keyspace: LiveKeyspace(64),
			Changes: []Change{{At: at, Engine: 1, Kind: Vanish}, {At: at + 2*lease, Engine: 1, Kind: Kill}},
		},
		Speed: 24, Keep: true,
	})
	if r.N != 600 {
		t.Errorf("%d of 600 are served", r.N)
	}
	between := 0
	for _, f := range w.failed {
		if f > at+failsAfter+lease/2 {
			between++
		}
		if f > at+lease+failsAfter+0.3 {
			t.Errorf("one fails at %v, %v s after the lease", f, f-at-lease)
		}
	}
	if between < 3 {
		t.Errorf("%d of %d failed in the second half of the lease: nobody waits for it", between, len(w.failed))
	}
	for _, engines := range w.at {
		if !slices.Equal(engines, []int{1}) {
			t.Errorf("a request failed at %v, want engine 1 alone", engines)
		}
	}
	if n := w.oracle.Stats(moment(w.ticked)).Load.Bookings; n != 0 {
		t.Errorf("%d bookings are left of requests that failed", n)
	}
}

func TestSurge(t *testing.T) {
	tr := MultiTenant(400, 3)
	s := Surge{From: 5, For: 2, Requests: 60, Heads: 4, Head: 130, Tail: 70, Output: 9, Seed: 1}
	got, err := tr.With(20, s)
	if err != nil {
		t.Fatal(err)
	}
	heads, last, own := map[uint64]int{}, 0.0, 0
	for i, r := range got.Requests {
		if r.Index != i || r.Arrival < last {
			t.Fatalf("request %d of second %v follows one of second %v as number %d", r.Index, r.Arrival, last, i)
		}
		last = r.Arrival
		c := r.Chain(testKeyspace, 64)
		if r.Output == 9 && r.Input == 3*64+70 && r.Arrival >= 5 && r.Arrival <= 7 {
			heads[uint64(c[2])]++
			continue
		}
		if was := tr.Requests[own]; r.Arrival != was.Arrival/20 || !slices.Equal(c, was.Chain(testKeyspace, 64)) {
			t.Fatalf("the trace's request %d is not what it was", own)
		}
		own++
	}
	if own != 400 || len(heads) != 4 {
		t.Errorf("%d of the trace, new heads %v", own, heads)
	}

	fast, err := tr.With(20, Surge{From: 5, For: 4, Faster: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range fast.Requests {
		want := tr.Requests[i].Arrival / 20
		switch {
		case want > 13:
			want -= 4
		case want > 5:
			want = 5 + (want-5)/2
		}
		if math.Abs(r.Arrival-want) > 1e-9 {
			t.Fatalf("request %d comes at %v, want %v", i, r.Arrival, want)
		}
	}
	for _, bad := range []Surge{{From: -1}, {For: math.NaN()}, {Faster: -1}, {Requests: -1}, {Head: -1}, {Requests: 1 << 20, Tail: 1 << 20}} {
		if _, err := tr.With(1, bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	if _, err := tr.With(0, Surge{}); err == nil {
		t.Error("speed 0 is taken")
	}
}

func TestPairsDoNotChange(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 12, 4, 0, 1, 2))
	f := newTestFleet(t, Options{Engines: 2, Changes: []Change{{At: 1, Engine: 1, Kind: Kill}}})
	if _, err := f.SubmitPair(0, 1, tr.Requests[0], 0, func(int) float64 { return 0 }); err == nil {
		t.Error("a pair on engines that change")
	}
	f.Advance(2)
	if _, err := f.Submit(1, tr.Requests[0], 2); err == nil || f.Takes(1) {
		t.Error("a dead engine takes requests")
	}
}
