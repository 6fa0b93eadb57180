package index

import "math/bits"

const (
	numClasses = 320
	// So many freed pieces wait, or so many words, before somebody looks whether their time has come.
	limboMost  = 16
	limboWords = runSize / 2
	// An arena takes so much at a time: a few of the largest segments, and little where it lies idle in every shard.
	runBits = 11
	runSize = 1 << runBits
)

// arena hands out pieces of the index's words. A piece is named by its position, 0 is none. Writers hold the shard's lock;
// readers look words up by position without one.
type arena struct {
	space *space
	runs  [4]run             // what small pieces leave room for large ones in, and the other way round
	free  [numClasses]uint32 // heads of lists threaded through the pieces' first words
	limbo []deadPiece
	waits int // words in limbo
}

// run is memory that was never handed out: from at, which is not 0, to end.
type run struct {
	at  uint32
	end uint64
}

func (r *run) left() int { return int(r.end - uint64(r.at)) }

// deadPiece is freed, but a reader may still be in it.
type deadPiece struct {
	epoch uint64
	pos   uint32
	class uint16
}

// classOf rounds a size up to the next one that is kept: multiples of four up to 64, then 16 to each doubling.
func classOf(n int) (class, size int) {
	if n <= 64 {
		c := (n + 3) / 4
		return c, c * 4
	}
	e := bits.Len(uint(n - 1))
	step := 1 << (e - 5)
	m := (n + step - 1) / step
	return 17 + (e-7)*16 + m - 17, m * step
}

// sizeOf is the size of a class.
func sizeOf(class int) int {
	if class <= 16 {
		return class * 4
	}
	return ((class-17)%16 + 17) << ((class-17)/16 + 2)
}

// take finds a piece for n words; what is in it is left over from before. Its capacity is classOf's size.
func (a *arena) take(n int) uint32 {
	class, size := classOf(n)
	if pos := a.free[class]; pos != 0 {
		a.free[class] = uint32(*a.space.words.at(pos))
		return pos
	}
	if size > runSize/2 {
		return a.space.take(bits.Len(uint(size - 1)))
	}
	// The fullest that has room, so that the others keep theirs for larger ones.
	var best *run
	least := &a.runs[0]
	for i := range a.runs {
		r := &a.runs[i]
		if r.left() >= size && (best == nil || r.left() < best.left()) {
			best = r
		}
		if r.left() < least.left() {
			least = r
		}
	}
	if best == nil {
		pos := a.space.take(runBits)
		a.scrap(least)
		*least = run{max(pos, 4), uint64(pos) + runSize}
		best = least
	}
	pos := best.at
	best.at += uint32(size)
	return pos
}

// scrap keeps what is left of a run.
func (a *arena) scrap(r *run) {
	for r.left() >= 4 {
		class, size := classOf(r.left())
		if size > r.left() {
			class--
			size = sizeOf(class)
		}
		*a.space.words.at(r.at) = uint64(a.free[class])
		a.free[class] = r.at
		r.at += uint32(size)
	}
}

// retire frees a piece once nobody can be in it.
func (a *arena) retire(e *epochs, pos uint32, n int) {
	class, size := classOf(n)
	a.limbo = append(a.limbo, deadPiece{e.now.Load(), pos, uint16(class)})
	if a.waits += size; len(a.limbo)%limboMost == 0 || a.waits >= limboWords {
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
		a.waits -= sizeOf(int(d.class))
	}
	if n > 0 {
		a.limbo = a.limbo[:copy(a.limbo, a.limbo[n:])]
	}
}
