package index

import (
	"sync"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
)

const (
	numTables   = 256
	groupLen    = 4            // locations in a group
	groupWords  = groupLen + 1 // a word of four tags goes before them
	tableChunk  = 256          // groups
	bucketAim   = 24           // locations in a bucket when its table is made anew with twice the buckets
	bucketShift = 10
	bucketMost  = 1<<bucketShift - 1 // groups
)

// location is a block in a segment. 0 is none.
type location uint32

func at(h handle, i int) location { return location(h)<<8 | location(i) }

func (l location) segment() handle { return handle(l >> 8) }
func (l location) index() int      { return int(l & 0xff) }

// mix spreads an id: chained ones are hashes already, those of tests are small numbers.
func mix(id block.ID) uint64 {
	h := uint64(id) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	return h * 0xd6e8feb86659fd93
}

// table finds blocks by id: a part of all. It holds locations only; ids are looked up where they are. A bucket is as
// many groups as it needs, so that hardly any place is empty, and the number of buckets doubles with what is in them.
//
// Writers hold mu. Readers see a store that does not move, in which locations come and go: they check what they find.
type table struct {
	mu    sync.Mutex
	count int
	least int
	store atomic.Pointer[store]
	_     [64]byte
}

// store is the memory of a table. Growing and shrinking makes another one.
type store struct {
	refs   []uint32 // for each bucket: first group, and the number of groups in the lower bits
	chunks atomic.Pointer[[]*[tableChunk * groupWords]uint32]
	end    uint32   // first group never used
	free   []uint32 // heads of lists of free groups, by number of groups; threaded through the first word
	limbo  []deadPiece
}

func newStore(buckets int) *store {
	s := &store{refs: make([]uint32, buckets)}
	s.chunks.Store(new([]*[tableChunk * groupWords]uint32))
	return s
}

// init staggers the tables' sizes, so that they do not double all at the same time.
func (t *table) init(i int) {
	t.least = 8 + 8*i/numTables
	t.store.Store(newStore(t.least))
}

func (ix *Index) table(id block.ID) *table { return &ix.tables[mix(id)>>56] }

func (s *store) bucket(hash uint64) *uint32 {
	return &s.refs[(hash>>24&0xffffffff)*uint64(len(s.refs))>>32]
}

func (s *store) groups(ref uint32) []uint32 {
	n := ref & bucketMost
	if n == 0 {
		return nil
	}
	g := ref >> bucketShift
	c := (*s.chunks.Load())[g/tableChunk]
	i := g % tableChunk * groupWords
	if n > tableChunk {
		return nil
	}
	return c[i : i+n*groupWords : i+n*groupWords]
}

// each calls f for every location that may be the id's until it returns true.
//
// The tag is the hash's lowest byte. A word of four tags minus the wanted one four times has a zero byte where they are
// equal, and the usual trick finds it.
func (ix *Index) each(id block.ID, f func(location) bool) {
	hash := mix(id)
	s := ix.tables[hash>>56].store.Load()
	w := s.groups(atomic.LoadUint32(s.bucket(hash)))
	want := uint32(hash&0xff) * 0x01010101
	for g := 0; g < len(w); g += groupWords {
		x := atomic.LoadUint32(&w[g]) ^ want
		if (x-0x01010101)&^x&0x80808080 == 0 {
			continue
		}
		for k := 1; k < groupWords; k++ {
			if x>>(8*(k-1))&0xff != 0 {
				continue
			}
			if l := location(atomic.LoadUint32(&w[g+k])); l != 0 && ix.is(l, id) && f(l) {
				return
			}
		}
	}
}

// is reports whether a block is at a location.
func (ix *Index) is(l location, id block.ID) bool {
	if l.index() == 0 {
		return ix.segment(l.segment()).head == id
	}
	w := ix.blocks(l.segment())
	return l.index() < len(w) && w[l.index()] == uint64(id)
}

// head finds the segment that begins with a block after a parent, or 0.
func (ix *Index) head(p Parent, id block.ID) handle {
	hash := mix(id)
	s := ix.tables[hash>>56].store.Load()
	w := s.groups(atomic.LoadUint32(s.bucket(hash)))
	want := uint32(hash&0xff) * 0x01010101
	for g := 0; g < len(w); g += groupWords {
		x := atomic.LoadUint32(&w[g]) ^ want
		if (x-0x01010101)&^x&0x80808080 == 0 {
			continue
		}
		for k := 1; k < groupWords; k++ {
			l := location(atomic.LoadUint32(&w[g+k]))
			if x>>(8*(k-1))&0xff != 0 || l == 0 || l.index() != 0 {
				continue
			}
			if t := ix.segment(l.segment()); t.head == id && t.isRoot == p.IsRoot && (p.IsRoot || t.parent == p.ID) {
				return l.segment()
			}
		}
	}
	return 0
}

