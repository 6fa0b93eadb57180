package wire

import (
	"fmt"
	"hash/maphash"
	"math"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// DecodeSpec checks what a worker says about itself. prefix is the path of the field, e.g. "hello.worker".
func DecodeSpec(m *kvoraclev1.WorkerSpec, prefix string) (fleet.Spec, error) {
	if m == nil {
		return fleet.Spec{}, precondition(prefix)
	}
	p := prefix + "."
	switch {
	case m.GetWorkerId() == "":
		return fleet.Spec{}, precondition(p + "worker_id")
	case m.GetModel() == "":
		return fleet.Spec{}, precondition(p + "model")
	}
	for _, c := range []struct {
		field, v string
		most     int
	}{
		{"worker_id", m.GetWorkerId(), maxName},
		{"model", m.GetModel(), maxName},
		{"address", m.GetAddress(), maxAddress},
		{"performance_class", m.GetPerformanceClass(), maxName},
	} {
		if err := name(p+c.field, c.v, c.most, false); err != nil {
			return fleet.Spec{}, err
		}
	}
	if err := blockSize(p+"block_size", m.GetBlockSize()); err != nil {
		return fleet.Spec{}, err
	}
	if m.GetDpSize() > maxRanks {
		return fleet.Spec{}, invalid(p+"dp_size", fmt.Sprint(m.GetDpSize()), fmt.Sprintf("want at most %d", maxRanks))
	}
	if err := labels(p+"labels", m.GetLabels()); err != nil {
		return fleet.Spec{}, err
	}
	for field, v := range map[string]uint32{"max_running_requests": m.GetMaxRunningRequests(), "max_requests": m.GetMaxRequests()} {
		if v > maxRequestsCap {
			return fleet.Spec{}, invalid(p+field, fmt.Sprint(v), fmt.Sprintf("want at most %d", maxRequestsCap))
		}
	}
	s := fleet.Spec{
		Worker: m.GetWorkerId(), Address: m.GetAddress(), Model: m.GetModel(),
		BlockSize: int(m.GetBlockSize()), DPSize: max(1, int(m.GetDpSize())), Labels: m.GetLabels(),
		MaxRunning: int(m.GetMaxRunningRequests()), MaxRequests: int(m.GetMaxRequests()), Class: m.GetPerformanceClass(),
	}
	for _, r := range m.GetRoles() {
		switch r {
		case kvoraclev1.Role_ROLE_UNSPECIFIED, kvoraclev1.Role_ROLE_AGGREGATED:
			s.Roles |= fleet.Aggregated
		case kvoraclev1.Role_ROLE_PREFILL:
			s.Roles |= fleet.Prefill
		case kvoraclev1.Role_ROLE_DECODE:
			s.Roles |= fleet.Decode
		default:
			return fleet.Spec{}, invalid(p+"roles", fmt.Sprint(int32(r)), "want known Roles")
		}
	}
	var seen [fleet.NumTiers]bool
	for _, c := range m.GetCapacities() {
		t, ok := tier(c.GetTier())
		if !ok || seen[t] {
			return fleet.Spec{}, invalid(p+"capacities", c.GetTier().String(), "want each known tier at most once")
		}
		seen[t] = true
		s.Capacity[t] = c.GetBlocks()
	}
	return s, nil
}

func precondition(field string) error {
	return oracle.Fault(oracle.FailedPrecondition, oracle.ReasonFieldMissing, field, "", "is required")
}

// DecodeHello checks the first message of a block stream.
func DecodeHello(m *kvoraclev1.BlocksHello) (*oracle.Hello, error) {
	spec, err := DecodeSpec(m.GetWorker(), "hello.worker")
	if err != nil {
		return nil, err
	}
	h := &oracle.Hello{
		Spec: spec, Rank: int(m.GetDpRank()), Incarnation: m.GetIncarnation(), NextSequence: m.GetNextSequence(),
	}
	switch {
	case h.Rank >= spec.DPSize:
		return nil, oracle.Fault(oracle.FailedPrecondition, oracle.ReasonFieldInvalid, "hello.dp_rank", strconv.Itoa(h.Rank),
			"want a rank below hello.worker.dp_size, "+strconv.Itoa(spec.DPSize))
	case h.Incarnation == 0:
		return nil, precondition("hello.incarnation")
	case h.NextSequence == 0:
		return nil, precondition("hello.next_sequence")
	case len(m.GetRootParents()) > 0:
		return nil, unserved("hello.root_parents", strconv.Itoa(len(m.GetRootParents()))+" values")
	}
	if err := scheme("hello.hash_scheme", m.GetHashScheme()); err != nil {
		return nil, err
	}
	switch m.GetRepeats() {
	case kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET:
	case kvoraclev1.RepeatMeaning_REPEAT_MEANING_COUNTED:
		h.Counted = true
	case kvoraclev1.RepeatMeaning_REPEAT_MEANING_UNSPECIFIED:
		return nil, precondition("hello.repeats")
	default:
		return nil, invalid("hello.repeats", fmt.Sprint(int32(m.GetRepeats())), "want SET or COUNTED")
	}
	return h, nil
}

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
func DecodeBatch(m *kvoraclev1.BlockBatch, size int, dst []oracle.Op) ([]oracle.Op, error) {
	if n := len(m.GetOps()); n > maxOps {
		return dst, invalid("batch.ops", strconv.Itoa(n)+" operations", "want at most "+strconv.Itoa(maxOps))
	}
	for _, op := range m.GetOps() {
		switch x := op.GetOp().(type) {
		case *kvoraclev1.BlockOp_Store:
			dst = append(dst, decodeStore(x.Store, size))
		case *kvoraclev1.BlockOp_Remove:
			dst = append(dst, decodeRemove(x.Remove))
		case *kvoraclev1.BlockOp_Clear:
			dst = append(dst, decodeClear(x.Clear))
		default:
			dst = append(dst, refused(oracle.RefusalMalformed, "op: want one of store, remove, clear"))
		}
	}
	return dst, nil
}

// DecodeChunk is DecodeBatch for a part of a snapshot.
func DecodeChunk(m *kvoraclev1.SnapshotChunk, size int, dst []oracle.Op) ([]oracle.Op, error) {
	if n := len(m.GetStores()); n > maxOps {
		return dst, invalid("snapshot_chunk.stores", strconv.Itoa(n)+" stores", "want at most "+strconv.Itoa(maxOps))
	}
	for _, s := range m.GetStores() {
		dst = append(dst, decodeStore(s, size))
	}
	return dst, nil
}

func refused(why oracle.RefusalReason, detail string) oracle.Op {
	if len(detail) > maxDetail {
		detail = detail[:maxDetail]
	}
	return oracle.Op{Kind: oracle.OpRefused, Refusal: oracle.Refusal{Reason: why, Detail: detail}}
}

func decodeStore(m *kvoraclev1.StoreBlocks, size int) oracle.Op {
	op := oracle.Op{
		Kind: oracle.OpStore, LoRAName: m.GetLora().GetName(), LoRARevision: m.GetLora().GetRevision(), CacheSalt: m.GetCacheSalt(),
	}
	t, ok := tier(m.GetTier())
	switch {
	case !ok:
		return refused(oracle.RefusalTier, fmt.Sprintf("store.tier: got %d, want a known tier", int32(m.GetTier())))
	case m.GetGroup() != 0:
		return refused(oracle.RefusalGroup, fmt.Sprintf("store.group: got %d, want 0, the full-attention group", m.GetGroup()))
	case len(m.GetMultimodal()) > 0:
		return refused(oracle.RefusalUnservedField, "store.multimodal: is not served yet")
	case op.LoRAName == "" && op.LoRARevision != "":
		return refused(oracle.RefusalMalformed, "store.lora.revision: want lora.name with it")
	case len(op.LoRAName) > maxName || len(op.LoRARevision) > maxName || len(op.CacheSalt) > maxName:
		return refused(oracle.RefusalMalformed, fmt.Sprintf("store.lora, store.cache_salt: want at most %d bytes each", maxName))
	}
	op.Tier = t
	switch p := m.GetParent().(type) {
	case *kvoraclev1.StoreBlocks_Root:
		op.IsRoot = true
	case *kvoraclev1.StoreBlocks_ParentBlockId:
		op.Parent = block.ID(p.ParentBlockId)
	default:
		return refused(oracle.RefusalMalformed, "store.parent: want one of root, parent_block_id")
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
	default:
		return refused(oracle.RefusalMalformed, "store.content: want one of block_ids, local_hashes, tokens")
	}
	if n == 0 || n > maxBlocksPerOp {
		return refused(oracle.RefusalMalformed, fmt.Sprintf("store.content: got %d blocks, want 1 to %d", n, maxBlocksPerOp))
	}
	return op
}

func decodeRemove(m *kvoraclev1.RemoveBlocks) oracle.Op {
	t, ok := tier(m.GetTier())
	n := len(m.GetBlockIds())
	switch {
	case !ok:
		return refused(oracle.RefusalTier, fmt.Sprintf("remove.tier: got %d, want a known tier", int32(m.GetTier())))
	case m.GetGroup() != 0:
		return refused(oracle.RefusalGroup, fmt.Sprintf("remove.group: got %d, want 0, the full-attention group", m.GetGroup()))
	case n == 0 || n > maxBlocksPerOp:
		return refused(oracle.RefusalMalformed, fmt.Sprintf("remove.block_ids: got %d, want 1 to %d", n, maxBlocksPerOp))
	}
	return oracle.Op{Kind: oracle.OpRemove, Tier: t, IDs: asIDs(m.GetBlockIds())}
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
	return m.GetSequence(), t, oracle.Digest{Count: m.GetCount(), XOR: m.GetXor(), Sum: m.GetSum()}, nil
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

// EncodeAccepted answers a hello.
func EncodeAccepted(a oracle.Accepted, l Limits) *kvoraclev1.ReportBlocksResponse {
	return &kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_Accepted{Accepted: &kvoraclev1.BlocksAccepted{
		ResumeFrom:       a.ResumeFrom,
		SnapshotRequired: a.SnapshotRequired,
		Confidence:       BlockConfidence(a.Confidence),
		MaxMessageBytes:  uint32(min(l.WithDefaults().MaxMessageBytes, math.MaxInt32)),
	}}}
}

// EncodeAck tells a reporter how far it has come.
func EncodeAck(a *oracle.Ack) *kvoraclev1.ReportBlocksResponse {
	c := &a.Counters
	ack := &kvoraclev1.BlocksAck{
		AppliedSequence:  a.Applied,
		Confidence:       BlockConfidence(a.Confidence),
		HeldBlocks:       uint64(a.Held),
		SnapshotRequired: a.Awaiting,
		Counters: &kvoraclev1.BlockCounters{
			Stored: c.Stored, RepeatedStores: c.RepeatedStores, Removed: c.Removed, UnknownRemovals: c.UnknownRemovals,
			Orphans: c.Orphans, RefusedOps: c.RefusedOps, DuplicateBatches: c.DuplicateBatches, Gaps: c.Gaps,
			IgnoredBatches: c.IgnoredBatches, DigestsMatched: c.DigestsMatched, DigestsMismatched: c.DigestsMismatched,
			DigestsSkipped: c.DigestsSkipped, Snapshots: c.Snapshots,
		},
	}
	for _, r := range a.Refusals {
		ack.Refusals = append(ack.Refusals, &kvoraclev1.Refusal{
			Sequence: r.Sequence, Op: uint32(r.Op), Reason: kvoraclev1.RefusalReason(r.Reason), Detail: r.Detail,
		})
	}
	return &kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_Ack{Ack: ack}}
}

// EncodeResync asks for a snapshot.
func EncodeResync(r *oracle.Resync) *kvoraclev1.ReportBlocksResponse {
	return &kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_Resync{Resync: &kvoraclev1.ResyncRequest{
		Reason: kvoraclev1.ResyncReason(r.Reason), ExpectedSequence: r.Expected, ReceivedSequence: r.Received,
	}}}
}
