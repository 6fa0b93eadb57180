package wire

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Report is a ReportBlocksRequest. A batch of plain operations, as nearly all are, becomes the oracle's operations without a
// message in between: stores of ids or local hashes, removals by ids and clears, of the group that counts. Whatever else
// comes, in whatever form, is left to protobuf-go and the functions that refuse by name, so a Report is what those would have
// made of the same bytes; a test and a fuzz target hold the two together.
//
// It is meant to be read into again and again, and not for concurrent use.
type Report struct {
	shape Shape
	seed  maphash.Seed

	isPlain    bool
	seq, print uint64
	isDoubtful bool
	ops        []oracle.Op
	ids        []block.ID    // of the operations
	locals     []block.Local // the same

	message *kvoraclev1.ReportBlocksRequest // unless isPlain
}

// NewReport makes one for the stream that a hello has opened. The seed is the process's.
func NewReport(hello *oracle.Hello, seed maphash.Seed) *Report {
	return &Report{shape: ShapeOf(hello), seed: seed}
}

// Read takes a message in. Nothing of b is kept. The error is protobuf-go's.
func (r *Report) Read(b []byte) error {
	r.reset()
	if r.isPlain = r.batch(b); r.isPlain {
		return nil
	}
	r.message = &kvoraclev1.ReportBlocksRequest{}
	return proto.Unmarshal(b, r.message)
}

// reset forgets the last message, and working memory that one huge message has made large.
func (r *Report) reset() {
	const mostBlocks, mostOps = 16 << 10, 1 << 10
	if cap(r.ids) > mostBlocks || cap(r.locals) > mostBlocks || cap(r.ops) > mostOps {
		r.ids, r.locals, r.ops = nil, nil, nil
	}
	r.ids, r.locals, r.ops = r.ids[:0], r.locals[:0], r.ops[:0]
	r.message = nil
}

// Hand gives the message to the stream's applier.
func (r *Report) Hand(a *Applier, now time.Time) (oracle.Ack, error) {
	if !r.isPlain {
		return a.Apply(r.message, now)
	}
	a.session.Doubt(r.isDoubtful)
	return a.session.Batch(r.seq, r.print, r.ops, now)
}

// Field numbers of report_blocks.proto.
const (
	fieldBatch = 2 // of ReportBlocksRequest

	fieldSequence = 1 // of BlockBatch
	fieldOps      = 2
	fieldDoubtful = 3

	fieldStore  = 1 // of BlockOp
	fieldRemove = 2
	fieldClear  = 3

	fieldRoot          = 1 // of StoreBlocks
	fieldParentBlockID = 2
	fieldBlockIDs      = 3
	fieldStoredLocals  = 4
	fieldStoreTier     = 6
	fieldStoreGroup    = 7

	fieldRemoveIDs   = 1 // of RemoveBlocks
	fieldRemoveTier  = 2
	fieldRemoveGroup = 3

	fieldClearTier = 1 // of ClearBlocks

	fieldList = 1 // of BlockIds and LocalHashes
)

// fields gives each field of a message: a number for varints and fixed64, the bytes for those. It reports whether yield and
// the message wanted them all.
func fields(b []byte, yield func(num protowire.Number, kind protowire.Type, v uint64, body []byte) bool) bool {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		var v uint64
		var body []byte
		switch kind { //nolint:exhaustive // nobody sends the others
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			body, n = protowire.ConsumeBytes(b)
		default:
			return false
		}
		if n < 0 || !yield(num, kind, v, body) {
			return false
		}
		b = b[n:]
	}
	return true
}

// batch reads a message that is a batch of plain operations, or says that it is none.
func (r *Report) batch(b []byte) bool {
	num, kind, n := protowire.ConsumeTag(b)
	if n < 0 || num != fieldBatch || kind != protowire.BytesType {
		return false
	}
	body, m := protowire.ConsumeBytes(b[n:])
	if m < 0 || n+m != len(b) {
		return false
	}
	r.seq, r.isDoubtful = 0, false
	if !fields(body, func(num protowire.Number, kind protowire.Type, v uint64, body []byte) bool {
		switch {
		case num == fieldSequence && kind == protowire.VarintType:
			r.seq = v
		case num == fieldDoubtful && kind == protowire.VarintType:
			r.isDoubtful = v != 0
		case num == fieldOps && kind == protowire.BytesType && len(r.ops) < maxOps:
			return r.op(body)
		default:
			return false
		}
		return true
	}) {
		return false
	}
	r.print = maphash.Bytes(r.seed, body)
	return true
}

