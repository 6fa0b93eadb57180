package index

import (
	"math/bits"

	"github.com/kvoracle/kvoracle/internal/block"
)

// claim finds or makes the memory of blocks that the ledger does not hold: as many of ids, of which the first follows p,
// as lie together in one segment. up is where the ledger holds p, if it does. The ledger's part reaches to all of them
// when it returns, so that they stay; none is credited yet. It returns 0 if the index has no segment left. versions, if
// there are any, are those at which the ids were nowhere; see insert.
//
// A chain's way must be the same for all, or a query would miss some: a block goes where its parent's segment goes on
// with it, else to the one segment that begins with it after that parent. Which of the two it is, whoever comes first
// decides in the table, under its lock.
func (l *Ledger) claim(up place, p Parent, ids []block.ID, versions []uint64) (at place, n int) {
	ix := l.ix
	for {
		if up.part != 0 {
			h := l.parts[up.part].segment
			if n := l.stretch(h, up.part, up.index+1, p, ids, versions); n > 0 {
				return place{up.part, up.index + 1}, n
			}
		}
		if h := ix.head(p, ids[0]); h != 0 {
			if at, n := l.join(h, 0, p, ids, versions); n > 0 {
				return at, n
			}
		} else if up.part == 0 && !p.IsRoot {
			var there location
			ix.each(ids[0], func(o location) bool {
				if o.index() > 0 && ix.follows(o, p.ID) {
					there = o
					return true
				}
				return false
			})
			if there != 0 {
				if at, n := l.join(there.segment(), there.index(), p, ids, versions); n > 0 {
					return at, n
				}
			}
		}
		i := l.newPart(0)
		h, n, full := ix.begins(l.key, i, up, p, ids, versions, l)
		if h != 0 {
			l.parts[i].segment = h
			l.turnTo(h)
			return place{i, 0}, n
		}
		l.freePart(i)
		if full {
			return place{}, 0
		}
		// Somebody was faster.
	}
}

// follows reports whether a block inside a segment comes after another.
func (ix *Index) follows(o location, id block.ID) bool {
	return o.index() > 0 && ix.is(o-1, id)
}

// join claims blocks of a segment from a position on.
func (l *Ledger) join(h handle, from int, p Parent, ids []block.ID, versions []uint64) (at place, n int) {
	i, ok := l.ix.listed(h, l.key)
	if !ok {
		i = l.newPart(h)
	}
	n = l.stretch(h, i, from, p, ids, versions)
	if n == 0 && !ok {
		l.freePart(i)
	}
	return place{i, from}, n
}

// roomy is how many blocks a segment has room for that is told piece by piece: twice as many as before, so that it moves
// a few times and not with every piece, and what it leaves behind fits the next one that grows.
func roomy(n int) int { return min(max(32, 1<<bits.Len(uint(n))), segmentMax) }

// turnTo notes in which segment the ledger goes on, and takes the room away from the one before that it does not need.
func (l *Ledger) turnTo(h handle) {
	if l.growing == h {
		return
	}
	if l.isRoomy {
		l.ix.tidy(l.growing)
	}
	l.growing, l.isRoomy = h, false
}

// stretch lets the ledger's part of a segment reach as far as the segment has ids from a position on, adding them at the
// end if it ends there. It returns how many it has.
func (l *Ledger) stretch(h handle, i uint32, from int, p Parent, ids []block.ID, versions []uint64) int {
	n := l.ix.stretch(h, l.key, i, from, p, ids, versions, l.growing == h)
	if n > 0 {
		isAgain := l.growing == h
		l.turnTo(h)
		l.isRoomy = l.isRoomy || isAgain
	}
	return n
}

