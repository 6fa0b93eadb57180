package zmtp

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// counters are those of Stats that the receive queue does not count.
type counters struct {
	filtered, sent, sentBytes, sendDropped   atomic.Uint64
	connects, disconnects, failures, refused atomic.Uint64
	violations, ignored, timeouts            atomic.Uint64
}

// Recv returns the next message or event. It waits until there is one, ctx ends (ctx.Err) or the socket is closed
// (ErrClosed). A PUB has none (ErrDirection).
func (s *Socket) Recv(ctx context.Context) (Delivery, error) {
	if s.cfg.Type == PUB {
		return Delivery{}, ErrDirection
	}
	return s.in.take(ctx)
}

// Send queues a message of at least one frame. It keeps none of the memory it is given.
//
// PUB never waits: every subscriber whose topics fit gets it, or loses it if that subscriber's queue is full. DEALER gives it
// to the next of its peers that has room, and waits while there is none. ROUTER takes the first frame for the receiver's
// identity, and waits for room there; ErrNoPeer if nobody has this identity. Waiting ends with ctx (ctx.Err) and with the
// socket (ErrClosed). What waits to be sent when a connection ends is lost.
func (s *Socket) Send(ctx context.Context, frames [][]byte) error {
	select {
	case <-s.closed:
		return ErrClosed
	default:
	}
	least := 1
	if s.cfg.Type == ROUTER {
		least = 2
	}
	if len(frames) < least || len(frames) > s.cfg.MaxFrames {
		return fmt.Errorf("%w: got %d frames, want %d to %d", ErrMessage, len(frames), least, s.cfg.MaxFrames)
	}
	switch s.cfg.Type {
	case SUB:
	case PUB:
		s.publish(frames)
		return nil
	case DEALER:
		wire := encodeMessage(frames)
		return s.until(ctx, func() (bool, error) { return s.deal(wire), nil })
	case ROUTER:
		wire := encodeMessage(frames[1:])
		return s.until(ctx, func() (bool, error) { return s.route(string(frames[0]), wire) })
	}
	return ErrDirection
}

// Flush waits until everything that Send has queued is handed to the system, or lost with its connection.
func (s *Socket) Flush(ctx context.Context) error {
	return s.until(ctx, func() (bool, error) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		for _, c := range s.peers {
			if c.out.waiting() > 0 {
				return false, nil
			}
		}
		return true, nil
	})
}

// WaitPeers waits until at least n peers are there: for a PUB those that have subscribed to something, for others all that
// are connected.
func (s *Socket) WaitPeers(ctx context.Context, n int) error {
	return s.until(ctx, func() (bool, error) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		there := 0
		for _, c := range s.peers {
			if s.cfg.Type != PUB || c.topics.any() {
				there++
			}
		}
		return there >= n, nil
	})
}

// until tries at every change.
func (s *Socket) until(ctx context.Context, try func() (bool, error)) error {
	for {
		if done, err := try(); done || err != nil {
			return err
		}
		change := s.changes.wait()
		if done, err := try(); done || err != nil {
			return err
		}
		select {
		case <-change:
		case <-s.closed:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// publish offers a message to every subscriber that wants it; they share its bytes on the wire.
func (s *Socket) publish(frames [][]byte) {
	var wire []byte
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.peers {
		if !c.topics.match(frames[0]) {
			continue
		}
		if wire == nil {
			wire = encodeMessage(frames)
		}
		if c.out.offer(wire) {
			s.sent(wire)
		} else {
			s.count.sendDropped.Add(1)
		}
	}
}

// deal offers a message to the peers in turn.
func (s *Socket) deal(wire []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range s.peers {
		s.turn = (s.turn + 1) % len(s.peers)
		if s.peers[s.turn].out.offer(wire) {
			s.sent(wire)
			return true
		}
	}
	return false
}

// route offers a message to the peer of that identity.
func (s *Socket) route(identity string, wire []byte) (bool, error) {
	s.mu.RLock()
	c := s.identities[identity]
	s.mu.RUnlock()
	if c == nil {
		return false, ErrNoPeer
	}
	if !c.out.offer(wire) {
		return false, nil
	}
	s.sent(wire)
	return true, nil
}

func (s *Socket) sent(wire []byte) {
	s.count.sent.Add(1)
	s.count.sentBytes.Add(uint64(len(wire)))
}

// failed counts an attempt that did not become a connection.
func (s *Socket) failed(err error) {
	s.count.failures.Add(1)
	s.ended(err)
}

// ended counts why a connection ended.
func (s *Socket) ended(err error) {
	switch {
	case errors.Is(err, errProtocol):
		s.count.violations.Add(1)
	case errors.Is(err, errSilent):
		s.count.timeouts.Add(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastErr = err
}

// Stats returns what has been counted. Numbers that belong together may be a few events apart.
func (s *Socket) Stats() Stats {
	n := &s.count
	st := Stats{
		Filtered: n.filtered.Load(),
		Sent:     n.sent.Load(), SentBytes: n.sentBytes.Load(), SendDropped: n.sendDropped.Load(),
		Connects: n.connects.Load(), Disconnects: n.disconnects.Load(), Failures: n.failures.Load(), Refused: n.refused.Load(),
		Violations: n.violations.Load(), Ignored: n.ignored.Load(), Timeouts: n.timeouts.Load(),
	}
	s.in.count(&st)
	s.mu.RLock()
	defer s.mu.RUnlock()
	st.Peers, st.LastError = len(s.peers), s.lastErr
	return st
}
