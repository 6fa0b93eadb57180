package admit

import (
	"cmp"
	"slices"
	"time"
)

// Config bounds a queue. A zero field means its default; a negative MaxItems that nobody may wait.
type Config struct {
	// MaxItems is how many questions may wait; default 1,024.
	MaxItems int
	// MaxTokens is how many prompt tokens they may have together, since each keeps its prompt in memory; default 16 Mi.
	MaxTokens int
}

func (c Config) withDefaults() Config {
	if c.MaxItems == 0 {
		c.MaxItems = 1024
	}
	c.MaxItems = max(c.MaxItems, 0)
	if c.MaxTokens <= 0 {
		c.MaxTokens = 16 << 20
	}
	return c
}

// Quantum is what a tenant is given at each turn. It is less than nearly every request costs, so that no tenant goes twice
// while another has as much to its credit; that a dear request then needs many turns costs nothing, see class.next.
const Quantum = 10 * time.Millisecond

// The range of a predicted cost.
const (
	leastCost = time.Millisecond
	mostCost  = time.Hour
)

func inRange(cost time.Duration) time.Duration { return min(max(cost, leastCost), mostCost) }

// Item is one waiting question. Its exported fields are the caller's; they must not change while it waits.
type Item[V any] struct {
	// Value is what the caller knows it by.
	Value V
	// Pool names who shares places, Tenant who takes turns with whom; both may be empty, which is a name like any other.
	Pool, Tenant string
	// Priority is its urgency: a higher one goes first.
	Priority int32
	// Cost is its predicted cost, read as at least 1 ms and at most an hour.
	Cost time.Duration
	// Tokens is the length of its prompt.
	Tokens int

	seq    uint64
	cost   time.Duration // Cost in range
	tenant *tenant[V]    // nil: it does not wait
	called bool
}

// Called reports whether it was given by Next and is neither back nor gone.
func (it *Item[V]) Called() bool { return it.called }

// Queue holds the waiting questions. It is not safe for concurrent use.
type Queue[V any] struct {
	cfg    Config
	pools  map[string]*pool[V]
	items  int
	tokens int
	seq    uint64
}

// pool has its classes by priority, the most urgent first; each has a question.
type pool[V any] struct {
	name    string
	classes []*class[V]
	items   int
}

// New makes an empty queue.
func New[V any](cfg Config) *Queue[V] {
	return &Queue[V]{cfg: cfg.withDefaults(), pools: make(map[string]*pool[V])}
}

// Len is how many questions wait, called ones among them.
func (q *Queue[V]) Len() int { return q.items }

// Tokens is how many prompt tokens they have.
func (q *Queue[V]) Tokens() int { return q.tokens }

// LenOf is how many of them are of a pool.
func (q *Queue[V]) LenOf(name string) int {
	if p := q.pools[name]; p != nil {
		return p.items
	}
	return 0
}

// Pools calls f for the name of each pool that somebody waits in, in no order. f must not change the queue.
func (q *Queue[V]) Pools(f func(name string)) {
	for name := range q.pools {
		f(name)
	}
}

// Join makes a question wait. What has to go for it is given back and waits no more; if that is the question itself, it is
// the only one.
func (q *Queue[V]) Join(it *Item[V]) (gone []*Item[V]) {
	it.cost, it.called = inRange(it.Cost), false
	it.Tokens = max(it.Tokens, 0)
	if q.cfg.MaxItems == 0 || it.Tokens > q.cfg.MaxTokens {
		return []*Item[V]{it}
	}
	q.seq++
	it.seq = q.seq
	q.insert(it)
	items, tokens := q.items, q.tokens
	for items > q.cfg.MaxItems || tokens > q.cfg.MaxTokens {
		x := q.last()
		if x == it {
			for _, y := range gone { // they make no room for it after all
				y.tenant.uncall(y)
			}
			q.remove(it)
			return []*Item[V]{it}
		}
		x.tenant.call(x) // so that it is not looked at again
		gone = append(gone, x)
		items, tokens = items-1, tokens-x.Tokens
	}
	for _, x := range gone {
		q.remove(x)
	}
	return gone
}

