package server

import (
	"context"
	"io"
	"math/rand/v2"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// inbox is a long stream whose messages are handled where they are read, in a goroutine of their own, so that none is handed
// from one goroutine to another; the stream's handler waits meanwhile for everything else.
type inbox struct {
	// over gives what ended the messages, once: nil after a half-close.
	over <-chan error

	// turn is full while a message is handled or sent: gRPC sends one at a time. Who waits may wait for a peer that does not
	// read, until the drain cuts it.
	turn     chan struct{}
	isClosed bool
}

// readEach begins to read. handle is called with one message at a time, its error ends the reading, and a panic is an error
// as in a handler. The goroutine ends with the messages or with the stream, which gRPC ends when the handler returns.
func readEach[M any](ctx context.Context, s *Server, recv func() (M, error), handle func(M) error) *inbox {
	over := make(chan error, 1)
	in := &inbox{over: over, turn: make(chan struct{}, 1)}
	one := func(m M) error {
		in.turn <- struct{}{}
		defer in.release()
		if in.isClosed {
			return io.EOF // nobody asks
		}
		return handle(m)
	}
	go func() {
		over <- s.rescuedLoop(ctx, func() error {
			for {
				m, err := recv()
				if err != nil {
					return ended(err)
				}
				if err := one(m); err != nil {
					return err
				}
			}
		})
	}()
	return in
}

func (in *inbox) release() { <-in.turn }

// send sends when no message is being handled.
func (in *inbox) send(f func() error) error {
	in.turn <- struct{}{}
	defer in.release()
	return f()
}

// close waits for the message that is being handled, and lets no other be. Every handler calls it before it returns.
func (in *inbox) close() {
	in.turn <- struct{}{}
	defer in.release()
	in.isClosed = true
}

// farewell is how long a long stream may go on after the server said it is going.
const farewell = time.Second

// leave lets one long stream take part in the server's drain: going fires once, over a farewell later.
type leave struct {
	going <-chan struct{}
	over  <-chan time.Time
	timer *time.Timer
}

func (s *Server) leaving() *leave { return &leave{going: s.going} }

// notice is the message to send when going has fired. Peers come back spread over half a second.
func (l *leave) notice() *kvoraclev1.GoAway {
	l.going = nil
	l.timer = time.NewTimer(farewell)
	l.over = l.timer.C
	return &kvoraclev1.GoAway{Reason: "draining", ReconnectAfterMs: 50 + rand.Uint32N(450)}
}

func (l *leave) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}
