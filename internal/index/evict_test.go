package index

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// private makes chain c of n blocks, which no other chain shares.
func private(c, n int) []block.ID {
	ids := make([]block.ID, n)
	for i := range ids {
		ids[i] = block.ID(c+1)<<32 | block.ID(i+1)
	}
	return ids
}

// TestLeastRecentlyUsedGoesFirst compares who goes with a plain list of chains by when they were last used.
func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	type chain struct {
		ids  []block.ID
		held int
		used uint32
	}
	r := seeded(t)
	for range 200 {
		limit := 20 + r.IntN(40) // below 64: each round takes as much as is asked for
		ix := New(Config{MaxBlocks: limit})
		l := publish(ix, 3, nil)
		var chains []*chain
		now := uint32(0)
		for n := range 40 {
			now += uint32(r.IntN(3))
			ix.SetClock(now)
			if len(chains) > 0 && r.IntN(2) == 0 {
				c := chains[r.IntN(len(chains))]
				if c.held > 0 {
					l.Touch(c.ids[r.IntN(c.held)])
					c.used = now
				}
				continue
			}
			c := &chain{ids: private(n, 1+r.IntN(20)), used: now}
			total := 0
			for _, o := range chains {
				total += o.held
			}
			if l.Store(Parent{IsRoot: true}, c.ids, fleet.Device).Refused != None {
				t.Fatalf("chain %d of %d blocks does not fit into %d", n, len(c.ids), limit)
			}
			// The oldest gives until there is room, of equally old ones the one that reaches deepest.
			for total += len(c.ids); total > limit; total-- {
				c := slices.MinFunc(chains, func(a, b *chain) int {
					return cmp.Or(cmp.Compare(min(a.held, 1), min(b.held, 1))*-1, cmp.Compare(a.used, b.used),
						cmp.Compare(b.held, a.held), cmp.Compare(mix(a.ids[max(a.held, 1)-1]), mix(b.ids[max(b.held, 1)-1])))
				})
				c.held--
			}
			c.held = len(c.ids)
			chains = append(chains, c)
			for i, c := range chains {
				var got int
				if m := ix.Match(c.ids, nil); len(m) > 0 {
					got = m[0].Total()
				}
				if got != c.held {
					t.Fatalf("after chain %d of limit %d: chain %d has %d blocks, want %d", n, limit, i, got, c.held)
				}
			}
		}
		checkLedger(t, l)
		checkMemory(t, ix)
	}
}

// A branch that is in use keeps what it follows, and a chain that has nothing behind it any more is as recent as what it
// had.
func TestUseOfABranchIsUseOfItsWay(t *testing.T) {
	ix := New(Config{MaxBlocks: 40})
	trunk := private(0, 10)
	l := publish(ix, 1, trunk, 10)
	branch := private(1, 10)
	l.Store(Parent{ID: trunk[9]}, branch, fleet.Device)
	other := private(2, 20)
	ix.SetClock(1)
	l.Store(Parent{IsRoot: true}, other, fleet.Device)
	ix.SetClock(2)
	l.Touch(branch[9])
	// The branch was used last: the other chain goes, though trunk and branch are older.
	l.Store(Parent{IsRoot: true}, private(3, 15), fleet.Device)
	if got := ix.Match(append(slices.Clone(trunk), branch...), nil); len(got) != 1 || got[0].Total() != 20 {
		t.Errorf("trunk and branch: %v", got)
	}
	if got := ix.Match(other, nil); len(got) != 1 || got[0].Total() != 5 {
		t.Errorf("the other chain: %v", got)
	}
}

// What a chain is extended by is as recent as the store, and so is what it follows.
func TestExtendingIsUse(t *testing.T) {
	ix := New(Config{MaxBlocks: 40})
	chain := private(0, 20)
	l := publish(ix, 1, chain, 10)
	ix.SetClock(1)
	l.Store(Parent{IsRoot: true}, private(1, 20), fleet.Device)
	ix.SetClock(2)
	l.Store(Parent{ID: chain[9]}, chain[10:], fleet.Device)
	l.Store(Parent{IsRoot: true}, private(2, 10), fleet.Device)
	if got := ix.Match(chain, nil); len(got) != 1 || got[0].Total() != 20 {
		t.Errorf("the chain extended last: %v", got)
	}
}

// Whoever has most gives: one who tells without end takes nothing from others beyond an equal share.
func TestFloodCostsOnlyTheFlooder(t *testing.T) {
	const limit, workers, own = 10_000, 8, 800
	ix := New(Config{MaxBlocks: limit})
	for w := range fleet.TargetID(workers) {
		publish(ix, w, private(int(w), own), own)
	}
	flood := publish(ix, 100, nil)
	for n := range 500 {
		flood.Store(Parent{IsRoot: true}, private(1000+n, 64), fleet.Device)
	}
	for w := range fleet.TargetID(workers) {
		if l := ix.Visible(w); l.Held(fleet.Device) != own || l.IsPartial() {
			t.Errorf("worker %d has %d of its %d blocks, partial %v", w, l.Held(fleet.Device), own, l.IsPartial())
		}
	}
	if !flood.IsPartial() || flood.Held(fleet.Device) > limit-workers*own {
		t.Errorf("the flooder holds %d, partial %v", flood.Held(fleet.Device), flood.IsPartial())
	}
	// One that comes late gets as much as the others.
	late := publish(ix, 101, nil)
	late.Store(Parent{IsRoot: true}, private(5000, own), fleet.Device)
	if got := late.Held(fleet.Device); got != own {
		t.Errorf("who came late has %d of %d blocks", got, own)
	}
	if got := ix.Stats().Entries; got > limit {
		t.Errorf("%d entries, limit %d", got, limit)
	}
}

