package policy

// GatedCacheAware is the cache_aware rule of SMG since August 2026 (github.com/smg-project/smg, pull request 2161): load
// pressure is looked at per request and no longer for the fleet. With the loads being requests in flight:
//
//	share of the prompt that the deepest holders have <= Threshold     the least loaded target
//	otherwise the least loaded of the deepest holders is chosen, and
//	its load > mean + AbsThreshold and > RelThreshold * mean           the least loaded target instead
//
// Equally loaded holders are drawn by Request.Seed. The backlog decay, the sampling temperature and the KV pressure of the
// original are off by default, and are left out.
//
// Cost is 0 for the holder that is taken and 1 more than the requests in flight for everybody else; without one it is
// requests in flight.
type GatedCacheAware struct {
	// Threshold is the share of the prompt, 0 to 1, above which a match counts.
	Threshold float64
	// AbsThreshold and RelThreshold are the difference from the mean load and the ratio to it that both must be passed for a
	// holder to be passed over.
	AbsThreshold, RelThreshold float64
}

// DefaultGatedCacheAware has the defaults of SMG's command line.
func DefaultGatedCacheAware() GatedCacheAware {
	return GatedCacheAware{Threshold: 0.3, AbsThreshold: 64, RelThreshold: 1.5}
}

// Name is "cache_aware_gated".
func (GatedCacheAware) Name() string { return "cache_aware_gated" }

// Choose follows the lines above.
func (p GatedCacheAware) Choose(req *Request, cands []Candidate, d *Decision) {
	scoreByLoad(req, cands, d)
	prefer(d.Scores, p.holder(req, cands, d.Scores))
	rank(cands, d, req.Places)
}

// holder is the target to take for what it holds, or -1.
func (p GatedCacheAware) holder(req *Request, cands []Candidate, scores []Score) int {
	if len(cands) == 0 || req.PromptTokens <= 0 {
		return -1
	}
	least, sum := scores[0].Uncached, 0.0
	for i := range scores {
		least = min(least, scores[i].Uncached)
		sum += scores[i].Cost
	}
	if share := float64(req.PromptTokens-least) / float64(req.PromptTokens); !(share > p.Threshold) {
		return -1
	}
	best, alike, draw := -1, 0, splitMix(req.Seed)
	for i := range scores {
		switch {
		case scores[i].Uncached != least || best >= 0 && scores[i].Cost > scores[best].Cost:
			continue
		case best < 0 || scores[i].Cost < scores[best].Cost:
			alike = 0
		}
		if alike++; draw.below(alike) == 0 {
			best = i
		}
	}
	mean := sum / float64(len(scores))
	if load := scores[best].Cost; load > mean+p.AbsThreshold && load > p.RelThreshold*mean {
		return -1
	}
	return best
}
