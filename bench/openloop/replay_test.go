package main

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/sim"
)

// bubbleClock is time inside a synctest bubble, where a sleep is exact.
type bubbleClock struct{ start time.Time }

func (c bubbleClock) now() time.Duration       { return time.Since(c.start) }
func (c bubbleClock) wait(until time.Duration) { time.Sleep(until - c.now()) }

// timed is a target that takes known times.
type timed struct {
	perLookup, perEvent time.Duration
	mu                  sync.Mutex
	order               map[int][]block.ID // by engine
	clock               clock
	looked              []time.Duration
}

func (t *timed) lookup(*lookup) {
	t.looked = append(t.looked, t.clock.now())
	time.Sleep(t.perLookup)
}

func (t *timed) apply(e *event) {
	time.Sleep(t.perEvent)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.order[e.engine] = append(t.order[e.engine], e.ids...)
}

// tenSeconds has a lookup and two events every 100 ms, the last ones at 10 s.
func tenSeconds() *trace {
	t := &trace{engines: 2, seconds: 10}
	for i := 1; i <= 100; i++ {
		at := float64(i) / 10
		t.lookups = append(t.lookups, lookup{at: at, locals: make([]block.Local, 3)})
		for e := range 2 {
			t.events = append(t.events, event{at: at, engine: e, ids: []block.ID{block.ID(i)}})
		}
	}
	t.lookupBlocks, t.eventBlocks = 300, 200
	return t
}

func played(t *testing.T, perLookup, perEvent, window time.Duration) (o *outcome, to *timed) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		c := bubbleClock{time.Now()}
		to = &timed{perLookup: perLookup, perEvent: perEvent, order: make(map[int][]block.ID), clock: c}
		o = replay(tenSeconds(), to, c, window, 2)
	})
	return o, to
}

func TestIssuesAtDeadlines(t *testing.T) {
	o, to := played(t, time.Millisecond, time.Millisecond, time.Second)
	for i, at := range to.looked {
		if want := time.Duration(i+1) * 10 * time.Millisecond; at.Round(time.Microsecond) != want {
			t.Fatalf("lookup %d at %v, want %v", i, at, want)
		}
	}
	if !o.isValid() || !o.isSustained() || o.offered() != 500 {
		t.Errorf("valid %v, sustained %v, offered %v", o.isValid(), o.isSustained(), o.offered())
	}
	if got := o.drained - o.window; got.Round(time.Microsecond) != time.Millisecond {
		t.Errorf("drained %v after the window, want 1ms", got)
	}
	if len(o.lookups) != 100 || slices.Max(o.lookups) != 1e6 || slices.Max(o.behind) > 1e3 {
		t.Errorf("%d lookups, the longest took %v ns, began %v late", len(o.lookups), slices.Max(o.lookups), slices.Max(o.behind))
	}
	want := make([]block.ID, 100)
	for i := range want {
		want[i] = block.ID(i + 1)
	}
	for e := range 2 {
		if !slices.Equal(to.order[e], want) {
			t.Errorf("engine %d's events came as %v", e, to.order[e])
		}
	}
}

// Writers that cannot keep up do not hold up who issues; the time until they are done counts.
func TestSlowWritersAreDrained(t *testing.T) {
	o, _ := played(t, 0, 20*time.Millisecond, time.Second)
	if !o.isValid() || o.isSustained() {
		t.Errorf("valid %v, sustained %v, want valid and not sustained", o.isValid(), o.isSustained())
	}
	// 100 events of 20 ms for each of two writers, the first at 10 ms.
	if got := o.drained.Round(time.Millisecond); got != 2010*time.Millisecond {
		t.Errorf("drained at %v, want 2.01s", got)
	}
	if got := o.achieved() / o.offered(); got < 0.497 || got > 0.498 {
		t.Errorf("achieved %.3f of what was offered, want 1/2.01", got)
	}
}

// A lookup that takes longer than the gaps makes the next ones late: the window is not valid.
func TestSlowLookupsAreNotValid(t *testing.T) {
	o, _ := played(t, 11*time.Millisecond, 0, time.Second)
	if o.isValid() || o.isSustained() {
		t.Errorf("valid %v, sustained %v, want neither; issued in %v", o.isValid(), o.isSustained(), o.issued)
	}
	if got := time.Duration(slices.Max(o.behind)).Round(time.Millisecond); got != 99*time.Millisecond {
		t.Errorf("the last one was %v late, want 99ms", got)
	}
}

