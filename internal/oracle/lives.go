package oracle

import (
	"errors"
	"strconv"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// register adds, updates or begins a new life of a worker and keeps the state rooms in step: when it returns, every
// target of the worker has a feed and a load record, and nothing of a former life can be credited any more. What is refused
// has changed nothing. The lives lock is held.
func (o *Oracle) register(spec fleet.Spec, incarnation uint64, now time.Time) (*fleet.Worker, error) {
	before := o.fleet.View().Worker(spec.Worker)
	c, err := o.fleet.Register(spec, incarnation, now)
	if err != nil {
		return nil, o.unregistrable(err, &spec, incarnation)
	}
	if !c.IsNew {
		o.reprice(c.Worker)
		if c.Worker.IsLost {
			return o.setLost(c.Worker, false), nil
		}
		return c.Worker, nil
	}
	for _, id := range c.Worker.Targets {
		o.load.Add(id, c.Worker.Model) // before the former life goes: what is known of the model stays
	}
	o.bury(c.Dropped, workerGone(spec.Worker))
	o.addFeeds(c.Worker) // last: a target without a feed is no candidate yet
	event := "registered"
	if before != nil {
		event = "reborn"
	}
	o.obs.WorkerState(c.Worker, event)
	o.yieldAddress(c.Worker)
	return c.Worker, nil
}

// MayRegister says whether Register would refuse.
func (o *Oracle) MayRegister(spec *fleet.Spec) error {
	return o.unregistrable(o.fleet.Check(spec, 0), spec, 0)
}

// unregistrable is the registry's error in the reporter's terms; nil if there is none.
func (o *Oracle) unregistrable(err error, spec *fleet.Spec, incarnation uint64) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fleet.ErrOldIncarnation):
		known := uint64(0)
		if w := o.fleet.View().Worker(spec.Worker); w != nil {
			known = w.Incarnation
		}
		return Fault(FailedPrecondition, ReasonOldIncarnation, "hello.incarnation", utoa(incarnation),
			"want at least "+utoa(known)+", the known one")
	case errors.Is(err, fleet.ErrContradiction):
		return Fault(FailedPrecondition, ReasonSpecContradiction, "worker", spec.Worker,
			"model, block_size and dp_size cannot change within incarnation "+utoa(incarnation))
	case errors.Is(err, fleet.ErrFull):
		return Fault(Exhausted, ReasonFleetFull, "worker", spec.Worker, "the fleet is at its limit of "+strconv.Itoa(o.cfg.MaxWorkers)+" workers")
	default:
		return Fault(Internal, ReasonInternal, "", "", err.Error())
	}
}

// addFeeds makes candidates of a new life's targets.
func (o *Oracle) addFeeds(w *fleet.Worker) {
	defer o.forgetRoster(w.Model) // it may have been made when they were known and had no feeds
	o.feedsMu.Lock()
	defer o.feedsMu.Unlock()
	for _, id := range w.Targets {
		for int(id) >= len(o.feeds) {
			o.feeds = append(o.feeds, nil)
		}
		o.steady.cover(id)
		f := &feed{o: o, target: id, steady: o.steady.at(id), usage: o.reuse.model(w.Model)}
		o.learn.Begin(id, alike(w))
		f.pricing.Store(o.priced(f, w.Class, o.prior(w)))
		o.feeds[id] = f
	}
}

// bury ends targets that the registry no longer knows and gives their ids back. The order matters: an id may be used
// again only when no room can still say something about its former owner.
func (o *Oracle) bury(targets []fleet.TargetID, cause *Error) (blocks, bookings int) {
	for _, id := range targets {
		if f := o.feed(id); f != nil {
			f.mu.Lock()
			f.gone = true
			f.kick(cause)
			f.dropSnapshot()
			f.sign()
			f.forgetApprox(asTokens)
			f.forgetApprox(asText)
			f.unmatched.find(o, false)
			blocks += o.index.Drop(id)
			f.dropNames()
			f.mu.Unlock()
			if m := f.usage.model; len(o.fleet.View().Model(m)) == 0 {
				o.reuse.forget(m)
			}
		}
		o.guesses.cleared(id)
		o.learn.Drop(id)
		n := o.load.Drop(id)
		bookings += n
		if n > 0 {
			o.obs.Released(n, "worker")
		}
	}
	o.feedsMu.Lock()
	for _, id := range targets {
		if int(id) < len(o.feeds) {
			o.feeds[id] = nil
		}
	}
	o.feedsMu.Unlock()
	// Decisions under way may still hold a view that knows these ids. They finish before the ids can name others.
	o.deciding.Lock()
	for _, id := range targets {
		if int(id) < len(o.board.asked) {
			o.board.asked[id] = 0
		}
	}
	o.fleet.Recycle(targets)
	o.deciding.Unlock()
	return blocks, bookings
}

