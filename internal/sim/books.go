package sim

import (
	"math/bits"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
)

// books is what a router can note down: which engine holds which block, by one source, and what became of the requests
// it has sent. Blocks have a row each, of one bit per engine and kind.
type books struct {
	engines, words int
	blockSize      int
	rows           map[block.ID]int32
	bits           [numKinds][]uint64 // row r of a kind is bits[kind][r*words:(r+1)*words]
	counts         [numKinds][]uint16 // by row and engine: how many requests stand behind the bit, if it is of a kind that counts
	last           []int32            // by row: the engine that was last sent the block
	lastAt         []uint64           // by row: the number of that decision
	scratch        []int32            // rows of the prompt in question; -1: no row
	alive          []uint64

	lives map[*Request]*life
	desk  []desk // by engine
	turn  uint64 // decisions so far
	out   float64
}

// The kinds of bits.
const (
	held   = iota // cached, as the index in use says
	soon          // will be cached: of a prompt that was sent and is not prefilled
	active        // of a prompt that was sent and has not finished
	numKinds
)

// desk is one engine's account.
type desk struct {
	inFlight, prefilling int
	pendingSeconds       float64
	pendingTokens        float64
	activeTokens         float64 // prompts in full
	heldTokens           float64 // shared blocks once
	toCome               float64
	lastChosen, lastCold uint64
}

// life is one request sent and not finished.
type life struct {
	engine   int
	rows     []int32
	uncached int // prompt tokens to compute, as estimated when it was sent
	seconds  float64
	expected float64
	hasToken bool
}

func newBooks(o *Options) books {
	return books{
		engines: o.Engines, words: ceilDiv(o.Engines, 64), blockSize: o.BlockSize,
		rows: map[block.ID]int32{}, alive: make([]uint64, ceilDiv(o.Engines, 64)),
		lives: map[*Request]*life{}, desk: make([]desk, o.Engines), out: 200,
	}
}

// row finds or makes a block's row.
func (b *books) row(id block.ID) int32 {
	r, ok := b.rows[id]
	if !ok {
		r = int32(len(b.last))
		b.rows[id] = r
		b.last, b.lastAt = append(b.last, -1), append(b.lastAt, 0)
		for k := range b.bits {
			b.bits[k] = slices.Grow(b.bits[k], b.words)[:len(b.bits[k])+b.words]
			if k != held {
				b.counts[k] = slices.Grow(b.counts[k], b.engines)[:len(b.counts[k])+b.engines]
			}
		}
	}
	return r
}

func (b *books) set(kind int, row int32, engine int) {
	b.bits[kind][int(row)*b.words+engine/64] |= 1 << (engine % 64)
}

func (b *books) unset(kind int, row int32, engine int) {
	b.bits[kind][int(row)*b.words+engine/64] &^= 1 << (engine % 64)
}

// count adds n requests (or takes them away) behind a bit, and reports whether that changed the bit.
func (b *books) count(kind int, row int32, engine, n int) bool {
	c := &b.counts[kind][int(row)*b.engines+engine]
	was := *c
	*c = uint16(int(was) + n)
	switch {
	case *c == 0:
		b.unset(kind, row, engine)
	case was == 0:
		b.set(kind, row, engine)
	}
	return was == 0 || *c == 0
}

// find fills scratch with the rows of a chain.
func (b *books) find(chain []block.ID) {
	b.scratch = b.scratch[:0]
	for _, id := range chain {
		r, ok := b.rows[id]
		if !ok {
			r = -1
		}
		b.scratch = append(b.scratch, r)
	}
}

// leading counts, for each engine, the leading blocks of scratch of which it has a bit of either kind.
func (b *books) leading(dst []int, kind, orKind int) {
	for w := range b.alive {
		b.alive[w] = ^uint64(0)
	}
	if tail := b.engines % 64; tail != 0 {
		b.alive[b.words-1] = 1<<tail - 1
	}
	for k, r := range b.scratch {
		some := uint64(0)
		for w := range b.alive {
			m := uint64(0)
			if r >= 0 {
				at := int(r)*b.words + w
				m = b.bits[kind][at] | b.bits[orKind][at]
			}
			for gone := b.alive[w] &^ m; gone != 0; gone &= gone - 1 {
				dst[w*64+bits.TrailingZeros64(gone)] = k
			}
			b.alive[w] &= m
			some |= b.alive[w]
		}
		if some == 0 {
			return
		}
	}
	for w, m := range b.alive {
		for ; m != 0; m &= m - 1 {
			dst[w*64+bits.TrailingZeros64(m)] = len(b.scratch)
		}
	}
}

// send notes that the request that was looked up last goes to an engine, where so many of its blocks are active already.
func (b *books) send(r *Request, chain []block.ID, l *life, shared int, cold bool) {
	b.turn++
	d := &b.desk[l.engine]
	d.inFlight++
	d.prefilling++
	d.pendingSeconds += l.seconds
	d.pendingTokens += float64(l.uncached)
	d.activeTokens += float64(r.Input)
	d.toCome += l.expected
	d.lastChosen = b.turn
	if cold {
		d.lastCold = b.turn
	}
	d.heldTokens += float64(r.Input - shared*b.blockSize)
	l.rows = make([]int32, len(chain))
	for i, row := range b.scratch {
		if row < 0 {
			row = b.row(chain[i])
		}
		l.rows[i] = row
		b.last[row], b.lastAt[row] = int32(l.engine), b.turn
		b.count(soon, row, l.engine, 1)
		b.count(active, row, l.engine, 1)
	}
	b.lives[r] = l
}

// firstToken notes that a prefill is done.
func (b *books) firstToken(r *Request) {
	l := b.lives[r]
	if l == nil || l.hasToken {
		return
	}
	l.hasToken = true
	d := &b.desk[l.engine]
	d.prefilling--
	d.pendingSeconds -= l.seconds
	d.pendingTokens -= float64(l.uncached)
	if d.prefilling == 0 {
		d.pendingSeconds, d.pendingTokens = 0, 0 // no residue of rounding
	}
	for _, row := range l.rows {
		b.count(soon, row, l.engine, -1)
	}
}

// finished notes a request's end and learns its output length.
func (b *books) finished(r *Request) {
	l := b.lives[r]
	if l == nil {
		return
	}
	b.end(r, l)
	b.out += 0.01 * (float64(r.Output) - b.out)
}

// failed notes that a request was not served.
func (b *books) failed(r *Request) {
	if l := b.lives[r]; l != nil {
		b.end(r, l)
	}
}

// bury forgets an engine: what it held, and what was sent there and is lost.
func (b *books) bury(engine int, lost []*Job) {
	for _, j := range lost {
		b.failed(j.Request)
	}
	for row := range b.last {
		b.unset(held, int32(row), engine)
	}
}

// end takes a request off its engine's account.
func (b *books) end(r *Request, l *life) {
	b.firstToken(r)
	delete(b.lives, r)
	d := &b.desk[l.engine]
	d.inFlight--
	d.activeTokens -= float64(r.Input)
	d.toCome -= l.expected
	freed := r.Input - len(l.rows)*b.blockSize
	for _, row := range l.rows {
		if b.count(active, row, l.engine, -1) {
			freed += b.blockSize
		}
	}
	d.heldTokens -= float64(freed)
	if d.inFlight == 0 {
		d.activeTokens, d.heldTokens, d.toCome = 0, 0, 0
	}
}
