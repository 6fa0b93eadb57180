package storm

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// naming is how one rank's stream speaks of blocks, in one life of the engine.
type naming struct {
	tree     *tree
	isHashed bool // by engine hashes, of which a block has two; else by ids
	isBytes  bool // those are bytes
	// isWired: its messages go through the wire's form, as engine hashes and groups must.
	isWired bool
	group   uint32   // the attention group that counts
	others  []uint32 // groups that do not: they name their blocks alike
	seed    uint64   // of the engine's hashes
	keys    []uint64 // by name; of engine hashes only
	byKey   map[uint64]node
}

// newNaming makes one like that of the worker's other ranks. Engines seed their hashes at random.
func newNaming(tr *tree, like *naming, dice *rand.Rand) *naming {
	g := *like
	g.tree = tr
	if !g.isHashed {
		return &g
	}
	g.seed = dice.Uint64()
	g.keys, g.byKey = make([]uint64, numNames), make(map[uint64]node, numNames)
	for n := range g.keys {
		g.keys[n] = dice.Uint64()
		if g.isBytes {
			g.keys[n] = uint64(oracle.EngineHashOf(g.bytes(node(n))))
		}
		g.byKey[g.keys[n]] = node(n)
	}
	return &g
}

// key is what digests sum up.
func (g *naming) key(n node) uint64 {
	if g.isHashed {
		return g.keys[n]
	}
	return uint64(g.tree.ids[n])
}

// bytes is an engine hash as bytes.
func (g *naming) bytes(n node) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(nil, g.seed), uint16(n))
}

// names is how far names go.
func (g *naming) names() int {
	if g.isHashed {
		return numNames
	}
	return numNodes
}

// plain is how blocks are told one by one.
func (g *naming) plain() oracle.Content {
	if g.isHashed {
		return oracle.ContentLocals
	}
	return oracle.ContentIDs
}

// store is a chain of blocks.
func (g *naming) store(names []node, t fleet.Tier, c oracle.Content) oracle.Op {
	p := g.tree.parent(names[0])
	op := oracle.Op{Kind: oracle.OpStore, Tier: t, IsRoot: p < 0, Content: c}
	if c == oracle.ContentLocals {
		op.Locals = g.tree.locals(names)
	}
	switch {
	case g.isHashed:
		op.Hashes = g.hashes(names)
		if p >= 0 {
			op.ParentHash, op.HasParentHash = oracle.EngineHash(g.keys[p]), true
		}
	default:
		if p >= 0 {
			op.Parent = g.tree.ids[p]
		}
		if c == oracle.ContentIDs {
			op.IDs = g.ids(names)
		}
	}
	return op
}

// remove names blocks in any order.
func (g *naming) remove(names []node, t fleet.Tier) oracle.Op {
	if g.isHashed {
		return oracle.Op{Kind: oracle.OpRemove, Tier: t, Hashes: g.hashes(names)}
	}
	return oracle.Op{Kind: oracle.OpRemove, Tier: t, IDs: g.ids(names)}
}

// elsewhere makes an operation one of a group that does not count. AllTier says that it is a removal.
func elsewhere(op oracle.Op) oracle.Op {
	op.AllTier = op.Kind == oracle.OpRemove
	op.Kind = oracle.OpOther
	return op
}

func (g *naming) hashes(names []node) []oracle.EngineHash {
	out := make([]oracle.EngineHash, len(names))
	for i, n := range names {
		out[i] = oracle.EngineHash(g.keys[n])
	}
	return out
}

func (g *naming) ids(names []node) []block.ID {
	out := make([]block.ID, len(names))
	for i, n := range names {
		out[i] = g.tree.ids[n]
	}
	return out
}

// read lists what an operation names.
func (g *naming) read(op *oracle.Op) []node {
	out := make([]node, 0, max(len(op.Hashes), len(op.IDs), len(op.Locals)))
	for _, h := range op.Hashes {
		out = append(out, g.byKey[uint64(h)])
	}
	for _, id := range op.IDs {
		out = append(out, g.tree.byID[id])
	}
	if len(out) > 0 || len(op.Locals) == 0 {
		return out
	}
	n := node(-1)
	if !op.IsRoot {
		n = g.tree.byID[op.Parent]
	}
	for _, l := range op.Locals {
		n = (n+1)*node(g.tree.arity) + node(slices.Index(g.tree.local, l))
		out = append(out, n)
	}
	return out
}

// hello is the first message of a stream.
func (g *naming) hello(r *rank, p *reporter, next uint64) (*oracle.Hello, error) {
	if !g.isWired {
		return &oracle.Hello{
			Spec: fleet.Spec{Worker: r.w.name, Model: model, BlockSize: g.tree.size, DPSize: len(r.w.ranks)},
			Rank: r.n, Incarnation: p.incarnation, NextSequence: next, Counted: p.isCounted,
		}, nil
	}
	m := &kvoraclev1.BlocksHello{
		Worker: &kvoraclev1.WorkerSpec{WorkerId: r.w.name, Model: model, BlockSize: uint32(g.tree.size), DpSize: uint32(len(r.w.ranks))},
		DpRank: uint32(r.n), Incarnation: p.incarnation, NextSequence: next, HashScheme: block.Scheme,
		Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET, EngineHashes: g.isHashed,
	}
	if p.isCounted {
		m.Repeats = kvoraclev1.RepeatMeaning_REPEAT_MEANING_COUNTED
	}
	for i, n := range g.others {
		// A window with blocks of the same size, full attention with others.
		m.Groups = append(m.Groups, &kvoraclev1.AttentionGroup{
			Number: n, Kind: []kvoraclev1.AttentionKind{kvoraclev1.AttentionKind_ATTENTION_KIND_WINDOW, kvoraclev1.AttentionKind_ATTENTION_KIND_FULL}[i%2],
			BlockSize: uint32(g.tree.size << (i % 2)),
		})
	}
	if g.group > 0 || len(m.Groups) > 0 {
		m.Groups = append(m.Groups, &kvoraclev1.AttentionGroup{
			Number: g.group, Kind: kvoraclev1.AttentionKind_ATTENTION_KIND_FULL, BlockSize: uint32(g.tree.size),
		})
	}
	return wire.DecodeBlocksHello(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: m}})
}

