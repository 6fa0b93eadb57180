package index

import (
	"sync"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

const (
	shardBits  = 6
	numShards  = 1 << shardBits
	maxSegs    = 1<<(32-indexBits) - 1<<shardBits
	indexBits  = 9              // of a location; the others are the handle
	segmentMax = 1 << indexBits // blocks in a segment
)

// handle names a segment: its shard in the lower bits. 0 is none.
type handle uint32

// slot is a ledger's own small number. It is not the target's, so that a former ledger's members can stay behind, unread,
// until Reclaim comes by.
type slot uint32

// level is the tier a block would be taken from; noLevel if it cannot be reached.
type level uint8

const noLevel level = fleet.NumTiers

// member is a ledger on a segment, in one word: target, slot, how many leading blocks have a level or a lesser one, and
// that level, which is last so that one comparison of the rotated word says that it is 0 and the slot a small one. Members
// in numerical order are in order of targets. One with level 0 is there for each ledger that holds anything on the segment;
// others only if they say more.
type member uint64

const (
	coverBits = 10
	levelBits = 2
	slotBits  = 20
	maxSlots  = 1 << slotBits
)

// newMember makes a member; without a level and cover it is the ledger's key.
func newMember(t fleet.TargetID, s slot, v level, cover int) member {
	return member(t)<<32 | member(s)<<(levelBits+coverBits) | member(cover)<<levelBits | member(v)
}

func (m member) key() member            { return m &^ (1<<(levelBits+coverBits) - 1) }
func (m member) target() fleet.TargetID { return fleet.TargetID(m >> 32) }
func (m member) slot() slot             { return slot(m>>(levelBits+coverBits)) & (maxSlots - 1) }
func (m member) level() level           { return level(m) & (1<<levelBits - 1) }
func (m member) cover() int             { return int(m >> levelBits & (1<<coverBits - 1)) }

// segment is a piece of a chain stored once for all who hold any of it: block i+1 follows block i, and the first follows
// parent. One cache line, no pointers.
//
//	len(segment) = most that any ledger's part reaches to
//
// Blocks below len never change while a reader can see them. Chains that part ways at block i go on in other segments
// whose parent is block i; nothing is ever split.
type segment struct {
	head   block.ID      // the first block again, so that a look-up needs no other line
	parent block.ID      // unless isRoot
	body   atomic.Uint64 // position of the blocks, length in the lower 16 bits, in the upper 16 how many are written
	list   atomic.Uint64 // number of members, position of the list in the lower 32 bits
	only   atomic.Uint64 // the member, if there is one
	link   uint64        // and its part and reach; see list.go
	high   uint16        // words ever shown in this piece: beyond it writing disturbs no reader
	room   uint16        // words of the piece
	isRoot bool
	turns  atomic.Uint64 // how often a list of several was changed, in all lives of this memory; see layers.go
}

func makeBody(pos uint32, n, written int) uint64 {
	return uint64(written)<<48 | uint64(pos)<<16 | uint64(n)
}
func splitBody(b uint64) (pos uint32, n int) { return uint32(b >> 16), int(b & 0xffff) }
func written(b uint64) int                   { return int(b >> 48) }

// shard is a part of all segments with the memory they use.
type shard struct {
	mu    sync.Mutex // for all changes of its segments
	arena arena
	heads heads
	end   uint32   // first number never used
	most  uint64   // handles below have memory
	free  []uint32 // numbers
	limbo []deadSegment

	_ [64]byte // a shard's lock must not move its neighbour's cache line
}

type deadSegment struct {
	epoch uint64
	n     uint32
}

func (s *shard) init(space *space) {
	s.arena.space = space
	s.end = 1
}

// shardOf chooses the shard of segments that begin with a block.
func shardOf(hash uint64) uint64 { return hash >> 20 % numShards }

func (ix *Index) shard(h handle) *shard { return &ix.shards[h&(numShards-1)] }

func (ix *Index) segment(h handle) *segment { return ix.space.segments.at(uint32(h)) }

// words are the first n of a piece.
func (ix *Index) words(pos uint32, n int) []uint64 { return ix.space.words.slice(pos, n) }

// blocks are a segment's.
func (ix *Index) blocks(h handle) []uint64 {
	pos, n := splitBody(ix.segment(h).body.Load())
	return ix.words(pos, n)
}

// newSegment makes a segment that nobody knows and that shows none of its blocks. It returns 0 if there are too many.
func (ix *Index) newSegment(p Parent, ids []block.ID) handle {
	if ix.space.isTight.Load() {
		return 0
	}
	at := shardOf(ix.hash(ids[0]))
	sh := &ix.shards[at]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var n uint32
	if k := len(sh.free); k > 0 {
		n = sh.free[k-1]
		sh.free = sh.free[:k-1]
	} else {
		if sh.end >= maxSegs>>shardBits {
			return 0
		}
		n = sh.end
		sh.end++
	}
	h := handle(n<<shardBits | uint32(at))
	if uint64(h) >= sh.most {
		sh.most = ix.space.segmentsTo(h)
	}
	s := ix.segment(h)
	s.head, s.parent, s.isRoot = ids[0], p.ID, p.IsRoot
	s.list.Store(0)
	s.only.Store(0)
	_, size := classOf(len(ids))
	s.room, s.high = uint16(size), 0
	pos := sh.arena.take(len(ids))
	w := ix.words(pos, len(ids))
	for i, id := range ids {
		w[i] = uint64(id)
	}
	s.body.Store(makeBody(pos, 0, len(ids)))
	return h
}

// extend writes blocks after the end, where they are found by id as soon as they are in the table, and no chain leads to
// them yet; see index. If it has to move the others, it makes room for at least so many. The caller holds the shard's lock
// and has seen that they fit.
func (ix *Index) extend(h handle, ids []block.ID, room int) {
	sh, s := ix.shard(h), ix.segment(h)
	pos, n := splitBody(s.body.Load())
	want := n + len(ids)
	if int(s.high) > n || want > int(s.room) {
		pos = ix.move(sh, s, n, max(want, room))
	}
	w := ix.words(pos, want)
	for i, id := range ids {
		w[n+i] = uint64(id)
	}
	s.body.Store(makeBody(pos, n, want))
}

// move copies a segment's first n blocks to a piece with room for others, and shows them there.
func (ix *Index) move(sh *shard, s *segment, n, room int) uint32 {
	from, _ := splitBody(s.body.Load())
	to := sh.arena.take(room)
	copy(ix.words(to, n), ix.words(from, n))
	s.body.Store(makeBody(to, n, n))
	sh.arena.retire(&ix.epochs, from, int(s.room))
	_, size := classOf(room)
	s.room, s.high = uint16(size), uint16(n)
	return to
}

// tidy takes room away that a segment has no use for. It may be another one by now than the caller thinks.
func (ix *Index) tidy(h handle) {
	sh, s := ix.shard(h), ix.segment(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	_, n := splitBody(s.body.Load())
	if _, size := classOf(n); n > 0 && size < int(s.room) {
		ix.move(sh, s, n, n)
	}
}

// show lets a segment's first n blocks be seen, which are written already.
func (s *segment) show(n int) {
	pos, _ := splitBody(s.body.Load())
	s.high = max(s.high, uint16(n))
	s.body.Store(makeBody(pos, n, n))
}

// trim shortens a segment to n blocks, or ends it. The caller holds the shard's lock; nobody reaches farther.
func (ix *Index) trim(h handle, n int) {
	sh, s := ix.shard(h), ix.segment(h)
	pos, old := splitBody(s.body.Load())
	ids := ix.words(pos, old)
	for i := old - 1; i >= n; i-- {
		ix.remove(block.ID(ids[i]), at(h, i))
	}
	if n == 0 {
		ix.dropHead(h)
	}
	switch {
	case n == 0:
		s.body.Store(makeBody(pos, 0, 0))
		ix.bury(h)
	case int(s.room) > 16 && n < int(s.room)/2:
		ix.move(sh, s, n, n)
	default:
		s.body.Store(makeBody(pos, n, n))
	}
}

// bury frees a segment without blocks that nothing leads to any more. The caller holds the shard's lock.
func (ix *Index) bury(h handle) {
	sh, s := ix.shard(h), ix.segment(h)
	pos, _ := splitBody(s.body.Load())
	sh.arena.retire(&ix.epochs, pos, int(s.room))
	sh.limbo = append(sh.limbo, deadSegment{ix.epochs.now.Load(), uint32(h >> shardBits)})
	if len(sh.limbo)%limboMost == 0 {
		ix.epochs.turn()
		sh.sweep(ix.epochs.oldest())
	}
}

func (s *shard) sweep(oldest uint64) {
	n := 0
	for ; n < len(s.limbo) && s.limbo[n].epoch < oldest; n++ {
		s.free = append(s.free, s.limbo[n].n)
	}
	s.limbo = s.limbo[:copy(s.limbo, s.limbo[n:])]
}
