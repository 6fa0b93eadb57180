package replay

import (
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/policy"
	"github.com/kvoracle/kvoracle/internal/sim"
)

// Contestant is one way to choose.
type Contestant struct {
	// Name is stable and short, Title for people, Rule what it does and knows in a few words.
	Name, Title, Rule string
	// IsRandom says that its choices depend on the seed.
	IsRandom bool
	// IsReference marks Informed, which no router could be.
	IsReference bool
	// IsOurs marks kvoracle.
	IsOurs bool
	// New makes a chooser for one run on engines of a class.
	New func(m *sim.Model, seed uint64) sim.Chooser
}

// The names that bars and pages ask for.
const (
	Ours     = "kvoracle"
	Informed = "informed"
	Dynamo   = "dynamo"
	SGLang   = "sglang"
	LLMD     = "llmd"
	Least    = "least_loaded"
)

// Contestants are kvoracle, the reference, and everybody else.
func Contestants() []Contestant {
	routed := func(p policy.Policy, o sim.RouterOptions) func(*sim.Model, uint64) sim.Chooser {
		return func(_ *sim.Model, seed uint64) sim.Chooser {
			o := o
			o.Seed = seed
			return sim.NewRouter(p, o)
		}
	}
	events := sim.RouterOptions{NoExpected: true}
	return []Contestant{
		{
			Name: Ours, Title: "kvoracle", Rule: "the default policy in a real oracle, with block events and lifecycle", IsOurs: true,
			New: func(*sim.Model, uint64) sim.Chooser { return sim.NewLive(sim.LiveOptions{}) },
		},
		{
			Name: Informed, Title: "informed greedy", Rule: "least time to first token by the engines' exact state, output lengths included", IsReference: true,
			New: func(*sim.Model, uint64) sim.Chooser { return sim.NewInformed() },
		},
		{Name: Dynamo, Title: "Dynamo", Rule: "block cost, default parameters; block events, bookings", IsRandom: true, New: routed(policy.DefaultBlockCost(), events)},
		{
			Name: SGLang, Title: "SGLang, SMG", Rule: "cache_aware 0.3 / 64 / 1.5; its own tree of routed prompts",
			New: routed(policy.DefaultCacheAware(), sim.RouterOptions{Index: sim.RoutedAll, NoExpected: true}),
		},
		{
			Name: "smg_events", Title: "SMG with events", Rule: "cache_aware 0 / 64 / 1.5; block events",
			New: routed(policy.CacheAware{AbsThreshold: 64, RelThreshold: 1.5}, events),
		},
		{
			Name: "smg_gated", Title: "SMG, new rule", Rule: "cache_aware 0.3 / 64 / 1.5, against the mean and for the holder alone; its own tree of routed prompts",
			New: routed(policy.DefaultGatedCacheAware(), sim.RouterOptions{Index: sim.RoutedAll, NoExpected: true}),
		},
		{
			Name: LLMD, Title: "llm-d", Rule: "scorers: queue 2, KV 2, prefix 3, cold 2; its own LRU of routed prompts, gauges each 50 ms", IsRandom: true,
			New: routed(policy.DefaultWeightedScorers(), sim.RouterOptions{Index: sim.Routed, NoExpected: true, ScrapeEvery: 0.05}),
		},
		{
			Name: "llmd_precise", Title: "llm-d precise", Rule: "scorers: queue 1, KV 1, prefix 2; block events, gauges each 50 ms", IsRandom: true,
			New: routed(policy.WeightedScorers{Queue: 1, KV: 1, Prefix: 2}, sim.RouterOptions{NoExpected: true, ScrapeEvery: 0.05}),
		},
		{
			Name: "preble", Title: "Preble E2", Rule: "exploit above half, else explore; block events and what is on its way, work of 3 minutes",
			New: routed(policy.DefaultExploitExplore(), sim.RouterOptions{Window: 180}),
		},
		{
			Name: "consistent_hash", Title: "consistent hash", Rule: "of the first 2,048 tokens, bounded at 1.25 times the mean load",
			New: routed(policy.DefaultConsistentHash(), events),
		},
		{Name: Least, Title: "least loaded", Rule: "fewest requests in flight; ties to the deeper match", New: routed(policy.LeastLoaded{}, events)},
		{Name: "power_of_two", Title: "power of two", Rule: "the less loaded of two at random", IsRandom: true, New: routed(policy.PowerOfTwo{}, events)},
		{Name: "round_robin", Title: "round robin", Rule: "one after the other", New: func(*sim.Model, uint64) sim.Chooser { return sim.RoundRobin() }},
		{Name: "random", Title: "random", Rule: "any", IsRandom: true, New: func(_ *sim.Model, seed uint64) sim.Chooser { return sim.Random(seed) }},
	}
}

// Degrees are kvoracle with less to go by, the first with everything.
func Degrees() []Contestant {
	live := func(o sim.LiveOptions) func(*sim.Model, uint64) sim.Chooser {
		return func(*sim.Model, uint64) sim.Chooser { return sim.NewLive(o) }
	}
	prior := func(factor float64) func(*sim.Model, uint64) sim.Chooser {
		return func(m *sim.Model, _ uint64) sim.Chooser {
			c := m.CostModel()
			// Decode stays: costs that are all off by one factor choose the same.
			c.PrefillPerToken *= factor
			c.PrefillPerTokenContext *= factor
			return sim.NewLive(sim.LiveOptions{Oracle: oracle.Config{Costs: sim.LiveCosts(c)}})
		}
	}
	return []Contestant{
		{Name: Ours, Title: "everything", Rule: "block events, first tokens, ends", New: live(sim.LiveOptions{})},
		{Name: "with_load", Title: "and load samples", Rule: "the same, and the engines' gauges each second", New: live(sim.LiveOptions{LoadEvery: 1})},
		{Name: "no_first_token", Title: "no first tokens", Rule: "block events and ends", New: live(sim.LiveOptions{NoFirstToken: true})},
		{Name: "no_events", Title: "no block events", Rule: "first tokens and ends", New: live(sim.LiveOptions{NoEvents: true})},
		{Name: "no_lifecycle", Title: "no lifecycle", Rule: "block events only", New: live(sim.LiveOptions{NoFirstToken: true, NoFinish: true})},
		{
			Name: "load_only", Title: "load samples only", Rule: "the engines' gauges each second, nothing else",
			New: live(sim.LiveOptions{NoEvents: true, NoFirstToken: true, NoFinish: true, LoadEvery: 1}),
		},
		{
			Name: DecisionsOnly, Title: "own decisions only", Rule: "nobody tells it anything",
			New: live(sim.LiveOptions{NoEvents: true, NoFirstToken: true, NoFinish: true}),
		},
		{Name: PriorHigh, Title: "prefill believed 4 times slower", Rule: "everything, from a wrong prior", New: prior(4)},
		{Name: PriorLow, Title: "prefill believed 4 times faster", Rule: "everything, from a wrong prior", New: prior(0.25)},
	}
}

// Names of degrees that bars ask for.
const (
	DecisionsOnly = "decisions_only"
	PriorHigh     = "prior_x4"
	PriorLow      = "prior_div4"
)

// ByName finds contestants by their names; the first unknown name is returned.
func ByName(all []Contestant, names []string) (found []Contestant, unknown string) {
	for _, n := range names {
		at := -1
		for i := range all {
			if all[i].Name == n {
				at = i
			}
		}
		if at < 0 {
			return nil, n
		}
		found = append(found, all[at])
	}
	return found, ""
}
