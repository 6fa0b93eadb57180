package sim

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
)

// The cache behaves like a list of unreferenced blocks in order of release and a table of counts.
func TestCacheAgainstTwin(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		c := newCache()
		references := map[block.ID]int{}
		var released []block.ID // oldest first
		slotOf := map[block.ID]int32{}
		for range 3000 {
			id := block.ID(rnd.Uint64N(40))
			n, isCached := references[id]
			switch op := rnd.IntN(4); {
			case op == 0 && !isCached:
				slotOf[id] = c.insert(id)
				references[id] = 1
			case op == 1:
				s, ok := c.acquire(id)
				if ok != isCached || ok && s != slotOf[id] {
					t.Fatalf("acquire %d: got %d %v, want %d %v", id, s, ok, slotOf[id], isCached)
				}
				if ok {
					references[id]++
					released = slices.DeleteFunc(released, func(x block.ID) bool { return x == id })
				}
			case op == 2 && n > 0:
				c.release(slotOf[id])
				if references[id]--; references[id] == 0 {
					released = append(released, id)
				}
			case op == 3 && len(released) > 0:
				if got := c.evict(); got != released[0] {
					t.Fatalf("evicted %d, want %d of %v", got, released[0], released)
				}
				delete(references, released[0])
				released = released[1:]
			}
			if c.blocks() != len(references) || c.referenced != len(references)-len(released) {
				t.Fatalf("%d blocks, %d referenced, want %d, %d",
					c.blocks(), c.referenced, len(references), len(references)-len(released))
			}
			chain := []block.ID{id, block.ID(rnd.Uint64N(40)), block.ID(rnd.Uint64N(40))}
			held, unreferenced := c.match(chain)
			wantHeld, wantUnreferenced := 0, 0
			for _, id := range chain {
				n, ok := references[id]
				if !ok {
					break
				}
				wantHeld++
				if n == 0 {
					wantUnreferenced++
				}
			}
			if held != wantHeld || unreferenced != wantUnreferenced {
				t.Fatalf("match %v: %d, %d, want %d, %d", chain, held, unreferenced, wantHeld, wantUnreferenced)
			}
		}
		if len(c.slots) > 41 {
			t.Errorf("%d slots for at most 40 blocks: slots are not used again", len(c.slots))
		}
	}
}
