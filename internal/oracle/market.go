package oracle

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/policy"
)

// maxMarkets bounds the models whose prices are remembered. Beyond it all begin anew, which costs a minute of learning.
const maxMarkets = 4096

// prices shows the market of a model how many of the candidates have prefill pending, and asks what things cost for a
// prompt that goes on from end. Dry runs look and leave no trace. The caller holds deciding.
func (o *Oracle) prices(r *RouteRequest, end uint64, cands []policy.Candidate, now time.Time) policy.Prices {
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
	busy := 0
	for i := range cands {
		if cands[i].PendingPrefill > 0 {
			busy++
		}
	}
	m.Observe(at, float64(busy)/float64(max(len(cands), 1)))
	return m.Prices(o.uses.Add(end, at))
}

// end names the last block of the deepest match that a candidate offers, expected blocks included; 0: nobody holds
// anything.
func (w *work) end() uint64 {
	deepest, at := 0, 0
	for _, i := range w.picks {
		c := &w.targets[i]
		if n := c.usable.Total() + c.guess; n > deepest {
			deepest, at = n, c.size
		}
	}
	p := &w.prompts[at]
	n := min(deepest/p.size, len(p.chain))
	if n == 0 {
		return 0
	}
	return uint64(p.chain[n-1])
}
