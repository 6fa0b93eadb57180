package index

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kvoracle/kvoracle/internal/block"
)

const (
	numTables = 256
	// A line is one cache line: three words of four tags, a word of notes, and twelve locations.
	lineLocations = 12
	lineWords     = 16
	lineNotes     = 3
	lineFirst     = 4 // the first location
	// The notes have two more bits of each tag; for each four places whether something stands there that belongs to another
	// group; and how much belongs here or before but is farther on for want of room. That count stays at its most once it
	// was there.
	foreignBit = 1 << 24
	passedOne  = 1 << 27
	passedMost = 31
	// Lines come in groups of four to eight, all of a table of the same size.
	groupLeast = 4
	groupMost  = 8
	// A table begins with two groups.
	logLeast = 1
	// Of 100 places of a table up to so many are used.
	fullAt = 92
)

// location is a block in a segment. 0 is none.
type location uint32

func at(h handle, i int) location { return location(h)<<indexBits | location(i) }

func (l location) segment() handle { return handle(l >> indexBits) }
func (l location) index() int      { return int(l & (segmentMax - 1)) }

// golden is the multiplier where nobody has chosen another: 2^64 over the golden ratio.
const golden = 0x9e3779b97f4a7c15

// mix spreads an id: chained ones are hashes already, those of tests are small numbers. It is the same in every process, for
// orders that are to be.
func mix(id block.ID) uint64 { return mixBy(golden, id) }

// hash is mix by the index's own multiplier, which says where an id is kept. Whoever does not know that cannot aim: by
// Dietzfelbinger et al., A reliable randomized algorithm for the closest-pair problem (1997), two ids agree in the upper k bits
// of their products with a random odd number with a chance of at most 2/2^k, whatever they are.
func (ix *Index) hash(id block.ID) uint64 { return mixBy(ix.key, id) }

func mixBy(key uint64, id block.ID) uint64 {
	h := uint64(id) * key
	h ^= h >> 32
	return h * 0xd6e8feb86659fd93
}

// table finds blocks by id: a part of all. It holds locations only; ids are looked up where they are.
//
// Writers hold mu. Readers see a store in which locations come and go but never move: they check what they find. All is
// in one cache line, and what it says leads to the line where an id must be.
type table struct {
	mu sync.Mutex
	// version counts insertions. Who has seen it, then looked for an id and found none, finds none as long as it is the same.
	version atomic.Uint64
	// seq is odd while shape and planes change, and counts the changes.
	seq    atomic.Uint32
	shape  atomic.Uint32
	planes [groupMost / 2]atomic.Uint64
	count  int // locations
}

// store is the memory of a table. Growing and shrinking makes another one; readers go on in the former until its memory
// is taken back.
//
// A hash chooses the group; its next ten bits are the tag, the first of which choose the line in the group. So a store
// whose groups are a line larger can be made from what the lines say, and only each doubling has to look all ids up. What
// has no room in its line goes to another one of the group, and only then to the next group.
//
// The lines of a group lie side by side as far as the memory comes in powers of two: four, the next four or two, and one.
// The next line on a way is nearly always in the same page then, and often fetched already.
type store struct {
	// Where each line of group 0 is, a multiple of eight, and in the lower bits the logarithm of how many lie side by side.
	planes [groupMost]uint32
	log    uint32 // groups, a power of two
	size   uint32 // lines in a group; 0: an empty table
	words  *grid[uint64]
}

// load gives a table's store as it is at one moment.
func (ix *Index) load(t *table) (s store) {
	s.words = &ix.space.words
	for {
		seq := t.seq.Load()
		shape := t.shape.Load()
		for i := range t.planes {
			p := t.planes[i].Load()
			s.planes[2*i], s.planes[2*i+1] = uint32(p), uint32(p>>32)
		}
		if seq&1 == 0 && t.seq.Load() == seq {
			s.log, s.size = shape>>8, shape&0xff
			return s
		}
	}
}

// set lets readers see another store. The caller holds mu.
func (t *table) set(s *store) {
	t.seq.Add(1)
	t.shape.Store(s.log<<8 | s.size)
	for i := range t.planes {
		t.planes[i].Store(uint64(s.planes[2*i]) | uint64(s.planes[2*i+1])<<32)
	}
	t.seq.Add(1)
}

// lines counts the lines.
func (s *store) lines() int { return int(s.size) << s.log }

// newStore makes an empty store.
func (ix *Index) newStore(log, size uint32) *store {
	s := &store{log: log, size: size, words: &ix.space.words}
	for i := uint32(0); i < size; {
		wide := uint32(bits.Len32(min(size-i, groupLeast))) - 1
		order := s.order(wide)
		pos := ix.space.take(order)
		clear(ix.words(pos, 1<<order))
		for k := range uint32(1) << wide {
			s.planes[i] = pos + k*(lineWords/2) | wide
			i++
		}
	}
	return s
}

