package oracle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvoracle/kvoracle/internal/admit"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// A question that nobody can take for now, since every target that could has as many requests as its worker accepts, may
// wait for a place if it says so (RouteRequest.MaxWait). internal/admit has the order; here is who calls whom.
//
// A place that has come free is offered: the first in order that it suits is called, and its own goroutine decides it as
// any other question. Nothing is held back for it meanwhile, so a question that does not wait may take the place first;
// then it goes back to where it was. Questions that may wait do not go before those that do.
//
// Invariant, whenever waits.mu is free: as many questions are called for a target as it has places that suit some that is
// waiting, but for what time or a change in a worker's life has freed since the last Tick, and those that were called and
// found no place since something happened last.
type waits struct {
	some atomic.Int32 // how many wait; read without mu by whatever may have freed a place

	mu      sync.Mutex // taken before the rooms' own locks, and with none of this package's held
	queue   *admit.Queue[*Ticket]
	offered map[fleet.TargetID]int // called questions, by the target that has a place for them
	models  map[string]*awaited    // those that somebody waits for
	round   uint64                 // of offers: in one round a question is called once
	isOver  bool                   // nobody may wait any more

	peers  []fleet.TargetID // scratch
	states []load.State
}

// awaited is a model that somebody waits for.
type awaited struct {
	inFlight int       // requests at its targets, when they were last looked at
	last     time.Time // when a place was taken last
	gap      float64   // mean time between two, in seconds
	seen     int       // gaps that it is the mean of

	// A pair needs two places at once. One is called at a time, so that two of them do not take one place each; and when one
	// that may go anywhere has found none, no other would in that round.
	isPairing bool
	noPair    uint64
}

// Ticket is a question that waits. Whoever has one must call Wait once.
type Ticket struct {
	o        *Oracle
	r        *RouteRequest
	item     admit.Item[*Ticket]
	came     time.Time // on the caller's clock
	since    time.Time // the same moment on this machine's, which waiting goes by
	position int
	turn     chan struct{} // has one when it is called, or has to go

	allowed, denied, addresses names

	// Guarded by waits.mu.
	gone      *Error // why it has to go
	target    fleet.TargetID
	isOffered bool // target has a place for it
	tried     uint64

	cost float64 // predicted for the place it was given, in seconds
}

// WaitOutcome is how a question's waiting ended, or why it did not begin.
type WaitOutcome string

// The outcomes; they are metric labels.
const (
	WaitServed    WaitOutcome = "served"    // it was decided
	WaitFull      WaitOutcome = "full"      // too many waited already
	WaitDisplaced WaitOutcome = "displaced" // another one took its place in the queue
	WaitTimeout   WaitOutcome = "timeout"   // no place came free in its time
	WaitAbandoned WaitOutcome = "abandoned" // its caller left
	WaitDraining  WaitOutcome = "draining"  // the server is going
	WaitFailed    WaitOutcome = "failed"    // nobody can take it any more
)

func newWaits(cfg admit.Config) waits {
	return waits{queue: admit.New[*Ticket](cfg), offered: make(map[fleet.TargetID]int), models: make(map[string]*awaited)}
}

// Route decides one request and books it. It waits for a place only as long as the request says; see Ask.
func (o *Oracle) Route(ctx context.Context, r *RouteRequest, now time.Time) (*Answer, error) {
	a, t, err := o.Ask(ctx, r, now)
	if t != nil {
		return t.Wait(ctx)
	}
	return a, err
}

// Ask is Route without the waiting: where that is needed, there is a ticket instead of an answer. r must stay as it is until
// Wait has returned.
func (o *Oracle) Ask(ctx context.Context, r *RouteRequest, now time.Time) (*Answer, *Ticket, error) {
	if r.MaxWait <= 0 || r.DryRun || !o.othersWait(r) {
		a, err := o.route(ctx, r, nil, now)
		if r.MaxWait <= 0 || r.DryRun || !isFull(err) {
			return a, nil, err
		}
	}
	t, err := o.lineUp(r, now)
	return nil, t, err
}

// isFull says that nobody can take a request for now, and that this passes.
func isFull(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.IsFull
}

