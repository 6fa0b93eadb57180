package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
)

// twin is an engine told in the plainest way: one iteration at a time, memory counted by looking at everything.
type twin struct {
	model              Model
	blockSize          int
	arrivals           []*twinJob // in order, not yet in the queue
	waiting            []*twinJob
	prefill, decode    []*twinJob
	cached             map[block.ID]int // to the number of its last release
	releases           int
	stored, removed    []block.ID
	now                float64
	iterations, mixed  int
	refusals, evicting int
}

type twinJob struct {
	arrived, first, finished float64
	input, output            int
	chain                    []block.ID
	cached, computed         int
	generated, blocks        int // blocks: all it will need
}

// users counts the running jobs that use a block: whatever of their prompt is computed.
func (w *twin) users(id block.ID) int {
	n := 0
	for _, j := range append(slices.Clone(w.prefill), w.decode...) {
		if slices.Contains(j.chain[:min(len(j.chain), j.computed/w.blockSize)], id) {
			n++
		}
	}
	return n
}

// occupied counts blocks that cannot be had: used cached ones, and reserved ones that are not in the cache.
func (w *twin) occupied() int {
	n := 0
	for id := range w.cached {
		if w.users(id) > 0 {
			n++
		}
	}
	for _, j := range append(slices.Clone(w.prefill), w.decode...) {
		n += j.blocks - min(len(j.chain), j.computed/w.blockSize)
	}
	return n
}

func (w *twin) admit(j *twinJob) bool {
	held := 0
	for held < len(j.chain) && (held+1)*w.blockSize < j.input {
		if _, ok := w.cached[j.chain[held]]; !ok {
			break
		}
		held++
	}
	capacity := w.model.KVTokens / w.blockSize
	w.prefill = append(w.prefill, j) // to see what it would take
	j.computed = held * w.blockSize
	if w.occupied() > capacity {
		w.prefill = w.prefill[:len(w.prefill)-1]
		w.refusals++
		return false
	}
	j.cached = j.computed
	for {
		free, oldest := 0, block.ID(0)
		for id, at := range w.cached {
			if w.users(id) == 0 {
				if free == 0 || at < w.cached[oldest] {
					oldest = id
				}
				free++
			}
		}
		if w.occupied()+free <= capacity {
			return true
		}
		delete(w.cached, oldest)
		w.removed = append(w.removed, oldest)
		w.evicting++
	}
}

func (w *twin) finish(j *twinJob) {
	j.finished = w.now
	for i := len(j.chain) - 1; i >= 0; i-- {
		w.releases++
		w.cached[j.chain[i]] = w.releases
	}
}

// iterate runs one iteration; false if there is nothing to do any more.
func (w *twin) iterate() bool {
	if len(w.waiting)+len(w.prefill)+len(w.decode) == 0 {
		if len(w.arrivals) == 0 {
			return false
		}
		w.now = max(w.now, w.arrivals[0].arrived)
	}
	for len(w.arrivals) > 0 && w.arrivals[0].arrived <= w.now {
		w.waiting = append(w.waiting, w.arrivals[0])
		w.arrivals = w.arrivals[1:]
	}
	m := w.model
	decoding := slices.Clone(w.decode)
	budget, tokens, pairs := m.ChunkTokens-len(decoding), 0, 0.0
	part := map[*twinJob]int{}
	take := func(j *twinJob) {
		for budget > 0 && j.computed+part[j] < j.input {
			pairs += float64(j.computed+part[j]) + 0.5
			part[j]++
			tokens++
			budget--
		}
	}
	for _, j := range w.prefill {
		take(j)
	}
	for budget > 0 && len(w.waiting) > 0 && len(w.prefill)+len(w.decode) < m.MaxBatch && w.admit(w.waiting[0]) {
		take(w.waiting[0])
		w.waiting = w.waiting[1:]
	}
	kv := 0
	for _, j := range decoding {
		kv += j.input + j.generated
	}
	w.now += max(m.IterationBase, m.IterationFixed+m.PrefillPerToken*float64(tokens+len(decoding))) +
		m.PrefillPerTokenContext*pairs + m.DecodePerKVToken*float64(kv)
	w.iterations++
	if tokens > 0 && len(decoding) > 0 {
		w.mixed++
	}
	for _, j := range decoding {
		if j.generated++; j.generated == j.output {
			w.decode = slices.DeleteFunc(w.decode, func(x *twinJob) bool { return x == j })
			w.finish(j)
		}
	}
	for _, j := range slices.Clone(w.prefill) {
		from := j.computed / w.blockSize
		j.computed += part[j]
		for _, id := range j.chain[from:min(len(j.chain), j.computed/w.blockSize)] {
			if _, ok := w.cached[id]; !ok {
				w.cached[id] = 0
				w.stored = append(w.stored, id)
			}
		}
	}
	for _, j := range slices.Clone(w.prefill) {
		if j.computed < j.input {
			continue
		}
		w.prefill = slices.DeleteFunc(w.prefill, func(x *twinJob) bool { return x == j })
		j.first, j.generated = w.now, 1
		if j.output == 1 {
			w.finish(j)
		} else {
			w.decode = append(w.decode, j)
		}
	}
	return true
}

