package index

import "github.com/kvoracle/kvoracle/internal/block"

// Parent is what the first block of a store follows: the prompt's start or a block. The zero value is the block with
// id 0, not the start, so that a forgotten parent is an unknown one.
type Parent struct {
	ID     block.ID // unless IsRoot
	IsRoot bool
}

// Refusal is why a store was not applied, or not fully.
type Refusal uint8

// The refusals.
const (
	// None: it was applied.
	None Refusal = iota
	// SelfParent: the first block is its own parent. Nothing was applied.
	SelfParent
	// ParentConflict: a block that is held was named with another parent, or a block appears twice in the list with
	// different ones. Nothing was applied.
	ParentConflict
	// OrphansFull: the parent is not there and too many blocks wait for theirs already. Nothing was applied.
	OrphansFull
	// Capacity: the index is full and nobody has less reason to keep what it has. The first StoreResult.Stored + Repeated
	// blocks of the list were applied; the ledger is partial.
	Capacity
	// Dropped: the ledger was dropped, replaced or discarded. Nothing was applied.
	Dropped
)

// String gives the lower-case name.
func (r Refusal) String() string {
	switch r {
	case None:
		return "none"
	case SelfParent:
		return "self_parent"
	case ParentConflict:
		return "parent_conflict"
	case OrphansFull:
		return "orphans_full"
	case Capacity:
		return "capacity"
	case Dropped:
		return "dropped"
	default:
		return "unknown"
	}
}

// StoreResult says what became of a store.
type StoreResult struct {
	Stored   int // blocks that the tier did not have before
	Repeated int // blocks that it had; in a counted ledger each is one copy more
	Orphans  int // blocks that no tier had before and that are not connected to a prompt's start
	Refused  Refusal
}

// Digest sums up the blocks of a tier. Equal contents have equal digests; different ones differ almost surely. The first
// three are of distinct blocks; the other two tell a counted ledger that has lost a copy from one that has not.
type Digest struct {
	Count   uint64 // blocks
	XOR     uint64 // of their ids
	Sum     uint64 // of their ids modulo 2^64
	Copies  uint64 // of all blocks; Count where copies are not counted
	CopySum uint64 // of their ids, each as often as it has copies, modulo 2^64
}

// add takes in the first copy of a block.
func (d *Digest) add(id block.ID) {
	d.Count++
	d.XOR ^= uint64(id)
	d.Sum += uint64(id)
	d.another(id)
}

// another takes in a further copy.
func (d *Digest) another(id block.ID) {
	d.Copies++
	d.CopySum += uint64(id)
}

// fewer takes out n copies, not the last one.
func (d *Digest) fewer(id block.ID, n uint16) {
	d.Copies -= uint64(n)
	d.CopySum -= uint64(n) * uint64(id)
}

// remove takes out a block with the copies it still has.
func (d *Digest) remove(id block.ID, copies uint16) {
	d.Count--
	d.XOR ^= uint64(id)
	d.Sum -= uint64(id)
	d.fewer(id, copies)
}