// othersWait reports whether a question has to line up behind others. One that has its answer already has not, nor one that
// nobody could ever take: a try finds out why.
func (o *Oracle) othersWait(r *RouteRequest) bool {
	if o.waits.some.Load() == 0 {
		return false
	}
	if _, isLiving := o.load.Living(r.RequestID); isLiving {
		return false
	}
	o.waits.mu.Lock()
	n := o.waits.queue.LenOf(r.Model)
	o.waits.mu.Unlock()
	if n == 0 {
		return false
	}
	t := newTicket(o, r, time.Time{})
	return slices.ContainsFunc(o.fleet.View().Model(r.Model), t.suits)
}

func newTicket(o *Oracle, r *RouteRequest, now time.Time) *Ticket {
	return &Ticket{
		o: o, r: r, came: now, allowed: newNames(r.Allowed), denied: newNames(r.Denied), addresses: newNames(r.Addresses),
	}
}

// lineUp makes a question wait, if there is room for it.
func (o *Oracle) lineUp(r *RouteRequest, now time.Time) (*Ticket, error) {
	t := newTicket(o, r, now)
	t.since, t.turn = time.Now(), make(chan struct{}, 1)
	cost := o.holdTime(r)
	t.item = admit.Item[*Ticket]{
		Value: t, Pool: r.Model, Tenant: r.Tenant, Priority: r.Priority, Cost: inSeconds(cost), Tokens: r.Prompt.Length,
	}
	w := &o.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isOver {
		o.obs.Waited(WaitDraining, 0)
		return nil, draining()
	}
	t.position = w.queue.Position(r.Model, r.Tenant, r.Priority)
	for _, x := range w.queue.Join(&t.item) {
		if x.Value == t {
			o.obs.Waited(WaitFull, 0)
			return nil, t.shed(ReasonQueueFull, "as many questions wait for a place as may")
		}
		x.Value.gone = x.Value.shed(ReasonQueueFull, "a more urgent question, or one of a tenant with fewer, waits in its place")
		x.Value.wake()
	}
	w.count()
	if w.models[r.Model] == nil {
		w.models[r.Model] = &awaited{}
	}
	w.round++
	o.offerAll(r.Model, now)
	return t, nil
}

// Wait gives the answer once a place has come free, or says that none has. It returns when ctx is done.
func (t *Ticket) Wait(ctx context.Context) (*Answer, error) {
	timer := time.NewTimer(t.r.MaxWait - time.Since(t.since))
	defer timer.Stop()
	for {
		select {
		case <-t.turn:
			if a, isOver, err := t.try(ctx); isOver {
				return a, err
			}
		case <-timer.C:
			return nil, t.leave(WaitTimeout, func() *Error {
				return t.shed(ReasonQueueTimeout, "no place came free within max_queue_seconds")
			})
		case <-ctx.Done():
			err := t.leave(WaitAbandoned, func() *Error {
				return Fault(Expired, ReasonDeadline, "", "", "the caller's deadline has passed")
			})
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
			return nil, err
		}
	}
}

// now is the caller's clock.
func (t *Ticket) now() time.Time { return t.came.Add(t.waited()) }

func (t *Ticket) waited() time.Duration { return time.Since(t.since) }

// try decides a question that was called. False: it found no place and waits on.
func (t *Ticket) try(ctx context.Context) (a *Answer, isOver bool, err error) {
	o, w := t.o, &t.o.waits
	w.mu.Lock()
	gone := t.gone
	w.mu.Unlock()
	if gone != nil {
		how := WaitDisplaced
		if gone.Reason == ReasonDraining {
			how = WaitDraining
		}
		o.obs.Waited(how, t.waited())
		return nil, true, gone
	}
	now := t.now()
	a, err = o.route(ctx, t.r, t, now)
	if isFull(err) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.queue.Back(&t.item)
		if t.r.IsPair && t.isPlain() {
			w.models[t.r.Model].noPair = t.tried
		}
		o.offerAgain(t, now)
		return nil, false, nil
	}
	how := WaitServed
	if a == nil {
		how = WaitFailed
	}
	o.obs.Waited(how, t.waited())
	w.mu.Lock()
	defer w.mu.Unlock()
	if a == nil || a.Repeated {
		w.queue.Leave(&t.item)
	} else {
		w.queue.Served(&t.item, inSeconds(t.cost))
		w.models[t.r.Model].note(now)
	}
	w.count()
	o.offerAgain(t, now)
	return a, true, err
}

