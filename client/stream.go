package client

import (
	"context"
	"errors"
	"time"
)

// errGoAway is why we ended a stream that the oracle asked us to leave.
var errGoAway = errors.New("asked to go away")

const (
	// closeGrace bounds how long a stream that was asked to go away may take to end.
	closeGrace = 5 * time.Second
	// sendGrace bounds the wait for the status of a stream on which a Send has failed.
	sendGrace = time.Second
)

// news decides whether an end is worth a line: one of a stream that had worked is, of tries that fail only the first.
type news struct{ isTold bool }

func (n *news) is(worked bool) bool {
	told := n.isTold && !worked
	n.isTold = true
	return !told
}

// ear is the reading side of a stream: a goroutine of its own, and how it ended.
type ear struct {
	done chan struct{} // closed at the end
	err  error         // why it ended; valid once done is closed
}

// hear reads a stream until read returns.
func hear(read func() error) *ear {
	e := &ear{done: make(chan struct{})}
	go func() {
		defer close(e.done)
		e.err = read()
	}()
	return e
}

// lastWord is why the stream has ended, asked after a Send on it failed: Send knows only that it did. A failed Send does
// not always end it: when the connection breaks early, the reading side may begin the call anew on another one
// (gRPC's transparent retry), and the stream then lives on without the message. Such a one is given up.
func (e *ear) lastWord(cancel context.CancelFunc) error {
	t := time.NewTimer(sendGrace)
	defer t.Stop()
	select {
	case <-e.done:
	case <-t.C:
		cancel()
		<-e.done
	}
	return e.err
}

// close gives the stream up and waits for its reader.
func (e *ear) close(cancel context.CancelFunc) {
	cancel()
	<-e.done
}
