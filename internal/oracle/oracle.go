package oracle

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvoracle/kvoracle/internal/admit"
	"github.com/kvoracle/kvoracle/internal/edge"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/learn"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// Config is everything an Oracle can be told. The zero value runs: every zero means its default.
type Config struct {
	// Policy decides; nil means least predicted time.
	Policy policy.Policy
	// Shadow decides beside it, for comparison only: see Shadow. It costs each decision its time once more, under the
	// same lock. nil: none.
	Shadow policy.Policy
	// Costs are cost priors by performance class. A class that is not here has the default prior.
	Costs map[string]policy.CostModel
	// Secret is mixed into every keyspace, so that block ids mean nothing outside this deployment. Reporters that send
	// canonical ids must know it. Empty: none.
	Secret string

	// MaxWorkers bounds the fleet; default 16,384.
	MaxWorkers int
	// EngineHashes bounds the engine hashes kept for all ranks that name their blocks by them, up to 100 bytes each; default
	// 8 Mi. Each rank is bounded by its capacities as well.
	EngineHashes int
	// Index and Load bound the state rooms; see there.
	Index index.Config
	Load  load.Config
	// Queue bounds the questions that wait for a place; see there. Only those wait that ask for it.
	Queue admit.Config

	// Links are what moving KV cache from a prefill to a decode worker is taken to cost; zero: policy.DefaultLinks.
	Links policy.Links

	// StaleCredit is the share of a STALE target's overlap that counts, above 0 to 1; default 0.5.
	StaleCredit float64
	// StreamGrace is how long a target stays FRESH after its block stream was cut; default 10 s.
	StreamGrace time.Duration
	// GatewayGrace is how long a gateway's bookings are kept after its last progress stream was cut; default 10 s.
	GatewayGrace time.Duration
	// WorkerLease is how long a worker that has reported stays a candidate with no stream open; default 60 s.
	WorkerLease time.Duration
	// ForgetAfter is how long a lost worker is kept before it is removed; default 15 min.
	ForgetAfter time.Duration
	// Sessions bounds the memory of which session went where; default 65,536.
	Sessions int
	// HistoryDecisions bounds the decisions kept for ExplainDecision and repeated request ids; default 65,536 (about
	// 360 bytes each).
	HistoryDecisions int
	// HistoryRows bounds the candidate rows kept with them, newest decisions first; default 65,536 (about 130 bytes
	// each). Of a decision by least_time alone the first places are kept, four at least, and the deepest match; of one by
	// another policy, with a second one beside it, or whose reasons were asked for, up to 128 candidates and 128 excluded
	// targets.
	HistoryRows int
	// GuessLinger is how long what a prompt has left in a cache is expected there after its request has finished, for
	// block reports to arrive; default 2 s. It should cover the reporters' delay.
	GuessLinger time.Duration
	// ApproxBlocks bounds the blocks remembered for targets that do not report theirs, in all (about 16 bytes each);
	// default 4 Mi. One target has at most what its device holds. Prompts that are text have as many again.
	ApproxBlocks int
	// GuessBlocks bounds the blocks of prompts under way that are remembered, counted for each prompt (about 16 bytes for
	// each that no other has, and 300 for a prompt); default 1 Mi.
	GuessBlocks int
}

func (c Config) withDefaults() Config {
	if c.Policy == nil {
		c.Policy, _ = policy.ByName("least_time")
	}
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	defD := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	if c.Links == (policy.Links{}) {
		c.Links = policy.DefaultLinks()
	}
	def(&c.MaxWorkers, 16_384)
	def(&c.EngineHashes, 8<<20)
	def(&c.Sessions, 65_536)
	def(&c.HistoryDecisions, 65_536)
	def(&c.HistoryRows, 65_536)
	def(&c.GuessBlocks, 1<<20)
	def(&c.ApproxBlocks, 4<<20)
	defD(&c.GuessLinger, 2*time.Second)
	defD(&c.StreamGrace, 10*time.Second)
	defD(&c.GatewayGrace, 10*time.Second)
	defD(&c.WorkerLease, time.Minute)
	defD(&c.ForgetAfter, 15*time.Minute)
	defD(&c.Load.Lease, time.Minute)
	if c.StaleCredit <= 0 || c.StaleCredit > 1 {
		c.StaleCredit = 0.5
	}
	return c
}

