package load

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestIDTable: a table is a map of the same, whatever the ids: counted as an oracle counts them, or anything.
func TestIDTable(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 11))
		var table IDTable[int]
		want := map[DecisionID]*int{}
		var living []DecisionID
		next := DecisionID(r.Uint64())
		reused := 0
		for n := range 4000 {
			if r.IntN(500) == 0 { // nearly all of them go
				for len(living) > 3 {
					table.Remove(living[3])
					delete(want, living[3])
					living = append(living[:3], living[4:]...)
				}
			}
			switch {
			case r.IntN(5) < 2 && len(living) > 0:
				i := r.IntN(len(living))
				table.Remove(living[i])
				delete(want, living[i])
				living[i] = living[len(living)-1]
				living = living[:len(living)-1]
			default:
				next++
				id := next
				if seed%3 == 0 && r.IntN(3) == 0 {
					id = DecisionID(r.Uint64N(200)) // some are asked for again
				}
				if want[id] != nil {
					reused++
					continue
				}
				v := new(int)
				*v = n
				table.Put(id, v)
				want[id] = v
				living = append(living, id)
			}
			id := DecisionID(r.Uint64N(200))
			if r.IntN(2) == 0 {
				id = next - DecisionID(r.Uint64N(100))
			}
			if table.Get(id) != want[id] || table.Len() != len(want) {
				t.Fatalf("seed %d, step %d: %d has %v, want %v; %d in all, want %d", seed, n, id, table.Get(id), want[id], table.Len(), len(want))
			}
		}
		if d := cmp.Diff(want, maps.Collect(table.All)); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		if len(table.groups) > len(want) {
			t.Errorf("seed %d: %d groups for %d ids", seed, len(table.groups), len(want))
		}
		if seed%3 == 0 && reused == 0 {
			t.Errorf("seed %d: no id came again", seed)
		}
	}
}

// TestIDTableDoesNotAllocate: what comes and goes leaves its memory to what comes next.
func TestIDTableDoesNotAllocate(t *testing.T) {
	var table IDTable[int]
	v, id := new(int), DecisionID(5)
	step := func() {
		table.Put(id, v)
		if id >= 1005 {
			table.Remove(id - 1000)
		}
		id++
	}
	for range 5000 {
		step()
	}
	if n := testing.AllocsPerRun(5000, step); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
