package kvevents

import "errors"

// Engine is who publishes. It decides what a stream's events mean where the form does not.
type Engine uint8

// The engines.
const (
	// EngineUnknown: not told and not concluded yet.
	EngineUnknown Engine = iota
	// EngineVLLM is vLLM, and what publishes through it (LMCache's and offloading connectors).
	EngineVLLM
	// EngineSGLang is SGLang.
	EngineSGLang
	// EngineTRTLLM is TensorRT-LLM, streaming or JSON.
	EngineTRTLLM
	// EngineMooncake is a Mooncake master: a pool that belongs to no worker.
	EngineMooncake

	numEngines
)

// String is the name used in settings and metrics.
func (e Engine) String() string {
	switch e {
	case EngineUnknown, numEngines:
		return "auto"
	case EngineVLLM:
		return "vllm"
	case EngineSGLang:
		return "sglang"
	case EngineTRTLLM:
		return "trtllm"
	case EngineMooncake:
		return "mooncake"
	}
	return "auto"
}

// ParseEngine reads what [Engine.String] writes.
func ParseEngine(s string) (Engine, bool) {
	for e := range numEngines {
		if e.String() == s {
			return e, true
		}
	}
	return EngineUnknown, false
}

// Kind is what an event says.
type Kind uint8

// The kinds.
const (
	// Unsaid: the event has no tag. Never in a Batch.
	Unsaid Kind = iota
	// Stored: a chain of blocks got a copy.
	Stored
	// Removed: a copy of each block has gone.
	Removed
	// Cleared: everything has gone. Which tiers that means depends on the engine.
	Cleared
	// Moved: one block left tier From for tier Medium (TensorRT-LLM).
	Moved
	// Created: the sizes of the pools, in Capacities (TensorRT-LLM).
	Created

	numKinds // an event of a type that nobody knows; never in a Batch
)

// Medium is where a block lies.
type Medium uint8

// The media. Names are compared without regard to case.
const (
	// MediumUnsaid: not said, or said as nil. Engines mean the device by it; in TensorRT-LLM's removals it means every tier.
	MediumUnsaid Medium = iota
	// MediumDevice: GPU, DEVICE, HBM.
	MediumDevice
	// MediumHost: CPU, CPU_PINNED, CPU_TIER1, HOST.
	MediumHost
	// MediumDisk: DISK, NVME, SSD, STORAGE, FS, CPU_TIER2.
	MediumDisk
	// MediumShared: EXTERNAL, NETWORK, REMOTE, SHARED, OBJ.
	MediumShared
	// MediumUnknown: a name that is none of these.
	MediumUnknown
)

// GroupKind is what an attention group looks back on.
type GroupKind uint8

// The kinds of groups.
const (
	// GroupUnsaid: not said.
	GroupUnsaid GroupKind = iota
	// GroupFull: full_attention, mla_attention, sink_full_attention. The only kind whose blocks are a prefix.
	GroupFull
	// GroupWindow: sliding_window, sliding_window_mla, chunked_local_attention.
	GroupWindow
	// GroupState: mamba.
	GroupState
	// GroupOther: encoder, cross attention, and names nobody knows.
	GroupOther
)

// ParentKind says how much is known of what a chain follows.
type ParentKind uint8

// The kinds of parents.
const (
	// ParentUnknown: not said. Never to be taken for the prompt's start.
	ParentUnknown ParentKind = iota
	// ParentRoot: the prompt's start.
	ParentRoot
	// ParentBlock: the block in Event.Parent; 0 is a hash like any other.
	ParentBlock
)

// ExtraKind is what besides its tokens a block is made of.
type ExtraKind uint8

// The kinds of extras.
const (
	// ExtraItem: a multimodal item, and where its first placeholder is.
	ExtraItem ExtraKind = iota
	// ExtraBareItem: a multimodal item at a place that is not said. The block cannot be told from others.
	ExtraBareItem
	// ExtraEmbeds: a prompt given as embeddings; the tokens say nothing.
	ExtraEmbeds
	// ExtraUnknown: something nobody knows. The block cannot be told from others.
	ExtraUnknown

	extraText // a text whose meaning depends on what else the event says; never in a Batch
)

