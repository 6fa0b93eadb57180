package oracle

import (
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/edge"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// maxRefusals bounds the refusals named in one ack; the counters have them all.
const maxRefusals = 16

// apply runs the operations in order on one ledger and says whether the view can no longer be trusted. isCut is the
// view's mark that something of it was refused.
func (s *BlockSession) apply(l *index.Ledger, n *edge.Translator, isCut *bool, seq uint64, ops []Op, d *BlockCounters) ([]Refusal, ResyncReason) {
	var refusals []Refusal
	resync := ResyncNone
	for i := range ops {
		op := &ops[i]
		r := op.Refusal
		if r.Reason == RefusalNone {
			r = s.checkNames(op)
		}
		switch {
		case r.Reason != RefusalNone && n != nil:
			remember(n, op)
		case r.Reason != RefusalNone:
		case op.Kind == OpStore && n != nil:
			r = s.storeByHash(l, n, op, d)
		case op.Kind == OpStore:
			r = s.store(l, op, d)
		case op.Kind == OpRemove && n != nil:
			d.UnknownRemovals += uint64(n.Remove(op.Hashes, op.Tier, &named{s: s, l: l, d: d}))
		case op.Kind == OpRemove:
			removed, unknown := l.Remove(op.IDs, op.Tier)
			d.Removed += uint64(removed)
			d.UnknownRemovals += uint64(unknown)
			s.evicted(op.IDs, op.Tier)
		case op.Kind == OpClear:
			if n != nil {
				clearNames(n, op)
			}
			if op.AllTier {
				d.Removed += uint64(l.ClearAll())
				*isCut = false
			} else {
				d.Removed += uint64(l.Clear(op.Tier))
			}
			if op.AllTier || op.Tier == fleet.Device {
				s.f.o.guesses.cleared(s.f.target)
				s.f.eldest.Store(0) // there is room again
				s.f.forgetApprox(asText)
			}
		}
		if r.Reason == RefusalNone {
			if op.Kind == OpOther {
				d.OtherGroupOps++
				continue
			}
			d.AppliedOps++
			continue
		}
		d.refuse(r.Reason)
		*isCut = *isCut || shortens(r.Reason)
		if r.Reason == RefusalOrphansFull {
			resync = ResyncOrphansFull
		}
		r.Sequence, r.Op = seq, i
		if len(refusals) == maxRefusals {
			refusals = refusals[1:]
		}
		refusals = append(refusals, r)
	}
	return refusals, resync
}

// evicted notes blocks that are no longer held.
func (s *BlockSession) evicted(ids []block.ID, tier fleet.Tier) {
	o := s.f.o
	s.marks = appendMarked(s.marks[:0], ids, s.identity.BlockSize)
	o.evicted(s.f, s.marks, tier, s.heardAt)
	if tier == fleet.Device {
		o.guesses.evicted(s.f.target, ids)
	}
}

// shortens says whether a reporter that takes no notice of such a refusal may sum up something else than the oracle: what
// there is no room for is remembered, and what belongs to no tier or group that is known is in no digest.
func shortens(r RefusalReason) bool {
	return r != RefusalCapacity && r != RefusalTier && r != RefusalGroup
}

func (s *BlockSession) store(l *index.Ledger, op *Op, d *BlockCounters) Refusal {
	ids, isRoot := op.IDs, op.IsRoot || slices.Contains(s.roots, uint64(op.Parent))
	if op.Content == ContentLocals {
		s.scratch = s.scratch[:0]
		if isRoot {
			s.scratch = block.AppendChain(s.scratch, s.keyspace(op), op.Locals)
		} else {
			s.scratch = block.AppendChainAfter(s.scratch, op.Parent, op.Locals)
		}
		ids = s.scratch
	}
	res := l.Store(index.Parent{ID: op.Parent, IsRoot: isRoot}, ids, op.Tier)
	d.count(&res)
	return refusalOf(res.Refused)
}

// keyspace is where a chain from the start of a prompt begins.
func (s *BlockSession) keyspace(op *Op) block.Keyspace {
	id := s.identity
	id.LoRAName, id.LoRARevision, id.CacheSalt = op.LoRAName, op.LoRARevision, op.CacheSalt
	return id.Keyspace()
}

// count adds what a store did.
func (c *BlockCounters) count(res *index.StoreResult) {
	c.Stored += uint64(res.Stored)
	c.RepeatedStores += uint64(res.Repeated)
	c.Orphans += uint64(res.Orphans)
}

// refusalOf puts the index's reason into the reporter's terms.
func refusalOf(r index.Refusal) Refusal {
	switch r {
	case index.None:
		return Refusal{}
	case index.SelfParent:
		return Refusal{Reason: RefusalParentConflict, Detail: "store: a block is its own parent"}
	case index.ParentConflict:
		return Refusal{Reason: RefusalParentConflict, Detail: "store: a held block is named with another parent"}
	case index.OrphansFull:
		return Refusal{Reason: RefusalOrphansFull, Detail: "store.parent_block_id: not held, and too many orphans wait already"}
	case index.Capacity:
		return Refusal{Reason: RefusalCapacity, Detail: "store: the index is at its memory limit"}
	case index.Dropped:
		return Refusal{Reason: RefusalAwaitingSnapshot, Detail: "store: what the target held was dropped meanwhile"}
	default:
		return Refusal{Reason: RefusalMalformed, Detail: "store: " + r.String()}
	}
}

// ack sums a message up and tells the observer. The feed is locked.
func (s *BlockSession) ack(d BlockCounters, refusals []Refusal, resync *Resync, now time.Time) Ack {
	f := s.f
	d.Evicted += f.evicted.since(f)
	s.counters.add(d)
	f.sign()
	f.o.obs.Blocks(d)
	return Ack{
		Applied:    f.applied,
		Confidence: f.confidence(now),
		Held:       heldBlocks(f.ledger),
		Counters:   s.counters,
		Refusals:   refusals,
		Awaiting:   f.awaiting,
		Resync:     resync,
	}
}
