package oracle

import "github.com/kvoracle/kvoracle/internal/policy"

// Shadow is what a second policy would have done on the same facts. Nothing is booked for it, so it always judges the
// fleet that the first policy made: it says how often the two differ, not what the second would come to alone.
type Shadow struct {
	Policy string
	Target TargetRef
	// Agrees says that it is the target that was chosen.
	Agrees bool
	// Cost is how many seconds dearer its choice is by the terms that explain a decision; below 0: cheaper.
	Cost float64
	// TTFT is how many seconds later the first token is predicted there; below 0: earlier.
	TTFT float64
}

// shadow asks the second policy, if there is one, for a decision that will be booked. The caller holds deciding.
func (o *Oracle) shadow(req policy.Request, w *work) *Shadow {
	if o.cfg.Shadow == nil {
		return nil
	}
	req.Places = 1
	o.cfg.Shadow.Choose(&req, w.cands, &w.second)
	theirs := w.second.Best
	// Both from one set of scores: what the policies compare may be anything, the terms are seconds.
	a, b := &w.second.Scores[w.choice.Best], &w.second.Scores[theirs]
	return &Shadow{
		Policy: o.cfg.Shadow.Name(), Target: ref(&w.targets[w.picks[theirs]]), Agrees: theirs == w.choice.Best,
		Cost: b.Terms.Sum() - a.Terms.Sum(), TTFT: b.TTFT - a.TTFT,
	}
}
