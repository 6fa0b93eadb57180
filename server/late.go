package server

import (
	"context"
	"sync"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/replica"
)

// mostLate is how many messages of one reporter may be on their way to the other replicas. Then it is read no further.
const mostLate = 64

// lateAcks are the acks of one reporter that wait until what they acknowledge is in the replicas' log. A service of one has
// none: its zero value never ends and takes nothing.
type lateAcks struct {
	queue chan lateAck
	halt  chan struct{}
	ended chan struct{} // closed when nothing more is sent
	err   error         // why; read it after ended

	stop func() // ends the sending and waits for its end; may be called again
}

type lateAck struct {
	ack     oracle.Ack
	receipt replica.Receipt
}

// answerLate begins to send acks as they come due, in order.
func (b *blockStream) answerLate(ctx context.Context) *lateAcks {
	l := &lateAcks{stop: func() {}}
	if b.relay == nil {
		return l
	}
	l.queue, l.halt, l.ended = make(chan lateAck, mostLate), make(chan struct{}), make(chan struct{})
	l.stop = sync.OnceFunc(func() {
		close(l.halt)
		<-l.ended
	})
	go func() {
		defer close(l.ended)
		l.err = b.r.s.rescuedLoop(ctx, func() error { return l.send(ctx, b) })
	}()
	return l
}

// send sends what is queued until that is finished, or halted.
func (l *lateAcks) send(ctx context.Context, b *blockStream) error {
	for {
		select {
		case x, isMore := <-l.queue:
			if !isMore {
				return nil
			}
			x.receipt.Wait(l.halt)
			select {
			case <-l.halt:
				return nil
			default:
			}
			if err := b.send(ctx, &x.ack); err != nil {
				return err
			}
		case <-l.halt:
			return nil
		}
	}
}

// add queues an ack, unless nothing is sent any more.
func (l *lateAcks) add(ack oracle.Ack, receipt replica.Receipt) error {
	select {
	case l.queue <- lateAck{ack, receipt}:
	case <-l.ended:
	case <-l.halt:
	}
	return nil
}

// finish says that nothing is added any more: ended follows when all is sent.
func (l *lateAcks) finish() { close(l.queue) }
