package oracle

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Hello opens a block stream; see BlocksHello in the proto for the rules.
type Hello struct {
	Spec         fleet.Spec
	Rank         int
	Incarnation  uint64 // at least 1
	NextSequence uint64 // at least 1
	Counted      bool   // a repeated store is another copy
	EngineHashes bool   // blocks are named by the engine's own hashes, not by ids
	// Roots are parents (ids or engine hashes) that stand for a prompt's start.
	Roots []uint64
	// PrefixGroup is the attention group that counts as prefix, OtherGroups the rest of those the engine has.
	PrefixGroup uint32
	OtherGroups []uint32
	// IsReplayed: it comes out of a log, after a restart. What was restored may be newer than the hello, which then proves
	// nothing about the reporter. Its session ends by BlockSession.Rest.
	IsReplayed bool
}

// Accepted answers a Hello.
type Accepted struct {
	ResumeFrom       uint64
	SnapshotRequired bool
	Confidence       BlockConfidence
}

// OpKind tells the operations apart.
type OpKind uint8

// The operations.
const (
	OpRefused OpKind = iota // malformed at the door; carries its Refusal
	OpStore
	OpRemove
	OpClear
	OpOther // of a group that does not count as prefix: counted only
)

// String gives the field's name in the proto.
func (k OpKind) String() string {
	switch k {
	case OpStore:
		return "store"
	case OpRemove:
		return "remove"
	case OpClear:
		return "clear"
	case OpOther:
		return "other"
	case OpRefused:
		return "refused"
	default:
		return "unknown"
	}
}

// Content is the form in which a store names its blocks.
type Content uint8

// The forms.
const (
	ContentIDs Content = iota
	ContentLocals
	ContentNone // on a stream of engine hashes only
)

// Op is one change. Slices are only read during the call.
type Op struct {
	Kind    OpKind
	Tier    fleet.Tier
	AllTier bool // OpClear: every tier

	// OpStore. With IsRoot and ContentLocals the chain starts in the keyspace of LoRA, revision and salt.
	IsRoot                            bool
	Parent                            block.ID
	Content                           Content
	Locals                            []block.Local
	LoRAName, LoRARevision, CacheSalt string

	IDs []block.ID // OpStore with ContentIDs, OpRemove

	// OpStore, OpRemove on a stream of engine hashes: one for each block, and with HasParentHash the parent's.
	Hashes        []EngineHash
	ParentHash    EngineHash
	HasParentHash bool

	// OpRefused. Of a store for which the reporter has names it still has Tier and Hashes, as far as they could be read;
	// IsUnread: they could not.
	Refusal  Refusal
	IsUnread bool
}

// RefusalReason is why an operation was not applied. Numbers are those of the proto enum.
type RefusalReason uint8

// The reasons.
const (
	RefusalNone             RefusalReason = 0
	RefusalMalformed        RefusalReason = 1
	RefusalPartialBlock     RefusalReason = 2
	RefusalParentConflict   RefusalReason = 3
	RefusalOrphansFull      RefusalReason = 4
	RefusalCapacity         RefusalReason = 5
	RefusalGroup            RefusalReason = 6
	RefusalTier             RefusalReason = 7
	RefusalUnservedField    RefusalReason = 8
	RefusalDuplicateBatch   RefusalReason = 9
	RefusalAwaitingSnapshot RefusalReason = 10
	RefusalSnapshot         RefusalReason = 11
	RefusalHashConflict     RefusalReason = 12
	RefusalEngineHashesFull RefusalReason = 13

	numRefusals = 14
)

// String gives the lower-case name with underscores.
func (r RefusalReason) String() string {
	names := [numRefusals]string{
		"none", "malformed", "partial_block", "parent_conflict", "orphans_full", "capacity", "group", "tier",
		"unserved_field", "duplicate_batch", "awaiting_snapshot", "snapshot", "hash_conflict", "engine_hashes_full",
	}
	if int(r) >= len(names) {
		return "unknown"
	}
	return names[r]
}