// insert adds a block's location and lets its segment show it, unless one is there that claim accepts; then it returns
// that. It returns 0 if the bucket is full. The caller is a reader.
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
	if t.count >= len(s.refs)*bucketAim {
		t.rebuild(ix, 2*len(s.refs))
		s = t.store.Load()
	}
	if !s.put(&ix.epochs, mix(id), l) {
		return 0
	}
	g.show(l.index() + 1)
	if isTwin {
		ix.twins.Add(1)
	}
	t.count++
	return l
}

// remove takes a location out.
func (t *table) remove(ix *Index, id block.ID, l location) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hash := mix(id)
	s := t.store.Load()
	w := s.groups(*s.bucket(hash))
	for i := range w {
		if i%groupWords != 0 && w[i] == uint32(l) {
			atomic.StoreUint32(&w[i], 0)
			t.count--
			break
		}
	}
	if ix.twins.Load() > 0 {
		// The caller is a reader, and the segment still has its blocks.
		isTwin := false
		ix.each(id, func(location) bool { isTwin = true; return true })
		if isTwin {
			ix.twins.Add(-1)
		}
	}
	if n := len(s.refs); n > t.least && t.count < n*bucketAim/6 {
		t.rebuild(ix, n/2)
	}
}

// rebuild makes a store with another number of buckets, packed. Readers go on in the former one, which the garbage
// collector takes when they have left.
func (t *table) rebuild(ix *Index, buckets int) {
	old, s := t.store.Load(), newStore(buckets)
	for _, ref := range old.refs {
		for i, l := range old.groups(ref) {
			if i%groupWords != 0 && l != 0 {
				id := block.ID(ix.blocks(location(l).segment())[location(l).index()])
				s.put(&ix.epochs, mix(id), location(l))
			}
		}
	}
	s.limbo = nil
	t.store.Store(s)
}

// put writes a location into its bucket and reports whether there was room.
func (s *store) put(e *epochs, hash uint64, l location) bool {
	b := s.bucket(hash)
	ref := *b
	w := s.groups(ref)
	for g := 0; g < len(w); g += groupWords {
		for k := 1; k < groupWords; k++ {
			if w[g+k] == 0 {
				shift := 8 * (k - 1)
				atomic.StoreUint32(&w[g], w[g]&^(0xff<<shift)|uint32(hash&0xff)<<shift)
				atomic.StoreUint32(&w[g+k], uint32(l))
				return true
			}
		}
	}
	n := int(ref & bucketMost)
	if n == tableChunk-1 {
		return false
	}
	next := s.take(n + 1)
	to := s.groups(next)
	clear(to[copy(to, w):])
	to[n*groupWords] = uint32(hash & 0xff)
	to[n*groupWords+1] = uint32(l)
	atomic.StoreUint32(b, next)
	if n > 0 {
		s.retire(e, ref)
	}
	return true
}

// take finds n groups.
func (s *store) take(n int) uint32 {
	if n < len(s.free) && s.free[n] != 0 {
		ref := s.free[n]
		s.free[n] = s.groups(ref)[0]
		return ref
	}
	old := *s.chunks.Load()
	if left := (tableChunk - s.end%tableChunk) % tableChunk; int(left) < n {
		all := append(old[:len(old):len(old)], new([tableChunk * groupWords]uint32))
		s.chunks.Store(&all)
		s.end = uint32(len(old)) * tableChunk
	}
	ref := s.end<<bucketShift | uint32(n)
	s.end += uint32(n)
	return ref
}

func (s *store) retire(e *epochs, ref uint32) {
	s.limbo = append(s.limbo, deadPiece{epoch: e.now.Load(), pos: ref})
	if len(s.limbo)%limboMost != 0 {
		return
	}
	e.turn()
	oldest := e.oldest()
	n := 0
	for ; n < len(s.limbo) && s.limbo[n].epoch < oldest; n++ {
		ref := s.limbo[n].pos
		k := int(ref & bucketMost)
		for len(s.free) <= k {
			s.free = append(s.free, 0)
		}
		s.groups(ref)[0] = s.free[k]
		s.free[k] = ref
	}
	s.limbo = s.limbo[:copy(s.limbo, s.limbo[n:])]
}
