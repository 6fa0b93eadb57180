package admit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// twin is the queue as the package comment describes it, without anything clever: flat lists, and one round after the
// other.
type twin struct {
	cfg   Config
	items []*twinItem // in the order in which they came
	rings map[ring][]string
	given map[ring]bool // the first of the ring has had its quantum
	has   map[account]time.Duration
}

type twinItem struct {
	id             int
	pool, tenant   string
	priority       int32
	cost           time.Duration
	tokens         int
	called, doomed bool
}

type ring struct {
	pool     string
	priority int32
}

type account struct {
	ring
	tenant string
}

func newTwin(cfg Config) *twin {
	return &twin{cfg: cfg.withDefaults(), rings: map[ring][]string{}, given: map[ring]bool{}, has: map[account]time.Duration{}}
}

func (x *twinItem) ring() ring { return ring{x.pool, x.priority} }

func (w *twin) sums() (items, tokens int) {
	for _, x := range w.items {
		if !x.doomed {
			items, tokens = items+1, tokens+x.tokens
		}
	}
	return items, tokens
}

// join gives the ids that have to go.
func (w *twin) join(x *twinItem) (gone []int) {
	if w.cfg.MaxItems == 0 || x.tokens > w.cfg.MaxTokens {
		return []int{x.id}
	}
	w.items = append(w.items, x)
	for {
		if n, tokens := w.sums(); n <= w.cfg.MaxItems && tokens <= w.cfg.MaxTokens {
			break
		}
		y := w.last()
		y.doomed = true
		gone = append(gone, y.id)
		if y == x {
			for _, z := range w.items {
				z.doomed = false
			}
			w.items = w.items[:len(w.items)-1]
			return []int{x.id}
		}
	}
	r := x.ring()
	if !slices.Contains(w.rings[r], x.tenant) {
		w.rings[r] = append(w.rings[r], x.tenant)
	}
	for _, id := range gone {
		w.drop(w.find(id))
	}
	return gone
}

func (w *twin) last() *twinItem {
	lowest := int32(1<<31 - 1)
	for _, x := range w.items {
		if !x.called && !x.doomed {
			lowest = min(lowest, x.priority)
		}
	}
	waiting := map[account]time.Duration{}
	for _, x := range w.items {
		if !x.called && !x.doomed && x.priority == lowest {
			waiting[account{x.ring(), x.tenant}] += x.cost
		}
	}
	var worst *twinItem
	for _, x := range slices.Backward(w.items) { // newest first: ties go to it
		if x.called || x.doomed || x.priority != lowest {
			continue
		}
		if worst == nil || waiting[account{x.ring(), x.tenant}] > waiting[account{worst.ring(), worst.tenant}] {
			worst = x
		}
	}
	return worst
}

func (w *twin) find(id int) *twinItem {
	for _, x := range w.items {
		if x.id == id {
			return x
		}
	}
	return nil
}

func (w *twin) drop(x *twinItem) {
	w.items = slices.DeleteFunc(w.items, func(y *twinItem) bool { return x == y })
	r := x.ring()
	if slices.ContainsFunc(w.items, func(y *twinItem) bool { return y.ring() == r && y.tenant == x.tenant }) {
		return
	}
	at := slices.Index(w.rings[r], x.tenant)
	w.rings[r] = slices.Delete(w.rings[r], at, at+1)
	if at == 0 {
		w.given[r] = false
	}
	delete(w.has, account{r, x.tenant})
}

func (w *twin) next(pool string, suits func(int) bool) *twinItem {
	var priorities []int32
	for _, x := range w.items {
		if x.pool == pool && !slices.Contains(priorities, x.priority) {
			priorities = append(priorities, x.priority)
		}
	}
	slices.Sort(priorities)
	for _, p := range slices.Backward(priorities) {
		r := ring{pool, p}
		firsts := map[string]*twinItem{}
		for _, x := range w.items {
			if x.ring() == r && !x.called && suits(x.id) && firsts[x.tenant] == nil {
				firsts[x.tenant] = x
			}
		}
		for len(firsts) > 0 {
			name := w.rings[r][0]
			if x := firsts[name]; x != nil {
				a := account{r, name}
				if !w.given[r] {
					w.has[a] += Quantum
					w.given[r] = true
				}
				if w.has[a] >= x.cost {
					w.has[a] -= x.cost
					x.called = true
					return x
				}
			}
			w.rings[r] = append(w.rings[r][1:], name)
			w.given[r] = false
		}
	}
	return nil
}

func (w *twin) position(pool, tenant string, priority int32) int {
	at, own, others := 1, 0, map[string]int{}
	for _, x := range w.items {
		switch {
		case x.pool != pool || x.called || x.priority < priority:
		case x.priority > priority:
			at++
		case x.tenant == tenant:
			own++
		default:
			others[x.tenant]++
		}
	}
	for _, n := range others {
		at += min(n, own+1)
	}
	return at + own
}