// A snapshot of a target in a full index is paid for by what it replaces, not by others.
func TestSnapshotIsPaidForByItsOwn(t *testing.T) {
	const limit = 2000
	ix := New(Config{MaxBlocks: limit})
	publish(ix, 1, private(1, 1000), 1000)
	publish(ix, 2, private(2, 1000), 1000)
	aside := ix.NewLedger(1, false)
	chain := private(1, 1000)
	for i := 0; i < len(chain); i += 50 {
		if r := aside.Store(parentOf(chain, i), chain[i:i+50], fleet.Device); r.Refused != None {
			t.Fatalf("Store = %+v", r)
		}
	}
	ix.Publish(aside)
	for w := range fleet.TargetID(2) {
		if l := ix.Visible(w + 1); l.Held(fleet.Device) != 1000 || l.IsPartial() {
			t.Errorf("target %d holds %d, partial %v", w+1, l.Held(fleet.Device), l.IsPartial())
		}
	}
}

// What the engine removes of what was driven out makes the picture whole again, as does a clear.
func TestPartialEndsWithWhatIsMissing(t *testing.T) {
	ix := New(Config{MaxBlocks: 10})
	chain := private(0, 10)
	l := publish(ix, 1, chain, 10)
	want := l.Digest(fleet.Device)
	more := private(1, 4)
	l.Store(Parent{IsRoot: true}, more, fleet.Device)
	for _, id := range more {
		want.add(id)
	}
	if !l.IsPartial() || l.Missing() != 4 || l.Told(fleet.Device) != want || l.Held(fleet.Device) != 10 {
		t.Fatalf("partial %v, missing %d, told %+v, want %+v", l.IsPartial(), l.Missing(), l.Told(fleet.Device), want)
	}
	l.Remove(chain[8:], fleet.Device)
	l.Remove(chain[6:8], fleet.Device)
	if l.IsPartial() || l.Missing() != 0 || l.Told(fleet.Device) != l.Digest(fleet.Device) {
		t.Errorf("after removals: partial %v, missing %d", l.IsPartial(), l.Missing())
	}
	l.Store(Parent{IsRoot: true}, private(2, 4), fleet.Device)
	if l.Clear(fleet.Device); l.IsPartial() {
		t.Error("partial after a clear")
	}
	if got := l.Evicted(); got != 8 || ix.Evicted() != 8 {
		t.Errorf("%d and %d were driven out, want 8", got, ix.Evicted())
	}
}

// Writers fill an index beyond its limit while readers ask: nobody is credited with what it never held, the limit holds at
// every moment, and afterwards everything is consistent.
func TestEvictionStorm(t *testing.T) {
	const limit, writers, readers, depth = 2000, 12, 2, 120
	rounds := 60
	if isRace {
		rounds = 25
	}
	ix := New(Config{MaxBlocks: limit})
	seed := newSeed()
	t.Logf("seed %d", seed)
	shared := numbered(depth)
	var isDone atomic.Bool
	var writing, reading sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			l := publish(ix, fleet.TargetID(w), nil)
			for n := range rounds {
				from := r.IntN(depth)
				switch r.IntN(8) {
				case 0:
					next := ix.NewLedger(fleet.TargetID(w), false)
					next.Store(Parent{IsRoot: true}, shared, fleet.Device)
					ix.Publish(next)
					l = next
				case 1:
					l.Remove(shared[from:], fleet.Device)
				case 2:
					l.Touch(shared[from])
				case 3, 4:
					l.Store(parentOf(shared, from), shared[from:], fleet.Device)
				default:
					l.Store(Parent{ID: shared[from]}, private(w*1000+n, 40), fleet.Tier(r.IntN(2)))
				}
				if got := ix.budget.used.Load(); got > limit {
					t.Errorf("%d entries, limit %d", got, limit)
				}
				ix.SetClock(uint32(n))
			}
		})
	}
	for range readers {
		reading.Go(func() {
			var dst []Match
			stranger := append(slices.Clone(shared[:depth/2]), private(1<<20, 10)...)
			for !isDone.Load() {
				dst = ix.Match(shared, dst[:0])
				for i := range dst {
					if dst[i].Total() > depth || int(dst[i].Target) >= writers {
						t.Errorf("%+v", dst[i])
					}
				}
				dst = ix.Match(stranger, dst[:0])
				for i := range dst {
					if dst[i].Total() > depth/2 {
						t.Errorf("credited with what nobody ever held: %+v", dst[i])
					}
				}
			}
		})
	}
	writing.Wait()
	isDone.Store(true)
	reading.Wait()
	// Chance may have left room all the time; this does not.
	ix.Visible(0).Store(Parent{IsRoot: true}, private(1<<21, limit), fleet.Device)
	for ix.Reclaim(1<<20) > 0 {
	}
	total := 0
	for w := range fleet.TargetID(writers) {
		l := ix.Visible(w)
		checkLedger(t, l)
		total += l.entries
		if l.size.Load() != int64(l.entries) {
			t.Errorf("target %d says it has %d entries, has %d", w, l.size.Load(), l.entries)
		}
	}
	checkMemory(t, ix)
	if s := ix.Stats(); s.Entries != total || ix.Evicted() == 0 {
		t.Errorf("%d entries, ledgers have %d; %d driven out", s.Entries, total, ix.Evicted())
	}
}
