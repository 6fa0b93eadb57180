package index

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

func benchmarkMatch(b *testing.B, ix *Index, chain []block.ID, want int) {
	b.Helper()
	dst := make([]Match, 0, 2048)
	b.ReportAllocs()
	for b.Loop() {
		dst = ix.Match(chain, dst[:0])
	}
	if len(dst) != want {
		b.Fatalf("%d matches, want %d", len(dst), want)
	}
}

// BenchmarkMatch asks for chains of some depth, by how their holders differ.
func BenchmarkMatch(b *testing.B) {
	for _, depth := range []int{1, 16, 78, 512, 8192} {
		b.Run(fmt.Sprintf("holders=1/depth=%d", depth), func(b *testing.B) {
			ix := New(Config{})
			chain := numbered(depth)
			publish(ix, 0, chain, depth)
			benchmarkMatch(b, ix, chain, 1)
		})
	}
	b.Run("holders=0/depth=78", func(b *testing.B) {
		benchmarkMatch(b, New(Config{}), numbered(78), 0)
	})
	b.Run("holders=1/depth=78/held=40", func(b *testing.B) {
		ix := New(Config{})
		chain := numbered(78)
		publish(ix, 0, chain, 40)
		benchmarkMatch(b, ix, chain, 1)
	})
	b.Run("holders=64/depth=78", func(b *testing.B) {
		ix := New(Config{})
		chain := numbered(78)
		for t := range fleet.TargetID(64) {
			publish(ix, t, chain, 78)
		}
		benchmarkMatch(b, ix, chain, 64)
	})
	b.Run("holders=64/depth=78/staggered", func(b *testing.B) {
		ix := New(Config{})
		chain := numbered(78)
		for t := range fleet.TargetID(64) {
			publish(ix, t, chain, int(t)+15)
		}
		benchmarkMatch(b, ix, chain, 64)
	})
	b.Run("holders=64/depth=78/tiers", func(b *testing.B) {
		ix := New(Config{})
		chain := numbered(78)
		for t := range fleet.TargetID(64) {
			publish(ix, t, chain, 20, 50, 60+int(t)%16)
		}
		benchmarkMatch(b, ix, chain, 64)
	})
	b.Run("holders=1024/shared=64/depth=128", func(b *testing.B) {
		ix := New(Config{})
		shared := numbered(64)
		var chain []block.ID
		for t := range fleet.TargetID(1024) {
			own := append([]block.ID{}, shared...)
			for i := range 64 {
				own = append(own, block.ID(t)<<32+block.ID(i))
			}
			publish(ix, t, own, len(own))
			chain = own
		}
		benchmarkMatch(b, ix, chain, 1024)
	})
}

// BenchmarkMatchParallel asks from all cores at once.
func BenchmarkMatchParallel(b *testing.B) {
	ix := New(Config{})
	chain := numbered(78)
	for t := range fleet.TargetID(64) {
		publish(ix, t, chain, 78)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		dst := make([]Match, 0, 64)
		for pb.Next() {
			dst = ix.Match(chain, dst[:0])
		}
	})
}

// BenchmarkStore stores chains of 64 blocks and removes them again, leaf first; a ledger holds up to 64 Ki blocks.
func BenchmarkStore(b *testing.B) {
	const length, kept = 64, 1024
	churn := func(l *Ledger, seed block.ID, next func() bool) {
		ring := make([][]block.ID, kept)
		for i := range ring {
			ring[i] = make([]block.ID, length)
		}
		for n := block.ID(0); next(); n++ {
			ids := ring[n%kept]
			if n >= kept {
				slices.Reverse(ids)
				l.Remove(ids, fleet.Device)
			}
			for i := range ids {
				ids[i] = (seed<<40 + n<<10 + block.ID(i) + 1) * 0x9e3779b97f4a7c15
			}
			l.Store(Parent{IsRoot: true}, ids, fleet.Device)
		}
	}
	perBlock := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/length, "ns/block")
	}
	b.Run("writers=1", func(b *testing.B) {
		ix := New(Config{})
		l := publish(ix, 0, nil)
		b.ReportAllocs()
		churn(l, 1, b.Loop)
		perBlock(b)
	})
	b.Run("writers=all", func(b *testing.B) {
		ix := New(Config{})
		var ids atomic.Uint32
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			id := ids.Add(1)
			churn(publish(ix, fleet.TargetID(id), nil), block.ID(id), pb.Next)
		})
		perBlock(b)
	})
	b.Run("shared", func(b *testing.B) {
		// The 64-block prefix that a thousand others hold.
		ix := New(Config{})
		chain := numbered(length)
		for t := range fleet.TargetID(1024) {
			publish(ix, t, chain, length)
		}
		l := publish(ix, 2000, nil)
		b.ReportAllocs()
		for b.Loop() {
			l.Store(Parent{IsRoot: true}, chain, fleet.Device)
			l.Remove(chain, fleet.Device)
		}
		perBlock(b)
	})
}

// BenchmarkStoreWhenFull stores prompts of 40 blocks, eight at a time, in turn into some ledgers. In an index that is full of
// such, each store drives out as many blocks as it brings; in one with room it does not.
func BenchmarkStoreWhenFull(b *testing.B) {
	for _, tt := range []struct{ ledgers, limit int }{{8, 2000}, {64, 20_000}, {1024, 100_000}, {8, 1 << 20}, {256, 1 << 20}} {
		for _, isFull := range []bool{false, true} {
			b.Run(fmt.Sprintf("ledgers=%d/limit=%d/full=%v", tt.ledgers, tt.limit, isFull), func(b *testing.B) {
				const prompt, batch = 40, 8
				ix := New(Config{MaxBlocks: tt.limit})
				ledgers := make([]*Ledger, tt.ledgers)
				for t := range ledgers {
					ledgers[t] = publish(ix, fleet.TargetID(t), nil)
				}
				var ids [prompt]block.ID
				n := 0
				store := func() {
					for i := range ids {
						ids[i] = block.ID(n<<10+i+1) * 0x9e3779b97f4a7c15
					}
					ix.SetClock(uint32(n))
					l := ledgers[n%len(ledgers)]
					n++
					for i := 0; i < prompt; i += batch {
						l.Store(parentOf(ids[:], i), ids[i:i+batch], fleet.Device)
					}
				}
				for n < tt.limit/prompt && isFull {
					store()
				}
				calls, left := 0, 0
				for b.Loop() {
					if !isFull && left == 0 {
						b.StopTimer()
						for t := range ledgers {
							ledgers[t].ClearAll()
						}
						left = tt.limit / prompt / 2
						b.StartTimer()
					}
					left--
					store()
					calls++
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(calls)/prompt, "ns/block")
			})
		}
	}
}

// BenchmarkExport copies a ledger of a quarter of a million blocks, in chains of 155; while it does, reports to that ledger wait.
func BenchmarkExport(b *testing.B) {
	ix := New(Config{})
	l := ix.NewLedger(1, false)
	const chains, long = 1650, 155
	for c := range chains {
		ids := private(c, long)
		for i := range ids {
			ids[i] *= 0x9E3779B97F4A7C15
		}
		l.Store(Parent{IsRoot: true}, ids, fleet.Device)
	}
	var c Contents
	for b.Loop() {
		l.Export(&c)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(chains*long), "ns/block")
}
