package client

import (
	"context"
	"sync"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// progressQueue holds events until the oracle has them, in the order they came. Steps are kept until they are acknowledged
// and are sent again on a new stream; signs of life are sent once: a newer one is worth more than a repeat.
//
// An oracle that takes no progress reports gets none: the queue is then refused, and stays empty until it is not any more.
//
// Invariant: len(steps) + len(signs) + len(unacked) <= limit. When it is full the oldest sign goes, then the oldest
// unacknowledged step (it probably arrived), then the oldest step. mu is a leaf lock.
type progressQueue struct {
	limit int
	wake  chan struct{} // one token: something to send

	mu      sync.Mutex
	steps   fifo[queued] // events other than Generating, not sent on this stream
	signs   fifo[queued] // Generating, not sent
	unacked fifo[queued] // steps sent on this stream
	number  uint64       // of the newest event
	dropped uint64
	refused *Error        // why nothing is kept; nil: it is
	changed chan struct{} // closed and replaced when something left the queue; nil while nobody waits
}

// queued is one event.
type queued struct {
	event    *kvoraclev1.ProgressEvent
	number   uint64 // in order of put
	sequence uint64 // on the stream it was sent on
}

func newProgressQueue(limit int) *progressQueue {
	return &progressQueue{limit: limit, wake: make(chan struct{}, 1)}
}

// put queues an event and never blocks.
func (q *progressQueue) put(e *kvoraclev1.ProgressEvent) {
	q.mu.Lock()
	q.number++
	if q.refused != nil {
		q.dropped++
		q.mu.Unlock()
		return
	}
	if q.steps.len()+q.signs.len()+q.unacked.len() >= q.limit {
		q.drop()
	}
	v := queued{event: e, number: q.number}
	if e.GetGenerating() != nil {
		q.signs.push(v)
	} else {
		q.steps.push(v)
	}
	q.mu.Unlock()
	wake(q.wake)
}

// refuse drops everything, now and from now on; with nil, from now on all is kept again.
func (q *progressQueue) refuse(why *Error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refused = why
	if why != nil {
		q.dropped += uint64(q.steps.len() + q.signs.len() + q.unacked.len())
		q.steps, q.signs, q.unacked = fifo[queued]{}, fifo[queued]{}, fifo[queued]{}
		q.announce()
	}
}

func (q *progressQueue) drop() {
	q.dropped++
	switch {
	case q.signs.len() > 0:
		q.signs.pop()
	case q.unacked.len() > 0:
		q.unacked.pop()
	default:
		q.steps.pop()
	}
	q.announce()
}

// next takes the event to be sent as the given sequence, or nil.
func (q *progressQueue) next(sequence uint64) *kvoraclev1.ProgressEvent {
	q.mu.Lock()
	defer q.mu.Unlock()
	isSign := q.signs.len() > 0 && (q.steps.len() == 0 || q.signs.at(0).number < q.steps.at(0).number)
	switch {
	case isSign:
		q.announce()
		return q.signs.pop().event
	case q.steps.len() > 0:
		v := q.steps.pop()
		v.sequence = sequence
		q.unacked.push(v)
		return v.event
	default:
		return nil
	}
}

// acked lets go of everything up to a sequence of the current stream.
func (q *progressQueue) acked(sequence uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.unacked.len() > 0 && q.unacked.at(0).sequence <= sequence {
		q.unacked.pop()
	}
	q.announce()
}

// rewind makes everything unacknowledged be sent again.
func (q *progressQueue) rewind() {
	q.mu.Lock()
	defer q.mu.Unlock()
	again := make([]queued, 0, q.unacked.len())
	for q.unacked.len() > 0 {
		again = append(again, q.unacked.pop())
	}
	q.steps.prepend(again)
}

// flush waits until every event put so far has been acknowledged, sent (signs of life) or dropped; the error may be why
// all are.
func (q *progressQueue) flush(ctx context.Context) error {
	q.mu.Lock()
	last := q.number
	for q.oldest() <= last {
		if q.changed == nil {
			q.changed = make(chan struct{})
		}
		changed := q.changed
		q.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
		q.mu.Lock()
	}
	defer q.mu.Unlock()
	if q.refused != nil {
		return q.refused
	}
	return nil
}

// oldest is the lowest number in the queue; above all numbers when it is empty. Each part is in order.
func (q *progressQueue) oldest() uint64 {
	least := q.number + 1
	for _, part := range []*fifo[queued]{&q.steps, &q.signs, &q.unacked} {
		if part.len() > 0 {
			least = min(least, part.at(0).number)
		}
	}
	return least
}

func (q *progressQueue) announce() {
	if q.changed != nil {
		close(q.changed)
		q.changed = nil
	}
}

// size is the number of events that wait, and of those dropped ever.
func (q *progressQueue) size() (waiting int, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.steps.len() + q.signs.len() + q.unacked.len(), q.dropped
}

// wake puts a token into a channel of one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
