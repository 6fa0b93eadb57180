package index

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// epochs tell when memory that was taken out of the structure can be used again: when everybody who may still look at it
// has gone. Readers never wait and write nothing that another core reads often: each has a cache line of its own.
//
//	freed at e may be reused when every pinned reader has entered after e
//
// Atomic operations of Go are ordered one after another, which this rests on: either the reader's pin is seen by
// whoever frees, or the reader sees what was there after the removal.
type epochs struct {
	now     atomic.Uint64 // never 0
	mu      sync.Mutex
	readers atomic.Pointer[[]*reader]
	free    []*reader
}

// reader is somebody who may be inside.
type reader struct {
	since atomic.Uint64 // epoch of entry; 0: outside
	_     [120]byte     // two lines: the neighbour of a line is fetched with it
}

func (e *epochs) init() {
	e.now.Store(1)
	e.readers.Store(new([]*reader))
}

// join makes a reader or takes one that was given up.
func (e *epochs) join() *reader {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.free); n > 0 {
		r := e.free[n-1]
		e.free = e.free[:n-1]
		return r
	}
	r := new(reader)
	old := *e.readers.Load()
	all := append(slices.Clone(old), r)
	e.readers.Store(&all)
	return r
}

// leave gives a reader up.
func (e *epochs) leave(r *reader) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.free = append(e.free, r)
}

func (r *reader) enter(e *epochs) { r.since.Store(e.now.Load()) }
func (r *reader) exit()           { r.since.Store(0) }

// turn begins a new epoch and returns the one that ended: what is taken out before carries its number at most.
func (e *epochs) turn() uint64 { return e.now.Add(1) - 1 }

// oldest is the epoch in which the longest-standing reader entered; all that was freed before it may be used again.
func (e *epochs) oldest() uint64 {
	least := uint64(math.MaxUint64)
	for _, r := range *e.readers.Load() {
		if since := r.since.Load(); since != 0 {
			least = min(least, since)
		}
	}
	return least
}

// visitors are readers with working memory, kept per core by a sync.Pool.
func newPool(e *epochs) *sync.Pool {
	return &sync.Pool{New: func() any {
		q := &query{reader: e.join()}
		// The pool forgets at each garbage collection; the reader's place must not be lost with it.
		runtime.AddCleanup(q, e.leave, q.reader)
		return q
	}}
}