// request is a message as it comes off the wire; the same one each time.
func (g *naming) request(m *message) *kvoraclev1.ReportBlocksRequest {
	switch m.kind {
	case changes:
		b := &kvoraclev1.BlockBatch{Sequence: m.seq}
		for i := range m.ops {
			b.Ops = append(b.Ops, g.wired(&m.ops[i]))
		}
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: b}}
	case begin:
		b := &kvoraclev1.SnapshotBegin{Sequence: m.seq}
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotBegin{SnapshotBegin: b}}
	case chunk:
		b := &kvoraclev1.SnapshotChunk{}
		for i := range m.ops {
			b.Stores = append(b.Stores, g.wired(&m.ops[i]).GetStore())
		}
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotChunk{SnapshotChunk: b}}
	case end:
		b := &kvoraclev1.SnapshotEnd{BlockCount: m.count}
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotEnd{SnapshotEnd: b}}
	case digest:
		d := m.state.digest(m.tier)
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Digest{Digest: &kvoraclev1.BlockDigest{
			Sequence: m.seq, Tier: wiredTier(m.tier), Count: d.Count, Xor: d.XOR, Sum: d.Sum, Copies: d.Copies, CopySum: d.CopySum,
		}}}
	case hello, eof:
	}
	return &kvoraclev1.ReportBlocksRequest{}
}

func wiredTier(t fleet.Tier) kvoraclev1.Tier { return kvoraclev1.Tier(t + 1) }

// wired is one operation.
func (g *naming) wired(op *oracle.Op) *kvoraclev1.BlockOp {
	names, group := g.read(op), g.group
	if op.Kind == oracle.OpOther {
		group = g.others[int(names[0])%len(g.others)]
	}
	switch {
	case op.Kind == oracle.OpClear:
		c := &kvoraclev1.ClearBlocks{}
		if !op.AllTier {
			c.Tier = wiredTier(op.Tier)
		}
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Clear{Clear: c}}
	case op.Kind == oracle.OpRemove || op.Kind == oracle.OpOther && op.AllTier:
		m := &kvoraclev1.RemoveBlocks{Tier: wiredTier(op.Tier), Group: group, EngineHashes: g.wiredHashes(names)}
		if !g.isHashed {
			m.BlockIds = wiredIDs(op.IDs)
		}
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: m}}
	default:
		m := &kvoraclev1.StoreBlocks{Tier: wiredTier(op.Tier), Group: group, EngineHashes: g.wiredHashes(names)}
		g.wireParent(m, op, names[0])
		g.wireContent(m, op, names)
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: m}}
	}
}

func (g *naming) wireParent(m *kvoraclev1.StoreBlocks, op *oracle.Op, first node) {
	switch p := g.tree.parent(first); {
	case p < 0:
		m.Parent = &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}}
	case !g.isHashed:
		m.Parent = &kvoraclev1.StoreBlocks_ParentBlockId{ParentBlockId: uint64(op.Parent)}
	case g.isBytes:
		m.Parent = &kvoraclev1.StoreBlocks_ParentEngineDigest{ParentEngineDigest: g.bytes(p)}
	default:
		m.Parent = &kvoraclev1.StoreBlocks_ParentEngineHash{ParentEngineHash: g.keys[p]}
	}
}

// wireContent says what the blocks are, as tokens or hashes of them.
func (g *naming) wireContent(m *kvoraclev1.StoreBlocks, op *oracle.Op, names []node) {
	switch {
	case op.Content == oracle.ContentIDs:
		m.Content = &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: wiredIDs(op.IDs)}}
	case op.Content == oracle.ContentLocals && names[0]%2 == 0:
		b := &kvoraclev1.BlockTokens{}
		for _, n := range names {
			b.TokenIds = append(b.TokenIds, g.tree.tokens[g.tree.child(n)]...)
		}
		m.Content = &kvoraclev1.StoreBlocks_Tokens{Tokens: b}
	case op.Content == oracle.ContentLocals:
		b := &kvoraclev1.LocalHashes{}
		for _, l := range op.Locals {
			b.Hashes = append(b.Hashes, uint64(l))
		}
		m.Content = &kvoraclev1.StoreBlocks_LocalHashes{LocalHashes: b}
	}
}

func (g *naming) wiredHashes(names []node) *kvoraclev1.EngineHashes {
	if !g.isHashed {
		return nil
	}
	m := &kvoraclev1.EngineHashes{}
	for _, n := range names {
		if g.isBytes {
			m.Digests = append(m.Digests, g.bytes(n))
		} else {
			m.Numbers = append(m.Numbers, g.keys[n])
		}
	}
	return m
}

func wiredIDs(ids []block.ID) []uint64 {
	out := make([]uint64, len(ids))
	for i, id := range ids {
		out[i] = uint64(id)
	}
	return out
}

// String says it in words.
func (g *naming) String() string {
	how := "ids"
	if g.isHashed {
		how = "engine hashes"
	}
	return fmt.Sprintf("%s of blocks of %d tokens, groups beside: %v", how, g.tree.size, g.others)
}