// pair drives both and compares.
type pair struct {
	t    *testing.T
	q    *Queue[int]
	w    *twin
	live map[int]*Item[int]
	ids  []int // of live, in order
	next int
}

func newPair(t *testing.T, cfg Config) *pair {
	return &pair{t: t, q: New[int](cfg), w: newTwin(cfg), live: map[int]*Item[int]{}}
}

func (p *pair) forget(id int) {
	delete(p.live, id)
	p.ids = slices.DeleteFunc(p.ids, func(x int) bool { return x == id })
}

// step does one thing to both, chosen by six numbers.
func (p *pair) step(op, a, b, c, d, e int) {
	p.t.Helper()
	pool, tenant, priority := string(rune('m'+a%2)), string(rune('a'+b%4)), int32(c%3-1)
	switch op % 6 {
	case 0, 1, 2: // join
		cost, tokens := time.Duration(d%40)*4*time.Millisecond, e%50
		p.next++
		it := &Item[int]{Value: p.next, Pool: pool, Tenant: tenant, Priority: priority, Cost: cost, Tokens: tokens}
		p.live[p.next] = it
		p.ids = append(p.ids, p.next)
		var got []int
		for _, x := range p.q.Join(it) {
			got = append(got, x.Value)
		}
		want := p.w.join(&twinItem{id: p.next, pool: pool, tenant: tenant, priority: priority, cost: inRange(cost), tokens: tokens})
		if !slices.Equal(got, want) {
			p.t.Fatalf("Join made %v go, want %v", got, want)
		}
		for _, id := range got {
			p.forget(id)
		}
	case 3: // next, of some
		suits := func(id int) bool { return id%(1+d%3) == 0 }
		it, want := p.q.Next(pool, suits), p.w.next(pool, suits)
		switch {
		case (it == nil) != (want == nil):
			p.t.Fatalf("Next gave %v, want %v", it, want)
		case it != nil && it.Value != want.id:
			p.t.Fatalf("Next gave %d, want %d", it.Value, want.id)
		}
	default:
		if len(p.ids) == 0 {
			return
		}
		id := p.ids[d%len(p.ids)]
		it, x := p.live[id], p.w.find(id)
		if it.Called() != x.called {
			p.t.Fatalf("%d is called %v, want %v", id, it.Called(), x.called)
		}
		acc := account{x.ring(), x.tenant}
		switch {
		case op%6 == 5 && x.called && e%2 == 0: // served
			actual := inRange(time.Duration(e%60) * 3 * time.Millisecond)
			p.q.Served(it, actual)
			p.w.has[acc] += x.cost - actual
			p.w.drop(x)
			p.forget(id)
		case x.called && e%3 == 0: // back
			p.q.Back(it)
			x.called = false
			p.w.has[acc] += x.cost
		case e%5 == 1:
			p.q.Leave(it)
			if x.called {
				p.w.has[acc] += x.cost
			}
			p.w.drop(x)
			p.forget(id)
		}
	}
	p.check(pool, tenant, priority)
}

func (p *pair) check(pool, tenant string, priority int32) {
	p.t.Helper()
	n, tokens := p.w.sums()
	if p.q.Len() != n || p.q.Tokens() != tokens {
		p.t.Fatalf("%d questions of %d tokens wait, want %d of %d", p.q.Len(), p.q.Tokens(), n, tokens)
	}
	if n > p.w.cfg.MaxItems || tokens > p.w.cfg.MaxTokens {
		p.t.Fatalf("%d questions of %d tokens are beyond the bounds", n, tokens)
	}
	if got, want := p.q.Position(pool, tenant, priority), p.w.position(pool, tenant, priority); got != want {
		p.t.Fatalf("the next of %s would be at %d, want %d", tenant, got, want)
	}
	ofPools := 0
	p.q.Pools(func(name string) {
		if p.q.LenOf(name) == 0 {
			p.t.Fatalf("pool %s is empty and there", name)
		}
		ofPools += p.q.LenOf(name)
	})
	if ofPools != n {
		p.t.Fatalf("the pools have %d questions, want %d", ofPools, n)
	}
}

func TestQueueIsItsTwin(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := newPair(t, Config{MaxItems: 1 + r.IntN(30), MaxTokens: 20 + r.IntN(600)})
		for range 800 {
			p.step(r.IntN(6), r.IntN(8), r.IntN(8), r.IntN(9), r.IntN(400), r.IntN(600))
		}
	}
}

func FuzzQueue(f *testing.F) {
	f.Add([]byte{5, 200, 0, 0, 0, 1, 10, 3, 3, 0, 0, 1, 2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 2 {
			return
		}
		p := newPair(t, Config{MaxItems: 1 + int(b[0])%40, MaxTokens: 1 + 8*int(b[1])})
		for b = b[2:]; len(b) >= 6; b = b[6:] {
			p.step(int(b[0]), int(b[1]), int(b[2]), int(b[3]), int(b[4]), int(b[5]))
		}
	})
}
