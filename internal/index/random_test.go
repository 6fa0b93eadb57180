package index

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
)

// seedFlag repeats a random test with the seed that a failure has printed: go test -run Random -seed 123.
var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0: another one each time")

func newSeed() uint64 {
	if *seedFlag != 0 {
		return *seedFlag
	}
	return rand.Uint64()
}

// seeded makes a source of randomness whose seed a failure prints.
func seeded(t *testing.T) *rand.Rand {
	seed := newSeed()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

type randomChooser struct{ *rand.Rand }

func (r randomChooser) below(n int) int { return r.IntN(n) }

// TestRandomOperationsEqualTwin runs many short histories, so that early states are seen as often as late ones, with
// limits that are often reached and with none.
func TestRandomOperationsEqualTwin(t *testing.T) {
	const steps = 2200
	histories, least := 100, 50
	if isRace {
		histories, least = 20, 5
	}
	counts := make(map[string]int)
	if *seedFlag != 0 {
		histories, least = 1, 0
	}
	for range histories {
		seed := newSeed()
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			maxBlocks, maxOrphans := 1_000_000, 1_000_000
			if r.IntN(3) == 0 {
				maxBlocks = 20 + r.IntN(120)
			}
			if r.IntN(4) == 0 {
				maxOrphans = 1 + r.IntN(8)
			}
			s := newScript(t, randomChooser{r}, maxBlocks, maxOrphans)
			for i := range steps {
				s.step()
				if i%50 == 0 {
					s.compareAll()
				}
				if i%200 == 100 {
					s.compareExport()
				}
			}
			s.finish()
			for k, v := range s.counts {
				counts[k] += v
			}
		})
	}
	// A comparison that never met a case says nothing about it.
	for _, k := range []string{
		"none", "self_parent", "parent_conflict", "orphans_full", "capacity", "orphan", "stored", "repeated", "removed", "matches", "continued", "evicted", "restored", "rebuilt", "layers", "beside layers",
	} {
		if counts[k] < least {
			t.Errorf("only %d of %q in %d operations", counts[k], k, histories*steps)
		}
	}
	t.Log(counts)
}