// yieldAddress gives an address to its newest owner: a worker that still claims it without a stream is a zombie.
func (o *Oracle) yieldAddress(owner *fleet.Worker) {
	if owner.Address == "" {
		return
	}
	for _, w := range o.fleet.View().Workers() {
		if w != owner && w.Worker != owner.Worker && w.Address == owner.Address && w.Incarnation != 0 && !w.IsLost && !o.streaming(w) {
			o.setLost(w, true)
		}
	}
}

// streaming reports whether any rank of the worker has an open block stream.
func (o *Oracle) streaming(w *fleet.Worker) bool {
	for _, id := range w.Targets {
		if f := o.feed(id); f != nil {
			if s := f.signs.Load(); s != nil && s.open {
				return true
			}
		}
	}
	return false
}

// setLost flips the flag and says so. The lives lock is held.
func (o *Oracle) setLost(w *fleet.Worker, lost bool) *fleet.Worker {
	next, err := o.fleet.SetLost(w.Worker, lost)
	if err != nil {
		return w
	}
	event := "ready"
	if lost {
		event = "lost"
	}
	o.obs.WorkerState(next, event)
	return next
}

// Register adds a worker that does not report by itself.
func (o *Oracle) Register(spec fleet.Spec, now time.Time) (*fleet.Worker, error) {
	o.lives.Lock()
	defer o.lives.Unlock()
	return o.register(spec, 0, now)
}

// Remove forgets a worker: no Route that starts afterwards can choose it. It returns the blocks and bookings dropped.
func (o *Oracle) Remove(name string) (blocks, bookings int, err error) {
	o.lives.Lock()
	defer o.lives.Unlock()
	w, err := o.fleet.Remove(name)
	if err != nil {
		return 0, 0, workerUnknown(name)
	}
	o.obs.WorkerState(w, "removed")
	blocks, bookings = o.bury(w.Targets, workerGone(name))
	return blocks, bookings, nil
}

func workerUnknown(name string) *Error {
	return Fault(NotFound, ReasonWorkerUnknown, "worker_id", strconv.Quote(name), "want a known worker")
}

// Drain takes a worker out of new choices, or back in.
func (o *Oracle) Drain(name string, draining bool) (*fleet.Worker, error) {
	o.lives.Lock()
	defer o.lives.Unlock()
	before := o.fleet.View().Worker(name)
	w, err := o.fleet.SetDraining(name, draining)
	if err != nil {
		return nil, workerUnknown(name)
	}
	if w != before {
		event := "ready"
		if draining {
			event = "draining"
		}
		o.obs.WorkerState(w, event)
	}
	return w, nil
}

// Invalidate drops what is believed of a worker's cache and asks its open streams for snapshots. It returns the blocks
// dropped.
func (o *Oracle) Invalidate(name string) (int, error) {
	o.lives.Lock()
	defer o.lives.Unlock()
	w := o.fleet.View().Worker(name)
	if w == nil {
		return 0, workerUnknown(name)
	}
	blocks := 0
	for _, id := range w.Targets {
		f := o.feed(id)
		f.mu.Lock()
		// A snapshot under way was the answer to what was asked before, and goes too.
		isOwed := f.awaiting && f.building == nil
		f.dropSnapshot()
		blocks += o.index.Drop(id)
		f.ledger = nil
		f.dropNames()
		if f.incarnation != 0 {
			r := f.await(ResyncOperator)
			if !isOwed {
				f.tell(r)
			}
		}
		f.sign()
		f.mu.Unlock()
	}
	return blocks, nil
}

// watchLives marks workers lost whose streams have been gone for the lease, and removes those lost for long. Where all is well
// with the first rank its stream is open, and the bit that says so is all that is looked at: everything else about a thousand
// workers lies in a thousand places, four times a second.
func (o *Oracle) watchLives(now time.Time) {
	o.lives.Lock()
	defer o.lives.Unlock()
	view := o.fleet.View()
	o.findUnmatched(view)
	for id := range o.steady.others {
		w := view.Target(id)
		if w == nil || w.Targets[0] != id || w.Incarnation == 0 {
			continue // of those that were registered by hand nobody promised signs of life
		}
		silent := o.silence(w, now)
		switch {
		case silent > o.cfg.WorkerLease+o.cfg.ForgetAfter:
			if _, err := o.fleet.Remove(w.Worker); err == nil {
				o.obs.WorkerState(w, "removed")
				o.bury(w.Targets, workerGone(w.Worker))
			}
		case silent > o.cfg.WorkerLease && !w.IsLost:
			o.setLost(w, true)
		}
	}
}

// silence is how long no rank of the worker has had a block stream; 0 while one is open.
func (o *Oracle) silence(w *fleet.Worker, now time.Time) time.Duration {
	var newest time.Time
	for _, id := range w.Targets {
		f := o.feed(id)
		if f == nil {
			continue
		}
		s := f.signs.Load()
		if s == nil {
			continue
		}
		if s.open {
			return 0
		}
		if s.lostAt.After(newest) {
			newest = s.lostAt
		}
	}
	if newest.IsZero() {
		newest = time.Unix(0, w.RegisteredAt)
	}
	return now.Sub(newest)
}
