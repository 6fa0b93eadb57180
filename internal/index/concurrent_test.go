package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// holder is a target with one writer. The writer notes before and after each operation how long a prefix the target
// holds at most, so that a reader can tell what was true during its query.
//
// Event 2k-1 is the beginning of operation k, and allows what holds before it or after it; event 2k is its end, and
// allows what holds after it. A query that began at event a and ended at event b may credit what some event in [a, b]
// allows.
type holder struct {
	target fleet.TargetID
	newest atomic.Int64 // event
	events []event
}

type event struct {
	allowed, after atomic.Int64
	isSwap         atomic.Bool // the operation replaces the ledger
}

func newHolder(t fleet.TargetID, operations int) *holder {
	return &holder{target: t, events: make([]event, 2*operations+1)}
}

// around runs an operation that takes the prefix from one length to another.
func (h *holder) around(before, after int, isSwap bool, f func()) {
	n := h.newest.Load()
	for i, allowed := range []int{max(before, after), after} {
		e := &h.events[n+int64(i)+1]
		e.allowed.Store(int64(allowed))
		e.after.Store(int64(after))
		e.isSwap.Store(isSwap && i == 0)
	}
	h.newest.Store(n + 1)
	f()
	h.newest.Store(n + 2)
}

// writer changes one holder's ledger in every way there is. A life of the ledger lies in a single tier, so that a match
// that mixes two lives shows two.
type writer struct {
	ix     *Index
	h      *holder
	chain  []block.ID
	r      *rand.Rand
	ledger *Ledger
	life   int
	held   int // prefix
	stored int // how far the blocks after the prefix go; equal to held if there is no hole
}

func (w *writer) tier() fleet.Tier { return fleet.Tier(w.life % fleet.NumTiers) }

func (w *writer) step() {
	switch n := w.r.IntN(100); {
	case w.ledger == nil || n < 4:
		w.replace()
	case n < 6:
		w.h.around(w.held, 0, false, func() { w.ix.Drop(w.h.target) })
		w.ledger, w.held, w.stored = nil, 0, 0
	case n < 8:
		w.h.around(w.held, 0, false, func() { w.ledger.ClearAll() })
		w.held, w.stored = 0, 0
	case w.stored > w.held && n < 60:
		// Fill the hole.
		w.h.around(w.held, w.stored, false, func() {
			w.ledger.Store(parentOf(w.chain, w.held), w.chain[w.held:w.held+1], w.tier())
		})
		w.held = w.stored
	case w.stored > w.held:
		w.h.around(w.held, w.held, false, func() { w.remove(w.held+1, w.stored) })
		w.stored = w.held
	case w.held > 2 && n < 30:
		// Punch one.
		at := w.r.IntN(w.held - 1)
		w.h.around(w.held, at, false, func() { w.remove(at, at+1) })
		w.held = at
	case w.held > 0 && n < 55:
		to := w.r.IntN(w.held)
		w.h.around(w.held, to, false, func() { w.remove(to, w.held) })
		w.held, w.stored = to, to
	default:
		to := w.held + 1 + w.r.IntN(40)
		to = min(to, len(w.chain))
		if to == w.held {
			return
		}
		w.h.around(w.held, to, false, func() {
			w.ledger.Store(parentOf(w.chain, w.held), w.chain[w.held:to], w.tier())
		})
		w.held, w.stored = to, to
	}
}

func (w *writer) remove(from, to int) {
	ids := slices.Clone(w.chain[from:to])
	if w.r.IntN(2) == 0 {
		slices.Reverse(ids)
	}
	w.ledger.Remove(ids, w.tier())
}

func (w *writer) replace() {
	w.life++
	next := w.ix.NewLedger(w.h.target, w.r.IntN(2) == 0)
	n := w.r.IntN(len(w.chain))
	if n > 0 {
		// Children before parents, as a snapshot may come.
		half := n / 2
		next.Store(parentOf(w.chain, half), w.chain[half:n], w.tier())
		if half > 0 {
			next.Store(Parent{IsRoot: true}, w.chain[:half], w.tier())
		}
	}
	w.h.around(w.held, n, true, func() { w.ix.Publish(next) })
	w.ledger, w.held, w.stored = next, n, n
	// Slots are recycled by everybody, while matches run.
	w.ix.Reclaim(200)
}

