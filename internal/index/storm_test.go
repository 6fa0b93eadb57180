package index

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// B110: 64 writers of one shared prompt with tails of their own, 64 readers and removal storms. No reader sees more than
// anybody ever held; after quiet the index equals what the writers remember.
func TestStorm(t *testing.T) {
	const writers, readers, shared, own = 64, 64, 300, 20
	rounds := 100
	if isRace {
		rounds = 40
	}
	ix := New(Config{})
	prompt := numbered(shared)
	chains := make([][]block.ID, writers)
	for w := range chains {
		chains[w] = slices.Clone(prompt[:shared-w])
		for i := range own {
			chains[w] = append(chains[w], block.ID(w+1)<<32+block.ID(i))
		}
	}
	seed := newSeed()
	t.Logf("seed %d", seed)
	held := make([]int, writers)
	var isDone atomic.Bool
	var writing, reading sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			chain := chains[w]
			l := publish(ix, fleet.TargetID(w), nil)
			for range rounds {
				switch n := r.IntN(10); {
				case n == 0:
					l, held[w] = publish(ix, fleet.TargetID(w), chain, 10), 10
				case n == 1:
					ix.Drop(fleet.TargetID(w))
					l, held[w] = publish(ix, fleet.TargetID(w), nil), 0
				case n < 5 && held[w] > 0:
					to := r.IntN(held[w])
					l.Remove(chain[to:held[w]], fleet.Device)
					held[w] = to
				case held[w] < len(chain):
					to := held[w] + 1 + r.IntN(len(chain)-held[w])
					l.Store(parentOf(chain, held[w]), chain[held[w]:to], fleet.Device)
					held[w] = to
				}
			}
		})
	}
	for k := range readers {
		reading.Go(func() {
			var dst []Match
			chain := chains[k%writers]
			for !isDone.Load() {
				dst = ix.Match(chain, dst[:0])
				for _, m := range dst {
					most := shared - max(int(m.Target), k)
					if int(m.Target) == k {
						most = len(chain)
					}
					if m.Total() > most || m.Total() == 0 || m.Total() != int(m.Blocks[0]) {
						t.Errorf("target %d: %v of at most %d", m.Target, m.Blocks, most)
						return
					}
				}
				ix.Reclaim(100)
			}
		})
	}
	writing.Wait()
	isDone.Store(true)
	reading.Wait()
	for k := range chains {
		var want []Match
		for w, n := range held {
			if w != k {
				n = min(n, shared-max(w, k))
			}
			if n > 0 {
				want = append(want, Match{Target: fleet.TargetID(w), Blocks: [fleet.NumTiers]uint32{uint32(n)}})
			}
		}
		if d := cmp.Diff(want, ix.Match(chains[k], nil)); d != "" {
			t.Fatalf("chain %d after quiet (-want +got):\n%s", k, d)
		}
	}
	for w := range fleet.TargetID(writers) {
		checkLedger(t, ix.Visible(w))
	}
	for ix.Reclaim(10_000) > 0 {
	}
	checkMemory(t, ix)
}
