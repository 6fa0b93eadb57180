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
			if got := m.Prices(3); math.Abs(got.Prefill-want/4) > 1e-3*want {
				t.Errorf("share %v every %v s, three uses: %+v, want %v", share, step, got, want/4)
			}
			if got := m.Prices(0); math.Abs(got.Prefill-want) > 1e-3*want || got.Stall != 0 || got.Decode != 0 {
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

func TestUsesCountAndForget(t *testing.T) {
	var u Uses
	if got := u.Of(7, 5); got != 0 {
		t.Errorf("before anything: %v", got)
	}
	for i := range 4 {
		if got := u.Add(7, 100); got != float64(i) {
			t.Errorf("use %d: %v before it", i, got)
		}
	}
	if got, want := u.Of(7, 100+UsesMemory), 4*math.Exp(-1); math.Abs(got-want) > 1e-9 {
		t.Errorf("after one time constant: %v, want %v", got, want)
	}
	if got := u.Add(0, 100); got != 0 || u.Of(0, 100) != 0 {
		t.Errorf("no end at all has %v uses", got)
	}
	// Another end at the same place.
	end, other := uint64(7), uint64(8)
	for u.slot(end, 110) != u.slot(other, 110) {
		other++
	}
	tries := 0
	for ; u.Of(other, 110) == 0 && tries < 10; tries++ {
		u.Add(other, 110)
	}
	if tries != 2 || u.Of(7, 110) != 0 {
		t.Errorf("the new end took the place at try %d, the old one has %v", tries, u.Of(7, 110))
	}
}
