package client

import (
	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// outbox is the way of a reporter's changes to the oracle: pending, then sealed into numbered batches, then acknowledged.
//
// Every change has a mark, counting up. Invariants:
//   - a change with mark > acked is in pending or sealed, or covered by a snapshot that is under way or needed: nothing
//     is lost in silence;
//   - sealed batches have consecutive sequences that end at next-1;
//   - bytes (pending and sealed) stays within limit: beyond it everything is dropped and a snapshot is needed;
//   - while a snapshot is needed nothing is kept, because it will show the changes anyway.
//
// Sequences are given when a batch or a snapshot is made, and a snapshot has one of its own: an acknowledgement of it
// can mean nothing else. Guarded by Reporter.mu.
type outbox struct {
	limit int

	pending fifo[change]
	sealed  fifo[batch]
	sent    int // batches at the front of sealed that were sent on the current stream
	bytes   int

	next    uint64 // sequence of the next batch or snapshot
	mark    uint64 // newest change
	acked   uint64 // changes up to this mark are in effect at the oracle
	barrier bool   // somebody waits for an acknowledgement: seal even if nothing is pending

	needSnapshot bool
	showing      uint64 // sequence of the snapshot that is not acknowledged; 0: none
	showingMark  uint64
	overflows    uint64
}

// change is one operation. Its ids are its own.
type change struct {
	kind   changeKind
	parent Parent // of a store
	ids    []uint64
	tier   Tier // of a clear: unspecified means all
	mark   uint64
}

type changeKind uint8

const (
	changeStore changeKind = iota
	changeRemove
	changeClear
)

// batch is what goes out as one message, with the digests that hold after it.
type batch struct {
	msg     *kvoraclev1.BlockBatch
	digests []*kvoraclev1.BlockDigest
	mark    uint64
	bytes   int
}

// put records a change. ids become the outbox's own.
func (o *outbox) put(kind changeKind, parent Parent, ids []uint64, tier Tier) {
	o.mark++
	if o.needSnapshot {
		return
	}
	if o.pending.len() > 0 && o.pending.back().follow(kind, parent, ids, tier) {
		o.pending.back().mark = o.mark
		o.bytes += 8 * len(ids)
	} else {
		for len(ids) > maxOpBlocks {
			o.push(change{kind, parent, ids[:maxOpBlocks:maxOpBlocks], tier, o.mark - 1})
			parent, ids = After(block.ID(ids[maxOpBlocks-1])), ids[maxOpBlocks:]
		}
		o.push(change{kind, parent, ids, tier, o.mark})
	}
	if o.bytes > o.limit {
		o.overflows++
		o.next++ // the batch that is lost; a gap even for an oracle that has heard nothing yet
		o.giveUp()
	}
}

func (o *outbox) push(c change) {
	o.pending.push(c)
	o.bytes += opBytes(len(c.ids))
}

// follow adds to the newest change what continues it, as engines that report block by block do.
func (c *change) follow(kind changeKind, parent Parent, ids []uint64, tier Tier) bool {
	if c.kind != kind || c.tier != tier || len(c.ids)+len(ids) > maxOpBlocks {
		return false
	}
	switch kind {
	case changeStore:
		if parent.kind != blockParent || uint64(parent.id) != c.ids[len(c.ids)-1] {
			return false
		}
	case changeRemove:
	case changeClear:
		return true
	default:
		return false
	}
	c.ids = append(c.ids, ids...)
	return true
}

// giveUp drops everything for a snapshot to come.
func (o *outbox) giveUp() {
	o.pending.clear()
	o.sealed.clear()
	o.bytes, o.sent, o.showing = 0, 0, 0
	o.needSnapshot = true
}

// seal makes a batch of at most maxBytes from the oldest changes, as far as one block fits, and returns it as one that is
// sent. There must be changes or a barrier.
func (o *outbox) seal(maxBytes int) *batch {
	b := batch{msg: &kvoraclev1.BlockBatch{Sequence: o.next}, mark: o.acked}
	o.next++
	room := maxBytes - messageBytes
	for o.pending.len() > 0 && len(b.msg.GetOps()) < maxOps {
		c := o.pending.front()
		n := min(len(c.ids), max((room-opBytes(0))/8, 0))
		if n == len(c.ids) && room >= opBytes(n) {
			b.add(c.op(n))
			b.bytes += opBytes(n)
			b.mark = c.mark
			room -= opBytes(n)
			o.pending.pop()
			continue
		}
		if len(b.msg.GetOps()) == 0 {
			// The first one is cut rather than left, or a small limit would stop everything.
			n = min(max(n, 1), len(c.ids))
			b.add(c.op(n))
			b.bytes += opBytes(n)
			o.bytes += opBytes(n) - 8*n // the rest is an operation of its own
			c.drop(n)
		}
		break
	}
	if o.pending.len() == 0 {
		b.mark = o.mark
		o.barrier = false
	}
	o.sealed.push(b)
	o.sent = o.sealed.len()
	return o.sealed.back()
}

func (b *batch) add(op *kvoraclev1.BlockOp) { b.msg.Ops = append(b.msg.GetOps(), op) }

// op is the change's first n blocks on the wire.
func (c *change) op(n int) *kvoraclev1.BlockOp {
	ids := c.ids[:n:n]
	switch c.kind {
	case changeRemove:
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{
			Remove: &kvoraclev1.RemoveBlocks{BlockIds: ids, Tier: c.tier},
		}}
	case changeClear:
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Clear{Clear: &kvoraclev1.ClearBlocks{Tier: c.tier}}}
	case changeStore:
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: storeOf(c.parent, ids, c.tier)}}
	default:
		return &kvoraclev1.BlockOp{}
	}
}