// check compares one target's match with what the events between a and b allow.
func (h *holder) check(a, b int64, m Match) error {
	total := m.Total()
	tiers := 0
	for _, n := range m.Blocks {
		if n > 0 {
			tiers++
		}
	}
	if tiers > 1 {
		return fmt.Errorf("blocks of two ledgers: %v", m.Blocks)
	}
	var allowed int64
	for e := a; e <= b; e++ {
		allowed = max(allowed, h.events[e].allowed.Load())
	}
	if int64(total) > allowed {
		return fmt.Errorf("credited %d, at most %d were held", total, allowed)
	}
	if a%2 != 0 {
		return nil
	}
	before := h.events[a].after.Load()
	switch {
	case b == a:
		// Nothing happened to this target meanwhile: it must be right, whatever happened to others.
		if int64(total) != before {
			return fmt.Errorf("credited %d of %d at rest", total, before)
		}
	case b <= a+2 && h.events[a+1].isSwap.Load():
		if after := h.events[a+1].after.Load(); int64(total) != before && int64(total) != after {
			return fmt.Errorf("credited %d while %d were replaced by %d", total, before, after)
		}
	}
	return nil
}

// TestMatchNeverCreditsWhatWasNotHeld runs a writer for each target, matchers and a janitor against each other.
func TestMatchNeverCreditsWhatWasNotHeld(t *testing.T) {
	const targets, matchers, length = 8, 4, 96
	operations := 4000
	if isRace {
		operations = 500
	}
	ix := New(Config{})
	ix.evenLeast = 2
	locals := make([]block.Local, length)
	for i := range locals {
		locals[i] = block.Local(i)
	}
	chain := block.AppendChain(nil, 1, locals)
	seed := newSeed()
	t.Logf("seed %d", seed)

	var writers, readers sync.WaitGroup
	var isDone atomic.Bool
	var checks, rests, partial atomic.Int64 // compared; while nothing happened to the target; with a part of the chain
	holders := make([]*holder, targets)
	ws := make([]*writer, targets)
	for i := range holders {
		holders[i] = newHolder(fleet.TargetID(i), operations)
		ws[i] = &writer{ix: ix, h: holders[i], chain: chain, r: rand.New(rand.NewPCG(seed, uint64(i)))}
		writers.Go(func() {
			for range operations {
				ws[i].step()
			}
		})
	}
	readers.Go(func() {
		for !isDone.Load() {
			ix.Reclaim(50)
		}
	})
	for k := range matchers {
		readers.Go(func() {
			var dst []Match
			var layers Layers
			var known []block.ID
			begin, end := make([]int64, targets), make([]int64, targets)
			for !isDone.Load() {
				for i, h := range holders {
					begin[i] = h.newest.Load()
				}
				switch k {
				case 0:
					dst = ix.Match(chain, dst[:0])
				case 1:
					known, dst = ix.MatchLocals(chain[0], locals[1:], known, dst[:0])
				case 2:
					ix.MatchLayers(chain, &layers)
					dst = layers.matches()
				case 3:
					known = ix.MatchLocalsLayers(chain[0], locals[1:], known, &layers)
					dst = layers.matches()
				}
				for i, h := range holders {
					end[i] = h.newest.Load()
				}
				n := 0
				for i, h := range holders {
					m := Match{Target: h.target}
					if n < len(dst) && dst[n].Target == h.target {
						m = dst[n]
						n++
					}
					if err := h.check(begin[i], end[i], m); err != nil {
						t.Errorf("target %d, events %d to %d: %v", i, begin[i], end[i], err)
						isDone.Store(true)
						return
					}
					checks.Add(1)
					if begin[i] == end[i] && begin[i]%2 == 0 {
						rests.Add(1)
					}
					if m.Total() > 0 && m.Total() < length {
						partial.Add(1)
					}
				}
				if n != len(dst) {
					t.Errorf("%d matches, %d of known targets", len(dst), n)
					return
				}
			}
		})
	}
	writers.Wait()
	isDone.Store(true)
	readers.Wait()
	t.Logf("%d checks, %d at rest, %d with a part of the chain", checks.Load(), rests.Load(), partial.Load())
	if rests.Load() == 0 || rests.Load() == checks.Load() || partial.Load() == 0 {
		t.Error("nothing was checked")
	}

	// Quiet: all is exact.
	var want []Match
	for _, w := range ws {
		if w.held > 0 {
			m := Match{Target: w.h.target}
			m.Blocks[w.tier()] = uint32(w.held)
			want = append(want, m)
		}
	}
	if d := cmp.Diff(want, ix.Match(chain, nil)); d != "" {
		t.Errorf("after quiet (-want +got):\n%s", d)
	}
	for i := range ws {
		ix.Drop(fleet.TargetID(i))
	}
	for ix.Reclaim(1000) > 0 {
	}
	if got := ix.Stats(); got != (Stats{Slots: got.Slots}) {
		t.Errorf("an empty index has %+v", got)
	}
	if got := ix.Stats().Slots; got > 40*targets {
		t.Errorf("%d slots for %d targets", got, targets)
	}
}

