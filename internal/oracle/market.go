package oracle

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/policy"
)

// maxMarkets bounds the models whose prices are remembered. Beyond it all begin anew, which costs a minute of learning.
const maxMarkets = 4096

// prices shows the market of a model how many of the candidates have prefill pending and asks what things cost. The
// caller holds deciding.
func (o *Oracle) prices(model string, cands []policy.Candidate, now time.Time) policy.Prices {
	m := o.markets[model]
	if m == nil {
		if len(o.markets) >= maxMarkets {
			clear(o.markets)
		}
		m = &policy.Market{}
		o.markets[model] = m
	}
	if o.born.IsZero() {
		o.born = now
	}
	busy := 0
	for i := range cands {
		if cands[i].PendingPrefill > 0 {
			busy++
		}
	}
	m.Observe(now.Sub(o.born).Seconds(), float64(busy)/float64(max(len(cands), 1)))
	return m.Prices()
}