func (ix *Index) stretch(h handle, key member, i uint32, from int, p Parent, ids []block.ID, versions []uint64, isAgain bool) int {
	if from >= segmentMax {
		return 0
	}
	sh, s := ix.shard(h), ix.segment(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	pos, length := splitBody(s.body.Load())
	w := ix.words(pos, length)
	if length == 0 || from > length {
		return 0
	}
	if from == 0 {
		// What was found without the lock may be something else by now.
		if s.head != ids[0] || s.isRoot != p.IsRoot || !p.IsRoot && s.parent != p.ID {
			return 0
		}
	} else if p.IsRoot || w[from-1] != uint64(p.ID) {
		return 0
	}
	n := 0
	for n < len(ids) && from+n < length && w[from+n] == uint64(ids[n]) {
		n++
	}
	if n < len(ids) && from+n == length && length < segmentMax && !ix.space.isTight.Load() {
		more := ids[n:min(len(ids), segmentMax-from)]
		room := 0
		if isAgain {
			room = roomy(length + len(more))
		}
		ix.extend(h, more, room)
		n += ix.index(h, length, block.ID(w[length-1]), more, rest(versions, n))
	}
	if n > 0 {
		ix.hold(h, key, i, from+n)
	}
	return n
}

// index enters blocks that are written after a segment's end into the table, one by one, and then shows them: a reader must
// never be led past a block that has a segment of its own. There it stops. It returns how many were entered. The caller
// holds the shard's lock.
func (ix *Index) index(h handle, from int, p block.ID, ids []block.ID, versions []uint64) int {
	n := 0
	for k, id := range ids {
		claim := func(o location) bool {
			if o.index() != 0 {
				return false
			}
			t := ix.segment(o.segment())
			return !t.isRoot && t.parent == p
		}
		if l := at(h, from+k); ix.insert(id, l, versionOf(versions, k), claim) != l {
			break
		}
		p = id
		n++
	}
	ix.segment(h).show(from + n)
	return n
}

func versionOf(versions []uint64, k int) uint64 {
	if k < len(versions) {
		return versions[k]
	}
	return 0
}

func rest(versions []uint64, n int) []uint64 { return versions[min(n, len(versions)):] }

// hold lets a ledger's part of a segment reach at least so far. The caller holds the shard's lock.
func (ix *Index) hold(h handle, key member, i uint32, reach int) {
	s := ix.segment(h)
	n, pos := splitList(s.list.Load())
	switch n {
	case 0:
	case 1:
		if member(s.only.Load()).key() == key {
			s.setLink(i, max(reach, int(uint32(s.link))))
			return
		}
	default:
		w := ix.words(pos, 2*n)
		if k, ok := find(w[:n], key); ok {
			reach = max(reach, int(uint32(w[n+k])))
			for ; k < n && member(w[k]).key() == key; k++ {
				setWord(&w[n+k], makeLink(i, reach))
			}
			return
		}
	}
	ix.enlist(h, key, i, reach, &covers{})
}

// begins makes a segment of ids after p, with one holder. It returns 0 if the first of them has a place already, where
// the caller must look again, or if the index is full.
func (ix *Index) begins(key member, i uint32, up place, p Parent, ids []block.ID, versions []uint64, l *Ledger) (h handle, n int, full bool) {
	ids = ids[:min(len(ids), segmentMax)]
	if h = ix.newSegment(p, ids); h == 0 {
		return 0, 0, true
	}
	sh := ix.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ix.enlist(h, key, i, len(ids), &covers{})
	var upSegment handle
	if up.part != 0 {
		upSegment = l.parts[up.part].segment
	}
	first := at(h, 0)
	got := ix.insert(ids[0], first, versionOf(versions, 0), func(o location) bool {
		if o.index() == 0 {
			t := ix.segment(o.segment())
			return t.isRoot == p.IsRoot && (p.IsRoot || t.parent == p.ID)
		}
		if p.IsRoot || !ix.follows(o, p.ID) {
			return false
		}
		return up.part == 0 || o.segment() == upSegment && o.index() == up.index+1
	})
	if got != first {
		// Nothing of it is in the table.
		ix.enlist(h, key, i, 0, nil)
		ix.bury(h)
		return 0, 0, got == 0
	}
	ix.addHead(h)
	n = 1 + ix.index(h, 1, ids[0], ids[1:], rest(versions, 1))
	if n < len(ids) {
		ix.enlist(h, key, i, n, &covers{})
	}
	return h, n, false
}
