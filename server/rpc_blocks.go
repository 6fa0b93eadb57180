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
	hello, err := wire.DecodeBlocksHello(first)
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
	b := blockStream{r: r, hello: hello, apply: wire.NewApplier(hello, session, r.s.printSeed)}
	in := readEach(ctx, r.s, stream.Recv, func(m *kvoraclev1.ReportBlocksRequest) error {
		ack, err := b.apply.Apply(m, time.Now())
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

// blockStream is one open block stream.
type blockStream struct {
	r     *routeService
	hello *oracle.Hello
	apply *wire.Applier
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
