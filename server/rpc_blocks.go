package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// ReportBlocks implements RouteService: hello, then messages one by one, each acknowledged.
func (r *routeService) ReportBlocks(stream kvoraclev1.RouteService_ReportBlocksServer) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return ended(err)
	}
	hello, err := decodeBlocksHello(first)
	if err != nil {
		return toStatus(err)
	}
	if err := r.s.guard.mayReport(ctx, hello.Spec.Worker); err != nil {
		return err
	}
	if err := r.s.warm.wait(ctx); err != nil {
		return toStatus(err)
	}
	session, accepted, err := r.s.oracle.OpenBlocks(hello, time.Now())
	if err != nil {
		return toStatus(err)
	}
	defer func() { session.Close(time.Now()) }()
	r.s.log.LogAttrs(ctx, slog.LevelInfo, "block stream opened", slog.String("worker", hello.Spec.Worker),
		slog.Int("dp_rank", hello.Rank), slog.Uint64("incarnation", hello.Incarnation),
		slog.Uint64("resume_from", accepted.ResumeFrom), slog.Bool("snapshot_required", accepted.SnapshotRequired))
	if err := stream.Send(wire.EncodeAccepted(accepted, r.s.limits)); err != nil {
		return err
	}
	b := blockStream{r: r, hello: hello, session: session, prints: wire.NewFingerprinter(r.s.printSeed), shape: wire.ShapeOf(hello)}
	in := readEach(ctx, r.s, stream.Recv, func(m *kvoraclev1.ReportBlocksRequest) error {
		ack, err := b.apply(m)
		if err != nil {
			return toStatus(err)
		}
		return b.send(ctx, stream, &ack)
	})
	defer in.close()
	leave := r.s.leaving()
	defer leave.stop()
	for {
		select {
		case err := <-in.over:
			return err
		case <-session.Kicked():
			return toStatus(session.Cause())
		case resync := <-session.Resyncs():
			if err := in.send(func() error { return stream.Send(wire.EncodeResync(resync)) }); err != nil {
				return err
			}
		case <-leave.going:
			bye := &kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_GoAway{GoAway: leave.notice()}}
			if err := in.send(func() error { return stream.Send(bye) }); err != nil {
				return err
			}
		case <-leave.over:
			return nil
		}
	}
}

func decodeBlocksHello(m *kvoraclev1.ReportBlocksRequest) (*oracle.Hello, error) {
	h, ok := m.GetMessage().(*kvoraclev1.ReportBlocksRequest_Hello)
	if !ok {
		return nil, unexpected("message", "want hello first")
	}
	return wire.DecodeHello(h.Hello)
}

func unexpected(field, want string) error {
	return oracle.Fault(oracle.InvalidArgument, oracle.ReasonUnexpectedMessage, field, "", want)
}

// blockStream is one open block stream.
type blockStream struct {
	r       *routeService
	hello   *oracle.Hello
	session *oracle.BlockSession
	prints  *wire.Fingerprinter
	shape   wire.Shape
	ops     []oracle.Op
}

// apply hands one message to the oracle.
func (b *blockStream) apply(m *kvoraclev1.ReportBlocksRequest) (oracle.Ack, error) {
	now := time.Now()
	switch x := m.GetMessage().(type) {
	case *kvoraclev1.ReportBlocksRequest_Batch:
		ops, err := wire.DecodeBatch(x.Batch, b.shape, b.ops[:0])
		if err != nil {
			return oracle.Ack{}, err
		}
		b.keep(ops)
		b.session.Doubt(x.Batch.GetDoubtful())
		return b.session.Batch(x.Batch.GetSequence(), b.prints.Batch(x.Batch), ops, now)
	case *kvoraclev1.ReportBlocksRequest_SnapshotBegin:
		return b.session.SnapshotBegin(x.SnapshotBegin.GetSequence(), now)
	case *kvoraclev1.ReportBlocksRequest_SnapshotChunk:
		ops, err := wire.DecodeChunk(x.SnapshotChunk, b.shape, b.ops[:0])
		if err != nil {
			return oracle.Ack{}, err
		}
		b.keep(ops)
		return b.session.SnapshotChunk(ops, now)
	case *kvoraclev1.ReportBlocksRequest_SnapshotEnd:
		b.session.Doubt(x.SnapshotEnd.GetDoubtful())
		return b.session.SnapshotEnd(x.SnapshotEnd.GetBlockCount(), now)
	case *kvoraclev1.ReportBlocksRequest_Digest:
		seq, tier, digest, err := wire.DecodeDigest(x.Digest)
		if err != nil {
			return oracle.Ack{}, err
		}
		return b.session.Digest(seq, tier, digest, now)
	case *kvoraclev1.ReportBlocksRequest_Hello:
		return oracle.Ack{}, unexpected("hello", "want it only once, first")
	default:
		return oracle.Ack{}, unexpected("message", "want one of batch, snapshot_begin, snapshot_chunk, snapshot_end, digest")
	}
}

// keep reuses the slice of operations, unless one huge batch made it large.
func (b *blockStream) keep(ops []oracle.Op) {
	const most = 4096
	if cap(ops) <= most {
		b.ops = ops
	}
}

// send acknowledges, and asks for a snapshot where one is needed.
func (b *blockStream) send(ctx context.Context, stream kvoraclev1.RouteService_ReportBlocksServer, ack *oracle.Ack) error {
	if err := stream.Send(wire.EncodeAck(ack)); err != nil {
		return err
	}
	if ack.Resync == nil {
		return nil
	}
	b.r.s.log.LogAttrs(ctx, slog.LevelWarn, "snapshot asked for", slog.String("worker", b.hello.Spec.Worker),
		slog.Int("dp_rank", b.hello.Rank), slog.String("reason", ack.Resync.Reason.String()),
		slog.Uint64("expected", ack.Resync.Expected), slog.Uint64("received", ack.Resync.Received))
	return stream.Send(wire.EncodeResync(ack.Resync))
}
