package admit

import (
	"cmp"
	"slices"
	"time"
)

// class is the questions of one priority in a pool.
type class[V any] struct {
	pool     *pool[V]
	priority int32
	tenants  map[string]*tenant[V]
	ring     []*tenant[V] // whose turns come in this order
	at       int          // of the ring: whose turn it is
	given    bool         // who has had its quantum for this turn

	firsts []*Item[V] // scratch of next
}

// tenant is one tenant's questions in a class.
type tenant[V any] struct {
	class   *class[V]
	name    string
	items   []*Item[V]    // by seq
	called  int           // of them
	waiting time.Duration // cost of the others
	deficit time.Duration // what it has to its credit; below 0 when a question came dearer than predicted
}

// newest is its newest question that was not called, or nil.
func (t *tenant[V]) newest() *Item[V] {
	for _, it := range slices.Backward(t.items) {
		if !it.called {
			return it
		}
	}
	return nil
}

// first is its first question that was not called and that a place suits, or nil.
func (t *tenant[V]) first(suits func(V) bool) *Item[V] {
	for _, it := range t.items {
		if !it.called && suits(it.Value) {
			return it
		}
	}
	return nil
}

// next goes round until somebody's credit covers its first question. If a whole round was not enough, as many rounds are
// made at once as are missing for the first one to have enough.
func (c *class[V]) next(suits func(V) bool) *Item[V] {
	contend := false
	c.firsts = c.firsts[:0]
	for _, t := range c.ring {
		it := t.first(suits)
		contend = contend || it != nil
		c.firsts = append(c.firsts, it)
	}
	defer clear(c.firsts)
	for contend {
		for range c.ring {
			t, it := c.ring[c.at], c.firsts[c.at]
			if it != nil {
				if !c.given {
					t.deficit += Quantum
					c.given = true
				}
				if t.deficit >= it.cost {
					t.deficit -= it.cost
					t.call(it)
					return it
				}
			}
			c.at, c.given = (c.at+1)%len(c.ring), false
		}
		c.skip()
	}
	return nil
}

// skip gives everybody who contends what it would get in the rounds in which nobody has enough yet.
func (c *class[V]) skip() {
	rounds := int64(-1)
	for i, t := range c.ring {
		if it := c.firsts[i]; it != nil {
			need := int64((it.cost-t.deficit+Quantum-1)/Quantum) - 1 // before the one in which it has enough
			if rounds < 0 || need < rounds {
				rounds = need
			}
		}
	}
	if rounds <= 0 {
		return
	}
	for i, t := range c.ring {
		if c.firsts[i] != nil {
			t.deficit += time.Duration(rounds) * Quantum
		}
	}
}

func (t *tenant[V]) call(it *Item[V]) {
	it.called = true
	t.called++
	t.waiting -= it.cost
}

func (t *tenant[V]) uncall(it *Item[V]) {
	it.called = false
	t.called--
	t.waiting += it.cost
}

func (c *class[V]) insert(it *Item[V]) {
	t := c.tenants[it.Tenant]
	if t == nil {
		t = &tenant[V]{class: c, name: it.Tenant}
		c.tenants[it.Tenant] = t
		c.ring = slices.Insert(c.ring, c.at, t) // before whose turn it is: its own comes last
		if len(c.ring) > 1 {
			c.at++
		}
	}
	i, _ := slices.BinarySearchFunc(t.items, it.seq, func(x *Item[V], seq uint64) int { return cmp.Compare(x.seq, seq) })
	t.items = slices.Insert(t.items, i, it)
	t.waiting += it.cost
	it.tenant = t
}

func (c *class[V]) remove(it *Item[V]) {
	t := it.tenant
	i, _ := slices.BinarySearchFunc(t.items, it.seq, func(x *Item[V], seq uint64) int { return cmp.Compare(x.seq, seq) })
	t.items = slices.Delete(t.items, i, i+1)
	if it.called {
		t.called--
	} else {
		t.waiting -= it.cost
	}
	it.tenant, it.called = nil, false
	if len(t.items) > 0 {
		return
	}
	delete(c.tenants, t.name)
	at := slices.Index(c.ring, t)
	c.ring = slices.Delete(c.ring, at, at+1)
	switch {
	case at < c.at:
		c.at--
	case at == c.at:
		c.given = false
	}
	if c.at >= len(c.ring) {
		c.at = 0
	}
}