// Oracle is the whole service without a wire. All methods may be called concurrently.
type Oracle struct {
	cfg      Config
	obs      Observer
	teller   Teller    // nil: there are no other replicas
	born     time.Time // when it was made
	fleet    *fleet.Registry
	index    *index.Index           // what targets said they hold
	names    *edge.Budget           // engine hashes of all translators
	guesses  *guesses               // what prompts under way will leave
	approx   [numForms]*index.Index // what targets that say nothing should hold
	reuse    reuse                  // of blocks, by model and age
	load     *load.Tracker
	learn    *learn.Learner
	pricing  sync.Mutex // serialises changes of feeds' pricings; taken before the learner's
	costs    map[string]*policy.CostModel
	fallback *policy.CostModel // of a class without a prior

	approximated [numForms]atomic.Int64 // targets in approx
	refound      atomic.Uint64          // blocks that outcomes brought back
	unmatched    atomic.Int64           // targets that are found to be so

	feedsMu sync.RWMutex
	feeds   []*feed // by TargetID; nil where unused
	steady  steadiness

	lives sync.Mutex // serialises births and deaths of workers; taken before every other lock

	gateways gateways

	rosterMu sync.Mutex             // serialises making and forgetting rosters; a leaf but for feedsMu
	rosters  sync.Map               // *roster by model
	newest   atomic.Pointer[roster] // one of them, or nil

	rules atomic.Pointer[rules] // by which decisions are made

	recordings recordings
	waits      waits

	deciding   sync.Mutex // choose and book are one step; guards what follows
	turn       uint64     // decisions booked so far
	nextID     uint64
	sessions   *lru
	history    *history
	markets    map[string]*policy.Market // by model
	debts      policy.Debts              // of prefixes
	board      board
	sieveLeast int    // see there
	told       Booked // memory of what is told to other replicas

	work sync.Pool // of *work
}

// New makes an oracle with an empty fleet. obs may be nil.
func New(cfg Config, obs Observer) *Oracle {
	cfg = cfg.withDefaults()
	if obs == nil {
		obs = NopObserver{}
	}
	fallback := policy.DefaultCostModel()
	o := &Oracle{
		cfg:        cfg,
		obs:        obs,
		born:       time.Now(),
		fleet:      fleet.NewRegistry(cfg.MaxWorkers),
		index:      index.New(cfg.Index),
		names:      edge.NewBudget(cfg.EngineHashes),
		guesses:    newGuesses(cfg.GuessBlocks, cfg.GuessLinger),
		load:       load.New(cfg.Load),
		learn:      learn.New(),
		costs:      make(map[string]*policy.CostModel, len(cfg.Costs)),
		fallback:   &fallback,
		nextID:     firstDecision(),
		gateways:   gateways{known: make(map[string]*gateway)},
		sessions:   newLRU(cfg.Sessions),
		markets:    make(map[string]*policy.Market),
		waits:      newWaits(cfg.Queue),
		sieveLeast: sieveLeast,
		history:    newHistory(cfg.HistoryDecisions, cfg.HistoryRows, cfg.Load.Lease),
	}
	o.SetPolicy(cfg.Policy, cfg.Shadow)
	for as := range o.approx {
		o.approx[as] = index.New(index.Config{MaxBlocks: cfg.ApproxBlocks, Key: cfg.Index.Key})
	}
	for class, m := range cfg.Costs {
		o.costs[class] = &m
	}
	return o
}

// feed finds a target's feed, or nil.
func (o *Oracle) feed(id fleet.TargetID) *feed {
	o.feedsMu.RLock()
	defer o.feedsMu.RUnlock()
	if int(id) >= len(o.feeds) {
		return nil
	}
	return o.feeds[id]
}

// Tick does what time alone asks for: expired leases and guesses, lost workers, memory of dropped ledgers. Call it a few
// times a second.
func (o *Oracle) Tick(now time.Time) {
	if n := o.load.Expire(now); n > 0 {
		o.obs.Released(n, "lease")
	}
	for _, p := range o.load.Presumed(nil) {
		switch m, ok := o.recall(p.ID); {
		case !ok:
		case p.Ended:
			o.left(p.ID, &m, now)
		default:
			o.computed(p.ID, &m, now)
		}
	}
	for _, x := range o.guesses.expire(now) {
		// Nobody speaks of it: most likely it has gone its way.
		if f := o.feed(x.target); f != nil {
			f.learn(x.chain, o.formOf(x.id), now)
		}
	}
	o.watchLives(now)
	o.watchGateways(now)
	o.tickWaits(now)
	o.relearnAll(now)
	o.index.SetClock(uint32(now.Unix()))
	o.restore(now)
	const reclaimPerTick = 200_000
	o.index.Reclaim(reclaimPerTick)
	for _, x := range o.approx {
		x.Reclaim(reclaimPerTick)
	}
}

// cost is the cost prior of a class.
func (o *Oracle) cost(class string) *policy.CostModel {
	if m := o.costs[class]; m != nil {
		return m
	}
	return o.fallback
}

func utoa(v uint64) string { return strconv.FormatUint(v, 10) }
