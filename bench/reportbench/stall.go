package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/child"
	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// pusher is a reporter that sends as fast as it is let, and reads what it is told to read.
type pusher struct {
	stream kvoraclev1.RouteService_ReportBlocksClient
	conn   *grpc.ClientConn
	sent   chan uint64 // batches, when it stops
	isDone chan struct{}
}

// push opens a stream and begins. Each batch stores what the one before it has removed, so that what it holds does not
// grow: whatever memory it takes is memory for messages.
func push(ctx context.Context, address, worker string) (*pusher, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	s, err := kvoraclev1.NewRouteServiceClient(conn).ReportBlocks(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
		Worker:      &kvoraclev1.WorkerSpec{WorkerId: worker, Model: "other", BlockSize: blockSize},
		Incarnation: 1, NextSequence: 1, HashScheme: block.Scheme, Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
	}}}); err != nil {
		return nil, err
	}
	if _, err := s.Recv(); err != nil {
		return nil, err
	}
	p := &pusher{stream: s, conn: conn, sent: make(chan uint64, 1), isDone: make(chan struct{})}
	go p.send()
	return p, nil
}

func (p *pusher) send() {
	const each = 20
	rng := rand.New(rand.NewPCG(7, 7))
	ids := make([]uint64, each)
	for i := range ids {
		ids[i] = rng.Uint64()
	}
	store := &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
		Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
		Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids}},
	}}}
	remove := &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: &kvoraclev1.RemoveBlocks{BlockIds: ids}}}
	seq := uint64(0)
	for {
		select {
		case <-p.isDone:
			p.sent <- seq
			_ = p.stream.CloseSend() // the end says the same
			return
		default:
		}
		ops := []*kvoraclev1.BlockOp{store}
		if seq%2 == 1 {
			ops = []*kvoraclev1.BlockOp{remove}
		}
		m := &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{Sequence: seq + 1, Ops: ops}}}
		if p.stream.Send(m) != nil {
			p.sent <- seq
			return
		}
		seq++
	}
}

// read takes acks in until the stream ends and returns the last batch that was acknowledged.
func (p *pusher) read() (uint64, error) {
	last := uint64(0)
	for {
		m, err := p.stream.Recv()
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err != nil {
			return last, err
		}
		if a := m.GetAck(); a != nil {
			last = a.GetAppliedSequence()
		}
		if m.GetResync() != nil {
			return last, fmt.Errorf("asked for a snapshot: %v", m.GetResync())
		}
	}
}

// stalled lets one reporter send and not read and another flood, and looks at the server's memory, at decisions, and
// whether anything was lost when the first one reads again.
func stalled(ctx context.Context, s *settings, p *probe, server *child.Process, address string) error {
	idle, err := count(server)
	if err != nil {
		return err
	}
	quiet, err := p.run(ctx, s.routes, s.stall)
	if err != nil {
		return err
	}
	before, err := count(server)
	if err != nil {
		return err
	}
	kept := max(0, before-idle) // what decisions leave in the server's memory of them, as long as that is not full
	deaf, err := push(ctx, address, "deaf")
	if err != nil {
		return err
	}
	loaded, err := p.run(ctx, s.routes, s.stall)
	if err != nil {
		return err
	}
	deafened, err := count(server)
	if err != nil {
		return err
	}
	flood, err := push(ctx, address, "flood")
	if err != nil {
		return err
	}
	flooded := make(chan error, 1)
	got := uint64(0)
	go func() {
		var err error
		got, err = flood.read()
		flooded <- err
	}()
	under, err := p.run(ctx, s.routes, s.stall)
	if err != nil {
		return err
	}
	drowned, err := count(server) // while both are still at it
	if err != nil {
		return err
	}
	grown := max(0, deafened-before-kept, drowned-before-2*kept)
	close(flood.isDone)
	close(deaf.isDone)
	heard, err := deaf.read()
	if err != nil {
		return fmt.Errorf("the stalled reporter: %w", err)
	}
	if err := <-flooded; err != nil {
		return fmt.Errorf("the flooding reporter: %w", err)
	}
	sent, flows := <-deaf.sent, <-flood.sent
	if heard != sent || got != flows {
		return fmt.Errorf("lost without a word: %d of %d batches and %d of %d were acknowledged", heard, sent, got, flows)
	}
	fmt.Printf("info %-28s %10d %10s       (batches taken before it was held up, and none lost)\n", "stalled-batches", sent, "")
	fmt.Printf("info %-28s %10.4g %10s       (batches/s of 20 blocks)\n", "flood-batches", float64(flows)/s.stall.Seconds(), "")
	info("decisions-memory", []float64{kept}, "MiB that the decisions of as long a time leave; not in stalled-memory")
	base := bars.Quantile(quiet, 0.99)
	info("route-p99-under-flood", []float64{bars.Quantile(under, 0.99) / base}, "times quiet")
	bar("route-p99-with-stalled", []float64{bars.Quantile(loaded, 0.99) / base}, 2, false, "times quiet")
	bar("stalled-memory", []float64{grown}, 16, false, "MiB of live memory more with a reporter that does not read acks and one that floods")
	return nil
}