// Next calls the next question of a pool that a place suits, or gives nil. It stays in the queue until Back, Leave or
// Served, and is not given again before.
func (q *Queue[V]) Next(name string, suits func(V) bool) *Item[V] {
	p := q.pools[name]
	if p == nil {
		return nil
	}
	for _, c := range p.classes {
		if it := c.next(suits); it != nil {
			return it
		}
	}
	return nil
}

// Back takes a called question back to its place: it found none.
func (q *Queue[V]) Back(it *Item[V]) {
	if it.tenant == nil || !it.called {
		return
	}
	it.tenant.uncall(it)
	it.tenant.deficit += it.cost
}

// Leave takes a question out that was not served.
func (q *Queue[V]) Leave(it *Item[V]) {
	q.Back(it)
	if it.tenant != nil {
		q.remove(it)
	}
}

// Served takes a called question out, whose cost is now predicted for the place that it was given.
func (q *Queue[V]) Served(it *Item[V], cost time.Duration) {
	if it.tenant == nil {
		return
	}
	if it.called {
		it.tenant.deficit += it.cost - inRange(cost)
	}
	q.remove(it)
}

// Position is the place of the next question of a tenant with that priority, counted from 1: how many would be called
// before it, and itself, if nobody came and all cost the same.
func (q *Queue[V]) Position(name, tenant string, priority int32) int {
	p := q.pools[name]
	if p == nil {
		return 1
	}
	at := 1
	for _, c := range p.classes {
		switch {
		case c.priority > priority:
			for _, t := range c.ring {
				at += len(t.items) - t.called
			}
		case c.priority == priority:
			own := 0
			for _, t := range c.ring {
				if t.name == tenant {
					own = len(t.items) - t.called
				}
			}
			at += own
			for _, t := range c.ring {
				if t.name != tenant {
					at += min(len(t.items)-t.called, own+1)
				}
			}
		}
	}
	return at
}

// last is who has to go when there are too many; see the package comment. What is called does not go: it is nearly served.
func (q *Queue[V]) last() *Item[V] {
	var worst *tenant[V]
	var newest *Item[V]
	for _, p := range q.pools {
		for _, c := range slices.Backward(p.classes) {
			if worst != nil && c.priority > worst.class.priority {
				break
			}
			found := false
			for _, t := range c.ring {
				x := t.newest()
				if x == nil {
					continue
				}
				found = true
				if worst == nil || c.priority < worst.class.priority ||
					cmp.Or(cmp.Compare(t.waiting, worst.waiting), cmp.Compare(x.seq, newest.seq)) > 0 {
					worst, newest = t, x
				}
			}
			if found {
				break
			}
		}
	}
	return newest
}

// insert puts a question to its place: behind those of its tenant that came before it.
func (q *Queue[V]) insert(it *Item[V]) {
	p := q.pools[it.Pool]
	if p == nil {
		p = &pool[V]{name: it.Pool}
		q.pools[it.Pool] = p
	}
	i, ok := slices.BinarySearchFunc(p.classes, it.Priority, func(c *class[V], v int32) int { return cmp.Compare(v, c.priority) })
	if !ok {
		p.classes = slices.Insert(p.classes, i, &class[V]{pool: p, priority: it.Priority, tenants: make(map[string]*tenant[V])})
	}
	p.classes[i].insert(it)
	p.items++
	q.items++
	q.tokens += it.Tokens
}

// remove takes a question out, and with the last one its tenant, class and pool.
func (q *Queue[V]) remove(it *Item[V]) {
	c := it.tenant.class
	c.remove(it)
	p := c.pool
	p.items--
	q.items--
	q.tokens -= it.Tokens
	if len(c.ring) == 0 {
		p.classes = slices.DeleteFunc(p.classes, func(x *class[V]) bool { return x == c })
	}
	if len(p.classes) == 0 {
		delete(q.pools, p.name)
	}
}
