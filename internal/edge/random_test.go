package edge

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

var spaces = []block.Keyspace{
	block.Identity{Model: "m", BlockSize: 4}.Keyspace(),
	block.Identity{Model: "m", BlockSize: 4, LoRAName: "x"}.Keyspace(),
}

// dice makes operations over few names and fewer contents, so that names meet again.
type dice struct {
	next func(n int) int
}

func (d *dice) store() *Store {
	s := &Store{Tier: fleet.Tier(d.next(2)), IsRoot: d.next(3) == 0, Keyspace: spaces[d.next(8)/7], Parent: Hash(d.next(14))}
	n := 1 + d.next(3)
	nameless := d.next(6) == 0
	for range n {
		h := Hash(d.next(14))
		s.Hashes = append(s.Hashes, h)
		if nameless {
			continue
		}
		l := block.Local(h) // mostly honest: a name has one content
		if d.next(12) == 0 {
			l = block.Local(d.next(14))
		}
		s.Locals = append(s.Locals, l)
	}
	if d.next(3) > 0 && !nameless {
		// An engine's tree: name 2n and 2n+1 follow n.
		h := Hash(1 + d.next(13))
		s.Hashes, s.Locals = nil, nil
		s.IsRoot, s.Parent = h/2 == 0, h/2
		for range n {
			s.Hashes, s.Locals = append(s.Hashes, h), append(s.Locals, block.Local(h))
			h = 2*h + Hash(d.next(2))
		}
	}
	return s
}

// play runs operations on a translator and its twin, and compares everything after each.
func play(steps int, isCounted bool, next func(n int) int) error {
	b := NewBudget(1 << 20)
	tr := New(b, Limits{Names: 1 << 20, Waiting: 1 << 20, Refused: 1 << 10}, isCounted)
	w := &twin{isCounted: isCounted, facts: make(map[Hash]fact), told: make(rumour)}
	sh := newShelf()
	d := &dice{next: next}
	for step := range steps {
		var what string
		switch k := d.next(20); {
		case k == 0:
			tier := fleet.Tier(d.next(2))
			what = fmt.Sprint("clear ", tier)
			tr.Clear(tier)
			sh.clear(tier)
			w.clear(tier)
		case k == 1 && d.next(4) == 0:
			what = "clear all"
			tr.ClearAll()
			clear(sh.copies)
			clear(w.facts)
			clear(w.told)
		case k == 2:
			tr.Limit()
		case k < 9:
			var hashes []Hash
			for range 1 + d.next(3) {
				hashes = append(hashes, Hash(d.next(28)))
			}
			tier := fleet.Tier(d.next(2))
			what = fmt.Sprint("remove ", hashes, tier)
			if got, want := tr.Remove(hashes, tier, sh), w.remove(hashes, tier); got != want {
				return fmt.Errorf("step %d, %s: %d unknown, want %d", step, what, got, want)
			}
		default:
			s := d.store()
			what = fmt.Sprintf("store %+v", *s)
			want := w.store(s)
			if got := tr.Store(s, sh).Refused; got != want {
				return fmt.Errorf("step %d, %s: refused %d, want %d", step, what, got, want)
			}
		}
		if err := compare(tr, w, sh, b); err != nil {
			return fmt.Errorf("step %d, %s: %w", step, what, err)
		}
	}
	return nil
}

func compare(tr *Translator, w *twin, sh *shelf, b *Budget) error {
	if sh.err != nil {
		return sh.err
	}
	if diff := cmp.Diff(w.contents(), sh.copies, cmp.AllowUnexported(place{})); diff != "" {
		return fmt.Errorf("contents (-want +got)\n%s", diff)
	}
	if len(tr.all) != len(w.facts) || b.Used() != len(w.facts) {
		return fmt.Errorf("%d names, %d paid for, want %d", len(tr.all), b.Used(), len(w.facts))
	}
	for t := range fleet.Tier(fleet.NumTiers) {
		if got, want := tr.Digest(t), w.digest(t); got != want {
			return fmt.Errorf("digest of %v is %+v, want %+v", t, got, want)
		}
		if got, want := tr.Told(t), w.told.digest(t); got != want || tr.IsShort() {
			return fmt.Errorf("told of %v is %+v, want %+v; short: %v", t, got, want, tr.IsShort())
		}
	}
	return tr.books()
}

