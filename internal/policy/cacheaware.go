package policy

import "cmp"

// CacheAware is the cache_aware rule of the SGLang router and of SMG. With the loads being requests in flight:
//
//	greatest - least > AbsThreshold and greatest > RelThreshold * least   the least loaded target
//	otherwise, share of the prompt that the deepest holder has > Threshold   that holder
//	otherwise                                                               the least loaded target
//
// Of several deepest holders it takes the one that was last sent such a prompt. SGLang keeps a tree of the prompts it
// has routed and never hears of evictions; whoever asks may fill in Candidate.Cached from such a tree, or from what
// engines report.
//
// Cost is 0 for the holder that is taken and 1 more than the requests in flight for everybody else; without a holder it
// is requests in flight.
type CacheAware struct {
	// Threshold is the share of the prompt, 0 to 1, above which a match counts.
	Threshold float64
	// AbsThreshold and RelThreshold are the difference and the ratio of loads that both must be passed for the fleet to
	// count as out of balance.
	AbsThreshold, RelThreshold float64
}

// DefaultCacheAware has the defaults of SMG's command line.
func DefaultCacheAware() CacheAware {
	return CacheAware{Threshold: 0.3, AbsThreshold: 64, RelThreshold: 1.5}
}

// Name is "cache_aware".
func (CacheAware) Name() string { return "cache_aware" }

// Choose follows the three lines above.
func (p CacheAware) Choose(req *Request, cands []Candidate, d *Decision) {
	scoreByLoad(req, cands, d)
	prefer(d.Scores, p.holder(req, cands, d.Scores))
	rank(cands, d, req.Places)
}

// prefer makes one target cost nothing and everybody else 1 more than before; -1: nobody is preferred.
func prefer(scores []Score, best int) {
	if best < 0 {
		return
	}
	for i := range scores {
		scores[i].Cost++
	}
	scores[best].Cost = 0
}

// holder is the target to take for what it holds, or -1.
func (p CacheAware) holder(req *Request, cands []Candidate, scores []Score) int {
	if len(cands) == 0 || req.PromptTokens <= 0 {
		return -1
	}
	best, least, greatest := 0, scores[0].Cost, scores[0].Cost
	for i := range cands {
		least, greatest = min(least, scores[i].Cost), max(greatest, scores[i].Cost)
		o := cmp.Compare(scores[best].Uncached, scores[i].Uncached)
		if o == 0 {
			o = cmp.Compare(lately(cands[i].MatchedAt, &cands[i]), lately(cands[best].MatchedAt, &cands[best]))
		}
		if o > 0 {
			best = i
		}
	}
	if greatest-least > p.AbsThreshold && greatest > p.RelThreshold*least {
		return -1
	}
	if share := float64(req.PromptTokens-scores[best].Uncached) / float64(req.PromptTokens); !(share > p.Threshold) {
		return -1
	}
	return best
}

// lately is the number of a decision, or LastChosen where that is not known.
func lately(at uint64, c *Candidate) uint64 {
	if at == 0 {
		return c.LastChosen
	}
	return at
}
