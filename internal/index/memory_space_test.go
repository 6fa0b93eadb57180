package index

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// Pieces never overlap, begin at multiples of their size, have memory, and become whole again when all are freed.
func TestPiecesOfSpace(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := space{mem: new(memory)}
	type piece struct {
		pos   uint32
		order int
	}
	var taken []piece
	isTaken := make(map[uint32]bool) // by eight words
	for range 20_000 {
		if len(taken) > 0 && r.IntN(100) < 48 {
			k := r.IntN(len(taken))
			p := taken[k]
			taken[k] = taken[len(taken)-1]
			taken = taken[:len(taken)-1]
			for i := uint32(0); i < 1<<p.order; i += 8 {
				delete(isTaken, p.pos+i)
			}
			s.put(p.pos, p.order)
			continue
		}
		p := piece{order: 3 + r.IntN(8)}
		if r.IntN(50) == 0 {
			p.order = 11 + r.IntN(5)
		}
		p.pos = s.take(p.order)
		if p.pos&(1<<p.order-1) != 0 {
			t.Fatalf("a piece of 2^%d words at %d", p.order, p.pos)
		}
		for i := uint32(0); i < 1<<p.order; i += 8 {
			if isTaken[p.pos+i] {
				t.Fatalf("%d is taken twice", p.pos+i)
			}
			isTaken[p.pos+i] = true
		}
		w := s.words.slice(p.pos, 1<<p.order)
		w[0], w[len(w)-1] = 1, 1
		taken = append(taken, p)
	}
	for _, p := range taken {
		s.put(p.pos, p.order)
	}
	pieces, words := 0, uint64(0)
	for order, free := range s.free {
		pieces += len(free)
		words += uint64(len(free)) << order
	}
	if words != s.end || pieces != bits.OnesCount64(s.end) {
		t.Errorf("%d words free in %d pieces, of %d in %d", words, pieces, s.end, bits.OnesCount64(s.end))
	}
}

// Memory is zero, goes on without a gap in a grid, and is given back.
func TestGrid(t *testing.T) {
	m := new(memory)
	var g grid[segment]
	const last = 5 * gridLeast
	for i := uint32(0); i <= last; {
		end := g.grow(m, i)
		if got := g.grow(m, i); got != end || end <= uint64(i) {
			t.Fatalf("grown to %d and %d for %d", end, got, i)
		}
		i = uint32(end)
	}
	for i := uint32(0); i <= last; i++ {
		s := g.at(i)
		if s.head != 0 || &g.slice(i, 1)[0] != s {
			t.Fatalf("element %d is %d before it was written", i, s.head)
		}
		s.head = 1
	}
	m.free()
	if m.maps != nil {
		t.Error("memory is kept")
	}
}

// A table's lines are found from where an id belongs in a way that meets each once.
func TestWayThroughLines(t *testing.T) {
	for size := uint32(groupLeast); size <= groupMost; size++ {
		s := store{log: 3, size: size}
		for hash := range uint64(64) {
			home, first, _ := s.home(hash << 42)
			seen := make(map[uint32]bool)
			for i, n := home, 0; n < s.lines(); i, n = s.next(i, home, first), n+1 {
				if seen[i] || i%groupMost >= size || i >= groupMost<<s.log {
					t.Fatalf("size %d, from %d: line %d after %d others", size, home, i, n)
				}
				if inGroup := i-first < groupMost; inGroup != (n < int(size)) {
					t.Fatalf("size %d, from %d: line %d is number %d", size, home, i, n)
				}
				seen[i] = true
			}
		}
	}
}