func (r *Report) op(b []byte) bool {
	num, kind, n := protowire.ConsumeTag(b)
	if n < 0 || kind != protowire.BytesType {
		return false
	}
	body, m := protowire.ConsumeBytes(b[n:])
	if m < 0 || n+m != len(b) {
		return false
	}
	switch num { //nolint:exhaustive // the library's names for limits
	case fieldStore:
		return r.store(body)
	case fieldRemove:
		return r.remove(body)
	case fieldClear:
		return r.clear(body)
	default:
		return false
	}
}

func (r *Report) store(b []byte) bool {
	op := oracle.Op{Kind: oracle.OpStore}
	group, t := uint64(0), uint64(0)
	hasParent, n := false, 0
	if !fields(b, func(num protowire.Number, kind protowire.Type, v uint64, body []byte) (ok bool) {
		switch {
		case num == fieldRoot && kind == protowire.BytesType && len(body) == 0 && !hasParent:
			op.IsRoot, hasParent = true, true
		case num == fieldParentBlockID && kind == protowire.Fixed64Type && !hasParent:
			op.Parent, hasParent = block.ID(v), true
		case num == fieldBlockIDs && kind == protowire.BytesType && n == 0:
			op.Content = oracle.ContentIDs
			body, ok = list(body)
			op.IDs, n = r.takeIDs(body), len(body)/8
			return ok
		case num == fieldStoredLocals && kind == protowire.BytesType && n == 0:
			op.Content = oracle.ContentLocals
			body, ok = list(body)
			op.Locals, n = r.takeLocals(body), len(body)/8
			return ok
		case num == fieldStoreTier && kind == protowire.VarintType:
			t = v
		case num == fieldStoreGroup && kind == protowire.VarintType:
			group = v
		default:
			return false
		}
		return true
	}) {
		return false
	}
	where, ok := tier(kvoraclev1.Tier(int32(t)))
	op.Tier = where
	if !ok || !hasParent || n == 0 || n > maxBlocksPerOp || !r.shape.isPrefix(group) {
		return false
	}
	r.ops = append(r.ops, op)
	return true
}

func (r *Report) remove(b []byte) bool {
	op := oracle.Op{Kind: oracle.OpRemove}
	group, t := uint64(0), uint64(0)
	if !fields(b, func(num protowire.Number, kind protowire.Type, v uint64, body []byte) bool {
		switch {
		case num == fieldRemoveIDs && kind == protowire.BytesType && op.IDs == nil && len(body)%8 == 0:
			op.IDs = r.takeIDs(body)
		case num == fieldRemoveTier && kind == protowire.VarintType:
			t = v
		case num == fieldRemoveGroup && kind == protowire.VarintType:
			group = v
		default:
			return false
		}
		return true
	}) {
		return false
	}
	where, ok := tier(kvoraclev1.Tier(int32(t)))
	op.Tier = where
	if n := len(op.IDs); !ok || n == 0 || n > maxBlocksPerOp || !r.shape.isPrefix(group) {
		return false
	}
	r.ops = append(r.ops, op)
	return true
}

func (r *Report) clear(b []byte) bool {
	t := uint64(0)
	if !fields(b, func(num protowire.Number, kind protowire.Type, v uint64, _ []byte) bool {
		t = v
		return num == fieldClearTier && kind == protowire.VarintType
	}) {
		return false
	}
	op := decodeClear(&kvoraclev1.ClearBlocks{Tier: kvoraclev1.Tier(int32(t))})
	r.ops = append(r.ops, op)
	return op.Kind == oracle.OpClear
}

// list is the one packed field of a BlockIds or LocalHashes.
func list(b []byte) (packed []byte, ok bool) {
	num, kind, n := protowire.ConsumeTag(b)
	if n < 0 || num != fieldList || kind != protowire.BytesType {
		return nil, false
	}
	packed, m := protowire.ConsumeBytes(b[n:])
	return packed, m >= 0 && n+m == len(b) && len(packed)%8 == 0
}

// takeIDs copies packed numbers. What was taken before stays where it is.
func (r *Report) takeIDs(packed []byte) []block.ID {
	from := len(r.ids)
	r.ids = slices.Grow(r.ids, len(packed)/8)
	for ; len(packed) >= 8; packed = packed[8:] {
		r.ids = append(r.ids, block.ID(binary.LittleEndian.Uint64(packed)))
	}
	return r.ids[from:len(r.ids):len(r.ids)]
}

func (r *Report) takeLocals(packed []byte) []block.Local {
	from := len(r.locals)
	r.locals = slices.Grow(r.locals, len(packed)/8)
	for ; len(packed) >= 8; packed = packed[8:] {
		r.locals = append(r.locals, block.Local(binary.LittleEndian.Uint64(packed)))
	}
	return r.locals[from:len(r.locals):len(r.locals)]
}
