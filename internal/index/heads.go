package index

import (
	"math/bits"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
)

// headsLeast is the logarithm of how many words a shard's heads have at least.
const headsLeast = 3

// heads are the segments of a shard by their first blocks: what leads from one segment of a chain to the next. The blocks
// are in the table as well; but there are few segments beside all blocks, so that their words are in a cache where a line
// of the table would not be, and a prompt that nobody has is known by one look at them.
//
// A word is the upper half of the first block's hash and the segment's handle. It stands in the first free place from home
// on, which the hash's first bits say, and never moves: growing and shrinking makes another piece. A word that is taken out
// leaves gone behind unless nothing follows.
type heads struct {
	live int // segments
	used int // words that are not 0, at most three quarters
}

// gone is a place whose segment was taken out: no segment has the handle 0.
const gone = 1 << 32

// headsWords are the words at a place: a position, and in the lower eight bits the logarithm of how many. There is at
// least one.
func (ix *Index) headsWords(where uint64) (w []uint64, log uint64) {
	log = where & 0xff
	return ix.words(uint32(where>>8), 1<<log), log
}

// head finds the segment that begins with a block after a parent, or 0. The caller is a reader.
func (ix *Index) head(p Parent, id block.ID) handle {
	hash := ix.hash(id)
	where := ix.headsAt[shardOf(hash)].Load()
	if where == 0 {
		return 0
	}
	w, log := ix.headsWords(where)
	tag := hash >> 32
	for i := tag >> (32 - log); ; i++ {
		v := atomic.LoadUint64(&w[i&uint64(len(w)-1)])
		if v == 0 {
			return 0
		}
		if v>>32 == tag {
			h := handle(uint32(v))
			if s := ix.segment(h); s.head == id && s.isRoot == p.IsRoot && (p.IsRoot || s.parent == p.ID) {
				return h
			}
		}
	}
}

// addHead lets a segment be found. The caller holds its shard's lock.
func (ix *Index) addHead(h handle) {
	hs, where := &ix.shard(h).heads, &ix.headsAt[h%numShards]
	if at := where.Load(); at == 0 || 4*(hs.used+1) > 3<<(at&0xff) {
		ix.moveHeads(h, hs.live+1)
	}
	w, log := ix.headsWords(where.Load())
	tag := ix.hash(ix.segment(h).head) >> 32
	hs.used += lay(w, log, tag<<32|uint64(h))
	hs.live++
}

// lay puts a word in the first free place and says how many more are not 0 now.
func lay(w []uint64, log, v uint64) int {
	for i := v >> (64 - log); ; i++ {
		switch p := &w[i&uint64(len(w)-1)]; *p {
		case 0:
			atomic.StoreUint64(p, v)
			return 1
		case gone:
			atomic.StoreUint64(p, v)
			return 0
		}
	}
}

// dropHead lets a segment no longer be found. The caller holds its shard's lock.
func (ix *Index) dropHead(h handle) {
	hs := &ix.shard(h).heads
	w, log := ix.headsWords(ix.headsAt[h%numShards].Load())
	most := uint64(len(w) - 1)
	v := ix.hash(ix.segment(h).head)>>32<<32 | uint64(h)
	i := v >> (64 - log)
	for w[i&most] != v {
		i++
	}
	atomic.StoreUint64(&w[i&most], gone)
	for ; w[(i+1)&most] == 0 && w[i&most] == gone; i-- {
		atomic.StoreUint64(&w[i&most], 0)
		hs.used--
	}
	hs.live--
	if hs.live == 0 || log > headsLeast && 8*hs.live < len(w) {
		ix.moveHeads(h, hs.live)
	}
}

// moveHeads gives a segment's shard a piece for so many heads, half full at most. The caller holds the shard's lock.
func (ix *Index) moveHeads(h handle, n int) {
	hs, where := &ix.shard(h).heads, &ix.headsAt[h%numShards]
	before, now := where.Load(), uint64(0)
	hs.used = 0
	if n > 0 {
		log := max(bits.Len(uint(2*n-1)), headsLeast)
		now = uint64(ix.space.take(log))<<8 | uint64(log)
		w, _ := ix.headsWords(now)
		clear(w)
		if before != 0 {
			old, _ := ix.headsWords(before)
			for _, v := range old {
				if v != 0 && v != gone {
					hs.used += lay(w, uint64(log), v)
				}
			}
		}
	}
	where.Store(now)
	if before != 0 {
		ix.space.retire(&ix.epochs, uint32(before>>8), int(before&0xff))
	}
}
