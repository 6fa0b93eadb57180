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
)

// Content is the form in which a store names its blocks.
type Content uint8

// The forms.
const (
	ContentIDs Content = iota
	ContentLocals
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

	Refusal Refusal // OpRefused
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
)

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