// list is a Sink that lists ids.
type list struct {
	noReports
	stored, removed []block.ID
}

func (l *list) Stored(_ float64, _ block.ID, _ bool, ids []block.ID) {
	l.stored = append(l.stored, ids...)
}
func (l *list) Removed(_ float64, ids []block.ID) { l.removed = append(l.removed, ids...) }

func TestEngineAgainstTwin(t *testing.T) {
	var refusals, evictions, hits, mixed, runs int
	for seed := range uint64(25) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		size := []int{1, 3, 8, 16}[rnd.IntN(4)]
		tr := randomTrace(t, rnd, 60, 8, 8)
		m := randomModel(rnd, size, longest(tr))
		w := &twin{model: m, blockSize: size, cached: map[block.ID]int{}}
		l := &list{}
		f := newTestFleet(t, Options{Engines: 1, Model: m, BlockSize: size, Keyspace: testKeyspace, Sinks: []Sink{l}})
		var jobs []*Job
		var twins []*twinJob
		for _, r := range tr.Requests {
			// A fleet ends a step before it takes what arrives at that very moment; leave such ties out.
			at := r.Arrival + rnd.Float64()*1e-3
			jobs = append(jobs, submit(t, f, 0, r, max(at, f.Now())))
			j := &twinJob{arrived: f.Now(), input: r.Input, output: r.Output, chain: r.Chain(testKeyspace, size)}
			j.blocks = ceilDiv(r.Input+r.Output, size)
			w.arrivals = append(w.arrivals, j)
			twins = append(twins, j)
		}
		drain(t, f)
		for w.iterate() {
		}
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-7 }
		for i, j := range jobs {
			k := twins[i]
			if j.Cached != k.cached || !near(j.FirstToken, k.first) || !near(j.Finished, k.finished) {
				t.Fatalf("seed %d, request %d: %d cached, first token %v, finished %v, want %d, %v, %v",
					seed, i, j.Cached, j.FirstToken, j.Finished, k.cached, k.first, k.finished)
			}
			if k.cached > 0 {
				hits++
			}
		}
		if !slices.Equal(l.stored, w.stored) || !slices.Equal(l.removed, w.removed) {
			t.Fatalf("seed %d: %d stored and %d removed, want %d and %d, in the same order",
				seed, len(l.stored), len(l.removed), len(w.stored), len(w.removed))
		}
		refusals += w.refusals
		evictions += w.evicting
		mixed += w.mixed
		runs += w.iterations
	}
	// Else the test has not been where it matters.
	if refusals < 100 || evictions < 100 || hits < 100 || mixed < 100 {
		t.Errorf("%d refusals, %d evictions, %d hits, %d mixed iterations of %d", refusals, evictions, hits, mixed, runs)
	}
}
