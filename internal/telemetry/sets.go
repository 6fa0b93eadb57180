package telemetry

import (
	"maps"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// kept makes a value for each key when it is first asked for, and keeps it. Keys must come from a closed set: they are never
// forgotten.
//
// Readers load a map that never changes; a new key copies it, under mu. Zero value is not ready: see keep.
type kept[K comparable, V any] struct {
	build func(K) V
	known atomic.Pointer[map[K]V]
	mu    sync.Mutex
}

func keep[K comparable, V any](build func(K) V) *kept[K, V] {
	k := &kept[K, V]{build: build}
	k.known.Store(&map[K]V{})
	return k
}

// of finds the value of a key. It allocates only the first time.
func (k *kept[K, V]) of(key K) V {
	if v, ok := (*k.known.Load())[key]; ok {
		return v
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	old := *k.known.Load()
	if v, ok := old[key]; ok {
		return v
	}
	v := k.build(key)
	next := maps.Clone(old)
	next[key] = v
	k.known.Store(&next)
	return v
}

// all are the values so far, by key. Nobody may change the map.
func (k *kept[K, V]) all() map[K]V { return *k.known.Load() }

// sets are attribute sets by what they are made of, so that each is made once.
type sets[K comparable] = kept[K, options]

// options are one attribute set in the two forms instruments take it, ready to be passed with "...".
type options struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func newSets[K comparable](build func(K) []attribute.KeyValue) *sets[K] {
	return keep(func(key K) options {
		set := metric.WithAttributeSet(attribute.NewSet(build(key)...))
		return options{add: []metric.AddOption{set}, record: []metric.RecordOption{set}}
	})
}

// word makes sets of one string attribute.
func word(key string) *sets[string] {
	return newSets(func(v string) []attribute.KeyValue { return []attribute.KeyValue{attribute.String(key, v)} })
}