// order is the logarithm of the words in a piece with so many lines of each group.
func (s *store) order(wide uint32) int { return int(s.log+wide) + 3 }

// table chooses a table. Some have twice as many ids as others and the rest are in between, so that they do not grow all
// at the same time: y = x + x(1-x)/3 in 16 bits, which has the slopes 4/3 to 2/3.
func (ix *Index) table(hash uint64) *table {
	x := hash >> 48
	return &ix.tables[(x+x*(1<<16-x)/(3<<16))>>8]
}

// home is where a hash belongs: the line, the first line of its group, and the tag. The uppermost bits have chosen the
// table. Groups are eight numbers apart, whatever their size.
func (s *store) home(hash uint64) (line, first, tag uint32) {
	hash <<= 16
	first = uint32(hash>>(64-s.log)) * groupMost
	tag = uint32(hash << s.log >> 54)
	return first + s.lineOf(tag), first, tag
}

// lineOf chooses a line of a group.
func (s *store) lineOf(tag uint32) uint32 { return tag >> 2 * s.size >> 8 }

func (s *store) line(i uint32) *[lineWords]uint32 {
	p := s.planes[i%groupMost]
	w := s.words.at(p&^(groupMost-1) + i/groupMost*(lineWords/2)<<(p%groupMost))
	return (*[lineWords]uint32)(unsafe.Pointer(w))
}

// next is the line after one on the way from home: around its group, then on from there.
func (s *store) next(i, home, first uint32) uint32 {
	inGroup := i-first < groupMost
	if i++; i%groupMost == s.size%groupMost {
		if inGroup {
			i = first
		} else {
			i = (i-1)/groupMost*groupMost + groupMost
		}
	}
	if inGroup {
		if i != home {
			return i
		}
		i = first + groupMost
	}
	return i & (groupMost<<s.log - 1)
}

// matches has the upper bit of each byte set, from the lowest on, where a word's tag is the one wanted four times. A byte
// above such a one may be set without reason: whatever is found is checked.
func matches(tags, want uint32) uint32 {
	x := tags ^ want
	return (x - 0x01010101) & ^x & 0x80808080
}

// tagOf is the rest of a location's tag.
func tagOf(notes uint32, k int) uint32 { return notes >> (2 * k) & 3 }

func passed(notes uint32) uint32 { return notes / passedOne }

// each calls f for every location of an id until it returns true.
func (ix *Index) each(id block.ID, f func(location) bool) {
	hash := ix.hash(id)
	s := ix.load(ix.table(hash))
	s.each(ix, id, hash, f)
}

func (s *store) each(ix *Index, id block.ID, hash uint64, f func(location) bool) {
	home, first, tag := s.home(hash)
	want, rest := tag>>2*0x01010101, tag&3
	i := home
	for range s.lines() {
		w := s.line(i)
		notes := atomic.LoadUint32(&w[lineNotes])
		for g := range lineNotes {
			for m := matches(atomic.LoadUint32(&w[g]), want); m != 0; m &= m - 1 {
				k := 4*g + bits.TrailingZeros32(m)/8
				if tagOf(notes, k) != rest {
					continue
				}
				if l := location(atomic.LoadUint32(&w[lineFirst+k])); l != 0 && ix.is(l, id) && f(l) {
					return
				}
			}
		}
		if passed(notes) == 0 {
			return
		}
		i = s.next(i, home, first)
	}
}

// probe is where an id is going to be looked for: its line, and the next one if that had no room for all. It is good as
// long as its maker is a reader.
type probe struct {
	version uint64 // of the table, before
	lines   [2]*[lineWords]uint32
	tag     uint32
}

// warm looks at the lines of blocks that are going to be looked up, so that the waits for memory overlap, and appends where
// they are. First it finds out where they are and then looks at all: a core sees so many instructions ahead and no more. One
// line in four has passed something on to the next, which a new block's way goes on to. The sum means nothing.
func (ix *Index) warm(ids []block.ID, to []probe) (_ []probe, sum uint32) {
	from := len(to)
	for _, id := range ids {
		hash := ix.hash(id)
		t := ix.table(hash)
		p := probe{version: t.version.Load()}
		if s := ix.load(t); s.size > 0 {
			home, first, tag := s.home(hash)
			p.tag, p.lines[0], p.lines[1] = tag, s.line(home), s.line(s.next(home, home, first))
		}
		to = append(to, p)
	}
	for k := range to[from:] {
		if p := &to[from+k]; p.lines[0] != nil {
			sum += atomic.LoadUint32(&p.lines[0][lineNotes])
		}
	}
	for k := range to[from:] {
		p := &to[from+k]
		if p.lines[0] == nil {
			continue
		}
		w := p.lines[0]
		if passed(atomic.LoadUint32(&w[lineNotes])) > 0 {
			w = p.lines[1]
		}
		sum += atomic.LoadUint32(&w[lineNotes])
	}
	return to, sum
}