// leave takes a question out that has waited in vain, and says why.
func (t *Ticket) leave(how WaitOutcome, why func() *Error) *Error {
	o, w := t.o, &t.o.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue.Leave(&t.item)
	err := why()
	w.count()
	o.offerAgain(t, t.now())
	o.obs.Waited(how, t.waited())
	return err
}

// EndWaits lets go of everybody who waits, for a server that is going. Nobody may wait after it.
func (o *Oracle) EndWaits() {
	w := &o.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isOver = true
	anyone := func(*Ticket) bool { return true }
	for model := range w.models {
		for it := w.queue.Next(model, anyone); it != nil; it = w.queue.Next(model, anyone) {
			w.queue.Leave(it)
			it.Value.gone = draining()
			it.Value.wake()
		}
	}
	w.count()
}

func draining() *Error {
	return Fault(Unavailable, ReasonDraining, "", "", "the server is going; ask another")
}

// shed says that a question was refused for want of a place, and how long one like it would wait now. waits.mu is held.
func (t *Ticket) shed(reason Reason, why string) *Error {
	w := &t.o.waits
	at := w.queue.Position(t.r.Model, t.r.Tenant, t.r.Priority)
	gap := t.item.Cost.Seconds() // each request holds its place that long, so of n places one comes free n times as often
	if p := w.models[t.r.Model]; p != nil {
		gap = p.every(gap)
	}
	e := Fault(Exhausted, reason, "max_queue_seconds", strconv.FormatFloat(t.r.MaxWait.Seconds(), 'g', -1, 64), "")
	e.RetryAfter = min(max(inSeconds(float64(at)*gap), leastRetry), mostRetry)
	e.Message = fmt.Sprintf("%s; every target is at its limit, and the wait is predicted to be %v", why, e.RetryAfter.Round(time.Millisecond))
	return e
}

// The range of a predicted wait.
const (
	leastRetry = 10 * time.Millisecond
	mostRetry  = 10 * time.Minute
)

// enoughGaps is from when on what was measured is believed.
const enoughGaps = 4

// every is the time between two places, where each of the requests in flight holds its own for so long.
func (p *awaited) every(hold float64) float64 {
	if p.seen >= enoughGaps {
		return p.gap
	}
	return hold / float64(max(p.inFlight, 1))
}

// note says that a place was taken.
func (p *awaited) note(now time.Time) {
	if !p.last.IsZero() {
		p.seen++
		p.gap += (max(now.Sub(p.last).Seconds(), 0) - p.gap) / float64(min(p.seen, 16))
	}
	p.last = now
}

// count publishes how many wait, and forgets the models that nobody waits for. waits.mu is held.
func (w *waits) count() {
	w.some.Store(int32(w.queue.Len()))
	for model := range w.models {
		if w.queue.LenOf(model) == 0 {
			delete(w.models, model)
		}
	}
}

// holdTime predicts how long a request would hold a place, in seconds: its prefill, nothing of it cached, and its output.
func (o *Oracle) holdTime(r *RouteRequest) float64 {
	out := float64(r.ExpectedOutput)
	if out == 0 {
		out = o.load.MeanOutput(r.Model)
	}
	q := policy.Request{PromptTokens: r.Prompt.Length, ExpectedOutput: out}
	return o.fallback.PrefillTime(r.Prompt.Length, 0) + out*policy.TPOT(&q, &policy.Candidate{Cost: o.fallback})
}

// holds notes the same for the place that a question was given.
func (t *Ticket) holds(req *policy.Request, c *policy.Candidate, s *policy.Score) {
	t.cost = s.Terms.Prefill + s.Terms.Transfer + req.ExpectedOutput*policy.TPOT(req, c)
}

func inSeconds(v float64) time.Duration { return time.Duration(min(max(v, 0), 1e6) * 1e9) }
