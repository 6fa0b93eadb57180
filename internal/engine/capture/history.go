package capture

import (
	"context"
	"encoding/binary"
	"math"
	"sync"

	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// historyBytes bounds the batches kept for replays.
const historyBytes = 256 << 20

// history is what one publisher can send again: the last batches, in order, and the answers to who asks.
type history struct {
	steps int
	old   bool // replies without the topic

	mu      sync.Mutex
	batches []batch
	bytes   uint64
}

// batch is a message of an engine: topic, sequence number, payload.
type batch struct {
	seq    uint64
	frames [][]byte
}

// add keeps a message that is a batch. A number that does not rise is another life of the engine, which knows nothing of the
// one before.
func (h *history) add(frames [][]byte) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	b := batch{binary.BigEndian.Uint64(frames[1]), frames}
	if n := len(h.batches); n > 0 && b.seq <= h.batches[n-1].seq {
		h.batches, h.bytes = nil, 0
	}
	h.batches = append(h.batches, b)
	h.bytes += size(frames)
	gone := max(len(h.batches)-h.steps, 0)
	for i := range gone {
		h.bytes -= size(h.batches[i].frames)
	}
	for ; h.bytes > historyBytes && gone < len(h.batches)-1; gone++ {
		h.bytes -= size(h.batches[gone].frames)
	}
	clear(h.batches[:gone])
	h.batches = h.batches[gone:]
}

// since is a copy of the batches from a number on.
func (h *history) since(seq uint64) []batch {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []batch
	for _, b := range h.batches {
		if b.seq >= seq {
			out = append(out, b)
		}
	}
	return out
}

// answer serves replays: a request is an empty frame and a number, the reply is every batch from it on, each a message, and
// an end marker. Other requests are ignored, as engines do.
func (h *history) answer(ctx context.Context, s *zmtp.Socket) {
	for {
		d, err := s.Recv(ctx)
		if err != nil {
			return
		}
		m := d.Message
		if len(m) != 3 || len(m[1]) != 0 || len(m[2]) != 8 {
			continue
		}
		last := batch{math.MaxUint64, [][]byte{nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil}}
		for _, b := range append(h.since(binary.BigEndian.Uint64(m[2])), last) {
			frames := [][]byte{m[0], nil}
			if h.old {
				frames = append(frames, b.frames[1:]...)
			} else {
				frames = append(frames, b.frames...)
			}
			if err := s.Send(ctx, frames); err != nil {
				break // who asked has left, or it is over, which Recv says
			}
		}
	}
}
