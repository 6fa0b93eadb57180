package policy

import (
	"math"
	"testing"
)

// TestMarketPricesPrefillByTheQueue: a fleet that is busy for the share b of the time prices prefill at 1/(1-b), however
// often it is looked at.
func TestMarketPricesPrefillByTheQueue(t *testing.T) {
	for _, step := range []float64{0.001, 0.1, 5} {
		for share, want := range map[float64]float64{0: 1, 0.2: 1.25, 0.5: 2, 0.75: 4, 0.8: 5, 1: MaxPrefillPrice, 7: MaxPrefillPrice} {
			var m Market
			for now := 0.0; now < 15*MarketMemory; now += step {
				m.Observe(now, share)
			}
			if got := m.Prices(); math.Abs(got.Prefill-want) > 1e-3*want || got.Stall != 0 || got.Decode != 0 {
				t.Errorf("share %v every %v s: %+v, want %v", share, step, got, want)
			}
		}
	}
}

func TestMarketFollowsAndForgets(t *testing.T) {
	var m Market
	m.Observe(1000, 1) // starts the clock
	if m.Busy() != 0 {
		t.Errorf("at the first look: %v", m.Busy())
	}
	m.Observe(1000+MarketMemory, 1)
	if want := 1 - math.Exp(-1); math.Abs(m.Busy()-want) > 1e-12 {
		t.Errorf("after one time constant: %v, want %v", m.Busy(), want)
	}
	m.Observe(900, 0)               // the clock goes back
	m.Observe(math.NaN(), 0)        // no time
	m.Observe(math.Inf(1), 0)       // no time
	m.Observe(1000+MarketMemory, 0) // no time has passed
	if want := 1 - math.Exp(-1); math.Abs(m.Busy()-want) > 1e-12 {
		t.Errorf("after nothing: %v, want %v", m.Busy(), want)
	}
	m.Observe(1000+20*MarketMemory, math.NaN())
	if m.Busy() > 1e-6 {
		t.Errorf("long after: %v", m.Busy())
	}
}
