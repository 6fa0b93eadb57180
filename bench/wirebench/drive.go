package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// nextID numbers the requests of this process.
var nextID atomic.Uint64

// did is what a run of calls cost.
type did struct {
	calls     int
	cpu       float64 // server seconds a call
	mallocs   float64 // server allocations a call
	rate      float64 // calls a second of the clock
	latencies []time.Duration
	ids       []string
}

// around measures the server while f makes n calls; decisions are given up afterwards, unmeasured.
func (w *world) around(ctx context.Context, n int, f func() (*did, error)) (*did, error) {
	before, err := w.spent(ctx)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	d, err := f()
	if err != nil {
		return nil, err
	}
	took := time.Since(begin)
	after, err := w.spent(ctx)
	if err != nil {
		return nil, err
	}
	d.calls = n
	d.cpu = (after.cpu - before.cpu) / float64(n)
	d.mallocs = (after.mallocs - before.mallocs) / float64(n)
	d.rate = float64(n) / took.Seconds()
	return d, w.cancel(ctx, d.ids)
}

// unary makes n calls, c at a time.
func (w *world) unary(ctx context.Context, conn *grpc.ClientConn, method string, questions [][]byte, c, n int) (*did, error) {
	return w.around(ctx, n, func() (*did, error) {
		var next atomic.Int64
		var wg sync.WaitGroup
		errs := make(chan error, c)
		all := make([][]string, c)
		for k := range c {
			wg.Go(func() {
				for {
					i := next.Add(1) - 1
					if i >= int64(n) {
						return
					}
					id, err := ask(ctx, conn, method, questions[int(i)%len(questions)])
					if err != nil {
						errs <- err
						return
					}
					if id != "" {
						all[k] = append(all[k], id)
					}
				}
			})
		}
		wg.Wait()
		select {
		case err := <-errs:
			return nil, err
		default:
			return &did{ids: slices.Concat(all...)}, nil
		}
	})
}

// ask makes one call and reads the decision from the answer; an echo has none.
func ask(ctx context.Context, conn *grpc.ClientConn, method string, question []byte) (string, error) {
	var out []byte
	msg := mem.BufferSlice{mem.SliceBuffer(question), mem.SliceBuffer(requestID(nextID.Add(1)))}
	if err := conn.Invoke(ctx, method, msg, &out); err != nil {
		return "", err
	}
	if method != routeMethod {
		return "", nil
	}
	return decisionOf(out)
}

// decisionOf reads RouteResponse.decision_id.
func decisionOf(m []byte) (string, error) {
	id, err := field(m, 1)
	return string(id), err
}

// field finds the first field of a number that has a length.
func field(m []byte, want protowire.Number) ([]byte, error) {
	for len(m) > 0 {
		num, kind, n := protowire.ConsumeTag(m)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		if num == want && kind == protowire.BytesType {
			v, n := protowire.ConsumeBytes(m[n:])
			return v, protowire.ParseError(min(n, 0))
		}
		v := protowire.ConsumeFieldValue(num, kind, m[n:])
		if v < 0 {
			return nil, protowire.ParseError(v)
		}
		m = m[n+v:]
	}
	return nil, fmt.Errorf("no field %d in the answer", want)
}

// stream asks n questions on one stream, with some in flight.
func (w *world) stream(ctx context.Context, method string, questions [][]byte, inFlight, n int) (*did, error) {
	return w.around(ctx, n, func() (*did, error) {
		s, err := w.raw.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			return nil, err
		}
		window := make(chan struct{}, inFlight)
		sent := make(chan error, 1)
		go func() {
			for i := range n {
				window <- struct{}{}
				id := requestID(nextID.Add(1))
				if err := s.SendMsg(streamed(uint64(i), questions[i%len(questions)], id)); err != nil {
					sent <- err
					return
				}
			}
			sent <- s.CloseSend()
		}()
		d := &did{}
		var out []byte
		for range n {
			if err := s.RecvMsg(&out); err != nil {
				return nil, err
			}
			<-window
			if method != routeStreamMethod {
				continue
			}
			answer, err := field(out, 2)
			if err != nil {
				return nil, err
			}
			id, err := decisionOf(answer)
			if err != nil {
				return nil, err
			}
			d.ids = append(d.ids, id)
		}
		if err := <-sent; err != nil {
			return nil, err
		}
		if err := s.RecvMsg(&out); !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("the stream ended with %w", err)
		}
		return d, nil
	})
}

