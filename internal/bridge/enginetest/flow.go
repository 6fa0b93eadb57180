package enginetest

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Flow is a rank that is always busy, for measurements: it computes one endless family of prompts, evicts as much as it
// stores once it is full, and keeps nothing but the names of what it holds.
type Flow struct {
	size, holds, chain int
	rank               int

	next   uint64     // seed of the next block's name
	held   []block.ID // oldest first
	parent block.ID
	depth  int // of the present prompt
	tokens []uint32
	events []event
}

// NewFlow makes one that holds so many blocks of size tokens, in prompts of chain blocks.
func NewFlow(rank, size, holds, chain int) *Flow {
	return &Flow{rank: rank, size: size, holds: holds, chain: chain, next: uint64(rank) << 40}
}

// Next is a batch of so many events: half of them store a block, and half remove one once the rank is full.
func (f *Flow) Next(events int) []byte {
	f.events, f.tokens = f.events[:0], f.tokens[:0]
	for len(f.events) < events {
		if len(f.held) >= f.holds {
			f.events = append(f.events, event{removed: f.held[:1:1]})
			f.held = f.held[1:]
			if len(f.events) == events {
				break
			}
		}
		f.next++
		from := len(f.tokens)
		for i := range f.size {
			f.tokens = append(f.tokens, uint32(f.next)*uint32(i+7)%100_000)
		}
		// Odd multiples do not meet within 2^64.
		e := event{stored: []block.ID{block.ID(f.next * 0x9e3779b97f4a7c15)}, tokens: f.tokens[from:len(f.tokens):len(f.tokens)]}
		if e.isRoot = f.depth == 0; !e.isRoot {
			e.parent = f.parent
		}
		f.parent, f.depth = e.stored[0], (f.depth+1)%f.chain
		f.held = append(f.held, f.parent)
		f.events = append(f.events, e)
	}
	return payload(f.events, f.size, f.rank, true, time.Now())
}
