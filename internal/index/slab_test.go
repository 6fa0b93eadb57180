package index

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Sizes are covered with little waste, in order, by classes that exist.
func TestSlabClasses(t *testing.T) {
	last, lastSize := 0, 0
	for n := 1; n <= segmentMax; n++ {
		class, size := slabClass(n)
		if size < n || n > 2 && size > n+n/2 || class < last || class >= slabClasses || (class == last) != (size == lastSize) && n > 1 {
			t.Fatalf("%d spans: class %d of %d after class %d of %d", n, class, size, last, lastSize)
		}
		last, lastSize = class, size
	}
}

// Pieces keep what was put into them, whatever is done with others, and those that were given up are used again.
func TestSlab(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var s slab
	pos := make([]uint32, 40)
	want := make([][]span, len(pos))
	most := 0
	for n := range 20_000 {
		i := r.IntN(len(pos))
		now := make([]span, r.IntN(20))
		if r.IntN(3) == 0 {
			now = nil
		}
		for k := range now {
			now[k] = span{from: uint16(r.Uint32()), to: uint16(r.Uint32()), waiting: r.IntN(2) == 0}
		}
		pos[i] = s.keep(pos[i], len(want[i]), now)
		want[i] = now
		most = max(most, len(s.all))
		if n%20 != 0 {
			continue
		}
		used := 0
		for k, w := range want {
			if len(w) == 0 {
				continue
			}
			used++
			if got := s.at(pos[k], len(w)); !slices.Equal(got, w) {
				t.Fatalf("piece %d is %v, want %v", k, got, w)
			}
		}
		if s.used != used {
			t.Fatalf("%d pieces in use, want %d", s.used, used)
		}
	}
	// Of each of nine sizes up to 40 pieces, if all but one class are idle; in fact far fewer.
	if most > 40*(2+3+4+6+8+12+16+24) {
		t.Errorf("the slab grew to %d spans", most)
	}
	for i := range pos {
		s.keep(pos[i], len(want[i]), nil)
	}
	if cap(s.all) != 0 {
		t.Errorf("an empty slab keeps %d spans", cap(s.all))
	}
}
