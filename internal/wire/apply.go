package wire

import (
	"hash/maphash"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Applier hands the messages of one block stream to its session, whether they come from a reporter or from another replica.
// Not for concurrent use.
type Applier struct {
	session *oracle.BlockSession
	prints  *Fingerprinter
	shape   Shape
	ops     []oracle.Op
}

// NewApplier makes one for a session that the hello has opened. The seed is the process's.
func NewApplier(hello *oracle.Hello, session *oracle.BlockSession, seed maphash.Seed) *Applier {
	return &Applier{session: session, prints: NewFingerprinter(seed), shape: ShapeOf(hello)}
}

// Apply hands over any message but the hello. The error ends the stream.
func (a *Applier) Apply(m *kvoraclev1.ReportBlocksRequest, now time.Time) (oracle.Ack, error) {
	switch x := m.GetMessage().(type) {
	case *kvoraclev1.ReportBlocksRequest_Batch:
		ops, err := DecodeBatch(x.Batch, a.shape, a.ops[:0])
		if err != nil {
			return oracle.Ack{}, err
		}
		a.keep(ops)
		a.session.Doubt(x.Batch.GetDoubtful())
		return a.session.Batch(x.Batch.GetSequence(), a.prints.Batch(x.Batch), ops, now)
	case *kvoraclev1.ReportBlocksRequest_SnapshotBegin:
		return a.session.SnapshotBegin(x.SnapshotBegin.GetSequence(), now)
	case *kvoraclev1.ReportBlocksRequest_SnapshotChunk:
		ops, err := DecodeChunk(x.SnapshotChunk, a.shape, a.ops[:0])
		if err != nil {
			return oracle.Ack{}, err
		}
		a.keep(ops)
		return a.session.SnapshotChunk(ops, now)
	case *kvoraclev1.ReportBlocksRequest_SnapshotEnd:
		a.session.Doubt(x.SnapshotEnd.GetDoubtful())
		return a.session.SnapshotEnd(x.SnapshotEnd.GetBlockCount(), now)
	case *kvoraclev1.ReportBlocksRequest_Digest:
		seq, tier, digest, err := DecodeDigest(x.Digest)
		if err != nil {
			return oracle.Ack{}, err
		}
		return a.session.Digest(seq, tier, digest, now)
	case *kvoraclev1.ReportBlocksRequest_Hello:
		return oracle.Ack{}, Unexpected("hello", "want it only once, first")
	default:
		return oracle.Ack{}, Unexpected("message", "want one of batch, snapshot_begin, snapshot_chunk, snapshot_end, digest")
	}
}

// keep reuses the slice of operations, unless one huge batch made it large.
func (a *Applier) keep(ops []oracle.Op) {
	const most = 4096
	if cap(ops) <= most {
		a.ops = ops
	}
}

// DecodeBlocksHello checks the message that must come first.
func DecodeBlocksHello(m *kvoraclev1.ReportBlocksRequest) (*oracle.Hello, error) {
	h, ok := m.GetMessage().(*kvoraclev1.ReportBlocksRequest_Hello)
	if !ok {
		return nil, Unexpected("message", "want hello first")
	}
	return DecodeHello(h.Hello)
}

// Unexpected refuses a message that must not come now.
func Unexpected(field, want string) error {
	return oracle.Fault(oracle.InvalidArgument, oracle.ReasonUnexpectedMessage, field, "", want)
}
