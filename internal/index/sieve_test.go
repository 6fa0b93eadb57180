package index

import (
	"math/rand/v2"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Ghosts come and go for long: the sieve knows every one there is, and still says of most others that they are none.
func TestSieveOfGhosts(t *testing.T) {
	l := New(Config{}).NewLedger(1, false)
	r := rand.New(rand.NewPCG(1, 2))
	var there []block.ID
	for step := range 100_000 {
		if len(there) > 0 && (len(there) > 300 || r.IntN(2) == 0) {
			k := r.IntN(len(there))
			delete(l.ghosts, there[k])
			there[k] = there[len(there)-1]
			there = there[:len(there)-1]
			continue
		}
		id := block.ID(r.Uint64())
		l.setGhost(id, ghost{inside: 1})
		there = append(there, id)
		if step%1000 > 1 {
			continue
		}
		for _, id := range there {
			if !l.isGhost(id) {
				t.Fatalf("step %d: ghost %d is not known", step, id)
			}
		}
	}
	for _, id := range there {
		if !l.isGhost(id) {
			t.Fatalf("ghost %d is not known", id)
		}
	}
	maybe := 0
	for range 10_000 {
		id := block.ID(r.Uint64())
		if l.isGhost(id) {
			t.Fatalf("%d is taken for a ghost", id)
		}
		if l.sieve.has(id) {
			maybe++
		}
	}
	if maybe > 5200 {
		t.Errorf("%d of 10,000 others are let through", maybe)
	}
	l.ClearAll()
	if l.sieve != (sieve{}) {
		t.Error("an empty ledger has a sieve that is not")
	}
}
