package dynamo

import (
	"container/list"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Dynamo's own defaults.
const (
	pendingAge   = 120 * time.Second
	mostPending  = 4096
	pendingBytes = 256 << 20
	mostAge      = 300 * time.Second // of a reservation
)

const (
	mostReservations = 1 << 16
	renewEvery       = 20 * time.Second // a third of the default lease
	mostRenewals     = 512              // by one call
)

// pending is a selection that waits to be booked.
type pending struct {
	key    string // id and model
	at     time.Time
	size   int
	ask    *kvoraclev1.RouteRequest
	target *kvoraclev1.Target
}

// reservation is a booking that was made here.
type reservation struct {
	id       string
	decision string
	born     time.Time
	renewed  time.Time
	output   uint32
	block    uint32
}

// book is a bounded map in the order of age: of pending selections by their making, of reservations by their last renewal.
type book[T any] struct {
	entries map[string]*list.Element
	order   list.List // of *T, oldest first
}

func (b *book[T]) get(key string) *T {
	if e, ok := b.entries[key]; ok {
		return e.Value.(*T)
	}
	return nil
}

func (b *book[T]) put(key string, v *T) {
	b.drop(key)
	if b.entries == nil {
		b.entries = make(map[string]*list.Element)
	}
	b.entries[key] = b.order.PushBack(v)
}

func (b *book[T]) drop(key string) *T {
	e, ok := b.entries[key]
	if !ok {
		return nil
	}
	delete(b.entries, key)
	return b.order.Remove(e).(*T)
}

func (b *book[T]) oldest() *T {
	if e := b.order.Front(); e != nil {
		return e.Value.(*T)
	}
	return nil
}

func (b *book[T]) len() int { return len(b.entries) }

// keep remembers a selection, and forgets the oldest that are too many.
func (d *Door) keep(p *pending) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.pending.drop(p.key); old != nil {
		d.held -= old.size
	}
	d.pending.put(p.key, p)
	d.held += p.size
	for {
		o := d.pending.oldest()
		if o == nil || d.pending.len() <= mostPending && d.held <= pendingBytes && p.at.Sub(o.at) < pendingAge {
			return
		}
		d.pending.drop(o.key)
		d.held -= o.size
	}
}

// claim takes a selection out. One that cannot be booked is put back by keep.
func (d *Door) claim(key string, now time.Time) *pending {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pending.drop(key)
	if p == nil {
		return nil
	}
	d.held -= p.size
	if now.Sub(p.at) >= pendingAge {
		return nil
	}
	return p
}

// begin takes an id for a booking that is being made. It is false if the id names one that lives.
func (d *Door) begin(id string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.reserved.get(id); r != nil && now.Sub(r.born) < mostAge {
		return false
	}
	d.reserved.put(id, &reservation{id: id, born: now, renewed: now})
	for d.reserved.len() > mostReservations {
		d.reserved.drop(d.reserved.oldest().id)
	}
	return true
}

// made says what became of the booking; an empty decision is none.
func (d *Door) made(id, decision string, block uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.reserved.get(id)
	switch {
	case r == nil:
	case decision == "":
		d.reserved.drop(id)
	default:
		r.decision, r.block = decision, block
	}
}

// find looks a reservation up. With end it is forgotten; otherwise it counts as renewed, and with output as grown by a
// block.
func (d *Door) find(id string, now time.Time, end, output bool) (reservation, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.reserved.get(id)
	if r == nil || r.decision == "" {
		return reservation{}, false
	}
	if end {
		d.reserved.drop(id)
		return *r, true
	}
	if output {
		r.output += r.block
	}
	r.renewed = now
	d.reserved.put(id, r)
	return *r, true
}

// due takes the reservations whose leases are to be renewed, and forgets those that are too old.
func (d *Door) due(now time.Time) []reservation {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []reservation
	for len(out) < mostRenewals {
		r := d.reserved.oldest()
		if r == nil || now.Sub(r.renewed) < renewEvery {
			return out
		}
		if now.Sub(r.born) >= mostAge {
			d.reserved.drop(r.id)
			continue
		}
		r.renewed = now
		d.reserved.put(r.id, r)
		if r.decision != "" {
			out = append(out, *r)
		}
	}
	return out
}