// RefusalReasons lists all reasons, for tables that must be complete.
func RefusalReasons() []RefusalReason {
	out := make([]RefusalReason, 0, numRefusals-1)
	for r := RefusalNone + 1; r < numRefusals; r++ {
		out = append(out, r)
	}
	return out
}

// Refusal names one refused operation.
type Refusal struct {
	Sequence uint64
	Op       int
	Reason   RefusalReason
	Detail   string
}

// ResyncReason is what made the oracle ask for a snapshot. Numbers are those of the proto enum.
type ResyncReason uint8

// The reasons.
const (
	ResyncNone           ResyncReason = 0
	ResyncGap            ResyncReason = 1
	ResyncRenumbered     ResyncReason = 2
	ResyncDigestMismatch ResyncReason = 3
	ResyncOrphansFull    ResyncReason = 4
	ResyncBadSnapshot    ResyncReason = 5
	ResyncOperator       ResyncReason = 6
	ResyncOutcomes       ResyncReason = 7
	ResyncCapacity       ResyncReason = 8
)

// String gives the lower-case name with underscores.
func (r ResyncReason) String() string {
	switch r {
	case ResyncNone:
		return "none"
	case ResyncGap:
		return "gap"
	case ResyncRenumbered:
		return "renumbered"
	case ResyncDigestMismatch:
		return "digest_mismatch"
	case ResyncOrphansFull:
		return "orphans_full"
	case ResyncBadSnapshot:
		return "bad_snapshot"
	case ResyncOperator:
		return "operator"
	case ResyncOutcomes:
		return "outcomes"
	case ResyncCapacity:
		return "capacity"
	default:
		return "unknown"
	}
}

// Resync asks the reporter for a snapshot.
type Resync struct {
	Reason             ResyncReason
	Expected, Received uint64
}

// BlockCounters counts what became of a stream's operations.
type BlockCounters struct {
	Stored, RepeatedStores, Removed, UnknownRemovals, Orphans, RefusedOps    uint64
	DuplicateBatches, Gaps, IgnoredBatches                                   uint64
	DigestsMatched, DigestsMismatched, DigestsSkipped, Snapshots, AppliedOps uint64
	OtherGroupOps                                                            uint64

	Refusals [numRefusals]uint64 // RefusedOps by RefusalReason
	Evicted  uint64              // blocks given up for want of room, or not taken
}

func (c *BlockCounters) add(d BlockCounters) {
	c.Stored += d.Stored
	c.RepeatedStores += d.RepeatedStores
	c.Removed += d.Removed
	c.UnknownRemovals += d.UnknownRemovals
	c.Orphans += d.Orphans
	c.RefusedOps += d.RefusedOps
	c.DuplicateBatches += d.DuplicateBatches
	c.Gaps += d.Gaps
	c.IgnoredBatches += d.IgnoredBatches
	c.DigestsMatched += d.DigestsMatched
	c.DigestsMismatched += d.DigestsMismatched
	c.DigestsSkipped += d.DigestsSkipped
	c.Snapshots += d.Snapshots
	c.AppliedOps += d.AppliedOps
	c.OtherGroupOps += d.OtherGroupOps
	c.Evicted += d.Evicted
	for i, n := range d.Refusals {
		c.Refusals[i] += n
	}
}

// refuse counts one refused operation.
func (c *BlockCounters) refuse(r RefusalReason) {
	c.RefusedOps++
	if r < numRefusals {
		c.Refusals[r]++
	}
}

// Ack is what a reporter is told after each message.
type Ack struct {
	Applied    uint64
	Confidence BlockConfidence
	Held       int
	Counters   BlockCounters
	Refusals   []Refusal // newest, at most maxRefusals
	Awaiting   bool      // a snapshot was asked for and has not come
	Resync     *Resync   // it is asked for now; said once per cause
}
