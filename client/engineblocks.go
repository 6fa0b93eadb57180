package client

import (
	"fmt"
	"sync"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/edge"
	workers "github.com/kvoracle/kvoracle/internal/fleet"
)

// EngineHash is an engine's own name of a block: its integer, signed or not, or EngineHashOf its bytes. It means something
// within one life of one rank, and is never compared with another's.
type EngineHash uint64

// EngineHashOf makes a name of an engine hash that is bytes.
func EngineHashOf(b []byte) EngineHash { return EngineHash(edge.HashOf(b)) }

// EngineParent is what the first block of an engine's store follows. The zero value is neither the start nor a block and is
// refused, as that of Parent.
type EngineParent struct {
	hash EngineHash
	kind parentKind
}

// EngineRoot is the prompt's start.
func EngineRoot() EngineParent { return EngineParent{kind: rootParent} }

// AfterEngine is a block by its name. If that is not known, what is stored after it waits until it is: it is not reported
// before.
func AfterEngine(h EngineHash) EngineParent { return EngineParent{h, blockParent} }

// EngineBlocks reports the blocks of an engine that are known by its own hashes only, as those are that engines publish. It
// keeps what each hash stands for, so that blocks are reported by id, can be stated whole at any time, and mean the same in
// every process. Some 100 bytes a hash, beside the Reporter's mirror.
//
// All methods may be called concurrently, and none waits for the network.
type EngineBlocks struct {
	r *Reporter

	mu    sync.Mutex // taken before the reporter's
	names *edge.Translator
}

// NewEngineBlocks makes one over a reporter, of which nothing else then tells blocks. The reporter must have RepeatsCounted,
// since two hashes of one block are two copies of it; repeats is what the engine means by a store that it repeats. It keeps at
// most so many hashes, and a quarter as many that wait for their parents; 0: 1,048,576. The error is of kind ErrInvalid.
func NewEngineBlocks(r *Reporter, repeats Repeats, mostHashes int) (*EngineBlocks, error) {
	switch {
	case r.repeats != RepeatsCounted:
		return nil, invalid("r", "want a reporter with RepeatsCounted")
	case repeats != RepeatsSet && repeats != RepeatsCounted:
		return nil, invalid("repeats", "want RepeatsSet or RepeatsCounted")
	case mostHashes < 0:
		return nil, invalid("mostHashes", fmt.Sprintf("got %d, want at least 0", mostHashes))
	case mostHashes == 0:
		mostHashes = 1 << 20
	}
	l := edge.Limits{Names: mostHashes, Waiting: max(mostHashes/4, 1)}
	b := &EngineBlocks{r: r, names: edge.New(edge.NewBudget(mostHashes), l, repeats == RepeatsCounted)}
	b.names.Limit()
	return b, nil
}

// Store says that a chain of blocks lies in a tier, each with its hash: the first follows p, each other the one before it.
// tokens are all of theirs, as in Reporter.StoreTokens; nil: the engine did not say what they are (a copy in another tier,
// usually). Then p and v mean nothing, and a hash that is not known waits until a store says what it is.
//
// Errors: ErrInvalid; ErrHashConflict for a hash that was told with other tokens or another parent, or follows one that was;
// ErrTooManyHashes. A store that returns an error is not reported: the oracle then credits less than there is, never more.
func (b *EngineBlocks) Store(p EngineParent, hashes []EngineHash, tokens []uint32, v Variant, tier Tier, items ...MultimodalItem) error {
	t, bad := checkTier(tier)
	if bad != nil {
		return bad
	}
	s := edge.Store{Tier: workers.Tier(t), IsRoot: p.kind == rootParent, Parent: edge.Hash(p.hash), Hashes: asNames(hashes)}
	if tokens != nil {
		size := b.r.identity.BlockSize
		if p.kind == noParent {
			return invalid("p", "want EngineRoot or AfterEngine")
		}
		if len(tokens) != len(hashes)*size {
			return invalid("tokens", fmt.Sprintf("got %d, want %d for each of %d hashes", len(tokens), size, len(hashes)))
		}
		for i := range items {
			if wrong := items[i].check(); wrong != "" {
				return invalid(fmt.Sprintf("items[%d]", i), wrong)
			}
		}
		s.Locals = LocalHashes(nil, tokens, size, items...)
		id := b.r.identity
		id.LoRAName, id.LoRARevision, id.CacheSalt = v.LoRA.Name, v.LoRA.Revision, v.CacheSalt
		s.Keyspace = id.Keyspace()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.names.Store(&s, into{b.r}).Refused {
	case edge.None:
		return nil
	case edge.WaitingFull, edge.NamesFull:
		return &Error{Kind: ErrTooManyHashes, Field: "hashes", Message: "too many are known, or wait for their parents, already"}
	case edge.SelfParent, edge.Conflict, edge.NoRoom: // the last: an id that is held under another parent
		return &Error{Kind: ErrHashConflict, Field: "hashes", Message: "one of them, or the parent, was told with other content or another parent"}
	default:
		return invalid("hashes", "")
	}
}

// Remove says that blocks have left a tier (one copy of each, where the engine's stores count). Hashes that are not there are
// counted in the reporter's Stats and otherwise ignored. The error is ErrInvalid for an unknown tier.
func (b *EngineBlocks) Remove(hashes []EngineHash, tier Tier) error {
	t, bad := checkTier(tier)
	if bad != nil {
		return bad
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if unknown := b.names.Remove(asNames(hashes), workers.Tier(t), into{b.r}); unknown > 0 {
		b.r.mu.Lock()
		b.r.stats.UnknownRemovals += uint64(unknown)
		b.r.mu.Unlock()
	}
	return nil
}

// Clear says that everything has gone, or everything in the given tiers. The error is ErrInvalid for an unknown tier; then
// nothing is cleared.
func (b *EngineBlocks) Clear(tiers ...Tier) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.r.Clear(tiers...); err != nil {
		return err
	}
	if len(tiers) == 0 {
		b.names.ClearAll()
	}
	for _, tier := range tiers {
		if t, ok := tierIndex(tier); ok {
			b.names.Clear(workers.Tier(t))
		}
	}
	return nil
}

func asNames(hashes []EngineHash) []edge.Hash {
	out := make([]edge.Hash, len(hashes))
	for i, h := range hashes {
		out[i] = edge.Hash(h)
	}
	return out
}

// into is a reporter as the place where named blocks go.
type into struct{ r *Reporter }

// Store implements edge.Contents.
func (x into) Store(parent block.ID, isRoot bool, ids []block.ID, tier workers.Tier) int {
	p := After(parent)
	if isRoot {
		p = Root()
	}
	if x.r.Store(p, ids, tierAt(int(tier))) != nil {
		return 0
	}
	return len(ids)
}

// Remove implements edge.Contents.
func (x into) Remove(ids []block.ID, tier workers.Tier) {
	_ = x.r.Remove(ids, tierAt(int(tier))) // it refuses unknown tiers only
}
