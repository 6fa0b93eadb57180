package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/bench/child"
	"github.com/kvoracle/kvoracle/client"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

const (
	model     = "demo"
	blockSize = 16
	long      = 20      // blocks of a prompt
	prompts   = 4096    // different ones
	deciders  = 64      // each waits for its answer before it asks again, so they are as many as may be late
	probed    = "probe" // model and worker by which it is seen how soon things are known
)

// world is what is reported and asked, and how it went.
type world struct {
	plan *plan
	all  []*replica
	// procs are NATS and the replicas, in their order.
	procs []*child.Process

	tokens [prompts][]uint32
	ids    [prompts][]uint64

	blocks, batches, decided, refused atomic.Int64

	mu               sync.Mutex
	latency, visible []float64 // ms
	sums             []sum     // by replica, at the end
}

// sum is what a replica believes of all workers.
type sum struct{ count, digest uint64 }

func newWorld(p *plan, all []*replica) (*world, error) {
	w := &world{plan: p, all: all, sums: make([]sum, len(all))}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range w.tokens {
		w.tokens[i] = make([]uint32, long*blockSize)
		for j := range w.tokens[i] {
			w.tokens[i][j] = rng.Uint32N(150_000)
		}
		for _, id := range client.BlockIDs(nil, client.Identity{Model: model, BlockSize: blockSize}, w.tokens[i]) {
			w.ids[i] = append(w.ids[i], uint64(id))
		}
	}
	for _, r := range all {
		if err := r.ready(); err != nil {
			return nil, err
		}
	}
	// One tells the others.
	_, err := all[0].fleet.RegisterWorker(context.Background(), &kvoraclev1.RegisterWorkerRequest{Spec: &kvoraclev1.WorkerSpec{
		WorkerId: probed, Address: "probe:1", Model: probed, BlockSize: blockSize,
	}})
	return w, err
}

// ready waits until a replica knows the others.
func (r *replica) ready() error {
	end := time.Now().Add(2 * time.Minute)
	for time.Now().Before(end) {
		m, err := r.fleet.ListWorkers(context.Background(), &kvoraclev1.ListWorkersRequest{})
		h, herr := r.health.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{Service: "replication"})
		if err == nil && herr == nil && m != nil && h.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
			return nil
		}
		<-time.After(50 * time.Millisecond)
	}
	return fmt.Errorf("replica %s does not get ready", r.name)
}

// report is a worker: it stores prompts, and takes the oldest back beyond what it can hold.
func (w *world) report(ctx context.Context, stop <-chan struct{}, i int) error {
	const every = 100 * time.Millisecond
	stream, err := w.all[i%len(w.all)].route.ReportBlocks(ctx)
	if err != nil {
		return err
	}
	name := fmt.Sprint("w", i)
	if err := stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
		Worker:      &kvoraclev1.WorkerSpec{WorkerId: name, Address: name + ":1", Model: model, BlockSize: blockSize},
		Incarnation: 1, NextSequence: 1, HashScheme: "xxh3-64/1337", Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
	}}}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	acks := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				acks <- err
				return
			}
		}
	}()
	rng := rand.New(rand.NewPCG(uint64(i), 3))
	held, has := []int(nil), make(map[int]bool)
	owed, seq := rng.Float64()*long, uint64(0) // not all at one time
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			if err := stream.CloseSend(); err != nil {
				return err
			}
			if err := <-acks; !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		case err := <-acks:
			return fmt.Errorf("stream of %s: %w", name, err)
		case <-tick.C:
		}
		b := &kvoraclev1.BlockBatch{}
		for owed += float64(w.plan.blocks) / float64(w.plan.reporters) * every.Seconds(); owed >= long; owed -= long {
			x := rng.IntN(prompts)
			for has[x] { // they hold few of all
				x = rng.IntN(prompts)
			}
			held, has[x] = append(held, x), true
			b.Ops = append(b.Ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
				Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
				Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: w.ids[x]}},
			}}})
			w.blocks.Add(long)
			if len(held) > w.plan.blocksEach/long {
				b.Ops = append(b.Ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: &kvoraclev1.RemoveBlocks{BlockIds: w.ids[held[0]]}}})
				delete(has, held[0])
				held = held[1:]
			}
		}
		if len(b.Ops) == 0 {
			continue
		}
		seq++
		b.Sequence = seq
		w.batches.Add(1)
		if err := stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: b}}); err != nil {
			return fmt.Errorf("stream of %s: %w", name, err)
		}
	}
}

