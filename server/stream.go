package server

import (
	"context"
	"math/rand/v2"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// received is one message of a peer, or the end of them.
type received[M any] struct {
	value M
	err   error
	at    time.Time
}

// isEnd says that there is no message and none will follow. What a closed channel gives is an end too.
func (m received[M]) isEnd() bool { return m.err != nil || m.at.IsZero() }

// receive reads a stream's messages in a goroutine of their own, so that the handler can wait for other things too. The
// goroutine ends with the messages or with the stream's context, which grpc cancels when the handler returns; the channel
// is closed then, so that a handler still waiting is not left behind. At most one message is read ahead: flow control
// goes on holding back a peer that is too fast.
func receive[M any](ctx context.Context, recv func() (M, error)) <-chan received[M] {
	out := make(chan received[M])
	go func() {
		defer close(out)
		for {
			m, err := recv()
			select {
			case out <- received[M]{m, err, time.Now()}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
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