// Extra is one of them.
type Extra struct {
	// Kind says what it is.
	Kind ExtraKind
	// Block is the index in Event.Hashes of the block it belongs to.
	Block int32
	// Offset of the item's first placeholder from the block's first token; negative: it began before. Only with ExtraItem.
	Offset int64
	// ID is what the engine calls it by. Part of the payload.
	ID []byte
}

// Event is one change of one rank's cache.
type Event struct {
	// Kind is what it says.
	Kind Kind
	// Parent is what the first of Hashes follows, with ParentKind ParentBlock. Only with Stored.
	Parent uint64
	// ParentKind says what is known of it.
	ParentKind ParentKind
	// Hashes names the blocks. In a Stored, each follows the one before it.
	Hashes []uint64
	// Tokens are the blocks' token ids, one block after the other. Empty: not said. Check that there are BlockSize for
	// each of Hashes: groups that skip blocks list more.
	Tokens []uint32
	// BlockSize is tokens per block; 0: not said.
	BlockSize int
	// Medium is where; From is where a Moved came from.
	Medium, From Medium
	// Group is the attention group's number; -1: not said, so there is one.
	Group int
	// GroupKind is what it looks back on.
	GroupKind GroupKind
	// Window is the attention window in tokens; 0: not said.
	Window int
	// LoRAName is the adapter's name; empty: not said. Part of the payload.
	LoRAName []byte
	// LoRAID is the adapter's number in the engine process; with HasLoRAID. It means nothing elsewhere.
	LoRAID int64
	// HasLoRAID: some adapter was used, even if its name is not said.
	HasLoRAID bool
	// Salt of the request, where the chain begins a prompt. Part of the payload.
	Salt []byte
	// Extras in order of their blocks.
	Extras []Extra
	// IsRemote: the copy is not the worker's own (locality REMOTE).
	IsRemote bool
	// IsOwned: a secondary store holds the copy (ownership).
	IsOwned bool
	// IsPool: a pool's event, which speaks of no worker (Mooncake).
	IsPool bool
	// ID is the engine's number of the event; 0 where it has none (all but TensorRT-LLM's JSON).
	ID uint64
	// Rank is the data-parallel rank; -1: not said here, see Batch.Rank.
	Rank int
	// Capacities are blocks by level, nearest first. Only with Created.
	Capacities []uint64
}

// Counts says what was not understood.
type Counts struct {
	// UnknownEvents had a type that nobody knows.
	UnknownEvents int
	// UnknownFields were skipped.
	UnknownFields int
	// BadEvents had a wrong type somewhere, or no tag.
	BadEvents int
	// LostRemovals of the BadEvents may have removed blocks: what is believed to be there may not be.
	LostRemovals int
}

// Batch is what one payload says. The zero value is ready.
type Batch struct {
	// At is the engine's clock, Unix nanoseconds; 0: not said.
	At int64
	// Rank is the data-parallel rank the payload names; -1: none. Where it differs from the socket's, trust the socket.
	Rank int
	// Events in order.
	Events []Event
	// Counts of what was left out.
	Counts Counts
	// Signs of who published it, for a Detector.
	Signs Signs

	hashes []uint64
	tokens []uint32
	extras []Extra
}

// Limits bounds what one payload may hold.
type Limits struct {
	// PayloadBytes is the largest payload read.
	PayloadBytes int
	// Events, Tokens, Hashes and Extras are the most of each in one payload.
	Events, Tokens, Hashes, Extras int
	// TextBytes is the longest text or digest kept.
	TextBytes int
}

// DefaultLimits is several times what the largest engine says in one step.
func DefaultLimits() Limits {
	return Limits{PayloadBytes: 16 << 20, Events: 1 << 16, Tokens: 4 << 20, Hashes: 1 << 20, Extras: 1 << 16, TextBytes: 4096}
}

// Errors of a payload as a whole. What it said is lost: treat it as a gap.
var (
	// ErrMalformed: it ends early, goes on behind its end, or is no batch.
	ErrMalformed = errors.New("kvevents: malformed payload")
	// ErrLimit: it passes a bound of Limits.
	ErrLimit = errors.New("kvevents: payload beyond a limit")
)

func (b *Batch) reset() {
	b.At, b.Rank, b.Counts, b.Signs = 0, -1, Counts{}, 0
	b.Events, b.hashes, b.tokens, b.extras = b.Events[:0], b.hashes[:0], b.tokens[:0], b.extras[:0]
}
