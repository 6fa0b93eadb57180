package load

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Errors of the tracker.
var (
	// ErrUnknownTarget refuses a booking or a sample for a target that was not added or was dropped.
	ErrUnknownTarget = errors.New("load: unknown target")
	// ErrFull refuses a booking beyond Config.MaxBookings.
	ErrFull = errors.New("load: too many bookings")
	// ErrRepeated refuses a booking whose ID or RequestID has a living one. Living tells which.
	ErrRepeated = errors.New("load: already booked")
)

// Tracker holds the bookings and samples of all targets. All methods may be called concurrently. It must not be
// copied.
type Tracker struct {
	cfg Config

	mu       sync.Mutex
	epoch    time.Time // the first now; clock 0
	started  bool
	clock    int64     // latest now seen, nanoseconds since epoch
	targets  []*target // by TargetID; nil where unknown
	known    int       // of targets
	bookings IDTable[booking]
	requests map[string]*booking
	gateways map[string]*list
	habits   map[string]habit // of gateways: see presume.go
	flips    uint64           // how often one has changed
	presumed []Presumption    // see Presumed
	leases   list
	believed believed
	free     []*booking // ended ones for reuse, in a list beside them: nobody has looked at them for long
	chosen   uint64     // bookings ever made

	models  map[string]*model // of those that have targets
	count   Counters
	scratch scratch
}

// model is what requests of one model are like. A model of short answers says nothing of one of long ones beside it.
type model struct {
	name     string
	targets  int
	output   float64 // running means, in tokens
	uncached float64
}

// target is one target's record.
type target struct {
	link    // to its peers
	hearing // among all that are believed

	id       fleet.TargetID
	model    *model
	bookings list
	prefills list  // those without a first token, in order
	turn     int64 // when the first of them could begin, unless it came later
	ends     ends  // those that will be presumed over

	// Sums over the living bookings.
	booked     int64
	prefilling int64 // without a first token
	pending    int64 // their prefill, nanoseconds
	pendingTok int64 // their uncached tokens
	active     int64 // KV tokens
	held       int64 // KV tokens, but for what is marked

	refs   map[uint64]int32 // bookings by marked block
	marked int64            // KV tokens that the marked blocks stand for
	toCome int64            // output tokens

	lastChosen uint64
	report     report
}

// New makes an empty tracker.
func New(cfg Config) *Tracker {
	return &Tracker{
		cfg:      cfg.withDefaults(),
		requests: make(map[string]*booking),
		gateways: make(map[string]*list),
		habits:   make(map[string]habit),
		leases:   list{which: byLease},
		models:   make(map[string]*model),
	}
}

// tick moves the clock forward to now and reads it.
func (t *Tracker) tick(now time.Time) int64 {
	if !t.started {
		t.epoch, t.started = now, true
	}
	t.clock = max(t.clock, int64(now.Sub(t.epoch)))
	return t.clock
}

func (t *Tracker) target(id fleet.TargetID) *target {
	if int64(id) >= int64(len(t.targets)) {
		return nil
	}
	return t.targets[id]
}

// Add makes a target known, which serves a model. A known one is left as it is. Ids are expected to be dense: memory grows with
// the highest.
func (t *Tracker) Add(id fleet.TargetID, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.target(id) != nil {
		return
	}
	for int64(len(t.targets)) <= int64(id) {
		t.targets = append(t.targets, nil)
	}
	m := t.models[name]
	if m == nil {
		m = &model{name: name, output: priorOutput, uncached: priorUncached}
		t.models[name] = m
	}
	m.targets++
	t.targets[id] = &target{id: id, model: m, bookings: list{which: byTarget}, prefills: list{which: byTurn}, report: report{kvUsed: unknownKV}}
	t.known++
}

// Drop forgets a target, what it reported, and its bookings, and tells how many those were; with the last of a model's targets
// what that model's requests are like. Progress of a released booking is Unknown from now on. Dropping an unknown target does
// nothing.
func (t *Tracker) Drop(id fleet.TargetID) (released int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.target(id)
	if g == nil {
		return 0
	}
	for g.bookings.first != nil {
		t.release(g.bookings.first)
		released++
	}
	if g.peers != nil {
		g.peers.leave(g)
	}
	t.believed.forget(g)
	if g.model.targets--; g.model.targets == 0 {
		delete(t.models, g.model.name)
	}
	t.targets[id] = nil
	t.known--
	t.count.Dropped += uint64(released)
	return released
}

// Book starts a booking. It errs with ErrUnknownTarget, ErrRepeated (the ID or the RequestID has a living booking, for
// instance of the same request routed twice at once) or ErrFull, and then changes nothing.
func (t *Tracker) Book(b Booking, now time.Time) error { return t.BookMarked(b, Marks{}, now) }

// BookMarked is Book with a sample of the prompt's blocks, which is copied.
func (t *Tracker) BookMarked(b Booking, m Marks, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.tick(now)
	g := t.target(b.Target)
	if g == nil {
		return ErrUnknownTarget
	}
	if t.bookings.Get(b.ID) != nil || (b.RequestID != "" && t.requests[b.RequestID] != nil) {
		t.count.Repeated++
		return ErrRepeated
	}
	if t.bookings.Len() >= t.cfg.MaxBookings {
		t.count.Full++
		return ErrFull
	}

	n := t.fresh()
	n.Booking = b
	n.bookedAt, n.renewed = at, at
	n.amounts = t.amounts(&b, g.model)
	if m.Covered > 0 {
		n.marks, n.markTokens = append(n.marks[:0], m.Blocks...), within(m.Tokens, maxTokens/max(len(m.Blocks), 1))
		n.amounts.shared = within(m.Covered, int(n.amounts.prompt))
	}
	t.bookings.Put(b.ID, n)
	if b.RequestID != "" {
		t.requests[b.RequestID] = n
	}
	t.leases.pushBack(n)
	t.joinGateway(n, b.Gateway)
	t.enter(g, n)

	t.chosen++
	g.lastChosen = t.chosen
	g.model.uncached += meanWeight * (float64(n.amounts.uncached) - g.model.uncached)
	t.count.Booked++
	return nil
}