// isClear reports whether it is plain from these lines that an id is nowhere at the version.
func (p *probe) isClear() bool {
	want, rest := p.tag>>2*0x01010101, p.tag&3
	for i, w := range p.lines {
		if w == nil {
			return i == 0
		}
		notes := atomic.LoadUint32(&w[lineNotes])
		for g := range lineNotes {
			for m := matches(atomic.LoadUint32(&w[g]), want); m != 0; m &= m - 1 {
				if k := 4*g + bits.TrailingZeros32(m)/8; tagOf(notes, k) == rest && atomic.LoadUint32(&w[lineFirst+k]) != 0 {
					return false
				}
			}
		}
		if passed(notes) == 0 {
			return true
		}
	}
	return false
}

// is reports whether a block is at a location.
func (ix *Index) is(l location, id block.ID) bool {
	if l.index() == 0 {
		return ix.segment(l.segment()).head == id
	}
	b := ix.segment(l.segment()).body.Load()
	pos, _ := splitBody(b)
	return l.index() < written(b) && *ix.space.words.at(pos + uint32(l.index())) == uint64(id)
}

// isKnown reports whether a block is anywhere, and the version of its table that this is of.
func (ix *Index) isKnown(id block.ID) (isThere bool, version uint64) {
	hash := ix.hash(id)
	t := ix.table(hash)
	version = t.version.Load()
	s := ix.load(t)
	s.each(ix, id, hash, func(location) bool {
		isThere = true
		return true
	})
	return isThere, version
}

// insert adds a block's location, unless one is there that claim accepts; then it returns that. At the version given, if
// it is not 0, the block was nowhere. The caller is a reader.
func (ix *Index) insert(id block.ID, l location, version uint64, claim func(location) bool) location {
	hash := ix.hash(id)
	t := ix.table(hash)
	t.mu.Lock()
	defer t.mu.Unlock()
	s := ix.load(t)
	isTwin := false
	if now := t.version.Load(); version == 0 || version != now {
		var there location
		s.each(ix, id, hash, func(other location) bool {
			isTwin = true
			if claim(other) {
				there = other
				return true
			}
			return false
		})
		if there != 0 {
			return there
		}
	}
	if t.count*100 >= s.lines()*lineLocations*fullAt {
		s = *ix.grow(t, &s)
	}
	home, first, tag := s.home(hash)
	s.put(home, first, tag, l)
	if isTwin {
		ix.twins.Add(1)
	}
	t.count++
	// When all is done: who sees the version sees the block.
	t.version.Add(1)
	return l
}

// put writes a location into the first line with room on the way from home.
func (s *store) put(home, first, tag uint32, l location) {
	for i := home; ; i = s.next(i, home, first) {
		w := s.line(i)
		notes := w[lineNotes]
		for k := range lineLocations {
			if w[lineFirst+k] != 0 {
				continue
			}
			now := notes&^(3<<(2*k)) | tag&3<<(2*k)
			if i-first >= groupMost {
				now |= foreignBit << (k / 4)
			}
			if now != notes {
				atomic.StoreUint32(&w[lineNotes], now)
			}
			g, shift := k/4, 8*(k%4)
			atomic.StoreUint32(&w[g], w[g]&^(0xff<<shift)|tag>>2<<shift)
			atomic.StoreUint32(&w[lineFirst+k], uint32(l))
			return
		}
		// First that there is more, then the more.
		if passed(notes) < passedMost {
			atomic.StoreUint32(&w[lineNotes], notes+passedOne)
		}
	}
}

// lay is put for a store that nobody sees yet; fill counts what its lines have.
func (s *store) lay(fill []uint8, home, first, tag uint32, l location) {
	i := home
	for fill[i] == lineLocations {
		if w := s.line(i); passed(w[lineNotes]) < passedMost {
			w[lineNotes] += passedOne
		}
		i = s.next(i, home, first)
	}
	w, k := s.line(i), int(fill[i])
	fill[i]++
	w[k/4] |= tag >> 2 << (8 * (k % 4))
	w[lineFirst+k] = uint32(l)
	w[lineNotes] |= tag & 3 << (2 * k)
	if i-first >= groupMost {
		w[lineNotes] |= foreignBit << (k / 4)
	}
}

