package index

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
)

const (
	numTables = 256
	// A line is one cache line: three words of four tags, a word of notes, and twelve locations.
	lineLocations = 12
	lineWords     = 16
	lineNotes     = 3
	lineFirst     = 4 // the first location
	// The notes count what belongs here or before but is farther on for want of room, and above that have a bit for each
	// location that itself belongs to a line before.
	passedBits = 20
	passedMask = 1<<passedBits - 1
	// Lines come in groups of up to eight, all of a table of the same size.
	groupLeast = 4
	groupMost  = 8
	// Of 100 places of a table up to so many are used.
	fullAt = 92
)

// location is a block in a segment. 0 is none.
type location uint32

func at(h handle, i int) location { return location(h)<<indexBits | location(i) }

func (l location) segment() handle { return handle(l >> indexBits) }
func (l location) index() int      { return int(l & (segmentMax - 1)) }

// mix spreads an id: chained ones are hashes already, those of tests are small numbers.
func mix(id block.ID) uint64 {
	h := uint64(id) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	return h * 0xd6e8feb86659fd93
}

// table finds blocks by id: a part of all. It holds locations only; ids are looked up where they are.
//
// Writers hold mu. Readers see a store in which locations come and go but never move: they check what they find.
type table struct {
	mu    sync.Mutex
	count int
	least int // lines
	store atomic.Pointer[store]
	_     [64]byte
}

// store is the memory of a table. Growing and shrinking makes another one; readers go on in the former, which the garbage
// collector takes when they have left.
//
// A hash chooses the group; its next eight bits are the tag, and choose the line in the group too. So a store whose groups
// are a line larger can be made from what the lines say, and only each doubling has to look all ids up.
type store struct {
	words  []uint32
	groups uint64
	size   uint64 // lines in a group
	lines  uint64
}

func newStore(groups, size uint64) *store {
	return &store{words: make([]uint32, groups*size*lineWords), groups: groups, size: size, lines: groups * size}
}

// init staggers the tables' sizes, so that they do not grow all at the same time.
func (t *table) init(i int) {
	t.least = 2 + 2*i/numTables
	t.store.Store(newStore(uint64(t.least), groupLeast))
}

func (ix *Index) table(id block.ID) *table { return &ix.tables[mix(id)>>56] }

// home is the line where a hash belongs, and its tag. The uppermost byte has chosen the table.
func (s *store) home(hash uint64) (line uint64, tag uint32) {
	group, rest := bits.Mul64(hash<<8, s.groups)
	tag = uint32(rest >> 56)
	return s.lineOf(group, tag), tag
}

func (s *store) lineOf(group uint64, tag uint32) uint64 { return group*s.size + uint64(tag)*s.size>>8 }

func (s *store) line(i uint64) *[lineWords]uint32 { return (*[lineWords]uint32)(s.words[i*lineWords:]) }

// next is the line after one.
func (s *store) next(i uint64) uint64 {
	if i++; i == s.lines {
		i = 0
	}
	return i
}

// matches has the upper bit of each byte set, from the lowest on, where a word's tag is the one wanted four times. A byte
// above such a one may be set without reason: whatever is found is checked.
func matches(tags, want uint32) uint32 {
	x := tags ^ want
	return (x - 0x01010101) & ^x & 0x80808080
}

// each calls f for every location of an id until it returns true.
func (ix *Index) each(id block.ID, f func(location) bool) {
	hash := mix(id)
	s := ix.tables[hash>>56].store.Load()
	i, tag := s.home(hash)
	want := tag * 0x01010101
	for range s.lines {
		w := s.line(i)
		for g := range lineNotes {
			for m := matches(atomic.LoadUint32(&w[g]), want); m != 0; m &= m - 1 {
				k := lineFirst + 4*g + bits.TrailingZeros32(m)/8
				if l := location(atomic.LoadUint32(&w[k])); l != 0 && ix.is(l, id) && f(l) {
					return
				}
			}
		}
		if atomic.LoadUint32(&w[lineNotes])&passedMask == 0 {
			return
		}
		i = s.next(i)
	}
}

// warm looks at the lines of blocks that are going to be looked up, so that the waits for memory overlap. What it returns
// means nothing.
func (ix *Index) warm(ids []block.ID) (sum uint32) {
	for _, id := range ids {
		hash := mix(id)
		s := ix.tables[hash>>56].store.Load()
		home, _ := s.home(hash)
		sum += atomic.LoadUint32(&s.line(home)[lineNotes])
	}
	return sum
}

// is reports whether a block is at a location.
func (ix *Index) is(l location, id block.ID) bool {
	if l.index() == 0 {
		return ix.segment(l.segment()).head == id
	}
	w := ix.blocks(l.segment())
	return l.index() < len(w) && w[l.index()] == uint64(id)
}

// head finds the segment that begins with a block after a parent, or 0. It is each, spelled out for Match.
func (ix *Index) head(p Parent, id block.ID) handle {
	hash := mix(id)
	s := ix.tables[hash>>56].store.Load()
	i, tag := s.home(hash)
	want := tag * 0x01010101
	for range s.lines {
		w := s.line(i)
		for g := range lineNotes {
			for m := matches(atomic.LoadUint32(&w[g]), want); m != 0; m &= m - 1 {
				l := location(atomic.LoadUint32(&w[lineFirst+4*g+bits.TrailingZeros32(m)/8]))
				if l == 0 || l.index() != 0 {
					continue
				}
				t := ix.segment(l.segment())
				if t.head == id && t.isRoot == p.IsRoot && (p.IsRoot || t.parent == p.ID) {
					return l.segment()
				}
			}
		}
		if atomic.LoadUint32(&w[lineNotes])&passedMask == 0 {
			return 0
		}
		i = s.next(i)
	}
	return 0
}

