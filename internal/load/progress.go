package load

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Outcome is what became of a progress event.
type Outcome uint8

// The outcomes.
const (
	// Applied: the booking moved forward, or its lease was renewed.
	Applied Outcome = iota
	// Late: the event is behind the known state, or repeats it; nothing changed.
	Late
	// Unknown: the event names no living booking (or, for Dispatched, no known target); nothing changed.
	Unknown
)

// String gives the lower-case name.
func (o Outcome) String() string {
	switch o {
	case Applied:
		return "applied"
	case Late:
		return "late"
	case Unknown:
		return "unknown"
	default:
		return "invalid"
	}
}

// Dispatched says that the request was sent, by which gateway (empty: not known), and, with hasTarget, where: a target
// other than the booked one takes the booking over. Until the first token it may be said again with another target (a
// retry); repeating what is known, or coming after the first token, is Late. A first token that was only presumed counts
// for neither.
func (t *Tracker) Dispatched(id DecisionID, to fleet.TargetID, hasTarget bool, gateway string, now time.Time) Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.tick(now)
	b := t.bookings.Get(id)
	if b == nil || (hasTarget && t.target(to) == nil) {
		return t.tell(Unknown)
	}
	moves := hasTarget && to != b.Target
	if b.told || (b.sent && !moves) {
		return t.tell(Late)
	}
	if moves {
		t.targets[b.Target].leave(b)
		b.Target, b.decoding = to, false // what was presumed of the one is not so of the other
		t.enter(t.targets[to], b)
	}
	if gateway != "" && gateway != b.Gateway {
		t.leaveGateway(b)
		t.joinGateway(b, gateway)
		t.targets[b.Target].note() // its clock may be another
	}
	b.sent = true
	t.heard(b.Gateway)
	t.renew(b, at)
	return t.tell(Applied)
}

// FirstToken ends the prefill. When Applied, waited is the time since the booking was made.
func (t *Tracker) FirstToken(id DecisionID, now time.Time) (o Outcome, waited time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.tick(now)
	b := t.bookings.Get(id)
	if b == nil {
		return t.tell(Unknown), 0
	}
	if b.told {
		return t.tell(Late), 0
	}
	b.told = true
	t.heard(b.Gateway)
	t.change(b, func() { b.decoding = true })
	t.schedule(b, at)
	t.targets[b.Target].turn = at
	t.renew(b, at)
	return t.tell(Applied), time.Duration(at - b.bookedAt)
}

// Generating says how many output tokens there are so far and renews the lease. Any output ends the prefill. Fewer
// tokens than known are Late; the same number is a sign of life.
func (t *Tracker) Generating(id DecisionID, outputTokens int, now time.Time) Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.tick(now)
	b := t.bookings.Get(id)
	if b == nil {
		return t.tell(Unknown)
	}
	out := within(outputTokens, maxTokens)
	if out < b.amounts.output {
		return t.tell(Late)
	}
	t.change(b, func() {
		b.amounts.output = out
		if out > 0 {
			b.decoding, b.told = true, true
		}
	})
	t.heard(b.Gateway)
	if b.decoding {
		t.schedule(b, at)
	}
	t.renew(b, at)
	return t.tell(Applied)
}

// Finish releases the booking and learns from its output how long those of its target's model are. An output of 0 teaches nothing.
func (t *Tracker) Finish(id DecisionID, outputTokens int, now time.Time) Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tick(now)
	b := t.bookings.Get(id)
	if b == nil {
		return t.tell(Unknown)
	}
	t.heard(b.Gateway)
	t.learnHabit(b, true, false)
	if out := max(within(outputTokens, maxTokens), b.amounts.output); out > 0 {
		m := t.targets[b.Target].model
		m.output += meanWeight * (float64(out) - m.output)
	}
	t.release(b)
	t.count.Finished++
	return t.tell(Applied)
}

// Cancel releases the booking of a request that was given up.
func (t *Tracker) Cancel(id DecisionID, now time.Time) Outcome {
	return t.abandon(id, now, &t.count.Cancelled, true)
}

// Fail releases the booking of a request that the worker failed.
func (t *Tracker) Fail(id DecisionID, now time.Time) Outcome {
	return t.abandon(id, now, &t.count.Failed, true)
}

// Complete is Finish by inference: nobody has told this end, and nothing is learned from it.
func (t *Tracker) Complete(id DecisionID, now time.Time) Outcome {
	return t.abandon(id, now, &t.count.Finished, false)
}

func (t *Tracker) abandon(id DecisionID, now time.Time, counter *uint64, isTold bool) Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tick(now)
	b := t.bookings.Get(id)
	if b == nil {
		return t.tell(Unknown)
	}
	if isTold {
		t.heard(b.Gateway)
		t.learnHabit(b, true, true)
	}
	t.release(b)
	*counter++
	return t.tell(Applied)
}

// ReleaseGateway releases every booking that a gateway reports on, for a gateway that is gone or was born again, and
// tells how many. Bookings without a gateway are not touched.
func (t *Tracker) ReleaseGateway(gateway string) (released int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := t.gateways[gateway]; l != nil && l.first != nil; released++ {
		t.release(l.first)
	}
	t.count.GatewayGone += uint64(released)
	return released
}

// Expire releases the bookings without news for a whole lease and tells how many. Call it each second or so: until
// then an overdue booking still counts, and news of it still renews it.
func (t *Tracker) Expire(now time.Time) (released int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.tick(now)
	for b := t.leases.first; b != nil && at-b.renewed >= int64(t.cfg.Lease); b = t.leases.first {
		t.learnHabit(b, false, false)
		if !b.over {
			t.conclude(Presumption{ID: b.ID, Ended: true})
		}
		t.release(b)
		released++
	}
	t.count.Expired += uint64(released)
	return released
}

// change edits a living booking and keeps its target's sums right.
func (t *Tracker) change(b *booking, edit func()) {
	g := t.targets[b.Target]
	if b.over { // it is not
		b.over = false
		g.count(b)
	}
	g.add(b, -1)
	before := b.decoding
	edit()
	g.add(b, 1)
	if !before && b.decoding {
		g.prefills.remove(b)
	}
}

// renew starts the lease anew. The clock never goes back, so the back of the list is the place that keeps it ordered.
func (t *Tracker) renew(b *booking, at int64) {
	b.renewed = at
	t.leases.remove(b)
	t.leases.pushBack(b)
}

// tell counts the outcomes that changed nothing.
func (t *Tracker) tell(o Outcome) Outcome {
	switch o {
	case Applied:
	case Late:
		t.count.Late++
	case Unknown:
		t.count.Unknown++
	}
	return o
}
