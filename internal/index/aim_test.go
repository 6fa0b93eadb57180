package index

import (
	"math/rand/v2"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
)

// aimed are ids that are all kept in one table, under one group's bits, by an index with a key: mix turned round.
func aimed(key uint64, n int) []block.ID {
	const line = 0x1234_5678 << 32
	inverse := func(odd uint64) uint64 { // by Newton: each step doubles the bits that are right
		x := odd
		for range 6 {
			x *= 2 - odd*x
		}
		return x
	}
	ids := make([]block.ID, n)
	for i := range ids {
		h := (line | uint64(i)) * inverse(0xd6e8feb86659fd93)
		h ^= h >> 32
		ids[i] = block.ID(h * inverse(key))
	}
	return ids
}

// TestAFloodThatIsAimedMisses: ids made to meet in one place do so where the key is known, and are spread where it is not.
func TestAFloodThatIsAimedMisses(t *testing.T) {
	const n = 16 * numTables
	flood := aimed(golden, n)
	most := func(c Config) (inTable, inGroup int) {
		ix := New(c)
		tables, groups := map[*table]int{}, map[uint64]int{}
		for _, id := range flood {
			h := ix.hash(id)
			tables[ix.table(h)]++
			groups[h<<16>>(64-12)]++
		}
		for _, k := range tables {
			inTable = max(inTable, k)
		}
		for _, k := range groups {
			inGroup = max(inGroup, k)
		}
		return inTable, inGroup
	}
	if table, group := most(Config{}); table != n || group != n {
		t.Fatalf("the flood is no flood: %d of %d in one table, %d in one group", table, n, group)
	}
	for range 20 {
		key := rand.Uint64()
		if table, group := most(Config{Key: key}); table > 8*n/numTables || group > 8*n/numTables {
			t.Errorf("with key %#x %d of %d are in one table, %d in one group of 4,096", key, table, n, group)
		}
	}
}