// insert adds a block's location and lets its segment show it, unless one is there that claim accepts; then it returns
// that. The caller is a reader.
func (t *table) insert(ix *Index, id block.ID, l location, claim func(location) bool, g *segment) location {
	t.mu.Lock()
	defer t.mu.Unlock()
	var there location
	isTwin := false
	ix.each(id, func(other location) bool {
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
	s := t.store.Load()
	if t.count*100 >= int(s.lines)*lineLocations*fullAt {
		t.grow(ix, s)
		s = t.store.Load()
	}
	home, tag := s.home(mix(id))
	s.put(home, tag, l)
	g.show(l.index() + 1)
	if isTwin {
		ix.twins.Add(1)
	}
	t.count++
	return l
}

// put writes a location into the first line with room from its home on.
func (s *store) put(home uint64, tag uint32, l location) {
	for i := home; ; i = s.next(i) {
		w := s.line(i)
		for k := lineFirst; k < lineWords; k++ {
			if w[k] != 0 {
				continue
			}
			if was, bit := w[lineNotes], uint32(1)<<(passedBits+k-lineFirst); was&bit != 0 != (i != home) {
				atomic.StoreUint32(&w[lineNotes], was^bit)
			}
			g, shift := (k-lineFirst)/4, 8*((k-lineFirst)%4)
			atomic.StoreUint32(&w[g], w[g]&^(0xff<<shift)|tag<<shift)
			atomic.StoreUint32(&w[k], uint32(l))
			return
		}
		// First that there is more, then the more.
		atomic.StoreUint32(&w[lineNotes], w[lineNotes]+1)
	}
}

// lay is put for a store that nobody sees yet; fill counts what its lines have.
func (s *store) lay(fill []uint8, home uint64, tag uint32, l location) {
	i := home
	for fill[i] == lineLocations {
		s.line(i)[lineNotes]++
		i = s.next(i)
	}
	w, k := s.line(i), fill[i]
	fill[i]++
	w[k/4] |= tag << (8 * (k % 4))
	w[lineFirst+k] = uint32(l)
	if i != home {
		w[lineNotes] |= 1 << (passedBits + k)
	}
}

// remove takes a location out.
func (t *table) remove(ix *Index, id block.ID, l location) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hash := mix(id)
	s := t.store.Load()
	home, _ := s.home(hash)
	i := home
	for !s.drop(i, l) {
		if i = s.next(i); i == home {
			return
		}
	}
	for ; home != i; home = s.next(home) {
		w := s.line(home)
		atomic.StoreUint32(&w[lineNotes], w[lineNotes]-1)
	}
	t.count--
	if ix.twins.Load() > 0 {
		// The caller is a reader, and the segment still has its blocks.
		isTwin := false
		ix.each(id, func(location) bool { isTwin = true; return true })
		if isTwin {
			ix.twins.Add(-1)
		}
	}
	if s.groups > uint64(t.least) && t.count < int(s.lines)*lineLocations/4 {
		t.store.Store(s.renew(ix, max(s.groups/2, uint64(t.least))))
	}
}

// drop takes a location out of a line if it is there.
func (s *store) drop(i uint64, l location) bool {
	w := s.line(i)
	for k := lineFirst; k < lineWords; k++ {
		if w[k] == uint32(l) {
			atomic.StoreUint32(&w[k], 0)
			return true
		}
	}
	return false
}

// grow makes room: a line more in each group, or twice the groups.
func (t *table) grow(ix *Index, s *store) {
	if s.size == groupMost {
		t.store.Store(s.renew(ix, 2*s.groups))
		return
	}
	next := newStore(s.groups, s.size+1)
	fill := make([]uint8, next.lines)
	for group := range s.groups {
		for i := group * s.size; i < (group+1)*s.size; i++ {
			w := s.line(i)
			for k, l := range w[lineFirst:] {
				switch tag := w[k/4] >> (8 * (k % 4)) & 0xff; {
				case l == 0:
				case w[lineNotes]>>(passedBits+k)&1 == 0:
					next.lay(fill, next.lineOf(group, tag), tag, location(l))
				default:
					home, tag := next.home(mix(ix.id(location(l))))
					next.lay(fill, home, tag, location(l))
				}
			}
		}
	}
	t.store.Store(next)
}

// id names the block at a location.
func (ix *Index) id(l location) block.ID { return block.ID(ix.blocks(l.segment())[l.index()]) }

// renew makes a store with another number of groups. Ids are fetched a batch at a time, so that the waits for the memory
// they lie in overlap.
func (s *store) renew(ix *Index, groups uint64) *store {
	next := newStore(groups, groupLeast)
	fill := make([]uint8, next.lines)
	var batch [64]location
	var where [64]*uint64
	n := 0
	flush := func() {
		for k, l := range batch[:n] {
			where[k] = &ix.blocks(l.segment())[l.index()]
		}
		for k, l := range batch[:n] {
			home, tag := next.home(mix(block.ID(*where[k])))
			next.lay(fill, home, tag, l)
		}
		n = 0
	}
	for i := range s.lines {
		if n > len(batch)-lineLocations {
			flush()
		}
		for _, l := range s.line(i)[lineFirst:] {
			if l != 0 {
				batch[n] = location(l)
				n++
			}
		}
	}
	flush()
	return next
}
