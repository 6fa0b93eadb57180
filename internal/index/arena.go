package index

import "math/bits"

const (
	numClasses = 176
	limboMost  = 16 // how many freed pieces wait before somebody looks whether their time has come
)

// arena hands out pieces of the index's words. A piece is named by its position, 0 is none. Writers hold the shard's lock;
// readers look words up by position without one.
type arena struct {
	space *space
	at    uint32             // first word of the run in use that was never handed out
	end   uint64             // where that run ends
	free  [numClasses]uint32 // heads of lists threaded through the pieces' first words
	limbo []deadPiece
}

// deadPiece is freed, but a reader may still be in it.
type deadPiece struct {
	epoch uint64
	pos   uint32
	class uint16
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

// take finds a piece for n words; what is in it is left over from before. Its capacity is classOf's size.
func (a *arena) take(n int) uint32 {
	class, size := classOf(n)
	if pos := a.free[class]; pos != 0 {
		a.free[class] = uint32(*a.space.words.at(pos))
		return pos
	}
	if size > gridLeast {
		return a.space.take(bits.Len(uint(size - 1)))
	}
	if uint64(a.at)+uint64(size) > a.end {
		pos := a.space.take(gridBits)
		a.scrap()
		a.at, a.end = max(pos, 4), uint64(pos)+gridLeast
	}
	pos := a.at
	a.at += uint32(size)
	return pos
}

// scrap keeps what is left of a run.
func (a *arena) scrap() {
	for n := int(a.end - uint64(a.at)); n >= 4; {
		class, size := classOf(n)
		if size > n {
			class--
			size = sizeOf(class)
		}
		*a.space.words.at(a.at) = uint64(a.free[class])
		a.free[class] = a.at
		a.at += uint32(size)
		n -= size
	}
}

// sizeOf is the size of a class.
func sizeOf(class int) int {
	if class <= 16 {
		return class * 4
	}
	return ((class-17)%8 + 9) << ((class-17)/8 + 3)
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
		*a.space.words.at(d.pos) = uint64(a.free[d.class])
		a.free[d.class] = d.pos
	}
	a.limbo = a.limbo[:copy(a.limbo, a.limbo[n:])]
}
