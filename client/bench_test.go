package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// wire is a connection that answers at once.
type wire struct{ grpc.ClientConnInterface }

func (wire) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	if m, ok := reply.(*kvoraclev1.RouteResponse); ok {
		m.DecisionId, m.Target = "1", &kvoraclev1.Target{WorkerId: "w"}
	}
	return nil
}

// BenchmarkRoute is what Route and the end of a request cost beside the call.
func BenchmarkRoute(b *testing.B) {
	r := NewRouter(wire{})
	req := ask()
	b.ReportAllocs()
	for b.Loop() {
		d, err := r.Route(context.Background(), req)
		if err != nil {
			b.Fatal(err)
		}
		r.Finished(d, 1, CachedUnknown)
	}
}

// BenchmarkFallback is a decision without the oracle in a fleet of 1,000 workers.
func BenchmarkFallback(b *testing.B) {
	r := NewRouter(nil)
	workers := make([]*kvoraclev1.Worker, 1000)
	for i := range workers {
		workers[i] = ready(fmt.Sprint("w", i))
	}
	r.fleet.set(workers, true, true, time.Now())
	req := ask()
	b.ReportAllocs()
	for b.Loop() {
		d, err := r.fallback(&req, ReasonBreakerOpen, nil)
		if err != nil {
			b.Fatal(err)
		}
		r.Finished(d, 1, CachedUnknown)
	}
}

// BenchmarkStore is one block stored and removed, with 100,000 held.
func BenchmarkStore(b *testing.B) {
	r := holding(b, 100_000)
	ids := []BlockID{1}
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Store(Root(), ids, TierDevice); err != nil {
			b.Fatal(err)
		}
		if err := r.Remove(ids, TierDevice); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSnapshot is one block of a snapshot of 100,000: copied, ordered and packed.
func BenchmarkSnapshot(b *testing.B) {
	r := holding(b, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		snap := snapshot{blocks: r.mirror.export()}
		snap.chunks(maxMessage, func(c *chunkMessage) bool {
			for _, s := range c.GetStores() {
				n += len(s.GetBlockIds().GetIds())
			}
			return true
		})
		if n != 100_000 {
			b.Fatalf("%d blocks", n)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/block")
}

// holding is a reporter that holds chains of 80 blocks.
func holding(b *testing.B, blocks int) *Reporter {
	b.Helper()
	r, err := NewReporter(nil, testWorker())
	if err != nil {
		b.Fatal(err)
	}
	for i := range blocks / 80 {
		chain := block.AppendChain(nil, block.Keyspace(i), make([]block.Local, 80))
		if err := r.Store(Root(), chain, TierDevice); err != nil {
			b.Fatal(err)
		}
	}
	return r
}