// TestManyWritersOfOneLedger has goroutines share a ledger, each with branches of its own below a common trunk that all
// of them break and mend, and compares with what remains.
func TestManyWritersOfOneLedger(t *testing.T) {
	const goroutines, rounds = 8, 300
	ix := New(Config{})
	trunk := numbered(20)
	l := publish(ix, 1, trunk, len(trunk))
	branch := func(g int) []block.ID {
		ids := make([]block.ID, 10)
		for i := range ids {
			ids[i] = block.ID(1000*(g+1) + i)
		}
		return ids
	}
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			ids := branch(g)
			for n := range rounds {
				l.Store(Parent{ID: trunk[len(trunk)-1]}, ids, fleet.Device)
				l.Remove(trunk[n%len(trunk):][:1], fleet.Device)
				l.Store(parentOf(trunk, n%len(trunk)), trunk[n%len(trunk):][:1], fleet.Device)
				l.Remove(ids[n%len(ids):], fleet.Device)
				ix.Match(append(slices.Clone(trunk), ids...), nil)
				l.Digest(fleet.Device)
				ix.Stats()
			}
			l.Store(Parent{ID: trunk[len(trunk)-1]}, ids, fleet.Device)
			l.Store(Parent{IsRoot: true}, trunk, fleet.Device)
		})
	}
	wg.Wait()
	l.Store(Parent{IsRoot: true}, trunk, fleet.Device)
	checkLedger(t, l)
	checkMemory(t, ix)
	for g := range goroutines {
		got := ix.Match(append(slices.Clone(trunk), branch(g)...), nil)
		if d := cmp.Diff([]Match{{1, [fleet.NumTiers]uint32{30}}}, got); d != "" {
			t.Errorf("branch %d (-want +got):\n%s", g, d)
		}
	}
	if got, want := l.Held(fleet.Device), 20+10*goroutines; got != want || l.Orphans() != 0 {
		t.Errorf("held %d, orphans %d, want %d, 0", got, l.Orphans(), want)
	}
}

// TestLimitHoldsWhileWritersRace fills an index from several goroutines, some of whose ledgers are being dropped.
func TestLimitHoldsWhileWritersRace(t *testing.T) {
	const limit = 5000
	ix := New(Config{MaxBlocks: limit})
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for n := range 60 {
				ids := make([]block.ID, 400)
				for i := range ids {
					ids[i] = block.ID(g)<<40 + block.ID(n)<<20 + block.ID(i+1)
				}
				l := ix.NewLedger(fleet.TargetID(g), false)
				r := l.Store(Parent{ID: 7}, ids, fleet.Device)
				if r.Refused != None && r.Refused != Capacity {
					t.Errorf("Store = %+v", r)
				}
				ix.Publish(l)
				if got := ix.Stats().Entries; got > limit {
					t.Errorf("%d entries, limit %d", got, limit)
				}
				if n%3 == 0 {
					ix.Drop(fleet.TargetID(g))
				}
			}
		})
	}
	wg.Wait()
	for g := range fleet.TargetID(6) {
		ix.Drop(g)
	}
	for ix.Reclaim(1000) > 0 {
	}
	if got := ix.Stats().Entries; got != 0 {
		t.Errorf("%d entries in an empty index", got)
	}
}