// remove takes a location out.
func (ix *Index) remove(id block.ID, l location) {
	hash := ix.hash(id)
	t := ix.table(hash)
	t.mu.Lock()
	defer t.mu.Unlock()
	s := ix.load(t)
	home, first, _ := s.home(hash)
	end := home
	for n := 0; !s.drop(end, l); n++ {
		if n == s.lines() {
			return
		}
		end = s.next(end, home, first)
	}
	for i := home; i != end; i = s.next(i, home, first) {
		w := s.line(i)
		if n := passed(w[lineNotes]); n > 0 && n < passedMost {
			atomic.StoreUint32(&w[lineNotes], w[lineNotes]-passedOne)
		}
	}
	t.count--
	if ix.twins.Load() > 0 {
		// The caller is a reader, and the segment still has its blocks.
		isTwin := false
		s.each(ix, id, hash, func(location) bool { isTwin = true; return true })
		if isTwin {
			ix.twins.Add(-1)
		}
	}
	if s.log > logLeast && t.count < s.lines()*lineLocations/4 {
		ix.swap(t, &s, s.renew(ix, s.log-1, s.size))
	}
}

// drop takes a location out of a line if it is there.
func (s *store) drop(i uint32, l location) bool {
	w := s.line(i)
	for k := lineFirst; k < lineWords; k++ {
		if w[k] == uint32(l) {
			atomic.StoreUint32(&w[k], 0)
			return true
		}
	}
	return false
}

// grow makes room: a line more in each group, or twice the groups with a line more than half as many. So is the next step never
// due at once.
func (ix *Index) grow(t *table, s *store) (now *store) {
	switch s.size {
	case 0:
		now = ix.newStore(logLeast, groupLeast)
	case groupMost:
		now = s.renew(ix, s.log+1, groupLeast+1)
	default:
		now = s.widen(ix)
	}
	ix.swap(t, s, now)
	return now
}

// swap lets readers see another store.
func (ix *Index) swap(t *table, old, now *store) {
	t.set(now)
	for i := uint32(0); i < old.size; {
		wide := old.planes[i] % groupMost
		ix.space.retire(&ix.epochs, old.planes[i]&^(groupMost-1), old.order(wide))
		i += 1 << wide
	}
}

// widen makes a store whose groups are a line larger.
func (s *store) widen(ix *Index) *store {
	next := ix.newStore(s.log, s.size+1)
	fill := make([]uint8, groupMost<<s.log)
	far := batch{ix: ix, store: next, fill: fill}
	for first := uint32(0); first < groupMost<<s.log; first += groupMost {
		for i := range s.size {
			w := s.line(first + i)
			notes := w[lineNotes]
			for k, l := range w[lineFirst:] {
				switch {
				case l == 0:
				case notes&(foreignBit<<(k/4)) != 0:
					far.add(location(l))
				default:
					tag := w[k/4]>>(8*(k%4))&0xff<<2 | tagOf(notes, k)
					next.lay(fill, first+next.lineOf(tag), first, tag, location(l))
				}
			}
		}
	}
	far.flush()
	return next
}

// renew makes a store with other groups.
func (s *store) renew(ix *Index, log, size uint32) *store {
	next := ix.newStore(log, size)
	all := batch{ix: ix, store: next, fill: make([]uint8, groupMost<<log)}
	for first := uint32(0); first < groupMost<<s.log; first += groupMost {
		for i := range s.size {
			for _, l := range s.line(first + i)[lineFirst:] {
				if l != 0 {
					all.add(location(l))
				}
			}
		}
	}
	all.flush()
	return next
}

// batch looks ids up for a new store many at a time, so that the waits for the memory they lie in overlap.
type batch struct {
	ix    *Index
	store *store
	fill  []uint8
	n     int
	all   [64]location
}

func (b *batch) add(l location) {
	b.all[b.n] = l
	if b.n++; b.n == len(b.all) {
		b.flush()
	}
}

func (b *batch) flush() {
	var where [len(b.all)]uint32
	var ids [len(b.all)]block.ID
	for k, l := range b.all[:b.n] {
		pos, _ := splitBody(b.ix.segment(l.segment()).body.Load())
		where[k] = pos + uint32(l.index())
	}
	for k, pos := range where[:b.n] {
		ids[k] = block.ID(*b.store.words.at(pos))
	}
	for k, l := range b.all[:b.n] {
		home, first, tag := b.store.home(b.ix.hash(ids[k]))
		b.store.lay(b.fill, home, first, tag, l)
	}
	b.n = 0
}
