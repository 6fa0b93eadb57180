package index

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestMillionOperationsEqualTwin compares a million operations, each with its result and one query, in parallel histories.
// KVORACLE_SOAK=1h goes on with more of them for that long.
func TestMillionOperationsEqualTwin(t *testing.T) {
	if isRace || testing.Short() {
		t.Skip("single-threaded and long")
	}
	const lanes, steps, history = 4, 1_000_000, 2500
	var until time.Time
	if s := os.Getenv("KVORACLE_SOAK"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		until = time.Now().Add(d)
	}
	for lane := range lanes {
		t.Run(strconv.Itoa(lane), func(t *testing.T) {
			t.Parallel()
			for n := 0; n < steps/lanes || time.Now().Before(until); n += history {
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
					for range history {
						s.step()
					}
					s.finish()
				})
				if t.Failed() {
					return
				}
			}
		})
	}
}