// drop takes the first n blocks off.
func (c *change) drop(n int) {
	c.parent = After(block.ID(c.ids[n-1]))
	c.ids = c.ids[n:]
}

// unsent is the oldest batch that was not sent on the current stream, now counted as sent; nil if there is none.
func (o *outbox) unsent() *batch {
	if o.sent >= o.sealed.len() {
		return nil
	}
	o.sent++
	return &o.sealed.items[o.sealed.head+o.sent-1]
}

// hasWork reports whether seal has something to do.
func (o *outbox) hasWork() bool { return o.pending.len() > 0 || o.barrier }

// ack takes an acknowledgement in. One of a sequence that was never given out is somebody else's.
func (o *outbox) ack(sequence uint64) {
	if sequence >= o.next {
		return
	}
	for o.sealed.len() > 0 && o.sealed.at(0).msg.GetSequence() <= sequence {
		b := o.sealed.pop()
		o.bytes -= b.bytes
		o.sent = max(o.sent-1, 0)
		o.acked = max(o.acked, b.mark)
	}
	if o.showing != 0 && o.showing <= sequence {
		o.acked = max(o.acked, o.showingMark)
		o.showing = 0
	}
}

// resume goes on at the sequence an oracle asks for on a new stream.
func (o *outbox) resume(from uint64, snapshotRequired bool) {
	o.sent = 0
	if snapshotRequired || from == 0 || from > o.next {
		// It counts further than we do if it heard another reporter of this incarnation; our numbers must be above.
		o.next = max(o.next, from)
		o.giveUp()
		return
	}
	o.ack(from - 1)
	kept := o.next
	if o.sealed.len() > 0 {
		kept = o.sealed.at(0).msg.GetSequence()
	}
	// Whoever stands before a snapshot that was not acknowledged wants its sequence, and no batch has that.
	if kept != from {
		o.giveUp()
	}
}

// show numbers a snapshot of this moment, which stands for every change up to now.
func (o *outbox) show() (sequence uint64) {
	o.giveUp()
	o.needSnapshot, o.barrier = false, false
	o.showing, o.showingMark = o.next, o.mark
	o.next++
	return o.showing
}
