package index

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

func headWords(ix *Index) (n int) {
	for i := range ix.headsAt {
		if where := ix.headsAt[i].Load(); where != 0 {
			n += 1 << (where & 0xff)
		}
	}
	return n
}

// Prompts come and go, first more and more, then fewer and fewer: who is there is found, who is not is not, and the words
// follow.
func TestHeads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	ix := New(Config{})
	l := ix.NewLedger(1, false)
	ix.Publish(l)
	const all, rounds = 6000, 60_000
	var live [all]bool
	n := 0
	for round := range rounds {
		i := r.IntN(all)
		want := min(round, rounds-round) * all * 2 / rounds // so many shall be there
		if live[i] == (n < want) {
			continue
		}
		id := []block.ID{block.ID(i)}
		if live[i] = !live[i]; live[i] {
			l.Store(Parent{IsRoot: true}, id, fleet.Device)
			n++
		} else {
			l.Remove(id, fleet.Device)
			n--
		}
		if got := len(ix.Match(id, nil)) == 1; got != live[i] {
			t.Fatalf("round %d: prompt %d found: %v", round, i, got)
		}
		if round%5000 == 0 {
			for i := range all {
				if got := len(ix.Match([]block.ID{block.ID(i)}, nil)) == 1; got != live[i] {
					t.Fatalf("round %d: prompt %d found: %v", round, i, got)
				}
			}
			checkMemory(t, ix)
		}
		// An eighth of the words are used, or a shard has few.
		if got := headWords(ix); got > numShards<<headsLeast+8*n {
			t.Fatalf("%d words for %d prompts", got, n)
		}
	}
	for i := range all {
		l.Remove([]block.ID{block.ID(i)}, fleet.Device)
	}
	if got := headWords(ix); got != 0 {
		t.Errorf("%d words for no prompt", got)
	}
	checkMemory(t, ix)
}

// While others' prompts come and go by the thousand and their words move, those of a target that nobody writes to are found
// every time.
func TestHeadsMoveUnderReaders(t *testing.T) {
	const kept, others = 500, 2000
	ix := New(Config{})
	publish(ix, 1, nil, 0)
	for i := range kept {
		ix.Visible(1).Store(Parent{IsRoot: true}, []block.ID{block.ID(i)}, fleet.Device)
	}
	var isDone atomic.Bool
	var writers sync.WaitGroup
	for target := fleet.TargetID(2); target < 4; target++ {
		l := publish(ix, target, nil, 0)
		writers.Go(func() {
			for range 4 {
				for i := range others {
					l.Store(Parent{IsRoot: true}, []block.ID{block.ID(kept + i), block.ID(target)<<20 + block.ID(i)}, fleet.Device)
				}
				for i := range others {
					l.Remove([]block.ID{block.ID(target)<<20 + block.ID(i), block.ID(kept + i)}, fleet.Device)
				}
			}
		})
	}
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var found []Match
			for i := 0; !isDone.Load(); i++ {
				id := block.ID(i % kept)
				if found = ix.Match([]block.ID{id}, found[:0]); len(found) != 1 || found[0].Target != 1 || found[0].Total() != 1 {
					t.Errorf("prompt %d: %v", id, found)
					return
				}
			}
		})
	}
	writers.Wait()
	isDone.Store(true)
	readers.Wait()
	checkMemory(t, ix)
	if got := headWords(ix); got > numShards<<headsLeast+8*kept {
		t.Errorf("%d words for %d prompts", got, kept)
	}
}

// Two prompts whose words are alike but for the segment are told apart.
func TestHeadsOfOneHash(t *testing.T) {
	const a, b = 280631, 472345
	ix := New(Config{})
	if x, y := ix.hash(a), ix.hash(b); x>>32 != y>>32 || shardOf(x) != shardOf(y) {
		t.Fatalf("%x and %x are not alike", x, y)
	}
	publish(ix, 1, []block.ID{a}, 1)
	if got := ix.head(Parent{IsRoot: true}, b); got != 0 {
		t.Errorf("%d is taken for %d", b, a)
	}
	publish(ix, 2, []block.ID{b}, 1)
	for target, id := range map[fleet.TargetID]block.ID{1: a, 2: b} {
		if got := ix.Match([]block.ID{id}, nil); len(got) != 1 || got[0].Target != target {
			t.Errorf("%d is held by %v, want %d", id, got, target)
		}
	}
	ix.Visible(1).Remove([]block.ID{a}, fleet.Device)
	if got := ix.Match([]block.ID{b}, nil); len(got) != 1 || got[0].Target != 2 {
		t.Errorf("%d is held by %v after %d was removed", b, got, a)
	}
	checkMemory(t, ix)
}

// What a reader has found stays until it leaves, whatever has moved since.
func TestHeadsStayForReaders(t *testing.T) {
	const kept = 500
	ix := New(Config{})
	l := publish(ix, 1, nil, 0)
	for i := range kept {
		l.Store(Parent{IsRoot: true}, []block.ID{block.ID(i)}, fleet.Device)
	}
	q := ix.enter()
	var where [numShards]uint64
	for i := range where {
		where[i] = ix.headsAt[i].Load()
	}
	for i := range 20_000 {
		l.Store(Parent{IsRoot: true}, []block.ID{block.ID(kept + i), block.ID(1<<40 + i)}, fleet.Device)
	}
	for i := range kept {
		id := block.ID(i)
		h := ix.head(Parent{IsRoot: true}, id)
		w, _ := ix.headsWords(where[h%numShards])
		if !slices.Contains(w, ix.hash(id)>>32<<32|uint64(h)) {
			t.Fatalf("prompt %d is gone for who came before its word moved", i)
		}
	}
	ix.leave(q)
}
