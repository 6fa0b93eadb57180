package policy

import "math"

// Market learns what a second of prefill takes from later arrivals, from how often targets are found with prefill
// pending. With b the share of targets that have some, smoothed over MarketMemory,
//
//	Prices.Prefill = 1 / (1-b), at most MaxPrefillPrice
//
// This is by how much a queue of that utilisation stretches work (M/M/1): on an idle fleet a second costs those who
// come later about a second, on a busy one each that waits passes the delay on. What a copy of a prefix that many ask for
// gives back is the business of Debts.
//
// Stall and Decode are 0: what they would price, slower output of sequences under way, is weighed against no promise so
// far, and in simulation charging it costs time to first token, most where memory is short.
//
// Observe is a fold: the same observations in the same order give the same prices. The zero value is an idle market.
type Market struct {
	busy    float64
	at      float64
	started bool
}

const (
	// MarketMemory is the time constant of the smoothing in seconds: long enough to average over many requests, short
	// enough to follow the hour.
	MarketMemory = 20.0
	// MaxPrefillPrice keeps affinity below the point where holders are flooded and others idle.
	MaxPrefillPrice = 9.0
)

// Observe tells the share of targets (0 to 1) with prefill pending at the time now, in seconds on any clock. Numbers out
// of range are read as the nearest possible ones; a clock that goes back stands still.
func (m *Market) Observe(now, share float64) {
	share = within(share, 1)
	if math.IsNaN(now) || math.IsInf(now, 0) {
		return
	}
	if !m.started {
		m.at, m.started = now, true
		return
	}
	dt := now - m.at
	if dt <= 0 {
		return
	}
	m.busy += (share - m.busy) * -math.Expm1(-dt/MarketMemory)
	m.at = now
}

// Busy is the smoothed share of targets with prefill pending, 0 to 1.
func (m *Market) Busy() float64 { return m.busy }

// Prices are what things cost now.
func (m *Market) Prices() Prices {
	return Prices{Prefill: 1 / (1 - min(m.busy, 1-1/MaxPrefillPrice))}
}
