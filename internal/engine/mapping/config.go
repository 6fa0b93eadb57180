package mapping

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/edge"
	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Sink is told what one rank holds. Every call adds or takes one copy of each block: the picture behind it must count.
type Sink interface {
	edge.Contents

	// Clear empties a tier.
	Clear(tier fleet.Tier)
	// ClearAll empties all.
	ClearAll()
}

// Config is what a Mapper must know that events do not say.
type Config struct {
	// Engine is who publishes; EngineUnknown: conclude it from what comes.
	Engine kvevents.Engine
	// Model, BlockSize and Secret are of the worker, as in block.Identity.
	Model     string
	BlockSize int
	Secret    string
	// LoRANames are names of adapters that old engines tell by their number only.
	LoRANames map[int64]string
	// LoRARevisions are revisions of adapters by name, where gateways ask for them.
	LoRARevisions map[string]string
	// RootParents are parent hashes that stand for the prompt's start.
	RootParents []uint64
	// Storage: believe what vLLM says of disks and file systems. It never says when that goes.
	Storage bool
	// Names bounds the engine hashes that are known at a time, Waiting those of them whose place is not; 0: 1 Mi and 64 Ki.
	Names, Waiting int
}

func (c *Config) identity() block.Identity {
	return block.Identity{Model: c.Model, BlockSize: c.BlockSize, Secret: c.Secret}
}

// Reason is why blocks were left out.
type Reason uint8

// The reasons.
const (
	// OtherGroup: an attention group that is no prefix, or not the one that was chosen.
	OtherGroup Reason = iota
	// UnknownGroup: a group of which nothing is known.
	UnknownGroup
	// SmallWindow: a pool of a smaller attention window (TensorRT-LLM).
	SmallWindow
	// OtherSize: not of the worker's block size: partial blocks, chunks of a connector.
	OtherSize
	// Uneven: not as many tokens as the hashes want.
	Uneven
	// NamelessLoRA: an adapter whose name is not known.
	NamelessLoRA
	// Embeds: a prompt of embeddings.
	Embeds
	// PlacelessItem: a multimodal item that does not say where it begins, or something nobody knows in a block's hash.
	PlacelessItem
	// OtherMedium: a medium nobody knows.
	OtherMedium
	// NotOwn: remote, owned by a store, or of a pool.
	NotOwn
	// Endless: copies whose end would never be told.
	Endless
	// Parentless: stored with tokens and without a parent.
	Parentless
	// WaitingFull: too many wait for their parent already.
	WaitingFull
	// NamesFull: too many names.
	NamesFull
	// Conflict: a hash that stands for something else, or its own parent.
	Conflict

	// NumReasons is the number of reasons.
	NumReasons = iota
)

// String is the reason as a label of a metric.
func (r Reason) String() string {
	names := [NumReasons]string{
		"other_group", "unknown_group", "small_window", "other_size", "uneven", "nameless_lora", "embeds", "placeless_item",
		"other_medium", "not_own", "endless", "parentless", "waiting_full", "names_full", "conflict",
	}
	if int(r) < len(names) {
		return names[r]
	}
	return "unknown"
}

// Stats counts what a Mapper has done. Blocks are counted once for each time they were told.
type Stats struct {
	// Batches applied, and Events in them that were understood.
	Batches, Events uint64
	// Stored blocks told with what they hold; Copies told without.
	Stored, Copies uint64
	// Repeated of these changed nothing; Orphans had no place when they were told.
	Repeated, Orphans uint64
	// Removed blocks told; UnknownRemovals of them were not held.
	Removed, UnknownRemovals uint64
	// Clears told, and Resets by lives that began.
	Clears, Resets uint64
	// LeftOut blocks by reason; an event without hashes counts as one.
	LeftOut [NumReasons]uint64
	// Counts of what the decoder left out.
	UnknownEvents, UnknownFields, BadEvents, LostRemovals uint64
	// RankMismatches are batches that name another rank than the first of their stream did.
	RankMismatches uint64
}

// Outcome is what a batch means for the trust in the picture.
type Outcome struct {
	// IsWhole: the batch emptied everything, so that the picture no longer depends on what came before it.
	IsWhole bool
	// IsDoubtful: something that may have been a removal was not understood.
	IsDoubtful bool
}