// offered is what became of the calls of an open loop.
type offered struct {
	latencies []time.Duration // of the answered, from when each was due
	shed      int             // refused for overload
	late      int             // ended by the server, since their message did not come in time
	took      time.Duration
}

// openLoop makes calls at a rate whether or not earlier ones have come back.
func (w *world) openLoop(ctx context.Context, method string, questions [][]byte, rate float64, length time.Duration) (*offered, error) {
	var mu sync.Mutex
	out := &offered{}
	var ids []string
	var failed error
	var wg sync.WaitGroup
	r := rand.New(rand.NewPCG(3, 3))
	begin := time.Now()
	var due time.Duration
	for i := 0; due < length; i++ {
		due += time.Duration(r.ExpFloat64() / rate * float64(time.Second))
		if d := due - time.Since(begin); d > 0 {
			time.Sleep(d)
		}
		at := due
		wg.Go(func() {
			id, err := ask(ctx, w.raw, method, questions[i%len(questions)])
			took := time.Since(begin) - at
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				out.latencies = append(out.latencies, took)
			case status.Code(err) == codes.ResourceExhausted:
				out.shed++
			case (status.Code(err) == codes.Canceled || status.Code(err) == codes.DeadlineExceeded) && ctx.Err() == nil:
				out.late++
			default:
				failed = err
			}
			if id != "" {
				ids = append(ids, id)
			}
			if len(ids) == 1000 { // the bound of guesses must not spare the server work
				some := ids
				ids = nil
				wg.Go(func() { _ = w.cancel(ctx, some) })
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	out.took = time.Since(begin)
	return out, w.cancel(ctx, ids)
}

// feed counts what became of a worker's reports.
type feed struct{ sent, applied atomic.Uint64 } // batches

// reports sends new blocks of one more worker until ctx ends.
func (w *world) reports(ctx context.Context, perSecond int) (*feed, error) {
	f := &feed{}
	s, err := w.report(ctx, 9999)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			m, err := s.Recv()
			if err != nil {
				return
			}
			if a := m.GetAck(); a != nil {
				f.applied.Store(a.GetAppliedSequence())
			}
		}
	}()
	go func() {
		const each = 10 * time.Millisecond
		tick := time.NewTicker(each)
		defer tick.Stop()
		r := rand.New(rand.NewPCG(4, 4))
		n := perSecond / int(time.Second/each)
		for seq := uint64(1); ; seq++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			hashes := make([]uint64, n)
			for i := range hashes {
				hashes[i] = r.Uint64()
			}
			if s.Send(batchOf(seq, hashes)) != nil {
				return
			}
			f.sent.Store(seq)
		}
	}()
	return f, nil
}

// report opens a worker's block stream and says that it is empty so far.
func (w *world) report(ctx context.Context, n int) (kvoraclev1.RouteService_ReportBlocksClient, error) {
	s, err := kvoraclev1.NewRouteServiceClient(w.control).ReportBlocks(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range []*kvoraclev1.ReportBlocksRequest{
		{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
			Worker: &kvoraclev1.WorkerSpec{
				WorkerId: fmt.Sprintf("worker-%04d", n), Address: fmt.Sprintf("10.0.%d.%d:8000", n/256, n%256), Model: model, BlockSize: blockSize,
			},
			Incarnation: 1, NextSequence: 1, HashScheme: block.Scheme, Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
		}}},
		{Message: &kvoraclev1.ReportBlocksRequest_SnapshotBegin{SnapshotBegin: &kvoraclev1.SnapshotBegin{Sequence: 0}}},
		{Message: &kvoraclev1.ReportBlocksRequest_SnapshotEnd{SnapshotEnd: &kvoraclev1.SnapshotEnd{}}},
	} {
		if err := s.Send(m); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// batchOf stores prompts, each given by its local hashes.
func batchOf(sequence uint64, prompts ...[]uint64) *kvoraclev1.ReportBlocksRequest {
	b := &kvoraclev1.BlockBatch{Sequence: sequence}
	for _, locals := range prompts {
		b.Ops = append(b.Ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
			Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
			Content: &kvoraclev1.StoreBlocks_LocalHashes{LocalHashes: &kvoraclev1.LocalHashes{Hashes: locals}},
			Tier:    kvoraclev1.Tier_TIER_DEVICE,
		}}})
	}
	return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: b}}
}