// decide asks one replica and tells the next of the ends.
func (w *world) decide(ctx context.Context, stop <-chan struct{}, i int) error {
	if w.plan.decisions == 0 || w.plan.reporters == 0 {
		return nil
	}
	rng := rand.New(rand.NewPCG(uint64(i), 4))
	tick := time.NewTicker(time.Duration(deciders * float64(time.Second) / float64(w.plan.decisions)))
	defer tick.Stop()
	var took []float64
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.latency = append(w.latency, took...)
	}()
	over := &kvoraclev1.RecordProgressRequest{}
	for n := i; ; n++ {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		start := time.Now()
		a, err := w.all[n%len(w.all)].route.Route(ctx, &kvoraclev1.RouteRequest{
			Model: model, Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: w.tokens[rng.IntN(prompts)]}},
		})
		switch {
		case status.Code(err) == codes.NotFound || status.Code(err) == codes.Unavailable || status.Code(err) == codes.ResourceExhausted:
			w.refused.Add(1) // nobody has reported yet, or the machine is too slow
			continue
		case err != nil:
			return err
		}
		took = append(took, 1e3*time.Since(start).Seconds())
		w.decided.Add(1)
		over.Events = append(over.Events, finished(a.GetDecisionId()))
		if len(over.GetEvents()) == 20 {
			if _, err := w.all[(n+1)%len(w.all)].route.RecordProgress(ctx, over); err != nil {
				return err
			}
			over.Events = nil
		}
	}
}

func finished(id string) *kvoraclev1.ProgressEvent {
	return &kvoraclev1.ProgressEvent{DecisionId: id, Step: &kvoraclev1.ProgressEvent_Finished{Finished: &kvoraclev1.Finished{OutputTokens: 1}}}
}

// probe sees how soon a decision of one replica is known to the next, asking that again and again.
func (w *world) probe(ctx context.Context, stop <-chan struct{}) error {
	tokens := &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: w.tokens[0]}}
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return nil
		case <-pause.C:
		}
		here, there := w.all[n%len(w.all)], w.all[(n+1)%len(w.all)]
		a, err := here.route.Route(ctx, &kvoraclev1.RouteRequest{Model: probed, Prompt: tokens})
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		start := time.Now() // the caller knows it
		if err := there.sees(ctx, 1); err != nil {
			return err
		}
		w.visible = append(w.visible, 1e3*time.Since(start).Seconds())
		if _, err := there.route.RecordProgress(ctx, &kvoraclev1.RecordProgressRequest{Events: []*kvoraclev1.ProgressEvent{finished(a.GetDecisionId())}}); err != nil {
			return err
		}
		for _, r := range w.all {
			if err := r.sees(ctx, 0); err != nil {
				return err
			}
		}
	}
}

// sees waits until a replica knows of so many requests of the probed worker.
func (r *replica) sees(ctx context.Context, want uint32) error {
	end := time.Now().Add(time.Minute)
	for time.Now().Before(end) {
		m, err := r.fleet.GetWorker(ctx, &kvoraclev1.GetWorkerRequest{WorkerId: probed})
		if err == nil && m.GetWorker().GetRanks()[0].GetBookedRequests() == want {
			return nil
		}
		if err != nil && status.Code(err) != codes.NotFound {
			return err
		}
	}
	return fmt.Errorf("replica %s does not come to know of %d requests", r.name, want)
}

// compare waits until all replicas believe the same of each worker, and says of how many they do not in the end.
func (w *world) compare(ctx context.Context) (differ int, err error) {
	end := time.Now().Add(time.Minute)
	for i := range w.plan.reporters {
		for {
			var views []sum
			for _, r := range w.all {
				v, err := r.view(ctx, fmt.Sprint("w", i))
				if err != nil {
					return 0, err
				}
				views = append(views, v)
			}
			same := true
			for _, v := range views {
				same = same && v == views[0]
			}
			if !same && time.Now().Before(end) {
				<-time.After(10 * time.Millisecond)
				continue
			}
			if !same {
				differ++
			}
			for k, v := range views {
				w.sums[k].count += v.count
				w.sums[k].digest += v.digest
			}
			break
		}
	}
	return differ, nil
}

// view sums up what a replica believes of a worker.
func (r *replica) view(ctx context.Context, worker string) (sum, error) {
	stream, err := r.fleet.VerifyWorker(ctx, &kvoraclev1.VerifyWorkerRequest{Target: &kvoraclev1.Target{WorkerId: worker}})
	if err != nil {
		return sum{}, err
	}
	var s sum
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) || status.Code(err) == codes.NotFound:
			return s, nil
		case err != nil:
			return s, err
		}
		for _, id := range m.GetBlockIds() {
			s.count++
			s.digest += id
		}
	}
}
