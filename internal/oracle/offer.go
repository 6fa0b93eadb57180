package oracle

import (
	"math"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// suits reports whether a worker may take the question, whether it has a place or not: either of the two that a pair needs.
func (t *Ticket) suits(x *fleet.Worker) bool {
	if exclusion(x, t.r, &t.allowed, &t.denied, &t.addresses) == NotExcluded {
		return true
	}
	if !t.r.IsPair {
		return false
	}
	start := *t.r
	start.Role = fleet.Prefill
	return exclusion(x, &start, &t.allowed, &t.denied, &t.addresses) == NotExcluded
}

// wake tells the question's goroutine to look. It has room for one word, and there is never more than one to say.
func (t *Ticket) wake() {
	select {
	case t.turn <- struct{}{}:
	default:
	}
}

// freed is told of targets that may have a place more; without any it was not noted where. It costs one load of a number
// while nobody waits.
func (o *Oracle) freed(now time.Time, ids ...fleet.TargetID) {
	w := &o.waits
	if w.some.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.round++
	for _, id := range ids {
		o.offer(id, now)
	}
	if len(ids) > 0 {
		return
	}
	for model := range w.models {
		o.offerAll(model, now)
	}
}

// offer calls questions for the places that a target has. waits.mu is held.
func (o *Oracle) offer(id fleet.TargetID, now time.Time) {
	w := &o.waits
	x := o.fleet.View().Target(id)
	if x == nil || w.queue.LenOf(x.Model) == 0 {
		return
	}
	w.peers = targetsOf(o.fleet.View().Model(x.Model), w.peers)
	w.states = o.load.StatesAmong([]fleet.TargetID{id}, w.peers, now, w.states)
	o.call(x, id, w.states[0].InFlight)
}

// offerAll does it for all targets of a model. waits.mu is held.
func (o *Oracle) offerAll(model string, now time.Time) {
	w := &o.waits
	workers := o.fleet.View().Model(model)
	w.peers = targetsOf(workers, w.peers)
	w.states = o.load.States(w.peers, now, w.states)
	at, inFlight := 0, 0
	for _, x := range workers {
		for _, id := range x.Targets {
			o.call(x, id, w.states[at].InFlight)
			inFlight += w.states[at].InFlight
			at++
		}
	}
	if m := w.models[model]; m != nil {
		m.inFlight = inFlight
	}
}

// call calls as many questions for a target as it has places that nobody was called for. waits.mu is held.
func (o *Oracle) call(x *fleet.Worker, id fleet.TargetID, inFlight int) {
	w := &o.waits
	free := math.MaxInt
	if x.MaxRequests > 0 {
		free = x.MaxRequests - inFlight - w.offered[id]
	}
	m := w.models[x.Model]
	for ; free > 0 && m != nil; free-- {
		it := w.queue.Next(x.Model, func(t *Ticket) bool {
			return t.tried != w.round && !(t.r.IsPair && (m.isPairing || m.noPair == w.round)) && t.suits(x)
		})
		if it == nil {
			return
		}
		t := it.Value
		m.isPairing = m.isPairing || t.r.IsPair
		t.tried, t.target, t.isOffered = w.round, id, true
		w.offered[id]++
		t.wake()
	}
}

// isPlain reports whether the question may go to whomever any other of its kind may go to.
func (t *Ticket) isPlain() bool {
	r := t.r
	return len(r.Allowed) == 0 && len(r.Denied) == 0 && r.Addresses == nil && !r.NeedsAddress && len(r.Labels) == 0 && r.Prompt.LocalsSize == 0
}

// offerAgain ends what a question was called for: if the place is still there, it is offered to those that were not called
// in this round; after a pair all places are, since it kept others from being called for any. waits.mu is held.
func (o *Oracle) offerAgain(t *Ticket, now time.Time) {
	if !t.isOffered {
		return
	}
	w := &o.waits
	t.isOffered = false
	if w.offered[t.target]--; w.offered[t.target] <= 0 {
		delete(w.offered, t.target)
	}
	if m := w.models[t.r.Model]; m != nil && t.r.IsPair {
		m.isPairing = false
		o.offerAll(t.r.Model, now)
		return
	}
	o.offer(t.target, now)
}

// tickWaits finds the places that time or a worker's life has freed, and has those find out who wait for workers that are
// all gone.
func (o *Oracle) tickWaits(now time.Time) {
	w := &o.waits
	if w.some.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.round++
	for model := range w.models {
		if !o.isDeserted(model) {
			o.offerAll(model, now)
			continue
		}
		for {
			it := w.queue.Next(model, func(t *Ticket) bool { return t.tried != w.round })
			if it == nil {
				break
			}
			it.Value.tried = w.round
			it.Value.wake()
		}
	}
}

// isDeserted reports whether no worker of a model takes anything any more.
func (o *Oracle) isDeserted(model string) bool {
	for _, x := range o.fleet.View().Model(model) {
		if !x.IsDraining && !x.IsLost {
			return false
		}
	}
	return true
}

// slots are the targets that a decision's bookings are on, to be told to freed when they may have ended. None while nobody
// waits; somebody may when they have.
func (o *Oracle) slots(id DecisionID, m *remembered) []fleet.TargetID {
	if o.waits.some.Load() == 0 {
		return nil
	}
	var out []fleet.TargetID
	if b, ok := o.load.Lookup(id); ok {
		out = append(out, b.Target)
	}
	if start := m.start(); start != 0 {
		if b, ok := o.load.Lookup(start); ok {
			out = append(out, b.Target)
		}
	}
	return out
}
