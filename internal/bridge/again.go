package bridge

import (
	"context"
	"errors"
	"hash/maphash"

	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/engine/mapping"
	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// message is one published batch. It implements feed.Message.
type message struct {
	payload []byte
	sum     uint64
	account account
}

// account says what a batch is a part of.
type account uint8

const (
	accountNone  account = iota // the engine's events, as they happen
	accountPart                 // a list of all that is held
	accountWhole                // its end, with nothing left out
)

// seed is one for the process: sums are compared with those of earlier messages, and with nothing outside.
var seed = maphash.MakeSeed() //nolint:gochecknoglobals // a constant that the standard library makes at run time

func newMessage(payload []byte) message {
	return message{payload: payload, sum: maphash.Bytes(seed, payload)}
}

// Sum implements feed.Message. Batches hold the time, so that those of two lives differ even if all else is the same.
func (m message) Sum() uint64 { return m.sum }

// Size implements feed.Message.
func (m message) Size() int { return len(m.payload) + 64 }

// answer is a piece of a replay: a batch, its end, or why it ended before.
type answer struct {
	asked uint64 // which replay
	frame kvevents.Frame
	isEnd bool
	err   error
}

// askAgain asks an engine for every batch from one on, and hands on what it answers until its end or ctx's.
func askAgain(ctx context.Context, at string, asked, from uint64, to chan<- answer) {
	give := func(a answer) bool {
		a.asked = asked
		select {
		case to <- a:
			return true
		case <-ctx.Done():
			return false
		}
	}
	s, err := zmtp.Dial(ctx, zmtp.Config{Type: zmtp.DEALER, Endpoint: at, MaxMessage: maxMessage, QueueBytes: QueueBytes})
	if err != nil {
		give(answer{err: err})
		return
	}
	defer s.Close()
	sending, cancel := context.WithTimeout(ctx, replayIdle)
	err = s.Send(sending, kvevents.ReplayRequest(from))
	cancel()
	for err == nil {
		var d zmtp.Delivery
		waiting, cancel := context.WithTimeout(ctx, replayIdle)
		d, err = s.Recv(waiting)
		cancel()
		switch {
		case err != nil:
		case d.Event != nil:
			if d.Event.Kind == zmtp.Disconnected || d.Event.Kind == zmtp.Failed {
				err = errors.Join(errBroken, d.Event.Err)
			}
		default:
			var a answer
			if a.frame, a.isEnd, err = kvevents.ParseReplay(d.Message); err == nil && (!give(a) || a.isEnd) {
				return
			}
		}
	}
	give(answer{err: err})
}

var errBroken = errors.New("the connection ended")

// add sums up what mappers did.
func add(to *mapping.Stats, s mapping.Stats) {
	to.Batches += s.Batches
	to.Events += s.Events
	to.UnknownRemovals += s.UnknownRemovals
	to.UnknownEvents += s.UnknownEvents
	to.BadEvents += s.BadEvents
	to.LostRemovals += s.LostRemovals
	for i, n := range s.LeftOut {
		to.LeftOut[i] += n
	}
}

// dropped names what was left out.
func dropped(to map[string]uint64, s *mapping.Stats) {
	for reason, n := range map[string]uint64{
		"unknown_removal": s.UnknownRemovals, "unknown_event": s.UnknownEvents, "bad_event": s.BadEvents, "lost_removal": s.LostRemovals,
	} {
		if n > 0 {
			to[reason] += n
		}
	}
	for i, n := range s.LeftOut {
		if n > 0 {
			to[mapping.Reason(i).String()] += n
		}
	}
}
