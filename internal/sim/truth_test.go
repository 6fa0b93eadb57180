package sim

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
)

// mirror believes what it is told, and complains about what cannot be.
type mirror struct {
	t        *testing.T
	fleet    *Fleet
	engine   int
	parent   map[block.ID]block.ID // of the blocks held; a root has itself
	children map[block.ID]int
	calls    int
	removed  int
	samples  int
	busiest  int
	last     float64
}

func newMirror(t *testing.T, engine int) *mirror {
	return &mirror{t: t, engine: engine, parent: map[block.ID]block.ID{}, children: map[block.ID]int{}}
}

func (m *mirror) Stored(at float64, parent block.ID, isRoot bool, ids []block.ID) {
	if len(ids) == 0 {
		m.t.Fatal("stored nothing")
	}
	if _, ok := m.parent[parent]; !ok && !isRoot {
		m.t.Fatal("stored under a block that is not held")
	}
	for i, id := range ids {
		if _, ok := m.parent[id]; ok {
			m.t.Fatal("stored a block that is held")
		}
		if i == 0 && isRoot {
			parent = id
		} else {
			m.children[parent]++
		}
		m.parent[id], parent = parent, id
	}
	m.check(at)
}

func (m *mirror) Removed(at float64, ids []block.ID) {
	if len(ids) == 0 {
		m.t.Fatal("removed nothing")
	}
	for _, id := range ids {
		parent, ok := m.parent[id]
		if !ok {
			m.t.Fatal("removed a block that is not held")
		}
		if m.children[id] != 0 {
			m.t.Fatal("removed a head before its tail")
		}
		delete(m.parent, id)
		if parent != id {
			m.children[parent]--
		}
		m.removed++
	}
	m.check(at)
}

func (m *mirror) Load(at float64, s LoadSample) {
	e := m.fleet.engines[m.engine]
	want := LoadSample{Waiting: len(e.waiting), TotalBlocks: e.model.KVTokens / e.blockSize}
	used := map[block.ID]bool{}
	private := 0
	for _, j := range e.waiting {
		want.WaitingPrefillTokens += j.Request.Input
		for _, id := range j.chain[:min(len(j.chain), (j.Request.Input-1)/e.blockSize)] {
			if _, ok := e.cache.at[id]; !ok {
				break
			}
			want.WaitingPrefillTokens -= e.blockSize
		}
	}
	for _, jobs := range [][]*Job{e.prefill, e.decode} {
		for _, j := range jobs {
			want.Running++
			want.WaitingPrefillTokens += j.Request.Input - j.computed
			full := min(j.computed/e.blockSize, len(j.chain))
			for _, id := range j.chain[:full] {
				used[id] = true
			}
			private += ceilDiv(j.computed+m.fleet.Generated(j), e.blockSize) - full
		}
	}
	want.UsedBlocks = len(used) + private
	if s != want {
		m.t.Fatalf("load %+v, want %+v", s, want)
	}
	if s.UsedBlocks > s.TotalBlocks || s.Running+s.Waiting != m.fleet.InFlight(m.engine) {
		m.t.Fatalf("load %+v with %d in flight", s, m.fleet.InFlight(m.engine))
	}
	m.samples++
	m.busiest = max(m.busiest, s.Waiting)
	m.check(at)
}

// check compares with the engine, in the middle of whatever it is doing.
func (m *mirror) check(at float64) {
	m.t.Helper()
	if at < m.last || at != m.fleet.Now() {
		m.t.Fatalf("told of %v after %v, at %v", at, m.last, m.fleet.Now())
	}
	m.last = at
	m.calls++
	e := m.fleet.engines[m.engine]
	if len(m.parent) != len(e.cache.at) {
		m.t.Fatalf("told of %d blocks, cached are %d", len(m.parent), len(e.cache.at))
	}
	for id := range e.cache.at {
		if _, ok := m.parent[id]; !ok {
			m.t.Fatal("a cached block was not told of")
		}
	}
	if n := e.cache.blocks() + e.private; n > e.capacity {
		m.t.Fatalf("%d blocks in a memory of %d", n, e.capacity)
	}
	for id, parent := range m.parent {
		a, b := e.cache.slots[e.cache.at[parent]].references, e.cache.slots[e.cache.at[id]].references
		if a < b {
			m.t.Fatalf("a block has %d references, the one that follows it %d", a, b)
		}
	}
}

