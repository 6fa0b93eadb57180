package telemetry

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// tally counts by key what every decision counts, for a counter that is read when somebody collects: adding to it is one
// atomic addition, where a counter of OpenTelemetry's looks up its attributes each time. Keys must come from a closed set.
type tally[K comparable] struct {
	cells *kept[K, *cell[K]]
	last  atomic.Pointer[cell[K]] // the one that was counted in last: most decisions are alike
}

// cell is the count of one key.
type cell[K comparable] struct {
	key K
	n   atomic.Int64
	by  []metric.ObserveOption
}

func newTally[K comparable](build func(K) []attribute.KeyValue) *tally[K] {
	return &tally[K]{cells: keep(func(key K) *cell[K] {
		return &cell[K]{key: key, by: []metric.ObserveOption{metric.WithAttributeSet(attribute.NewSet(build(key)...))}}
	})}
}

// add counts n more of a key. It allocates only the first time.
func (t *tally[K]) add(key K, n int64) {
	c := t.last.Load()
	if c == nil || c.key != key {
		c = t.cells.of(key)
		t.last.Store(c)
	}
	c.n.Add(n)
}

// observe tells a counter what was counted.
func (t *tally[K]) observe(o metric.Observer, as metric.Int64Observable) {
	for _, c := range t.cells.all() {
		o.ObserveInt64(as, c.n.Load(), c.by...)
	}
}
