package sim

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// Attached is a Chooser that wants to be told what happens. Run attaches it before the fleet is made.
type Attached interface {
	Chooser
	// Attach makes the chooser ready for a fleet of these options and puts its Sinks and its Observer there.
	Attach(o *Options) error
}

// IndexKind is where a Router knows from what engines hold.
type IndexKind uint8

// The kinds.
const (
	// Events: engines report every change, at once.
	Events IndexKind = iota
	// Routed: it remembers the prompts it has sent, per engine as many blocks as fit there, least recently sent out first.
	Routed
	// RoutedAll: it remembers every prompt it has ever sent.
	RoutedAll
)

// RouterOptions say what a Router knows. The zero value is a router with block events, bookings and lifecycle.
type RouterOptions struct {
	Index IndexKind
	// NoExpected leaves out what prompts under way will leave in a cache.
	NoExpected bool
	// ScrapeEvery reads the engines' queues and memory every so many seconds, as the policies see them until the next
	// time; 0: the router goes by its own bookings only.
	ScrapeEvery float64
	// Window is how many seconds of sent work count as recent; 0: recent work is not kept.
	Window float64
	// Cost is what it believes work to cost; nil: the truth.
	Cost *policy.CostModel
	// Seed varies random choices.
	Seed uint64
}

// Router is a Chooser that asks a policy, and keeps for it the books a router can keep: bookings, first tokens, ends, and
// an index. It never looks into an engine but for the gauges it scrapes, and learns of nothing before it happens. It is
// what policies are compared with; what a real oracle makes of real reports is Live.
type Router struct {
	books
	policy policy.Policy
	o      RouterOptions
	cost   policy.CostModel

	caches  []cache // Routed: by engine
	capTo   int     // its bound
	scraped float64
	gauges  []gauge
	recent  []window // by engine

	cached, ahead, shared []int
	cands                 []policy.Candidate
	decision              policy.Decision
}

type gauge struct {
	waiting int
	kvUsed  float64
}

// window is recent work, oldest first.
type window struct {
	sent []sent
	sum  float64
}

type sent struct{ at, seconds float64 }

var (
	_ Attached = (*Router)(nil)
	_ Observer = (*Router)(nil)
)

// NewRouter makes a router for one run.
func NewRouter(p policy.Policy, o RouterOptions) *Router { return &Router{policy: p, o: o} }

// CostModel is what the policy package calls the same numbers.
func (m *Model) CostModel() policy.CostModel {
	return policy.CostModel{
		PrefillPerToken: m.PrefillPerToken, PrefillPerTokenContext: m.PrefillPerTokenContext,
		IterationFixed: m.IterationFixed, IterationBase: m.IterationBase, DecodePerKVToken: m.DecodePerKVToken,
		ChunkTokens: m.ChunkTokens, KVTokens: m.KVTokens, MaxBatch: m.MaxBatch,
	}
}

// Attach implements Attached.
func (a *Router) Attach(o *Options) error {
	a.books = newBooks(o)
	a.cost = o.Model.CostModel()
	if a.o.Cost != nil {
		a.cost = *a.o.Cost
	}
	n := o.Engines
	a.cached, a.ahead, a.shared = make([]int, n), make([]int, n), make([]int, n)
	a.cands = make([]policy.Candidate, n)
	a.gauges, a.scraped = make([]gauge, n), -1
	a.recent = make([]window, n)
	o.Observer, o.Watcher = a, a
	switch a.o.Index {
	case Events:
		o.Sinks = make([]Sink, n)
		for i := range o.Sinks {
			o.Sinks[i] = &listener{books: &a.books, engine: i}
		}
	case Routed:
		a.capTo = o.Model.KVTokens / o.BlockSize
		for range n {
			a.caches = append(a.caches, newCache())
		}
	case RoutedAll:
	}
	return nil
}

// listener is one engine's Sink that notes blocks down.
type listener struct {
	noReports

	books  *books
	engine int
}

// Stored implements Sink.
func (l *listener) Stored(_ float64, _ block.ID, _ bool, ids []block.ID) {
	for _, id := range ids {
		l.books.set(held, l.books.row(id), l.engine)
	}
}

// Removed implements Sink.
func (l *listener) Removed(_ float64, ids []block.ID) {
	for _, id := range ids {
		l.books.unset(held, l.books.rows[id], l.engine)
	}
}