// lives checks the order of each request's events.
type lives struct {
	t     *testing.T
	size  int
	state map[*Job]int
}

func (l *lives) FirstToken(at float64, j *Job) {
	if l.state[j]++; l.state[j] != 1 || at != j.FirstToken || at <= j.Arrived || j.Finished != 0 {
		l.t.Fatalf("first token of %+v", j)
	}
	if j.Cached < 0 || j.Cached >= j.Request.Input || j.Cached%l.size != 0 || j.Cached > block.Usable(j.Request.Input, l.size)*l.size {
		l.t.Fatalf("%d of %d tokens cached, in blocks of %d", j.Cached, j.Request.Input, l.size)
	}
}

func (l *lives) Finished(at float64, j *Job) {
	if l.state[j]++; l.state[j] != 2 || at != j.Finished || at < j.FirstToken || (at == j.FirstToken) != (j.Request.Output == 1) {
		l.t.Fatalf("end of %+v", j)
	}
}

// What engines report is true at every moment, memory is never overdrawn, and everything comes back.
func TestReportsTellTheTruth(t *testing.T) {
	removed, samples, waited := 0, 0, 0
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		size := []int{1, 4, 8, 64}[rnd.IntN(4)]
		tr := randomTrace(t, rnd, 150, 8, 10)
		engines := 1 + rnd.IntN(3)
		watch := &lives{t: t, size: size, state: map[*Job]int{}}
		o := Options{
			Engines: engines, Model: randomModel(rnd, size, longest(tr)), BlockSize: size, Keyspace: testKeyspace,
			Observer: watch, LoadEvery: 0.5 + rnd.Float64(),
		}
		var mirrors []*mirror
		for i := range engines {
			mirrors = append(mirrors, newMirror(t, i))
			o.Sinks = append(o.Sinks, mirrors[i])
		}
		f := newTestFleet(t, o)
		for _, m := range mirrors {
			m.fleet = f
		}
		for _, r := range tr.Requests {
			for next, _ := f.Next(); next <= r.Arrival; next, _ = f.Next() {
				f.Advance(next)
			}
			submit(t, f, rnd.IntN(engines), r, r.Arrival)
		}
		drain(t, f)
		for j, n := range watch.state {
			if n != 2 {
				t.Fatalf("%+v got %d events", j, n)
			}
		}
		if len(watch.state) != len(tr.Requests) {
			t.Fatalf("%d requests lived, want %d", len(watch.state), len(tr.Requests))
		}
		for i, m := range mirrors {
			m.check(f.Now())
			e := f.engines[i]
			if e.private != 0 || e.cache.referenced != 0 || e.decodeKV != 0 || e.pending != 0 || f.InFlight(i) != 0 {
				t.Fatalf("left over: %d private, %d referenced, %d KV, %d pending, %d in flight",
					e.private, e.cache.referenced, e.decodeKV, e.pending, f.InFlight(i))
			}
			ring := map[block.ID]int32{}
			for s := e.cache.slots[0].next; s != 0; s = e.cache.slots[s].next {
				ring[e.cache.slots[s].id] = s
			}
			if !maps.Equal(ring, e.cache.at) {
				t.Fatal("an unreferenced block is not in the ring")
			}
			removed += m.removed
			samples += m.samples
			waited = max(waited, m.busiest)
		}
	}
	if removed < 100 || samples < 100 || waited < 2 {
		t.Errorf("%d blocks removed, %d samples, %d waiting at most: the test has not been where it matters", removed, samples, waited)
	}
}
