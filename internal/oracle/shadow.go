package oracle

import "github.com/kvoracle/kvoracle/internal/policy"

// rules are what decisions are made by. They are replaced whole, so that no decision sees half of a change.
type rules struct {
	policy policy.Policy
	shadow policy.Policy // nil: none
	quick  bool          // decisions may go the quick way
}

// SetPolicy makes decisions from now on by p, with shadow beside it unless that is nil. Policies have no state: what is
// known of the fleet and booked on it stays, and decisions that are being made are finished by the former.
func (o *Oracle) SetPolicy(p, shadow policy.Policy) {
	_, isDefault := p.(policy.LeastTime)
	o.rules.Store(&rules{policy: p, shadow: shadow, quick: isDefault && shadow == nil})
}

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

// shadow asks the second policy, which there is, for a decision that will be booked. The caller holds deciding.
func (o *Oracle) shadow(req policy.Request, w *work) *Shadow {
	second := w.rules.shadow
	req.Places = 1
	second.Choose(&req, w.cands, &w.second)
	theirs := w.second.Best
	// Both from one set of scores: what the policies compare may be anything, the terms are seconds.
	a, b := &w.second.Scores[w.choice.Best], &w.second.Scores[theirs]
	return &Shadow{
		Policy: second.Name(), Target: ref(&w.targets[w.picks[theirs]]), Agrees: theirs == w.choice.Best,
		Cost: b.Terms.Sum() - a.Terms.Sum(), TTFT: b.TTFT - a.TTFT,
	}
}
