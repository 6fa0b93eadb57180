package main

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// probe asks for decisions.
type probe struct {
	conn      *grpc.ClientConn
	route     kvoraclev1.RouteServiceClient
	questions []*kvoraclev1.RouteRequest
	rng       *rand.Rand
}

func newProbe(address string) (*probe, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	p := &probe{conn: conn, route: kvoraclev1.NewRouteServiceClient(conn), rng: rand.New(rand.NewPCG(5, 5))}
	for n := range families {
		tokens := make([]uint32, (prefix+tail)*blockSize)
		for i := range tokens {
			tokens[i] = uint32(n)<<16 | uint32(i)
		}
		m := &kvoraclev1.BlockHashPrompt{HashScheme: block.Scheme, BlockSize: blockSize, TokenCount: uint32(len(tokens))}
		for _, l := range block.AppendLocals(nil, tokens, blockSize) {
			m.LocalHashes = append(m.LocalHashes, uint64(l))
		}
		p.questions = append(p.questions, &kvoraclev1.RouteRequest{Model: model, Prompt: &kvoraclev1.RouteRequest_BlockHashes{BlockHashes: m}})
	}
	return p, nil
}

// run asks at a rate, whether or not earlier answers have come, and times each in ms from when it was due. What was booked
// is given back, so that one run leaves nothing to the next.
func (p *probe) run(ctx context.Context, rate float64, length time.Duration) ([]float64, error) {
	var mu sync.Mutex
	var times []float64
	var ids []string
	var failed error
	var wg sync.WaitGroup
	begin := time.Now()
	var due time.Duration
	for due < length {
		due += time.Duration(p.rng.ExpFloat64() / rate * float64(time.Second))
		if d := due - time.Since(begin); d > 0 {
			time.Sleep(d)
		}
		at, q := due, p.questions[p.rng.IntN(len(p.questions))]
		wg.Go(func() {
			m, err := p.route.Route(ctx, q)
			took := time.Since(begin) - at
			mu.Lock()
			defer mu.Unlock()
			if status.Code(err) == codes.ResourceExhausted {
				took = math.MaxInt64 // the server sheds: as bad as no answer
			} else if err != nil {
				failed = err
				return
			}
			times = append(times, float64(took)/float64(time.Millisecond))
			if m == nil {
				return
			}
			if ids = append(ids, m.GetDecisionId()); len(ids) == 200 {
				some := ids
				ids = nil
				wg.Go(func() { _ = p.cancel(ctx, some) })
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	return times, p.cancel(ctx, ids)
}

func (p *probe) cancel(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	m := &kvoraclev1.RecordProgressRequest{}
	for _, id := range ids {
		m.Events = append(m.Events, &kvoraclev1.ProgressEvent{
			DecisionId: id, Step: &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}},
		})
	}
	_, err := p.route.RecordProgress(ctx, m)
	return err
}
