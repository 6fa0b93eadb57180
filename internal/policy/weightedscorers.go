package policy

import (
	"math"
	"slices"
)

// WeightedScorers is the rule of llm-d's endpoint picker: each scorer gives each target a mark from 0 to 1, and the
// greatest weighted sum wins, ties at random.
//
//	queue   (most waiting - waiting) / (most - fewest waiting); 1 for all when they are equal
//	kv      1 - share of KV memory in use; where nobody says, the tokens of the requests in flight stand for it
//	prefix  share of the prompt that is held
//	no hit  of a prompt that nobody holds any of: the place in the order in which such prompts were last sent, the one
//	        that waited longest first, 1 to 0; otherwise the same for all
//
// Cost is the sum of the weights less the weighted sum.
type WeightedScorers struct {
	// Queue, KV, Prefix and NoHit are the weights.
	Queue, KV, Prefix, NoHit float64
}

// DefaultWeightedScorers has the weights of llm-d's default profile, with its scorer for cold prompts.
func DefaultWeightedScorers() WeightedScorers {
	return WeightedScorers{Queue: 2, KV: 2, Prefix: 3, NoHit: 2}
}

// Name is "weighted_scorers".
func (WeightedScorers) Name() string { return "weighted_scorers" }

// Choose ranks by the weighted sum.
func (p WeightedScorers) Choose(req *Request, cands []Candidate, d *Decision) {
	DefaultLeastTime().score(req, cands, d)
	fewest, most, hit := math.MaxInt, 0, false
	for i := range cands {
		w := max(cands[i].Waiting, 0)
		fewest, most = min(fewest, w), max(most, w)
		hit = hit || d.Scores[i].Cached > 0
	}
	fallback := DefaultCostModel()
	for i := range cands {
		s, c := &d.Scores[i], &cands[i]
		sum := weight(p.Queue)
		if most > fewest {
			sum *= float64(most-max(c.Waiting, 0)) / float64(most-fewest)
		}
		sum += weight(p.KV) * (1 - kvShare(c, &fallback))
		if req.PromptTokens > 0 {
			sum += weight(p.Prefix) * float64(s.Cached) / float64(req.PromptTokens)
		}
		s.Cost = max(weight(p.Queue)+weight(p.KV)+weight(p.Prefix)-sum, 0)
	}
	if !hit && len(cands) > 1 {
		p.spreadCold(cands, d)
	}
	rankAtRandom(req, cands, d)
}

// spreadCold adds the marks of the scorer for prompts without a hit.
func (p WeightedScorers) spreadCold(cands []Candidate, d *Decision) {
	keys := slices.Grow(d.keys[:0], len(cands))
	for i := range cands {
		keys = append(keys, key{float64(lately(cands[i].LastCold, &cands[i])), uint32(cands[i].Target), int32(i)})
	}
	slices.SortFunc(keys, byCost)
	place := 0
	for k := range keys {
		if keys[k].cost > keys[max(k-1, 0)].cost {
			place = k
		}
		d.Scores[keys[k].at].Cost += weight(p.NoHit) * float64(place) / float64(len(keys)-1)
	}
	d.keys = keys
}

// weight reads a weight as a number from 0 to maxRate.
func weight(w float64) float64 { return within(w, maxRate) }

// kvShare is the share of KV memory in use.
func kvShare(c *Candidate, fallback *CostModel) float64 {
	if c.KVUsed >= 0 {
		return min(c.KVUsed, 1)
	}
	m := c.Cost
	if m == nil {
		m = fallback
	}
	if m.KVTokens <= 0 {
		return 0
	}
	return min(within(max(c.HeldTokens, c.ActiveTokens), maxTokens)/float64(m.KVTokens), 1)
}