// amounts brings a booking's numbers into range.
func (t *Tracker) amounts(b *Booking, m *model) amounts {
	a := amounts{prompt: within(b.PromptTokens, maxTokens), expected: within(b.ExpectedOutput, t.cfg.MaxExpectedOutput)}
	a.uncached = within(b.UncachedTokens, int(a.prompt))
	a.shared = within(b.SharedTokens, int(a.prompt))
	a.prefill, a.decode = nanos(b.PrefillSeconds), nanos(b.DecodeSeconds)
	if a.expected == 0 {
		a.expected = int64(math.Round(min(m.output, float64(t.cfg.MaxExpectedOutput))))
	}
	return a
}

// nanos reads seconds as a number of nanoseconds in range.
func nanos(s float64) int64 {
	if !(s > 0) {
		return 0
	}
	return int64(math.Round(min(s, maxSeconds) * 1e9))
}

// Living finds the booking of a request that has not ended, for idempotency. The empty RequestID has none.
func (t *Tracker) Living(requestID string) (DecisionID, bool) {
	if requestID == "" {
		return 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.requests[requestID]
	if b == nil {
		return 0, false
	}
	return b.ID, true
}

// Lookup gives a living booking as it was made, at the target and gateway where it is now.
func (t *Tracker) Lookup(id DecisionID) (Booking, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.bookings.Get(id)
	if b == nil {
		return Booking{}, false
	}
	return b.Booking, true
}

// Ages is how long ago things happened to a booking.
type Ages struct {
	// Booked is the time since it was made.
	Booked time.Duration
	// Told says that the first token was, by word or by output.
	Told bool
}

// Ages reads the ages of a living booking; the zero Ages of any other.
func (t *Tracker) Ages(id DecisionID, now time.Time) Ages {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.tick(now)
	b := t.bookings.Get(id)
	if b == nil {
		return Ages{}
	}
	return Ages{Booked: time.Duration(at - b.bookedAt), Told: b.told}
}

// MeanOutput is the running mean of the outputs of a model's finished requests, in tokens; 200 before the first, and of a model
// without targets.
func (t *Tracker) MeanOutput(name string) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.models[name]; m != nil {
		return m.output
	}
	return priorOutput
}

// enter adds a booking to a target's sums.
func (t *Tracker) enter(g *target, b *booking) {
	b.came = t.clock
	g.bookings.pushBack(b)
	if !b.decoding {
		g.prefills.pushBack(b)
	}
	g.count(b)
}

func (g *target) leave(b *booking) {
	g.bookings.remove(b)
	if !b.decoding {
		g.prefills.remove(b)
	}
	g.unschedule(b)
	if !b.over {
		g.uncount(b)
	}
	b.over = false
}

// count takes a booking into the sums.
func (g *target) count(b *booking) {
	g.mark(b)
	g.add(b, 1)
}

func (g *target) uncount(b *booking) {
	g.unmark(b)
	g.add(b, -1)
}

// add puts a booking's amounts into the sums, or takes them out with sign -1.
func (g *target) add(b *booking, sign int64) {
	a := &b.amounts
	g.booked += sign
	if !b.decoding {
		g.prefilling += sign
		g.pending += sign * a.prefill
		g.pendingTok += sign * a.uncached
	}
	g.active += sign * a.kv()
	g.held += sign * a.held()
	g.toCome += sign * a.toCome()
	g.note()
}

// release ends a booking, whatever the cause.
func (t *Tracker) release(b *booking) {
	t.targets[b.Target].leave(b)
	t.leaveGateway(b)
	t.leases.remove(b)
	t.bookings.Remove(b.ID)
	if b.RequestID != "" {
		delete(t.requests, b.RequestID)
	}
	*b = booking{marks: b.marks[:0]}
	t.free = append(t.free, b)
}

// fresh takes an ended booking for reuse. Where there is none it makes some that lie side by side, as they will be used.
func (t *Tracker) fresh() *booking {
	if len(t.free) == 0 {
		some := make([]booking, bookingsMade)
		for i := range some {
			some[i].marks = some[i].room[:0]
			t.free = append(t.free, &some[len(some)-1-i])
		}
	}
	last := len(t.free) - 1
	b := t.free[last]
	t.free = t.free[:last]
	return b
}

// bookingsMade is how many bookings are made at a time.
const bookingsMade = 32

func (t *Tracker) joinGateway(b *booking, name string) {
	b.Gateway = name
	if name == "" {
		return
	}
	l := t.gateways[name]
	if l == nil {
		l = &list{which: byGateway}
		t.gateways[name] = l
	}
	l.pushBack(b)
}

func (t *Tracker) leaveGateway(b *booking) {
	if b.Gateway == "" {
		return
	}
	l := t.gateways[b.Gateway]
	l.remove(b)
	if l.first == nil {
		delete(t.gateways, b.Gateway)
	}
	b.Gateway = ""
}
