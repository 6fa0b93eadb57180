package edge

import (
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Hash is an engine's own name of a block: its integer, or the hash of its bytes.
type Hash uint64

// HashOf makes a name of an engine hash that is bytes: XXH3-64 with block.Seed.
func HashOf(b []byte) Hash { return Hash(block.Sum(b)) }

// Digest sums up a set of names, and their copies.
type Digest struct {
	Count   uint64 // names
	XOR     uint64 // of them
	Sum     uint64 // of them modulo 2^64
	Copies  uint64 // of all names
	CopySum uint64 // of the names, each as often as it has copies, modulo 2^64
}

func (d *Digest) add(h Hash) {
	d.Count++
	d.XOR ^= uint64(h)
	d.Sum += uint64(h)
}

func (d *Digest) remove(h Hash) {
	d.Count--
	d.XOR ^= uint64(h)
	d.Sum -= uint64(h)
}

func (d *Digest) another(h Hash) {
	d.Copies++
	d.CopySum += uint64(h)
}

func (d *Digest) fewer(h Hash, copies uint16) {
	d.Copies -= uint64(copies)
	d.CopySum -= uint64(copies) * uint64(h)
}

// Budget bounds the names of all translators together. It may be used concurrently.
type Budget struct {
	most    int64
	used    atomic.Int64
	refused atomic.Int64 // names remembered from refused stores: at most a refusedShare of most besides
}

// refusedShare is the part of a budget that there is besides for names of refused stores: a 16th. They have room of their
// own, since a budget that is used up is what refuses most.
const refusedShare = 16

// NewBudget makes one for so many names.
func NewBudget(most int) *Budget { return &Budget{most: int64(most)} }

// Used is how many names there are.
func (b *Budget) Used() int { return int(b.used.Load()) }

// Remembered is how many names of refused stores there are besides.
func (b *Budget) Remembered() int { return int(b.refused.Load()) }

// take grants all of n or nothing.
func (b *Budget) take(n int) bool {
	if b.used.Add(int64(n)) > b.most {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

func (b *Budget) give(n int) { b.used.Add(-int64(n)) }

// remember grants one name of a refused store.
func (b *Budget) remember() bool {
	if b.refused.Add(1) > b.most/refusedShare {
		b.refused.Add(-1)
		return false
	}
	return true
}

func (b *Budget) waive(n int) { b.refused.Add(-int64(n)) }

type state uint8

const (
	nameless state = iota // no content
	waiting               // no id
	known
)

// name is what an engine hash stands for; 32 bytes.
type name struct {
	id        block.ID // if known
	parent    block.ID // if known; a keyspace with isRoot
	copies    [fleet.NumTiers]uint16
	state     state
	isRoot    bool
	contested bool
	limited   bool // counts against Limits.Waiting; never if known
}

func (n *name) isHeld() bool { return n.copies != [fleet.NumTiers]uint16{} }

// waiter is the content of a name that waits, and its place among those that wait for the same parent.
type waiter struct {
	local      block.Local
	parent     Hash
	prev, next Hash // siblings
	hasPrev    bool
	hasNext    bool
}

// names is the table with its sums.
type names struct {
	all     map[Hash]name
	waiters map[Hash]waiter // of each waiting name
	kids    map[Hash]Hash   // the first that waits for a parent
	digests [fleet.NumTiers]Digest
	limited int // names that count against Limits.Waiting
	budget  *Budget
	refused refused
}

func (t *names) reset() {
	t.budget.give(len(t.all))
	t.all = make(map[Hash]name)
	t.waiters = make(map[Hash]waiter)
	t.kids = make(map[Hash]Hash)
	t.digests = [fleet.NumTiers]Digest{}
	t.limited = 0
	t.refused.reset()
}

// settle writes a name down, or forgets one that has no copy left.
func (t *names) settle(h Hash, n name) {
	if n.isHeld() {
		t.all[h] = n
		return
	}
	if n.state == waiting {
		t.unlink(h)
	}
	if n.limited {
		t.limited--
	}
	delete(t.all, h)
	t.budget.give(1)
}

// drop takes copies away.
func (t *names) drop(h Hash, n *name, tier fleet.Tier, copies uint16) {
	n.copies[tier] -= copies
	t.digests[tier].fewer(h, copies)
	if n.copies[tier] == 0 {
		t.digests[tier].remove(h)
		t.refused.disbelieved(h, tier)
	}
}

// link puts a name among those that wait for a parent.
func (t *names) link(h, parent Hash, local block.Local) {
	w := waiter{parent: parent, local: local}
	if first, ok := t.kids[parent]; ok {
		w.next, w.hasNext = first, true
		f := t.waiters[first]
		f.prev, f.hasPrev = h, true
		t.waiters[first] = f
	}
	t.kids[parent] = h
	t.waiters[h] = w
}

func (t *names) unlink(h Hash) {
	w := t.waiters[h]
	delete(t.waiters, h)
	switch {
	case w.hasPrev:
		p := t.waiters[w.prev]
		p.next, p.hasNext = w.next, w.hasNext
		t.waiters[w.prev] = p
	case w.hasNext:
		t.kids[w.parent] = w.next
	default:
		delete(t.kids, w.parent)
	}
	if w.hasNext {
		n := t.waiters[w.next]
		n.prev, n.hasPrev = w.prev, w.hasPrev
		t.waiters[w.next] = n
	}
}