func TestSearchFindsTheLimit(t *testing.T) {
	const limit = 300 * time.Millisecond // windows shorter than this are too short
	var tried []time.Duration
	try := func(w time.Duration) *outcome {
		tried = append(tried, w)
		return &outcome{window: w, issued: w, drained: max(w, limit), ops: 1000}
	}
	best := search(time.Second, 5, try)
	// 1 s, 500 ms, 250 ms: too short; 375, 312.5, 281: too short, 296.9: too short, 304.7.
	if best.window != 304687500*time.Nanosecond || len(tried) != 8 {
		t.Errorf("found %v, tried %v", best.window, tried)
	}
	if got := search(100*time.Millisecond, 3, try); got != nil {
		t.Errorf("found %v below the limit", got.window)
	}
	idle := func(w time.Duration) *outcome { return &outcome{window: w, ops: 1000} }
	if got := search(time.Second, 0, idle); got.window < leastWindow || got.window >= 2*leastWindow {
		t.Errorf("stopped at %v with a target that takes no time", got.window)
	}
}

// What engines tell is what their caches hold, and lookups find what was told of before.
func TestRecordedTraceIsWhatEnginesHold(t *testing.T) {
	requests, err := sim.Sample()
	if err != nil {
		t.Fatal(err)
	}
	requests.Requests = requests.Requests[:160]
	tr, err := record(requests, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.lookups) != 320 || tr.engines != 4 {
		t.Fatalf("%d lookups, %d engines", len(tr.lookups), tr.engines)
	}
	to := newIndexTarget(tr.engines)
	holds := make([]map[block.ID]bool, tr.engines)
	room := sim.Model8B().KVTokens / blockSize
	isFull := false
	for e := range holds {
		holds[e] = make(map[block.ID]bool)
	}
	events, found := tr.events, 0
	for i := range tr.lookups {
		q := &tr.lookups[i]
		for len(events) > 0 && events[0].at <= q.at {
			e := &events[0]
			to.apply(e)
			for _, id := range e.ids {
				if holds[e.engine][id] == !e.isRemove {
					t.Fatalf("engine %d tells of %x twice", e.engine, id)
				}
				if e.isRemove {
					delete(holds[e.engine], id)
				} else {
					holds[e.engine][id] = true
				}
			}
			if n := len(holds[e.engine]); n > room {
				t.Fatalf("engine %d holds %d blocks, has room for %d", e.engine, n, room)
			} else if n > room*9/10 {
				isFull = true
			}
			events = events[1:]
		}
		best := 0
		chain := block.AppendChain(nil, q.keyspace, q.locals)
		for e := range holds {
			n := 0
			for n < len(chain) && holds[e][chain[n]] {
				n++
			}
			best = max(best, n)
		}
		before := to.found
		to.lookup(q)
		if to.found-before != best {
			t.Fatalf("lookup %d found %d blocks, want %d", i, to.found-before, best)
		}
		found += best
	}
	if found == 0 || found == tr.lookupBlocks || !isFull {
		t.Errorf("%d of %d blocks were found; some cache was full: %v", found, tr.lookupBlocks, isFull)
	}
	again, err := record(requests, 2, 2)
	if err != nil || len(again.events) != len(tr.events) || !slices.EqualFunc(again.events, tr.events, func(a, b event) bool {
		return a.at == b.at && a.engine == b.engine && slices.Equal(a.ids, b.ids)
	}) {
		t.Errorf("the same requests give another trace: %v", err)
	}
	if _, err := record(requests, 0, 1); err == nil {
		t.Error("no engines: no error")
	}
}

// The index behind the replay is right afterwards, with several writers, too.
func TestReplayedIndexHoldsWhatItShould(t *testing.T) {
	requests, err := sim.Sample()
	if err != nil {
		t.Fatal(err)
	}
	requests.Requests = requests.Requests[:100]
	tr, err := record(requests, 4, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[int]map[block.ID]bool)
	for _, e := range tr.events {
		if want[e.engine] == nil {
			want[e.engine] = make(map[block.ID]bool)
		}
		for _, id := range e.ids {
			if e.isRemove {
				delete(want[e.engine], id)
			} else {
				want[e.engine][id] = true
			}
		}
	}
	to := newIndexTarget(tr.engines)
	o := replay(tr, to, wallClock{time.Now()}, 50*time.Millisecond, 3)
	if len(o.lookups) != o.expected || o.expected != len(tr.lookups) {
		t.Errorf("%d of %d lookups", len(o.lookups), len(tr.lookups))
	}
	held := 0
	for e := range want {
		held += len(want[e])
	}
	if got := to.ix.Stats().HolderBlocks; got != held {
		t.Errorf("%d blocks held, want %d", got, held)
	}
}
