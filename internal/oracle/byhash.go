package oracle

import (
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/edge"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// Streams whose blocks are named by the engine's own hashes: a translator stands before the ledger.

// namesRefused is how many engine hashes are remembered of stores that were refused, for each rank.
const namesRefused = 4096

// namesUnsized is how many engine hashes a tier of unknown size may have.
const namesUnsized = 1 << 20

// mostNames bounds the engine hashes of one rank: twice what fits into its tiers, since removals may be told after the
// stores that made them necessary, and some for what waits for its place.
func mostNames(spec *fleet.Spec) int {
	n := uint64(4096)
	for _, blocks := range spec.Capacity {
		if blocks == 0 {
			blocks = namesUnsized / 2
		}
		n += 2 * min(blocks, 1<<40)
	}
	return int(min(n, 1<<31))
}

// checkNames refuses an operation that names blocks in the way the hello has excluded.
func (s *BlockSession) checkNames(op *Op) Refusal {
	byHash := s.f.byHash
	switch {
	case op.Kind != OpStore && op.Kind != OpRemove:
	case byHash && len(op.Hashes) == 0:
		return Refusal{Reason: RefusalMalformed, Detail: op.Kind.String() + ".engine_hashes: want them, as hello.engine_hashes says"}
	case byHash && op.Kind == OpStore && !op.IsRoot && !op.HasParentHash && op.Content != ContentNone:
		return Refusal{Reason: RefusalMalformed, Detail: "store.parent_block_id: want the engine's hash, as hello.engine_hashes says"}
	case !byHash && (len(op.Hashes) > 0 || op.HasParentHash):
		return Refusal{Reason: RefusalMalformed, Detail: op.Kind.String() + ".engine_hashes: want them only with hello.engine_hashes"}
	}
	return Refusal{}
}

func (s *BlockSession) storeByHash(l *index.Ledger, n *edge.Translator, op *Op, d *BlockCounters) Refusal {
	st := edge.Store{
		Tier: op.Tier, IsRoot: op.IsRoot || slices.Contains(s.roots, uint64(op.ParentHash)),
		Parent: op.ParentHash, Hashes: op.Hashes, Locals: op.Locals,
	}
	if st.IsRoot {
		st.Keyspace = s.keyspace(op)
	}
	to := named{s: s, l: l, d: d}
	res := n.Store(&st, &to)
	d.RepeatedStores += uint64(res.Repeated)
	d.Orphans += uint64(res.Waiting)
	switch res.Refused {
	case edge.None:
		if to.refused != index.None {
			return refusalOf(to.refused)
		}
		return Refusal{}
	case edge.SelfParent:
		return Refusal{Reason: RefusalParentConflict, Detail: "store.engine_hashes: a block is its own parent"}
	case edge.Conflict:
		return Refusal{
			Reason: RefusalHashConflict,
			Detail: "store.engine_hashes: one of them, or the parent, was told with other content or another parent",
		}
	case edge.WaitingFull:
		return Refusal{Reason: RefusalOrphansFull, Detail: "store.engine_hashes: cannot be placed, and too many wait for their place already"}
	case edge.NamesFull:
		return Refusal{Reason: RefusalEngineHashesFull, Detail: "store.engine_hashes: too many are known already"}
	case edge.NoRoom:
		return refusalOf(to.refused)
	default:
		return Refusal{Reason: RefusalMalformed, Detail: "store.engine_hashes"}
	}
}

func clearNames(n *edge.Translator, op *Op) {
	if op.AllTier {
		n.ClearAll()
	} else {
		n.Clear(op.Tier)
	}
}

// remember notes the names of a store that was refused before they got to the translator.
func remember(n *edge.Translator, op *Op) {
	switch {
	case op.IsUnread:
		n.Shorten()
	case op.Kind != OpRemove:
		n.Tell(op.Hashes, op.Tier)
	}
}

// digest sums up a tier in the names of the stream: what was told, refused or not.
func (f *feed) digest(tier fleet.Tier) index.Digest {
	if f.names == nil {
		return f.ledger.Told(tier)
	}
	return index.Digest(f.names.Told(tier))
}

// agrees reports whether a reporter's digest is one of what it has told. One that leaves out what it was told is refused
// is as good.
func (f *feed) agrees(tier fleet.Tier, want index.Digest) bool {
	if isEqual(f.digest(tier), want) {
		return true
	}
	return f.names != nil && isEqual(index.Digest(f.names.Digest(tier)), want)
}

// named is where a translator's changes go: the ledger, and the counters of one operation.
type named struct {
	s       *BlockSession
	l       *index.Ledger
	d       *BlockCounters
	refused index.Refusal // the last one
}

// Store implements edge.Contents.
func (t *named) Store(parent block.ID, isRoot bool, ids []block.ID, tier fleet.Tier) int {
	res := t.l.Store(index.Parent{ID: parent, IsRoot: isRoot}, ids, tier)
	t.d.count(&res)
	if res.Refused == index.None {
		return len(ids)
	}
	t.refused = res.Refused
	if res.Refused == index.Capacity {
		return len(ids) // the ledger remembers what it was told and has no room for
	}
	return 0
}

// Remove implements edge.Contents.
func (t *named) Remove(ids []block.ID, tier fleet.Tier) {
	removed, _ := t.l.Remove(ids, tier) // what the ledger lacks it has given up for want of room
	t.d.Removed += uint64(removed)
	t.s.evicted(ids, tier)
}
