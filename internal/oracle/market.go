package oracle

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/policy"
)

// maxMarkets bounds the models whose prices are remembered. Beyond it all begin anew, which costs a minute of learning.
const maxMarkets = 4096

// prices shows the market of a model which share of the candidates has prefill pending, and asks what things cost. Dry
// runs look and leave no trace. The caller holds deciding.
func (o *Oracle) prices(r *RouteRequest, busy float64, now time.Time) policy.Prices {
	m := o.markets[r.Model]
	if m == nil {
		if len(o.markets) >= maxMarkets {
			clear(o.markets)
		}
		m = &policy.Market{}
		o.markets[r.Model] = m
	}
	if !r.DryRun {
		m.Observe(o.seconds(now), busy)
	}
	return m.Prices()
}

// busy is the share of targets of a model with prefill pending, smoothed. The caller holds deciding.
func (o *Oracle) busy(model string) float64 {
	if m := o.markets[model]; m != nil {
		return m.Busy()
	}
	return 0
}

// indebt tells a request how deep the deepest match is, and what the lack of a copy of that has cost. It returns the name
// of the debt. What is still being computed leaves none: a copy would not have been there sooner. What is there, and is only not
// believed in full of a target that does not report, does.
func (o *Oracle) indebt(req *policy.Request, w *work, deepest *hold, now time.Time) (end uint64) {
	if deepest == nil || deepest.isComing() {
		return 0
	}
	if end = w.end(deepest); end != 0 {
		req.Deepest = max(req.PromptTokens-deepest.depth(), 1)
		req.Debt = o.debts.Of(end, o.seconds(now))
	}
	return end
}

// owe notes what a choice changes of a debt.
func (o *Oracle) owe(r *RouteRequest, end uint64, by float64, now time.Time) {
	if !r.DryRun {
		o.debts.Add(end, o.seconds(now), by)
	}
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

// isComing reports whether the end of a match is still being computed.
func (h *hold) isComing() bool { return h.guess > 0 && h.shared > h.held.Total() }

// deeper is the deeper one of a, which may be nil, and b. Of two it is the one in larger blocks, then one that is there to its
// end, then the one of which more is reported, so that the order in which they are looked at does not matter.
func (w *work) deeper(a, b *hold) *hold {
	x, y := 0, b.depth()
	if a != nil {
		x = a.depth()
	}
	switch {
	case y > x:
		return b
	case y < x || a == nil:
		return a
	}
	m, n := w.prompts[a.size].size, w.prompts[b.size].size
	switch {
	case m != n:
		if n > m {
			return b
		}
	case a.isComing() != b.isComing():
		if a.isComing() {
			return b
		}
	case b.guess < a.guess:
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
