package telemetry

import (
	"maps"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// tally counts by key what every decision counts, for a counter that is read when somebody collects: adding to it is one
// atomic addition, where a counter of OpenTelemetry's looks up its attributes each time. Keys must come from a closed set.
//
// Readers load a map that never changes; a new key copies it, under mu. Zero value is not ready: see newTally.
type tally[K comparable] struct {
	build func(K) []attribute.KeyValue
	known atomic.Pointer[map[K]*cell[K]]
	last  atomic.Pointer[cell[K]] // the one that was counted in last: most decisions are alike
	mu    sync.Mutex
}

// cell is the count of one key.
type cell[K comparable] struct {
	key K
	n   atomic.Int64
	by  []metric.ObserveOption
}

func newTally[K comparable](build func(K) []attribute.KeyValue) *tally[K] {
	t := &tally[K]{build: build}
	t.known.Store(&map[K]*cell[K]{})
	return t
}

// add counts n more of a key. It allocates only the first time.
func (t *tally[K]) add(key K, n int64) {
	c := t.last.Load()
	if c == nil || c.key != key {
		c = t.of(key)
		t.last.Store(c)
	}
	c.n.Add(n)
}

func (t *tally[K]) of(key K) *cell[K] {
	if c, ok := (*t.known.Load())[key]; ok {
		return c
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.known.Load()
	if c, ok := old[key]; ok {
		return c
	}
	c := &cell[K]{key: key, by: []metric.ObserveOption{metric.WithAttributeSet(attribute.NewSet(t.build(key)...))}}
	next := maps.Clone(old)
	next[key] = c
	t.known.Store(&next)
	return c
}

// observe tells a counter what was counted.
func (t *tally[K]) observe(o metric.Observer, as metric.Int64Observable) {
	for _, c := range *t.known.Load() {
		o.ObserveInt64(as, c.n.Load(), c.by...)
	}
}