// Choose implements Chooser.
func (a *Router) Choose(t float64, r *Request, f *Fleet) int {
	chain := r.Chain(f.options.Keyspace, a.blockSize)
	a.look(t, chain, f)
	usable := block.Usable(r.Input, a.blockSize)
	cold := true
	a.cands = a.cands[:0]
	for _, e := range f.taking() {
		a.cands = append(a.cands, policy.Candidate{})
		c, d := &a.cands[len(a.cands)-1], &a.desk[e]
		cached := min(a.cached[e], usable)
		cold = cold && cached == 0
		*c = policy.Candidate{
			InFlight: d.inFlight, Prefilling: d.prefilling, Decoding: d.inFlight - d.prefilling,
			PendingPrefill: d.pendingSeconds, PendingTokens: d.pendingTokens, Waiting: d.prefilling,
			ActiveTokens: d.activeTokens, HeldTokens: d.heldTokens, OutputToCome: d.toCome,
			Shared: a.shared[e] * a.blockSize, Held: a.cached[e] * a.blockSize, KVUsed: -1,
			LastChosen: d.lastChosen, LastCold: d.lastCold, RecentWork: a.recentWork(t, e), Cost: &a.cost,
		}
		c.Target = fleet.TargetID(e)
		c.Cached[0] = cached * a.blockSize
		if !a.o.NoExpected {
			c.Expected = (min(a.ahead[e], usable) - cached) * a.blockSize
		}
		if a.o.Index == RoutedAll && cached > 0 {
			if row := a.scratch[cached-1]; a.last[row] == int32(e) {
				c.MatchedAt = a.lastAt[row]
			}
		}
		if a.o.ScrapeEvery > 0 {
			c.Waiting, c.KVUsed = a.gauges[e].waiting, a.gauges[e].kvUsed
		}
	}
	req := policy.Request{
		PromptTokens: r.Input, ExpectedOutput: a.out, Turn: a.turn, Seed: (a.o.Seed<<32 + a.turn) * 0x9E3779B97F4A7C15, Places: 1,
	}
	if n := min(max(headTokens/a.blockSize, 1), len(chain)); n > 0 {
		req.Head = uint64(chain[n-1])
	}
	a.policy.Choose(&req, a.cands, &a.decision)
	if a.decision.Best < 0 {
		return -1
	}
	e, uncached := int(a.cands[a.decision.Best].Target), a.decision.Scores[a.decision.Best].Uncached
	l := &life{
		engine: e, uncached: uncached, expected: a.out,
		seconds: a.cost.PrefillTime(uncached, r.Input-uncached),
	}
	a.send(r, chain, l, a.shared[e], cold)
	a.remember(t, chain, l)
	return e
}

// headTokens is where prompts that differ behind it still count as alike, as in internal/oracle.
const headTokens = 2048

// look fills cached, ahead and shared, in blocks, and scrapes when it is time.
func (a *Router) look(t float64, chain []block.ID, f *Fleet) {
	a.find(chain)
	a.leading(a.cached, held, held)
	a.leading(a.ahead, held, soon)
	a.leading(a.shared, active, active)
	if a.o.ScrapeEvery > 0 && (a.scraped < 0 || t-a.scraped >= a.o.ScrapeEvery) {
		a.scraped = t
		for e := range a.gauges {
			g := f.engines[e]
			a.gauges[e] = gauge{len(g.waiting), float64(g.cache.referenced+g.private) / float64(g.capacity)}
		}
	}
}

// remember notes what was sent for the indexes that go by it, and for recent work.
func (a *Router) remember(t float64, chain []block.ID, l *life) {
	switch a.o.Index {
	case Events:
	case RoutedAll:
		for _, row := range l.rows {
			a.set(held, row, l.engine)
		}
	case Routed:
		c := &a.caches[l.engine]
		for i := len(chain) - 1; i >= 0; i-- { // heads last, so that tails go first
			s, ok := c.acquire(chain[i])
			if !ok {
				s = c.insert(chain[i])
				a.set(held, l.rows[i], l.engine)
			}
			c.release(s)
		}
		for c.blocks() > a.capTo {
			a.unset(held, a.rows[c.evict()], l.engine)
		}
	}
	if a.o.Window > 0 {
		// A decoded token shares its iteration with some 16 others.
		s, w := sent{t, l.seconds + a.out*a.cost.IterationBase/16}, &a.recent[l.engine]
		w.sent, w.sum = append(w.sent, s), w.sum+s.seconds
	}
}

// recentWork is what was sent to an engine within the window.
func (a *Router) recentWork(t float64, e int) float64 {
	w := &a.recent[e]
	for len(w.sent) > 0 && w.sent[0].at < t-a.o.Window {
		w.sum -= w.sent[0].seconds
		w.sent = w.sent[1:]
	}
	if len(w.sent) == 0 {
		w.sum = 0
	}
	return w.sum
}

// Changed implements Watcher: of an engine that is killed it forgets everything at once.
func (a *Router) Changed(_ float64, c Change, lost []*Job) {
	if c.Kind != Kill {
		return
	}
	a.bury(c.Engine, lost)
	if a.o.Index == Routed {
		a.caches[c.Engine] = newCache()
	}
	a.gauges[c.Engine], a.recent[c.Engine] = gauge{}, window{}
}

// Failed implements Watcher.
func (a *Router) Failed(_ float64, j *Job) { a.failed(j.Request) }

// FirstToken implements Observer.
func (a *Router) FirstToken(_ float64, j *Job) { a.firstToken(j.Request) }

// Finished implements Observer.
func (a *Router) Finished(_ float64, j *Job) { a.finished(j.Request) }
