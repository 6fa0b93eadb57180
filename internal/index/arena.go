package index

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

const (
	chunkBits  = 13
	chunkWords = 1 << chunkBits
	numClasses = 176
	limboMost  = 16 // how many freed pieces wait before somebody looks whether their time has come
)

// arena hands out pieces of 64-bit words without pointers, so that the garbage collector sees a few large objects whatever
// is in them. A piece is named by its position, 0 is none. Writers hold the shard's lock; readers look words up by
// position without one.
type arena struct {
	chunks atomic.Pointer[[][]uint64]
	end    uint32             // first word never handed out
	free   [numClasses]uint32 // heads of lists threaded through the pieces' first words
	limbo  []deadPiece
}

// deadPiece is freed, but a reader may still be in it.
type deadPiece struct {
	epoch uint64
	pos   uint32
	class uint16
}

func (a *arena) init() {
	a.chunks.Store(new([][]uint64))
	a.end = 1
}

// classOf rounds a size up to the next one that is kept: multiples of four up to 64, then eight to each doubling.
func classOf(n int) (class, size int) {
	if n <= 64 {
		c := (n + 3) / 4
		return c, c * 4
	}
	e := bits.Len(uint(n - 1))
	step := 1 << (e - 4)
	m := (n + step - 1) / step
	return 17 + (e-7)*8 + m - 9, m * step
}

// words are the first n of a piece.
func (a *arena) words(pos uint32, n int) []uint64 {
	c := (*a.chunks.Load())[pos>>chunkBits]
	i := int(pos & (chunkWords - 1))
	return c[i : i+n : i+n]
}

// take finds a piece for n words; what is in it is left over from before. Its capacity is classOf's size.
func (a *arena) take(n int) uint32 {
	class, size := classOf(n)
	if pos := a.free[class]; pos != 0 {
		a.free[class] = uint32(a.words(pos, 1)[0])
		return pos
	}
	old := *a.chunks.Load()
	if i := int(a.end & (chunkWords - 1)); len(old) == 0 || i == 0 || i+size > chunkWords {
		all := append(slices.Clone(old), make([]uint64, max(size, chunkWords)))
		a.chunks.Store(&all)
		if a.end = uint32(len(old)) << chunkBits; a.end == 0 {
			a.end = 4
		}
	}
	pos := a.end
	// A piece larger than a chunk has one to itself.
	a.end += uint32(min(size, chunkWords))
	return pos
}

// retire frees a piece once nobody can be in it.
func (a *arena) retire(e *epochs, pos uint32, n int) {
	class, _ := classOf(n)
	a.limbo = append(a.limbo, deadPiece{e.now.Load(), pos, uint16(class)})
	if len(a.limbo)%limboMost == 0 {
		e.turn()
		a.sweep(e.oldest())
	}
}

// sweep takes over what was freed before an epoch.
func (a *arena) sweep(oldest uint64) {
	n := 0
	for ; n < len(a.limbo) && a.limbo[n].epoch < oldest; n++ {
		d := a.limbo[n]
		a.words(d.pos, 1)[0] = uint64(a.free[d.class])
		a.free[d.class] = d.pos
	}
	a.limbo = a.limbo[:copy(a.limbo, a.limbo[n:])]
}
