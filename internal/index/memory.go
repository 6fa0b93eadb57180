package index

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	// gridLeast is the size of a grid's first chunk, and of what an arena takes at a time.
	gridBits   = 13
	gridLeast  = 1 << gridBits
	gridChunks = 32 - gridBits + 1
	hugeBytes  = 2 << 20 // a large page of the processor
)

// memory is what the system has given an index outside of the garbage collector's heap, to be given back with the index.
type memory struct{ maps [][]byte }

// words makes n zeroed words. Much at once comes straight from the system, in large pages if there are any: a look at a
// place not seen for long costs half of what it does in small ones, and the garbage collector has nothing to do with it.
func (m *memory) words(n int) []uint64 {
	if n*8 >= hugeBytes {
		if all, used := mapped(n * 8); all != nil {
			m.maps = append(m.maps, all)
			return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(used))), n)
		}
	}
	return make([]uint64, n)
}

// free gives all back. Nobody may look at it any more.
func (m *memory) free() {
	for _, b := range m.maps {
		unmap(b)
	}
	m.maps = nil
}

// grid is an array that grows in place: chunk 0 has gridLeast elements, every other one as many as all before it. So
// that a few pointers that lie together lead everywhere. What an index names must have been made before the index was
// told to anybody.
type grid[T any] [gridChunks][]T

func chunkOf(i uint32) int { return bits.Len32(i >> gridBits) }

func (g *grid[T]) at(i uint32) *T {
	c := g[chunkOf(i)]
	return &c[int(i)&(len(c)-1)]
}

func (g *grid[T]) slice(i uint32, n int) []T {
	c := g[chunkOf(i)]
	k := int(i) & (len(c) - 1)
	return c[k : k+n : k+n]
}

// grow makes the chunk that an element is in, and returns the first element that is in another one.
func (g *grid[T]) grow(m *memory, i uint32) (end uint64) {
	k := chunkOf(i)
	if g[k] == nil {
		var t T
		n := gridLeast << max(k-1, 0)
		words := m.words(n * int(unsafe.Sizeof(t)) / 8)
		g[k] = unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(words))), n)
	}
	return gridLeast << k
}

// space is all memory of an index that grows with what is in it. Readers look elements up without the lock.
//
// Words are handed out in pieces of a power of two, at positions that are multiples of it. Freed ones are joined with
// their other halves again, so that what many small pieces were can become a few large ones.
type space struct {
	words    grid[uint64]
	segments grid[segment]

	// isTight is set when three quarters of all positions are used, long after anything else has run out. No segment is
	// made or made longer then, and what is there can still change.
	isTight atomic.Bool

	mu    sync.Mutex
	mem   *memory
	end   uint64                  // first word never handed out
	free  [32]map[uint32]struct{} // by the logarithm of their size
	limbo []deadPlane
}

type deadPlane struct {
	epoch uint64
	pos   uint32
	order uint8
}

// take hands out a piece of 2^order words; what is in it is left over from before.
func (s *space) take(order int) (pos uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := order; k < len(s.free); k++ {
		for pos := range s.free[k] {
			delete(s.free[k], pos)
			for ; k > order; k-- {
				s.put(pos+1<<(k-1), k-1)
			}
			return pos
		}
	}
	size := uint64(1) << order
	for s.end&(size-1) != 0 || s.end == 0 {
		s.words.grow(s.mem, uint32(s.end))
		// What stands before the next multiple, and the first chunk, which is as small as the second.
		k := gridBits
		if s.end > 0 {
			k = bits.TrailingZeros64(s.end)
		}
		s.put(uint32(s.end), k)
		s.end += 1 << k
	}
	s.words.grow(s.mem, uint32(s.end))
	pos = uint32(s.end)
	s.end += size
	s.isTight.Store(s.end > 3<<30)
	return pos
}

// put frees a piece. The caller holds mu.
func (s *space) put(pos uint32, order int) {
	for {
		other := pos ^ 1<<order
		if _, ok := s.free[order][other]; !ok {
			break
		}
		delete(s.free[order], other)
		pos &= other
		order++
	}
	if s.free[order] == nil {
		s.free[order] = make(map[uint32]struct{})
	}
	s.free[order][pos] = struct{}{}
}

// retire frees a piece once nobody can be in it.
func (s *space) retire(e *epochs, pos uint32, order int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limbo = append(s.limbo, deadPlane{e.turn(), pos, uint8(order)})
	oldest := e.oldest()
	n := 0
	for ; n < len(s.limbo) && s.limbo[n].epoch < oldest; n++ {
		s.put(s.limbo[n].pos, int(s.limbo[n].order))
	}
	s.limbo = slices.Delete(s.limbo, 0, n)
}

// segmentsTo makes the memory of a segment and returns the first handle for which that is not done.
func (s *space) segmentsTo(h handle) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments.grow(s.mem, uint32(h))
}
