package index

import "testing"

// Sizes are covered with little waste, in order, by classes that exist.
func TestClasses(t *testing.T) {
	last, lastSize := 0, 0
	for n := 1; n <= 8*maxSlots; n += 1 + n/50 {
		class, size := classOf(n)
		if size < n || n > 64 && size > n+n/8 || size-n > 3 && n <= 64 {
			t.Fatalf("%d words get %d", n, size)
		}
		if class < last || class >= numClasses || size < lastSize || (class == last) != (size == lastSize) {
			t.Fatalf("%d words: class %d of %d after class %d of %d", n, class, size, last, lastSize)
		}
		if again, _ := classOf(size); again != class {
			t.Fatalf("a piece of %d words goes to class %d, came from %d", size, again, class)
		}
		last, lastSize = class, size
	}
}

// A piece is used again when the last reader that may be in it has left, and not before.
func TestPiecesWaitForReaders(t *testing.T) {
	var e epochs
	e.init()
	a := arena{space: &space{mem: new(memory)}}
	r := e.join()
	r.enter(&e)
	pos := a.take(100)
	a.retire(&e, pos, 100)
	e.turn()
	a.sweep(e.oldest())
	if got := a.take(100); got == pos {
		t.Error("a piece was used again under a reader")
	}
	r.exit()
	a.sweep(e.oldest())
	if got := a.take(100); got != pos {
		t.Error("a piece was not used again after the reader had left")
	}
}
