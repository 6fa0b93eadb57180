package wire

import (
	"fmt"
	"hash/maphash"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Fingerprinter names the contents of batches, so that a repeat is recognised and a renumbered stream is not taken for
// one. Fingerprints mean something only within one Fingerprinter. Not for concurrent use.
type Fingerprinter struct {
	seed maphash.Seed
	buf  []byte
}

// NewFingerprinter makes one with a seed of the process's own, shared by all with the same seed.
func NewFingerprinter(seed maphash.Seed) *Fingerprinter { return &Fingerprinter{seed: seed} }

// Batch is the fingerprint of a batch.
func (f *Fingerprinter) Batch(m *kvoraclev1.BlockBatch) uint64 {
	buf, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(f.buf[:0], m)
	if err != nil {
		return 0 // only invalid UTF-8 fails, which cannot come off the wire; such a batch is then never a proven repeat
	}
	f.buf = buf
	if cap(f.buf) > 1<<20 {
		f.buf = nil // one huge batch should not stay
	}
	return maphash.Bytes(f.seed, buf)
}

// DecodeBatch turns changes into operations, appended to dst. An operation that cannot be understood becomes OpRefused.
// The error is for a batch that is too large as a whole.
func DecodeBatch(m *kvoraclev1.BlockBatch, shape Shape, dst []oracle.Op) ([]oracle.Op, error) {
	if n := len(m.GetOps()); n > maxOps {
		return dst, invalid("batch.ops", strconv.Itoa(n)+" operations", "want at most "+strconv.Itoa(maxOps))
	}
	for _, op := range m.GetOps() {
		switch x := op.GetOp().(type) {
		case *kvoraclev1.BlockOp_Store:
			dst = append(dst, decodeStore(x.Store, shape))
		case *kvoraclev1.BlockOp_Remove:
			dst = append(dst, decodeRemove(x.Remove, shape))
		case *kvoraclev1.BlockOp_Clear:
			dst = append(dst, decodeClear(x.Clear))
		default:
			dst = append(dst, refused(oracle.RefusalMalformed, "op: want one of store, remove, clear"))
		}
	}
	return dst, nil
}

// DecodeChunk is DecodeBatch for a part of a snapshot.
func DecodeChunk(m *kvoraclev1.SnapshotChunk, shape Shape, dst []oracle.Op) ([]oracle.Op, error) {
	if n := len(m.GetStores()); n > maxOps {
		return dst, invalid("snapshot_chunk.stores", strconv.Itoa(n)+" stores", "want at most "+strconv.Itoa(maxOps))
	}
	for _, s := range m.GetStores() {
		dst = append(dst, decodeStore(s, shape))
	}
	return dst, nil
}

func refused(why oracle.RefusalReason, detail string) oracle.Op {
	if len(detail) > maxDetail {
		detail = detail[:maxDetail]
	}
	return oracle.Op{Kind: oracle.OpRefused, Refusal: oracle.Refusal{Reason: why, Detail: detail}}
}

func decodeStore(m *kvoraclev1.StoreBlocks, shape Shape) oracle.Op {
	if op, isPrefix := shape.group("store", m.GetGroup()); !isPrefix {
		return op
	}
	op := readStore(m, shape)
	if t, ok := tier(m.GetTier()); ok && op.Kind == oracle.OpRefused {
		// Its names are told nevertheless, and will be in the reporter's digests.
		hashes, r := engineHashes("store.engine_hashes", m.GetEngineHashes())
		op.Tier, op.Hashes, op.IsUnread = t, hashes, r.Reason != oracle.RefusalNone
	}
	return op
}

// readStore is decodeStore for the group that counts.
func readStore(m *kvoraclev1.StoreBlocks, shape Shape) oracle.Op {
	size := shape.BlockSize
	op := oracle.Op{
		Kind: oracle.OpStore, LoRAName: m.GetLora().GetName(), LoRARevision: m.GetLora().GetRevision(), CacheSalt: m.GetCacheSalt(),
	}
	t, ok := tier(m.GetTier())
	switch {
	case !ok:
		return refused(oracle.RefusalTier, fmt.Sprintf("store.tier: got %d, want a known tier", int32(m.GetTier())))
	case len(m.GetMultimodal()) > 0 && m.GetTokens() == nil:
		return refused(oracle.RefusalMalformed, "store.multimodal: want it only with tokens; hashes and ids have it in already")
	case op.LoRAName == "" && op.LoRARevision != "":
		return refused(oracle.RefusalMalformed, "store.lora.revision: want lora.name with it")
	case len(op.LoRAName) > maxName || len(op.LoRARevision) > maxName || len(op.CacheSalt) > maxName:
		return refused(oracle.RefusalMalformed, fmt.Sprintf("store.lora, store.cache_salt: want at most %d bytes each", maxName))
	}
	op.Tier = t
	var r oracle.Refusal
	if op.Hashes, r = engineHashes("store.engine_hashes", m.GetEngineHashes()); r.Reason != oracle.RefusalNone {
		return oracle.Op{Kind: oracle.OpRefused, Refusal: r}
	}
	hasContent := m.GetContent() != nil
	switch p := m.GetParent().(type) {
	case *kvoraclev1.StoreBlocks_Root:
		op.IsRoot = true
	case *kvoraclev1.StoreBlocks_ParentBlockId:
		op.Parent = block.ID(p.ParentBlockId)
	case *kvoraclev1.StoreBlocks_ParentEngineHash:
		op.ParentHash, op.HasParentHash = oracle.EngineHash(p.ParentEngineHash), true
	case *kvoraclev1.StoreBlocks_ParentEngineDigest:
		if !isEngineDigest(p.ParentEngineDigest) {
			return refused(oracle.RefusalMalformed, fmt.Sprintf("store.parent_engine_digest: got %d bytes, want 1 to %d",
				len(p.ParentEngineDigest), maxEngineDigest))
		}
		op.ParentHash, op.HasParentHash = oracle.EngineHashOf(p.ParentEngineDigest), true
	default:
		if hasContent || len(op.Hashes) == 0 {
			return refused(oracle.RefusalMalformed, "store.parent: want one of root, parent_block_id, parent_engine_hash, parent_engine_digest")
		}
	}
	var n int
	switch c := m.GetContent().(type) {
	case *kvoraclev1.StoreBlocks_BlockIds:
		op.Content, op.IDs = oracle.ContentIDs, asIDs(c.BlockIds.GetIds())
		n = len(op.IDs)
	case *kvoraclev1.StoreBlocks_LocalHashes:
		op.Content, op.Locals = oracle.ContentLocals, asLocals(c.LocalHashes.GetHashes())
		n = len(op.Locals)
	case *kvoraclev1.StoreBlocks_Tokens:
		ids := c.Tokens.GetTokenIds()
		if len(ids)%size != 0 {
			return refused(oracle.RefusalPartialBlock, fmt.Sprintf("store.tokens: got %d tokens, want a multiple of the block size %d", len(ids), size))
		}
		op.Content, op.Locals = oracle.ContentLocals, block.AppendLocals(nil, ids, size)
		n = len(op.Locals)
		if wrong := mixStored(op.Locals, size, m.GetMultimodal()); wrong != "" {
			return refused(oracle.RefusalMalformed, wrong)
		}
	default:
		if len(op.Hashes) == 0 {
			return refused(oracle.RefusalMalformed, "store.content: want one of block_ids, local_hashes, tokens")
		}
		op.Content, n = oracle.ContentNone, len(op.Hashes)
	}
	switch {
	case n == 0 || n > maxBlocksPerOp:
		return refused(oracle.RefusalMalformed, fmt.Sprintf("store.content: got %d blocks, want 1 to %d", n, maxBlocksPerOp))
	case len(op.Hashes) > 0 && op.Content == oracle.ContentIDs:
		return refused(oracle.RefusalMalformed, "store.content: want tokens or local_hashes beside engine_hashes, not block_ids")
	case len(op.Hashes) > 0 && len(op.Hashes) != n:
		return refused(oracle.RefusalMalformed, fmt.Sprintf("store.engine_hashes: got %d for %d blocks, want one each", len(op.Hashes), n))
	}
	return op
}

func decodeRemove(m *kvoraclev1.RemoveBlocks, shape Shape) oracle.Op {
	if op, isPrefix := shape.group("remove", m.GetGroup()); !isPrefix {
		return op
	}
	t, ok := tier(m.GetTier())
	n := len(m.GetBlockIds())
	hashes, r := engineHashes("remove.engine_hashes", m.GetEngineHashes())
	switch {
	case r.Reason != oracle.RefusalNone:
		return oracle.Op{Kind: oracle.OpRefused, Refusal: r}
	case !ok:
		return refused(oracle.RefusalTier, fmt.Sprintf("remove.tier: got %d, want a known tier", int32(m.GetTier())))
	case n > 0 && len(hashes) > 0:
		return refused(oracle.RefusalMalformed, "remove: want block_ids or engine_hashes, not both")
	case len(hashes) == 0 && (n == 0 || n > maxBlocksPerOp):
		return refused(oracle.RefusalMalformed, fmt.Sprintf("remove.block_ids: got %d, want 1 to %d", n, maxBlocksPerOp))
	}
	return oracle.Op{Kind: oracle.OpRemove, Tier: t, IDs: asIDs(m.GetBlockIds()), Hashes: hashes}
}

func decodeClear(m *kvoraclev1.ClearBlocks) oracle.Op {
	if m.GetTier() == kvoraclev1.Tier_TIER_UNSPECIFIED {
		return oracle.Op{Kind: oracle.OpClear, AllTier: true}
	}
	t, ok := tier(m.GetTier())
	if !ok {
		return refused(oracle.RefusalTier, fmt.Sprintf("clear.tier: got %d, want a known tier", int32(m.GetTier())))
	}
	return oracle.Op{Kind: oracle.OpClear, Tier: t}
}

// DecodeDigest turns a check into the index's form.
func DecodeDigest(m *kvoraclev1.BlockDigest) (seq uint64, t fleet.Tier, d oracle.Digest, err error) {
	t, ok := tier(m.GetTier())
	if !ok {
		return 0, 0, oracle.Digest{}, invalid("digest.tier", fmt.Sprint(int32(m.GetTier())), "want a known tier")
	}
	return m.GetSequence(), t, oracle.Digest{
		Count: m.GetCount(), XOR: m.GetXor(), Sum: m.GetSum(), Copies: m.GetCopies(), CopySum: m.GetCopySum(),
	}, nil
}

// tier reads a tier; unspecified means device.
func tier(t kvoraclev1.Tier) (fleet.Tier, bool) {
	switch t {
	case kvoraclev1.Tier_TIER_UNSPECIFIED, kvoraclev1.Tier_TIER_DEVICE:
		return fleet.Device, true
	case kvoraclev1.Tier_TIER_HOST:
		return fleet.Host, true
	case kvoraclev1.Tier_TIER_DISK:
		return fleet.Disk, true
	case kvoraclev1.Tier_TIER_SHARED:
		return fleet.Shared, true
	default:
		return 0, false
	}
}
