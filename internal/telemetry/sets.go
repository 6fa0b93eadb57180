package telemetry

import (
	"maps"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// sets keeps attribute sets by what they are made of, so that each is made once. Keys must come from a closed set: they
// are never forgotten.
//
// Readers load a map that never changes; a new key copies it, under mu. Zero value is not ready: see newSets.
type sets[K comparable] struct {
	build func(K) []attribute.KeyValue
	known atomic.Pointer[map[K]options]
	mu    sync.Mutex
}

// options are one attribute set in the two forms instruments take it, ready to be passed with "...".
type options struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func newSets[K comparable](build func(K) []attribute.KeyValue) *sets[K] {
	s := &sets[K]{build: build}
	s.known.Store(&map[K]options{})
	return s
}

// of finds the options of a key. It allocates only the first time.
func (s *sets[K]) of(key K) options {
	if o, ok := (*s.known.Load())[key]; ok {
		return o
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.known.Load()
	if o, ok := old[key]; ok {
		return o
	}
	set := metric.WithAttributeSet(attribute.NewSet(s.build(key)...))
	o := options{add: []metric.AddOption{set}, record: []metric.RecordOption{set}}
	next := maps.Clone(old)
	next[key] = o
	s.known.Store(&next)
	return o
}

// word makes sets of one string attribute.
func word(key string) *sets[string] {
	return newSets(func(v string) []attribute.KeyValue { return []attribute.KeyValue{attribute.String(key, v)} })
}
