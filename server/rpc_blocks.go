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
	if err := r.s.oracle.MayOpen(hello); err != nil { // else it would silence the stream it contradicts at the other replicas
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
	in := b.read(ctx, late)
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
	out     oracle.Ack // the one being sent
}

// read begins to apply what the reporter says. Only what other replicas are to hear has to be a message.
func (b *blockStream) read(ctx context.Context, late *lateAcks) *inbox {
	s := b.r.s
	if b.relay != nil {
		return readEach(ctx, s, b.stream.Recv, func(m *kvoraclev1.ReportBlocksRequest) error {
			ack, receipt, err := b.relay.Do(m, func() (oracle.Ack, error) { return b.apply.Apply(m, time.Now()) })
			if err != nil {
				return toStatus(err)
			}
			return late.add(ack, receipt)
		})
	}
	report := wire.NewReport(b.hello, s.printSeed)
	recv := func() (*wire.Report, error) { return report, b.stream.RecvMsg(report) }
	return readEach(ctx, s, recv, func(m *wire.Report) error {
		ack, err := m.Hand(b.apply, time.Now())
		if err != nil {
			return toStatus(err)
		}
		return b.send(ctx, &ack)
	})
}

// say sends one message.
func (b *blockStream) say(m *kvoraclev1.ReportBlocksResponse) error {
	b.sending.Lock()
	defer b.sending.Unlock()
	return b.stream.Send(m)
}

// acknowledge sends an ack, which the codec knows how to write.
func (b *blockStream) acknowledge(ack *oracle.Ack) error {
	b.sending.Lock()
	defer b.sending.Unlock()
	b.out = *ack
	return b.stream.SendMsg(&b.out)
}

// send acknowledges, and asks for a snapshot where one is needed.
func (b *blockStream) send(ctx context.Context, ack *oracle.Ack) error {
	if err := b.acknowledge(ack); err != nil {
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