// books looks the translator's own books through.
func (t *Translator) books() error {
	limited, waits := 0, 0
	if n := t.budget.refused.Load(); n != int64(len(t.refused.copies)) {
		return fmt.Errorf("%d refused names are paid for, and there are %d", n, len(t.refused.copies))
	}
	for h, c := range t.refused.copies {
		for tier, n := range c {
			if !t.isCounted && n > 0 && t.all[h].copies[tier] > 0 {
				return fmt.Errorf("name %d of a set is believed and refused", h)
			}
		}
		if c == [fleet.NumTiers]uint16{} {
			return fmt.Errorf("name %d has no copy and is remembered", h)
		}
	}
	for h, n := range t.all {
		if n.limited {
			limited++
		}
		if w, ok := t.waiters[h]; ok != (n.state == waiting) {
			return fmt.Errorf("name %d is in state %d and waits: %v", h, n.state, ok)
		} else if p, held := t.all[w.parent]; ok && held && p.state == known {
			return fmt.Errorf("name %d waits for %d, which is known", h, w.parent)
		}
	}
	for p, h := range t.kids {
		for prev, more := Hash(0), true; more; waits++ {
			w := t.waiters[h]
			if w.parent != p || w.hasPrev != (t.kids[p] != h) || w.hasPrev && w.prev != prev {
				return fmt.Errorf("the list of those that wait for %d is broken at %d: %+v", p, h, w)
			}
			prev, h, more = h, w.next, w.hasNext
		}
	}
	if limited != t.limited || waits != len(t.waiters) || t.paid != 0 {
		return fmt.Errorf("%d limited, want %d; %d in lists, want %d; %d paid for", t.limited, limited, waits, len(t.waiters), t.paid)
	}
	return nil
}

func TestRandomOperationsEqualTheTwin(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		if err := play(60, seed%2 == 0, r.IntN); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// FuzzTranslator is the same with the fuzzer's choices.
func FuzzTranslator(f *testing.F) {
	f.Add(true, []byte{9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14})
	f.Add(false, []byte{12, 1, 3, 3, 1, 2, 2, 1, 12, 0, 3, 0, 1, 1, 5, 1, 0, 12})
	f.Fuzz(func(t *testing.T, isCounted bool, choices []byte) {
		at := 0
		next := func(n int) int {
			if at == len(choices) {
				return 0
			}
			at++
			return int(choices[at-1]) % n
		}
		if err := play(min(len(choices)/4, 100), isCounted, next); err != nil {
			t.Fatal(err)
		}
	})
}

// TestNoRoom: whatever is not taken is not believed, the books agree with what was, and what was told is remembered.
func TestNoRoom(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		b := NewBudget(1 << 20)
		tr := New(b, Limits{Names: 1 << 20, Waiting: 1 << 20, Refused: 1 << 10}, seed%2 == 0)
		told := make(rumour)
		sh := newShelf()
		sh.room = func() bool { return r.IntN(5) > 0 }
		d := &dice{next: r.IntN}
		for step := range 60 {
			if r.IntN(3) == 0 {
				hashes, tier := []Hash{Hash(r.IntN(28)), Hash(r.IntN(28))}, fleet.Tier(r.IntN(2))
				tr.Remove(hashes, tier, sh)
				told.remove(hashes, tier)
			} else {
				s := d.store()
				tr.Store(s, sh)
				told.store(s, seed%2 == 0)
			}
			for tier := range fleet.Tier(fleet.NumTiers) {
				if got, want := tr.Told(tier), told.digest(tier); got != want || tr.IsShort() {
					t.Fatalf("seed %d, step %d: told of %v is %+v, want %+v; short: %v", seed, step, tier, got, want, tr.IsShort())
				}
			}
			want := make(map[place]int)
			for _, n := range tr.all {
				for tier, k := range n.copies {
					if n.state == known && k > 0 {
						want[place{n.id, fleet.Tier(tier)}] += int(k)
					}
				}
			}
			if diff := cmp.Diff(want, sh.copies, cmp.AllowUnexported(place{})); diff != "" || sh.err != nil || b.Used() != len(tr.all) {
				t.Fatalf("seed %d, step %d: %v, %d paid for %d names (-names +contents)\n%s", seed, step, sh.err, b.Used(), len(tr.all), diff)
			}
			if err := tr.books(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
		tr.Drop()
		if b.Used() != 0 {
			t.Fatalf("seed %d: %d names are still paid for", seed, b.Used())
		}
	}
}
