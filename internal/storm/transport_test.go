package storm

import (
	"fmt"
	"hash/fnv"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"
)

type kind uint8

const (
	hello kind = iota
	changes
	begin
	chunk
	end
	digest
	eof // the stream is over, as the oracle's side sees it
)

// message is one on its way to the oracle. Messages are never changed once made.
type message struct {
	kind   kind
	seq    uint64
	ops    []oracle.Op // changes, chunk
	tier   fleet.Tier  // digest
	count  uint64      // end
	state  state       // the engine's, at the moment it speaks of
	isLame bool        // something is missing in it, or in the snapshot that it ends
}

func (m *message) words(g *naming) string {
	switch m.kind {
	case hello:
		return fmt.Sprintf("hello, next %d", m.seq)
	case changes:
		return fmt.Sprintf("batch %d: %s", m.seq, words(g, m.ops))
	case begin:
		return fmt.Sprintf("snapshot of %d begins", m.seq)
	case chunk:
		return fmt.Sprintf("snapshot chunk with %d stores", len(m.ops))
	case end:
		return fmt.Sprintf("snapshot of %d ends, %d blocks", m.seq, m.count)
	case digest:
		return fmt.Sprintf("digest at %d of %v: %d blocks", m.seq, m.tier, m.state.count(m.tier))
	case eof:
		return "end of stream"
	default:
		return "?"
	}
}

// print is the fingerprint of a batch, as the wire would make it: of the contents alone.
func (m *message) print() uint64 {
	h := fnv.New64a()
	for i := range m.ops {
		op := &m.ops[i]
		_, _ = fmt.Fprint(h, op.Kind, op.Tier, op.AllTier, op.IsRoot, op.Parent, op.Locals, op.IDs, ";")
	}
	return h.Sum64()
}

// answer is one on its way to the reporter; exactly one field is set.
type answer struct {
	accepted *oracle.Accepted
	ack      *oracle.Ack
	resync   *oracle.Resync
	over     error
}

// conn is one stream. Either side may think it over before the other does.
type conn struct {
	id      int
	by      *reporter
	up      []message
	down    []answer
	session *oracle.BlockSession // nil until the hello has come
	applier *wire.Applier        // of messages that come off the wire; else nil
	isLeft  bool                 // the reporter is gone from it
	isOver  bool                 // the oracle is
	stalled int                  // steps until it moves again

	building    *contents // twin of the snapshot under way
	buildingSeq uint64
	isVoid      bool   // the oracle has dropped it, and its end is still to come
	snapshots   uint64 // swapped in so far
}

// shadow is what the oracle must believe of a rank: the reports it has said it applied, and nothing else.
type shadow struct {
	isKnown   bool // a stream was opened in this life
	publisher *reporter
	told      contents
	isShown   bool // it has a view
	isOwed    bool // it has asked for a snapshot that has not come
	// ignored is when the first message came since then that was of no snapshot; zero: none has.
	ignored   time.Time
	applied   uint64
	isSuspect bool // told is not a state the engine ever had: an injected fault that only a digest can find
	isOpen    bool
	cutAt     time.Time // end of the last stream
	doubtedAt time.Time // last snapshot asked for because a digest differed while blocks had been given up
}
