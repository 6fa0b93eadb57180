package oracle

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// TestGuessesEqualTwin compares guesses with a plain list of prompts, each with what is still believed of it.
func TestGuessesEqualTwin(t *testing.T) {
	type prompt struct {
		target fleet.TargetID
		chain  []block.ID
		at     time.Time
		ended  bool
	}
	const targets, apart, limit = 4, 50, 60
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	// A tree of prompts that begin alike: block n follows n/3.
	way := func() (ids []block.ID) {
		for n := 1 + r.IntN(80); n > 0; n /= 3 {
			ids = append(ids, block.ID(n))
		}
		slices.Reverse(ids)
		return ids
	}
	counts := make(map[string]int)
	var layers index.Layers
	for range 60 {
		g := newGuesses(limit, 2*time.Second)
		twin := make(map[DecisionID]*prompt)
		cut := func(target fleet.TargetID, gone func(block.ID) bool) {
			for id, p := range twin {
				if k := slices.IndexFunc(p.chain, gone); p.target == target && k >= 0 {
					if p.chain = p.chain[:k]; k == 0 {
						delete(twin, id)
					}
				}
			}
		}
		now := t0
		for n := range DecisionID(300) {
			id, target := DecisionID(r.IntN(int(n)+1)), fleet.TargetID(apart*r.IntN(targets))
			switch x := r.IntN(100); {
			case x < 45:
				chain, total := way(), 0
				for _, p := range twin {
					total += len(p.chain)
				}
				g.add(n, target, chain, now)
				if total+len(chain) <= limit {
					twin[n] = &prompt{target: target, chain: chain, at: now.Add(guessMost)}
				} else {
					counts["forgone"]++
				}
			case x < 60:
				g.linger(id, now)
				if p := twin[id]; p != nil {
					p.ended = true
					if at := now.Add(2 * time.Second); at.Before(p.at) {
						p.at = at
					}
				}
			case x < 75:
				g.cancel(id)
				delete(twin, id)
			case x < 88:
				ids := way()
				ids = ids[r.IntN(len(ids)):]
				g.evicted(target, ids)
				cut(target, func(id block.ID) bool { return slices.Contains(ids, id) })
				counts["evicted"]++
			case x < 90:
				g.cleared(target)
				cut(target, func(block.ID) bool { return true })
			case x < 92:
				isAlike := r.IntN(4) > 0
				g.move(id, target, isAlike, now)
				switch p := twin[id]; {
				case p == nil || p.target == target:
				case !isAlike:
					delete(twin, id)
				default:
					p.target, p.ended, p.at = target, false, now.Add(guessMost)
					counts["moved"]++
				}
			default:
				now = now.Add(time.Duration(r.Int64N(int64(20 * time.Second))))
				unheard := 0
				for id, p := range twin {
					if !p.at.After(now) {
						if !p.ended {
							unheard++
						}
						delete(twin, id)
						counts["expired"]++
					}
				}
				if got := len(g.expire(now)); got != unheard {
					t.Fatalf("seed %d: %d ended unheard, want %d", seed, got, unheard)
				}
			}
			if len(g.queue) != len(twin) || g.living.Len() != len(twin) {
				t.Fatalf("seed %d: %d in the queue, %d living, want %d", seed, len(g.queue), g.living.Len(), len(twin))
			}
			blocks := 0
			held := make(map[fleet.TargetID]map[block.ID]bool)
			for id, p := range twin {
				blocks += len(p.chain)
				if !slices.Equal(g.believed(id), p.chain) {
					t.Fatalf("seed %d: of %d %v is believed, want %v", seed, id, g.believed(id), p.chain)
				}
				if held[p.target] == nil {
					held[p.target] = make(map[block.ID]bool)
				}
				for _, b := range p.chain {
					held[p.target][b] = true
				}
			}
			chain := way()
			got := g.match(chain, nil)
			g.layers(chain, &layers)
			for i := range targets {
				target := fleet.TargetID(apart * i)
				want := slices.IndexFunc(chain, func(b block.ID) bool { return !held[target][b] })
				if want < 0 {
					want = len(chain)
				}
				n := 0
				if i := slices.IndexFunc(got, func(m index.Match) bool { return m.Target == target }); i >= 0 {
					n = got[i].Total()
				}
				if n != want {
					t.Fatalf("seed %d: target %d is expected to have %d of %v, want %d", seed, target, n, chain, want)
				}
				if n := blocksOf(&layers, target); int(n[fleet.Device]) != want {
					t.Fatalf("seed %d: of target %d layers say %v of %v, want %d", seed, target, n, chain, want)
				}
			}
			distinct := 0
			for _, h := range held {
				distinct += len(h)
			}
			if got := g.tree.check(t); got != distinct {
				t.Fatalf("seed %d: %d blocks in the tree, want %d", seed, got, distinct)
			}
			if g.blocks != blocks || blocks > limit {
				t.Fatalf("seed %d: %d blocks, want %d", seed, g.blocks, blocks)
			}
		}
	}
	for _, k := range []string{"forgone", "evicted", "expired", "moved"} {
		if counts[k] == 0 {
			t.Errorf("seed %d: never %s", seed, k)
		}
	}
}

