package policy

import (
	"slices"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Request is what a policy knows of the question.
type Request struct {
	// PromptTokens is the prompt's length; 0 or less is an empty prompt.
	PromptTokens int
	// ExpectedOutput is the number of output tokens expected; the caller fills in a mean when the gateway did not say.
	ExpectedOutput float64
	// Seed is what random policies draw from. Equal seeds give equal draws.
	Seed uint64
	// Turn is the number of decisions taken so far. Only round robin uses it.
	Turn uint64
	// Head names the prompt's first tokens: prompts that begin alike have the same. Only ConsistentHash uses it. 0: the
	// prompt is too short to have one.
	Head uint64
	// Prices is what scarce things cost everyone else now. Only LeastTime compares by it.
	Prices Prices
	// Deepest is the number of prompt tokens to compute for the one who holds most of it; 0: nobody holds anything. Whoever
	// has to compute more makes another copy of that.
	Deepest int
	// Debt is what such a copy would have saved others already, in seconds: see Debts. Only LeastTime compares by it.
	Debt float64
	// Places is how many leading places of Decision.Order the caller will read; 0: all. LeastTime and LeastLoaded leave
	// the places after them unranked, which is much cheaper in a large fleet. Best and Reason do not depend on it.
	Places int
}

// Candidate is what a policy knows of one target. The zero value is an idle target that holds nothing.
type Candidate struct {
	// Target identifies it; candidates of one question differ in it.
	Target fleet.TargetID
	// Cached is the number of leading prompt tokens it holds by tier, nearest first, already discounted for doubt. The
	// tiers continue one another. What exceeds the prompt less its last token is not credited.
	Cached [fleet.NumTiers]int
	// Held is the number of leading prompt tokens it holds as reported, whether they can be reused for this prompt or
	// not. It only breaks ties: of a prompt that is held to its very end an engine reuses less than it holds. 0: no more
	// than Cached.
	Held int
	// Expected is the number of leading tokens beyond Cached that prompts already routed there will leave in its cache.
	Expected int
	// Shared is the number of leading prompt tokens that requests in flight there hold already: they take no new
	// memory. 0: none, or not known.
	Shared int
	// InFlight is the number of requests there, Prefilling those without a first token, Decoding the others.
	InFlight, Prefilling, Decoding int
	// PendingPrefill is the work of the requests without a first token, in seconds.
	PendingPrefill float64
	// PendingTokens is the same work in prompt tokens that have to be computed. Only BlockCost uses it.
	PendingTokens float64
	// Waiting is the number of requests in the engine's own queue; a caller that is not told gives Prefilling. Only
	// WeightedScorers uses it.
	Waiting int
	// ActiveTokens is the KV length of the requests in flight, each counted in full: what decoding has to read.
	ActiveTokens float64
	// HeldTokens is the memory of the requests in flight in KV tokens, shared prefixes counted once. 0: ActiveTokens.
	HeldTokens float64
	// OutputToCome is the number of output tokens the requests in flight are still expected to make.
	OutputToCome float64
	// KVUsed is the share of KV memory in use as the engine reports it, 0 to 1; below 0: not known.
	KVUsed float64
	// UnreportedTokens is the memory in KV tokens that was taken since KVUsed was measured, less what was freed.
	UnreportedTokens float64
	// LastChosen is the number of the decision that chose it last; 0: never chosen.
	LastChosen uint64
	// MatchedAt is the number of the decision that last sent it a prompt with the part it holds of this one; 0: not known,
	// LastChosen stands for it. Only CacheAware uses it.
	MatchedAt uint64
	// LastCold is the number of the decision that last sent it a prompt nobody held any of; 0: not known, LastChosen stands
	// for it. Only WeightedScorers uses it.
	LastCold uint64
	// RecentWork is the work sent there within the last three minutes, finished or not, in seconds; 0: none, or not known,
	// PendingPrefill stands for it. Only ExploitExplore uses it.
	RecentWork float64
	// Preferred is how many of the labels that the request prefers it has.
	Preferred int
	// SameSession says that it served the request's session last.
	SameSession bool
	// Cost is what work costs there; nil: DefaultCostModel.
	Cost *CostModel
	// IsClamped says that Cost is Clamped, so that it need not be looked at each time.
	IsClamped bool
}

// model is the candidate's cost model with every field in range.
func (c *Candidate) model() CostModel {
	m := c.Cost
	if m == nil {
		fallback := DefaultCostModel()
		m = &fallback
	} else if c.IsClamped {
		return *m
	}
	return m.clamped()
}

// Terms are the summands of a candidate's cost in seconds, named as in the explanation of a decision. Each is finite
// and at least 0; Copy is taken away from the others.
type Terms struct {
	// Queue is the prefill that waits before this request's.
	Queue float64
	// Prefill is this request's own prefill, with what each iteration costs until its first token.
	Prefill float64
	// Fleet is what the prefill takes from everyone else.
	Fleet float64
	// Evict is computing again what the prefill pushes out of the cache, as far as it is asked for again.
	Evict float64
	// Stay is what the company there costs those who go on from this prompt.
	Stay float64
	// Decode is how much slower this request decodes for the company it has there.
	Decode float64
	// Transfer is moving cached blocks from the farther tiers.
	Transfer float64
	// Memory is waiting for KV memory.
	Memory float64
	// Batch is waiting for a place in a full batch.
	Batch float64
	// Copy is what is not charged of a copy of a prefix, since the lack of one has cost that much already. It is taken away.
	Copy float64
}

// Term is one summand of a cost, as explanations show it.
type Term struct {
	Name    string  // lower case
	Seconds float64 // below 0: taken away
}

// Named lists all terms in the order in which explanations show them; together they are Sum.
func (t *Terms) Named() [NumTerms]Term {
	return [...]Term{
		{"queue", t.Queue},
		{"prefill", t.Prefill},
		{"fleet", t.Fleet},
		{"evict", t.Evict},
		{"stay", t.Stay},
		{"decode", t.Decode},
		{"transfer", t.Transfer},
		{"memory", t.Memory},
		{"batch", t.Batch},
		{"copy", 0 - t.Copy}, // not -0, which is shown as such
	}
}

// NumTerms is how many terms there are.
const NumTerms = 10

// Narrow puts the terms, in the order of their fields, into half the memory, with seven digits each.
func (t *Terms) Narrow(to *[NumTerms]float32) {
	to[0], to[1], to[2], to[3], to[4] = float32(t.Queue), float32(t.Prefill), float32(t.Fleet), float32(t.Evict), float32(t.Stay)
	to[5], to[6], to[7], to[8], to[9] = float32(t.Decode), float32(t.Transfer), float32(t.Memory), float32(t.Batch), float32(t.Copy)
}

// TermsOf is the reverse of Narrow.
func TermsOf(v *[NumTerms]float32) Terms {
	return Terms{
		Queue: float64(v[0]), Prefill: float64(v[1]), Fleet: float64(v[2]), Evict: float64(v[3]), Stay: float64(v[4]),
		Decode: float64(v[5]), Transfer: float64(v[6]), Memory: float64(v[7]), Batch: float64(v[8]), Copy: float64(v[9]),
	}
}

// Sum adds the terms up.
func (t *Terms) Sum() float64 {
	return t.Queue + t.Prefill + t.Fleet + t.Evict + t.Stay + t.Decode + t.Transfer + t.Memory + t.Batch - t.Copy
}

// ttft is the part that passes before the first token.
func (t *Terms) ttft() float64 {
	return t.Queue + t.Prefill + t.Transfer + t.Memory + t.Batch
}

// Score is one candidate's part of a decision.
type Score struct {
	// Terms are filled by every policy, so that any decision can be explained in seconds.
	Terms Terms
	// Cost is what the policy compared: the sum of the terms for LeastTime, up to rounding; requests in flight for the
	// load policies, the place in the order for the policies that compare nothing; the others say it in their comment.
	Cost float64
	// TTFT is the predicted time to first token in seconds.
	TTFT float64
	// Uncached is the number of prompt tokens it would have to compute.
	Uncached int
	// Cached is the number it reported to hold, as far as the prompt can use them. The rest of the prompt, beyond Cached
	// and Uncached, is expected to be there in time.
	Cached int

	copy float64 // what it costs more than with all that the deepest holder has, Terms.Copy not taken away
}

// Decision is a ranked choice with its reasons. The caller owns it and may reuse it: Choose overwrites all of it, and
// allocates only when a slice lacks capacity. Indices are those of the candidates.
type Decision struct {
	// Best is the chosen candidate.
	Best int
	// Reason says what set Best apart from the next in order.
	Reason Reason
	// Scores has one entry for each candidate.
	Scores []Score
	// Order ranks all candidates, Best first; beyond Request.Places it is only complete.
	Order []int

	keys []key // scratch of the ranking
}

// reset sizes the slices for n candidates.
func (d *Decision) reset(n int) {
	d.Scores = slices.Grow(d.Scores[:0], n)[:n]
	d.Order = slices.Grow(d.Order[:0], n)[:n]
}

// Owed is by how much the choice changes the debt of the prefix that most is held of: a request that stayed with a holder
// leaves what it would have saved elsewhere, one that made a copy takes what was paid for it. O(candidates).
func (d *Decision) Owed() float64 {
	if d.Best < 0 || d.Best >= len(d.Scores) {
		return 0
	}
	best := &d.Scores[d.Best]
	if best.copy > 0 {
		return -best.Terms.Copy
	}
	paid := best.Terms.Sum()
	least := paid
	for i := range d.Scores {
		s := &d.Scores[i]
		least = min(least, s.Terms.Sum()+s.Terms.Copy-s.copy)
	}
	return paid - least
}

// settle records the order's head as the choice. A single candidate is a reason of its own.
func (d *Decision) settle(r Reason) {
	d.Best, d.Reason = d.Order[0], r
	if len(d.Order) == 1 {
		d.Reason = OnlyCandidate
	}
}

// Policy ranks candidates. Implementations have no state: they may be used by any number of goroutines.
type Policy interface {
	// Name is the stable name, as ByName takes it.
	Name() string
	// Choose fills d for at least one candidate; with none it sets Best to -1 and empties the rest.
	Choose(req *Request, cands []Candidate, d *Decision)
}

// Reason says what decided.
type Reason uint8

// The reasons.
const (
	OnlyCandidate     Reason = iota + 1 // there was no other
	LeastCost                           // least cost by more than TieBand
	TieDeeperMatch                      // equal cost; it holds more of the prompt
	TieSession                          // equal cost; it served the session last
	TieFewestInFlight                   // equal cost; it has the fewest requests
	TieLeastRecent                      // all equal; it was chosen least recently, or has the lowest id
	PolicyOrder                         // the policy compares nothing
	ReachesGoals                        // the cheapest that is predicted to be soon enough; a cheaper one is not
	TiePreferred                        // equal cost and match; it has more of the labels that the request prefers
)

// String gives the lower-case name with underscores.
func (r Reason) String() string {
	switch r {
	case OnlyCandidate:
		return "only_candidate"
	case LeastCost:
		return "least_cost"
	case TieDeeperMatch:
		return "tie_deeper_match"
	case TieSession:
		return "tie_session"
	case TieFewestInFlight:
		return "tie_fewest_in_flight"
	case TieLeastRecent:
		return "tie_least_recent"
	case PolicyOrder:
		return "policy_order"
	case ReachesGoals:
		return "reaches_goals"
	case TiePreferred:
		return "tie_preferred"
	default:
		return "unknown"
	}
}

// Names lists the policies that ByName knows, the default first.
func Names() []string {
	return []string{
		"least_time", "least_loaded", "power_of_two", "round_robin", "random",
		"consistent_hash", "cache_aware", "cache_aware_gated", "weighted_scorers", "block_cost", "exploit_explore",
	}
}

// ByName gives a policy by its stable name, with its default parameters.
func ByName(name string) (Policy, bool) {
	switch name {
	case "least_time":
		return DefaultLeastTime(), true
	case "least_loaded":
		return LeastLoaded{}, true
	case "power_of_two":
		return PowerOfTwo{}, true
	case "round_robin":
		return RoundRobin{}, true
	case "random":
		return Random{}, true
	case "consistent_hash":
		return DefaultConsistentHash(), true
	case "cache_aware":
		return DefaultCacheAware(), true
	case "cache_aware_gated":
		return DefaultGatedCacheAware(), true
	case "weighted_scorers":
		return DefaultWeightedScorers(), true
	case "block_cost":
		return DefaultBlockCost(), true
	case "exploit_explore":
		return DefaultExploitExplore(), true
	default:
		return nil, false
	}
}
