package zmtp

import (
	"context"
	"sync"
)

// What a waiting delivery costs beside its bytes, so that QueueBytes bounds memory also where messages are tiny.
const (
	deliveryCost = 64
	frameCost    = 24
)

// inbox is the receive queue of a socket, shared by its connections. Events lie in it between messages. It is bounded by
// count and by bytes; one message above the byte bound is taken if the queue is otherwise empty.
//
// Who finds it full waits in line (Go serves waiters of a channel first come, first served), so a peer that floods cannot
// starve another.
type inbox struct {
	maxItems int
	maxBytes int
	closed   <-chan struct{}

	filled chan struct{} // holds a token when there may be something to take
	freed  chan struct{} // holds a token when there may be room

	mu    sync.Mutex
	items ring[delivered]
	bytes int
	drops int // Dropped events in items; they are not counted against maxItems

	// Totals, counted with what they count, so that who has received a message finds it in them.
	received      uint64
	receivedBytes uint64
	dropped       uint64
}

// delivered is a delivery with its cost.
type delivered struct {
	Delivery
	cost int
}

func newInbox(c *Config, closed <-chan struct{}) *inbox {
	return &inbox{
		maxItems: c.QueueMessages, maxBytes: c.QueueBytes, closed: closed,
		filled: make(chan struct{}, 1), freed: make(chan struct{}, 1),
	}
}

// offer puts d at the end if there is room.
func (q *inbox) offer(d Delivery, size int) bool {
	cost := deliveryCost + size + frameCost*len(d.Message)
	q.mu.Lock()
	n := q.items.n - q.drops
	if n >= q.maxItems || n > 0 && q.bytes+cost > q.maxBytes {
		q.mu.Unlock()
		return false
	}
	q.items.push(delivered{d, cost})
	q.bytes += cost
	if d.Event == nil {
		q.received++
		q.receivedBytes += uint64(size)
	}
	room := n+1 < q.maxItems && q.bytes < q.maxBytes
	q.mu.Unlock()
	token(q.filled)
	if room {
		token(q.freed) // for the next in line
	}
	return true
}

// put waits for room. It returns false if the socket was closed.
func (q *inbox) put(d Delivery, size int) bool {
	for !q.offer(d, size) {
		select {
		case <-q.freed:
		case <-q.closed:
			return false
		}
	}
	return true
}

// drop notes that a message of the connection was dropped: in the Dropped event at the queue's end if it is this
// connection's, else in a new one. Between two such events lies something else, so there are no more of them than of other
// items and connections.
func (q *inbox) drop(d Delivery) {
	q.mu.Lock()
	q.dropped++
	last := (*delivered)(nil)
	if q.items.n > 0 {
		last = q.items.at(q.items.n - 1)
	}
	if last != nil && last.Conn == d.Conn && last.Event != nil && last.Event.Kind == Dropped {
		last.Event.Dropped++
	} else {
		q.items.push(delivered{d, 0})
		q.drops++
	}
	q.mu.Unlock()
	token(q.filled)
}

// take waits for the first item.
func (q *inbox) take(ctx context.Context) (Delivery, error) {
	for {
		select {
		case <-q.closed:
			return Delivery{}, ErrClosed
		default:
		}
		if d, ok := q.poll(); ok {
			return d, nil
		}
		select {
		case <-q.filled:
		case <-q.closed:
		case <-ctx.Done():
			return Delivery{}, ctx.Err()
		}
	}
}

func (q *inbox) poll() (Delivery, bool) {
	q.mu.Lock()
	if q.items.n == 0 {
		q.mu.Unlock()
		return Delivery{}, false
	}
	d := q.items.pop()
	q.bytes -= d.cost
	if d.Event != nil && d.Event.Kind == Dropped {
		q.drops--
	}
	more := q.items.n > 0
	q.mu.Unlock()
	token(q.freed)
	if more {
		token(q.filled) // for the next in line
	}
	return d.Delivery, true
}

// count fills in what the queue knows.
func (q *inbox) count(st *Stats) {
	q.mu.Lock()
	defer q.mu.Unlock()
	st.Received, st.ReceivedBytes, st.Dropped = q.received, q.receivedBytes, q.dropped
	st.Queued, st.QueuedBytes = q.items.n, q.bytes
}

// token leaves one in ch if there is none.
func token(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
