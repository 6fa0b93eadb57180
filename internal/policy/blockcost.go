package policy

import (
	"slices"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// BlockCost is the default selector of Dynamo's KV router, in tokens (its blocks times their size, which changes no
// order among targets of one block size):
//
//	credit  = sum over tiers of Credit * cached tokens
//	prefill = PrefillScale * max(0, uncached tokens of the requests there without a first token + prompt - credit)
//	decode  = memory of the requests in flight there + what the prompt adds to it
//
// The least prefill + decode wins, ties at random. That sum is Cost.
type BlockCost struct {
	// PrefillScale weighs prefill against decode.
	PrefillScale float64
	// Credit is what a cached token counts for, by tier.
	Credit [fleet.NumTiers]float64
}

// DefaultBlockCost has Dynamo's defaults: temperature 0, no decay, no charge for a request as such, no shared cache.
func DefaultBlockCost() BlockCost {
	return BlockCost{PrefillScale: 1, Credit: [fleet.NumTiers]float64{1, 0.75, 0.25, 0}}
}

// Name is "block_cost".
func (BlockCost) Name() string { return "block_cost" }

// Choose ranks by the sum.
func (p BlockCost) Choose(req *Request, cands []Candidate, d *Decision) {
	DefaultLeastTime().score(req, cands, d)
	prompt := max(req.PromptTokens, 0)
	for i := range cands {
		c := &cands[i]
		credit, left := 0.0, prompt
		for t, n := range c.Cached {
			n = min(max(n, 0), left)
			left -= n
			credit += weight(p.Credit[t]) * float64(n)
		}
		prefill := weight(p.PrefillScale) * max(within(c.PendingTokens, maxTokens)+float64(prompt)-credit, 0)
		held := within(c.HeldTokens, maxTokens)
		if held == 0 {
			held = within(c.ActiveTokens, maxTokens)
		}
		d.Scores[i].Cost = prefill + held + float64(prompt-min(max(c.Shared, 0), prompt))
	}
	rankAtRandom(req, cands, d)
}

// rankAtRandom orders the candidates by cost, those of one and the same cost at random by req.Seed.
func rankAtRandom(req *Request, cands []Candidate, d *Decision) {
	if len(cands) == 0 {
		d.Best, d.Reason = -1, 0
		return
	}
	keys := slices.Grow(d.keys[:0], len(cands))
	for i := range cands {
		draw := splitMix(req.Seed ^ uint64(cands[i].Target)<<32)
		keys = append(keys, key{d.Scores[i].Cost, uint32(draw.next()), int32(i)})
	}
	places := req.Places
	if places <= 0 {
		places = len(keys)
	}
	smallestFirst(keys, min(max(places, 2), len(keys)), byCost)
	for i, k := range keys {
		d.Order[i] = int(k.at)
	}
	d.keys = keys
	reason := LeastCost
	if len(keys) > 1 && keys[1].cost <= keys[0].cost {
		reason = PolicyOrder
	}
	d.settle(reason)
}
