package zmtp

import "sync"

// ring is a queue in a circular slice that doubles when full. The zero value is empty. Popped items are let go of.
type ring[T any] struct {
	items []T // length is zero or a power of two
	head  int
	n     int
}

func (q *ring[T]) push(v T) {
	if q.n == len(q.items) {
		grown := make([]T, max(2*q.n, 16))
		for i := range q.n {
			grown[i] = *q.at(i)
		}
		q.items, q.head = grown, 0
	}
	q.n++
	*q.at(q.n - 1) = v
}

// pop takes the front item; the queue must not be empty.
func (q *ring[T]) pop() T {
	var zero T
	front := q.at(0)
	v := *front
	*front = zero
	q.head = (q.head + 1) & (len(q.items) - 1)
	if q.n--; q.n == 0 && len(q.items) > 1024 {
		*q = ring[T]{} // a burst is over: its room is not kept
	}
	return v
}

// at points at the i-th item from the front, until the next push or pop.
func (q *ring[T]) at(i int) *T { return &q.items[(q.head+i)&(len(q.items)-1)] }

// signal wakes everybody who waits for something to change. Who waits takes the channel first and looks second, so that
// no change is missed. It costs next to nothing while nobody waits.
type signal struct {
	mu sync.Mutex
	ch chan struct{} // nil: nobody waits
}

// wait returns a channel that is closed at the next change.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

// changed wakes all who wait.
func (s *signal) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}
