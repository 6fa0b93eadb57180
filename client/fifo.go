package client

// fifo is a queue in a slice. The zero value is empty. Popped items are let go of at once; the room at the front is
// reused when it outgrows what is left, so pushing costs O(1) on average and memory stays within twice the content.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(v T) { q.items = append(q.items, v) }

// front and back point at the two ends, until the next push or pop; the queue must not be empty.
func (q *fifo[T]) front() *T { return &q.items[q.head] }
func (q *fifo[T]) back() *T  { return &q.items[len(q.items)-1] }

// at is the i-th item from the front.
func (q *fifo[T]) at(i int) T { return q.items[q.head+i] }

// pop takes the front item; the queue must not be empty.
func (q *fifo[T]) pop() T {
	var zero T
	v := q.items[q.head]
	q.items[q.head] = zero
	q.head++
	if q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return v
}

// prepend puts items before the front, in order.
func (q *fifo[T]) prepend(items []T) {
	rest := q.items[q.head:]
	q.items = append(append(make([]T, 0, len(items)+len(rest)), items...), rest...)
	q.head = 0
}

// clear empties the queue.
func (q *fifo[T]) clear() { *q = fifo[T]{} }
