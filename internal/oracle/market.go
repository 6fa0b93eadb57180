package oracle

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/policy"
)

// maxMarkets bounds the models whose prices are remembered. Beyond it all begin anew, which costs a minute of learning.
const maxMarkets = 4096

// prices shows the market of a model which share of the candidates has prefill pending, and asks what things cost for a
// prompt that goes on from end. Dry runs look and leave no trace. The caller holds deciding.
func (o *Oracle) prices(r *RouteRequest, end uint64, busy float64, now time.Time) policy.Prices {
	m := o.markets[r.Model]
	if m == nil {
		if len(o.markets) >= maxMarkets {
			clear(o.markets)
		}
		m = &policy.Market{}
		o.markets[r.Model] = m
	}
	at := seconds(now)
	if r.DryRun {
		return m.Prices(o.uses.Of(end, at))
	}
	m.Observe(at, busy)
	return m.Prices(o.uses.Add(end, at))
}

// busy is the share of the candidates with prefill pending.
func (w *work) busy() float64 {
	busy := 0
	for i := range w.cands {
		if w.cands[i].PendingPrefill > 0 {
			busy++
		}
	}
	return float64(busy) / float64(max(len(w.cands), 1))
}

// deepest is the deepest match that a candidate offers, expected blocks included; nil: nobody holds anything.
func (w *work) deepest() *hold {
	var deepest *hold
	for _, i := range w.picks {
		deepest = w.deeper(deepest, &w.targets[i].hold)
	}
	return deepest
}

// deeper is the deeper one of a, which may be nil, and b. Of two it is the one in larger blocks, so that the order in which
// they are looked at does not matter.
func (w *work) deeper(a, b *hold) *hold {
	x, y := 0, b.depth()
	if a != nil {
		x = a.depth()
	}
	if y > x || y == x && a != nil && w.prompts[b.size].size > w.prompts[a.size].size {
		return b
	}
	return a
}

// end names the last block of a match; 0: of none.
func (w *work) end(h *hold) uint64 {
	if h == nil {
		return 0
	}
	p := &w.prompts[h.size]
	n := min(h.depth()/p.size, len(p.chain))
	if n == 0 {
		return 0
	}
	return uint64(p.chain[n-1])
}
