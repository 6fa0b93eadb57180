package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/replica"
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
	relay := r.s.replica.Open(ctx, first.GetHello())
	defer relay.Close()
	session, accepted, err := r.s.oracle.OpenBlocks(hello, time.Now())
	if err != nil {
		return toStatus(err)
	}
	defer func() { session.Close(time.Now()) }()
	relay.Begin(session)
	r.s.log.LogAttrs(ctx, slog.LevelInfo, "block stream opened", slog.String("worker", hello.Spec.Worker),
		slog.Int("dp_rank", hello.Rank), slog.Uint64("incarnation", hello.Incarnation),
		slog.Uint64("resume_from", accepted.ResumeFrom), slog.Bool("snapshot_required", accepted.SnapshotRequired))
	if err := stream.Send(wire.EncodeAccepted(accepted, r.s.limits)); err != nil {
		return err
	}
	b := blockStream{r: r, hello: hello, apply: wire.NewApplier(hello, session, r.s.printSeed), stream: stream, relay: relay}
	late := b.answerLate(ctx)
	in := readEach(ctx, r.s, stream.Recv, func(m *kvoraclev1.ReportBlocksRequest) error {
		ack, receipt, err := relay.Do(m, func() (oracle.Ack, error) { return b.apply.Apply(m, time.Now()) })
		switch {
		case err != nil:
			return toStatus(err)
		case relay == nil:
			return b.send(ctx, &ack)
		default:
			return late.add(ack, receipt)
		}
	})
	defer in.close()
	defer late.stop() // before: a message that waits for room among the acks gives up
	messages := in.over
	leave := r.s.leaving()
	defer leave.stop()
	for {
		select {
		case err := <-messages:
			if err != nil || relay == nil {
				return err
			}
			messages = nil
			late.finish()
		case <-late.ended:
			return late.err
		case <-session.Kicked():
			return toStatus(session.Cause())
		case resync := <-session.Resyncs():
			if err := in.send(func() error { return b.say(wire.EncodeResync(resync)) }); err != nil {
				return err
			}
		case <-leave.going:
			bye := &kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_GoAway{GoAway: leave.notice()}}
			if err := in.send(func() error { return b.say(bye) }); err != nil {
				return err
			}
		case <-leave.over:
			return nil
		}
	}
}

// blockStream is one open block stream.
type blockStream struct {
	r      *routeService
	hello  *oracle.Hello
	apply  *wire.Applier
	relay  *replica.Stream // nil: there are no other replicas
	stream kvoraclev1.RouteService_ReportBlocksServer

	sending sync.Mutex // gRPC sends one message at a time
}

// say sends one message.
func (b *blockStream) say(m *kvoraclev1.ReportBlocksResponse) error {
	b.sending.Lock()
	defer b.sending.Unlock()
	return b.stream.Send(m)
}

// send acknowledges, and asks for a snapshot where one is needed.
func (b *blockStream) send(ctx context.Context, ack *oracle.Ack) error {
	if err := b.say(wire.EncodeAck(ack)); err != nil {
		return err
	}
	if ack.Resync == nil {
		return nil
	}
	b.r.s.log.LogAttrs(ctx, slog.LevelWarn, "snapshot asked for", slog.String("worker", b.hello.Spec.Worker),
		slog.Int("dp_rank", b.hello.Rank), slog.String("reason", ack.Resync.Reason.String()),
		slog.Uint64("expected", ack.Resync.Expected), slog.Uint64("received", ack.Resync.Received))
	return b.say(wire.EncodeResync(ack.Resync))
}