// The end of an older request takes nothing from a newer one with the same prompt, whatever was reported gone in between.
func TestGuessEndsAlone(t *testing.T) {
	g := newGuesses(100, time.Second)
	chain := []block.ID{1, 2, 3}
	g.add(1, 7, chain, t0)
	g.evicted(7, chain[1:])
	g.add(2, 7, chain, t0)
	g.cancel(1)
	if got := g.match(chain, nil); len(got) != 1 || got[0].Total() != 3 {
		t.Errorf("the newer request is expected to leave %v, want 3 blocks", got)
	}
}

// TestGuessLayersAreBounded: where each target has more of a way than the one before, those behind the last layer are named.
func TestGuessLayersAreBounded(t *testing.T) {
	g := newGuesses(1e6, time.Second)
	const targets = 3 * index.LayersMost
	chain := make([]block.ID, 2*targets)
	for i := range chain {
		chain[i] = block.ID(i + 1)
	}
	for i := range targets {
		g.add(DecisionID(i+1), fleet.TargetID(3*i), chain[:2*(i+1)], t0)
	}
	var layers index.Layers
	g.layers(chain, &layers)
	if len(layers.All) != index.LayersMost || len(layers.Others) != targets-index.LayersMost {
		t.Errorf("%d layers and %d others", len(layers.All), len(layers.Others))
	}
	for _, m := range g.match(chain, nil) {
		if got := blocksOf(&layers, m.Target); got != m.Blocks {
			t.Errorf("target %d: %v, want %v", m.Target, got, m.Blocks)
		}
	}
}

// check holds a tree against what its comment promises, and counts the blocks of all targets, each once.
func (t *guessTree) check(tt *testing.T) (blocks int) {
	tt.Helper()
	names := make(map[uint32]int)
	for key, r := range t.runs {
		total, kids, below := 0, 0, 0
		if r.set != nil {
			n := 0
			for _, w := range r.set {
				n += bits.OnesCount64(w)
			}
			if n != len(r.users) || slices.ContainsFunc(r.users, func(u user) bool { return !r.set.Has(u.target) }) {
				tt.Fatalf("users %v, set %x", r.users, r.set)
			}
		}
		for i, u := range r.users {
			if total += int(u.n); u.n == 0 || i > 0 && r.users[i-1].target >= u.target {
				tt.Fatalf("users %v", r.users)
			}
			if r.up != nil {
				if k, ok := r.up.user(u.target); !ok || r.up.users[k].n < u.n {
					tt.Fatalf("users %v below %v", r.users, r.up.users)
				}
			}
		}
		for k := r.kids; k != nil; k = k.next {
			kids++
			if below += k.total; k.up != r || k.depth != r.depth+len(r.ids) {
				tt.Fatalf("kid %+v of %+v", k, r)
			}
		}
		switch {
		case key != runKey{r.up, r.ids[0]}, total != r.total, total == 0, below > total:
			tt.Fatalf("%+v under %+v, %d users, %d below", r, key, total, below)
		case kids == 1 && below == total:
			tt.Fatalf("%+v has one kid and no end", r)
		case 2*len(r.ids) < r.room:
			tt.Fatalf("%d blocks keep %d", len(r.ids), r.room)
		}
		blocks += len(r.ids) * len(r.users)
		if r.place == isNamed {
			for _, id := range r.ids {
				names[markOf(id)]++
			}
		} else if t.unnamed[r.place] != r {
			tt.Fatalf("%+v is not in its place", r)
		}
	}
	n := 0
	for i, m := range t.names.places {
		if m == 0 {
			continue
		}
		n++
		names[m]--
		for k := int(m >> t.names.shift); k != i; k = (k + 1) & (len(t.names.places) - 1) {
			if t.names.places[k] == 0 {
				tt.Fatalf("%x is behind a hole", m)
			}
		}
	}
	for m, left := range names {
		if left != 0 {
			tt.Fatalf("%d too few of %x", left, m)
		}
	}
	if n != t.names.n || len(t.names.places) > max(8*n, 1<<idSetLeast) {
		tt.Fatalf("%d names, %d counted, %d places", n, t.names.n, len(t.names.places))
	}
	return blocks
}
