package client

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
	"time"
)

// bookings is what this router believes to be in flight, by target. It steers the fallback and nothing else.
//
// Invariant: tally.booked == the number of living bookings of the target. mu is a leaf lock.
type bookings struct {
	lease time.Duration

	mu         sync.Mutex
	tallies    map[targetKey]*tally
	byDecision map[string]*booking // of the oracle: a repeated decision is one booking
	living     list.List           // of *booking; longest without news first
	turn       uint64
}

// targetKey is a Target without its address, which may change while the target stays the same.
type targetKey struct {
	worker string
	rank   uint32
}

func (t Target) key() targetKey { return targetKey{t.Worker, t.Rank} }

type tally struct {
	booked int
	turn   uint64 // when it was last chosen
}

// booking is one request in flight. All fields belong to bookings.mu.
type booking struct {
	target   targetKey
	decision string
	renewed  time.Time
	place    *list.Element // in living; nil once it has ended
}

func newBookings(lease time.Duration) *bookings {
	return &bookings{lease: lease, tallies: make(map[targetKey]*tally), byDecision: make(map[string]*booking)}
}

// book counts a decision of the oracle; an empty id books nothing.
func (b *bookings) book(t Target, decision string, now time.Time) *booking {
	if decision == "" {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire(now)
	if old := b.byDecision[decision]; old != nil {
		return old
	}
	k := b.add(t, decision, now)
	b.byDecision[decision] = k
	return k
}

// choose picks the best of the candidates, at most k of them in order: least booked first, among equals the one chosen
// least recently. It books the first unless it is a dry run. There must be candidates.
func (b *bookings) choose(cands []Target, k int, dryRun bool, now time.Time) ([]Target, *booking) {
	best := make([]rival, 0, k+1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire(now)
	for _, t := range cands {
		c := rival{target: t}
		if y := b.tallies[t.key()]; y != nil {
			c.tally = *y
		}
		// k is small and most candidates do not come in, so this beats sorting them all.
		if len(best) == k && !c.before(&best[k-1]) {
			continue
		}
		i := len(best)
		for ; i > 0 && c.before(&best[i-1]); i-- {
		}
		best = slices.Insert(best, i, c)
		best = best[:min(len(best), k)]
	}
	out := make([]Target, len(best))
	for i := range best {
		out[i] = best[i].target
	}
	if dryRun {
		return out, nil
	}
	return out, b.add(out[0], "", now)
}

// rival is a candidate with what counts.
type rival struct {
	target Target
	tally  tally
}

func (c *rival) before(d *rival) bool {
	return cmp.Or(cmp.Compare(c.tally.booked, d.tally.booked), cmp.Compare(c.tally.turn, d.tally.turn)) < 0
}

func (b *bookings) add(t Target, decision string, now time.Time) *booking {
	k := &booking{target: t.key(), decision: decision, renewed: now}
	k.place = b.living.PushBack(k)
	b.turn++
	y := b.tally(k.target)
	y.booked++
	y.turn = b.turn
	return k
}

func (b *bookings) tally(k targetKey) *tally {
	y := b.tallies[k]
	if y == nil {
		y = &tally{}
		b.tallies[k] = y
	}
	return y
}

// renew is a sign of life. A nil or ended booking is left alone.
func (b *bookings) renew(k *booking, now time.Time) {
	if k == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if k.place != nil {
		k.renewed = now
		b.living.MoveToBack(k.place)
	}
}

// move takes the booking to the target that was really used.
func (b *bookings) move(k *booking, t Target, now time.Time) {
	if k == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if k.place == nil {
		return
	}
	b.tally(k.target).booked--
	k.target = t.key()
	b.tally(k.target).booked++
	k.renewed = now
	b.living.MoveToBack(k.place)
}

// end releases a booking once.
func (b *bookings) end(k *booking) {
	if k == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release(k)
}

func (b *bookings) release(k *booking) {
	if k.place == nil {
		return
	}
	b.living.Remove(k.place)
	k.place = nil
	b.tallies[k.target].booked--
	if k.decision != "" {
		delete(b.byDecision, k.decision)
	}
}

// expire releases what has been without news for the lease.
func (b *bookings) expire(now time.Time) {
	for e := b.living.Front(); e != nil; e = b.living.Front() {
		k, ok := e.Value.(*booking)
		if !ok || now.Sub(k.renewed) < b.lease {
			return
		}
		b.release(k)
	}
}

// forget drops the tallies of idle targets that are not in the fleet, so that a fleet of ever new names costs nothing.
func (b *bookings) forget(known func(worker string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, y := range b.tallies {
		if y.booked == 0 && !known(k.worker) {
			delete(b.tallies, k)
		}
	}
}

// inFlight is the number of living bookings.
func (b *bookings) inFlight() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.living.Len()
}
