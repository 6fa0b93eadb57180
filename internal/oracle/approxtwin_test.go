package oracle

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// approxTwin is what approx does, block by block: a plain LRU in which a block goes only after what follows it.
type approxTwin struct {
	used     map[block.ID]int // when last
	parent   map[block.ID]block.ID
	capacity int
	limit    int
	credit   float64
	strikes  int
	patience int
}

func newApproxTwin(capacity int) *approxTwin {
	return &approxTwin{
		used: make(map[block.ID]int), parent: make(map[block.ID]block.ID),
		capacity: capacity, limit: capacity, credit: 0.75, patience: 3,
	}
}

func (a *approxTwin) learn(chain []block.ID, at int) {
	for i, id := range chain {
		a.used[id] = at
		if i > 0 {
			a.parent[id] = chain[i-1]
		}
	}
	if n := len(a.used); n > a.limit {
		for range max(n-a.limit, n/64) {
			a.evict()
		}
	}
}

// evict takes the least recently used block that nothing follows.
func (a *approxTwin) evict() {
	isFollowed := make(map[block.ID]bool)
	for id := range a.used {
		isFollowed[a.parent[id]] = true
	}
	var oldest block.ID
	for id, at := range a.used {
		if !isFollowed[id] && (oldest == 0 || at < a.used[oldest]) {
			oldest = id
		}
	}
	a.forget(oldest)
}

func (a *approxTwin) forget(id block.ID) {
	delete(a.used, id)
	delete(a.parent, id)
}

// prune takes a block and all that follows it.
func (a *approxTwin) prune(id block.ID) {
	for child, p := range a.parent {
		if p == id {
			a.prune(child)
		}
	}
	a.forget(id)
}

func (a *approxTwin) correct(chain []block.ID, guessed, cached, size int) {
	if guessed <= 0 {
		return
	}
	found := math.Min(float64(cached)/float64(guessed), 1)
	a.credit = math.Max(0.05, a.credit*7/8+found/8)
	if guessed-cached >= size {
		if n := cached / size; n < len(chain) {
			a.prune(chain[n])
		}
		a.limit = max(a.limit*7/8, a.capacity/8, 1)
	} else {
		a.limit = min(a.limit+max(1, a.capacity/128), a.capacity)
	}
	switch {
	case 2*cached >= guessed:
		a.strikes, a.patience = 0, 3
	default:
		if a.strikes++; a.strikes == a.patience {
			a.strikes, a.patience = 0, 4*a.patience
			clear(a.used)
			clear(a.parent)
		}
	}
}

func (a *approxTwin) match(chain []block.ID) int {
	n := 0
	for n < len(chain) && a.used[chain[n]] > 0 {
		n++
	}
	return n
}

// TestApproximateEqualsTwin sends prompts that begin alike to targets that report nothing, which say how much of each they
// had, and compares after each what every target is believed to have of every prompt.
func TestApproximateEqualsTwin(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	counts := make(map[string]int)
	for range 4 {
		compareApprox(t, r, counts)
	}
	for _, k := range []string{"full", "cleared", "grown", "found"} {
		if counts[k] == 0 {
			t.Errorf("never %s", k)
		}
	}
}

func compareApprox(t *testing.T, r *rand.Rand, counts map[string]int) {
	t.Helper()
	const targets, size, steps = 3, 16, 300
	o := New(Config{}, nil)
	twins := make([]*approxTwin, targets)
	for i := range twins {
		capacity := []int{20, 60, 200}[i]
		twins[i] = newApproxTwin(capacity)
		spec := fleet.Spec{Worker: string(rune('a' + i)), Model: "m", BlockSize: size, DPSize: 1, Capacity: [fleet.NumTiers]uint64{uint64(capacity)}}
		if _, err := o.Register(spec, t0); err != nil {
			t.Fatal(err)
		}
	}
	// No prompt is the beginning of another: each ends with a block of its own.
	var prompts [][]block.ID
	for n := range block.Local(30) {
		locals := make([]block.Local, r.IntN(15))
		for i := range locals {
			locals[i] = block.Local(r.IntN(2))
		}
		prompts = append(prompts, block.AppendChain(nil, 1, append(locals, 1000+n)))
	}
	for step := 1; step <= steps; step++ {
		i, chain := r.IntN(targets), prompts[r.IntN(len(prompts))]
		f, a := o.feeds[i], twins[i]
		now := t0.Add(time.Duration(step) * time.Second)
		if held := a.match(chain); held > 0 && r.IntN(3) > 0 {
			guessed := min(held*size, len(chain)*size-1)
			cached := guessed + r.IntN(2*size)
			if r.IntN(2) == 0 {
				cached = r.IntN(guessed)
			}
			before := a.limit
			f.correct(chain, asTokens, guessed, cached, size)
			a.correct(chain, guessed, cached, size)
			counts["found"]++
			if a.limit > before {
				counts["grown"]++
			}
			if len(a.used) == 0 {
				counts["cleared"]++
			}
		}
		f.learn(chain, asTokens, now)
		a.learn(chain, step)
		if len(a.used) == a.limit {
			counts["full"]++
		}
		got := f.approx[asTokens]
		if got.limit != a.limit || math.Abs(got.credit-a.credit) > 1e-9 || got.ledger.Held(fleet.Device) != len(a.used) {
			t.Fatalf("step %d: target %d has %d blocks, limit %d, credit %v, want %d, %d, %v",
				step, i, got.ledger.Held(fleet.Device), got.limit, got.credit, len(a.used), a.limit, a.credit)
		}
		for _, chain := range prompts {
			got := o.approx[asTokens].Match(chain, nil)
			for i, a := range twins {
				n := 0
				if k := slices.IndexFunc(got, func(m index.Match) bool { return int(m.Target) == i }); k >= 0 {
					n = got[k].Total()
				}
				if want := a.match(chain); n != want {
					t.Fatalf("step %d: target %d is believed to have %d of %d blocks, want %d", step, i, n, len(chain), want)
				}
			}
		}
	}
	if s := o.Stats(t0); s.Index.HolderBlocks != 0 {
		t.Fatalf("%d guessed blocks are facts", s.Index.HolderBlocks)
	}
}
