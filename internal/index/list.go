package index

import (
	"slices"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// A segment's list is its members in order, and after them as many links: for the writer, which part of the ledger it is
// and how far that reaches, holes and what waits behind them included. A single member stands in the segment itself.
//
// Readers take the list as they find it. Covers change in place; a change of who is there makes a new list.

// link is a part in the upper 32 bits and its reach in the lower.
type link = uint64

func makeLink(p uint32, reach int) link { return link(p)<<32 | link(reach) }

func setWord(w *uint64, v uint64) { atomic.StoreUint64(w, v) }

func (s *segment) setLink(i uint32, reach int) { setWord(&s.link, makeLink(i, reach)) }

func splitList(v uint64) (n int, pos uint32) { return int(v >> 32), uint32(v) }

// listed finds a ledger's part on a segment. The ledger's lock keeps the answer true.
func (ix *Index) listed(h handle, key member) (p uint32, ok bool) {
	s := ix.segment(h)
	n, pos := splitList(s.list.Load())
	switch n {
	case 0:
		return 0, false
	case 1:
		// Whoever is this member wrote link under the same lock that the caller has.
		if member(s.only.Load()).key() != key {
			return 0, false
		}
		return uint32(atomic.LoadUint64(&s.link) >> 32), true
	}
	w := ix.words(pos, 2*n)
	i, ok := find(w[:n], key)
	if !ok {
		return 0, false
	}
	return uint32(atomic.LoadUint64(&w[n+i]) >> 32), true
}

// find looks for the first member of a ledger.
func find(w []uint64, key member) (int, bool) {
	lo, hi := 0, len(w)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if member(atomic.LoadUint64(&w[mid])) < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(w) && member(atomic.LoadUint64(&w[lo])).key() == key
}

// covers says for each level how many leading blocks have it or a lesser one.
type covers [fleet.NumTiers]uint16

// members writes down a ledger's covers.
func (c *covers) members(key member, buf *[fleet.NumTiers]uint64) []uint64 {
	buf[0] = uint64(key) | uint64(c[0])<<levelBits
	n := 1
	for v := 1; v < fleet.NumTiers; v++ {
		if c[v] > c[v-1] {
			buf[n] = uint64(key) | uint64(c[v])<<levelBits | uint64(v)
			n++
		}
	}
	return buf[:n]
}

// enlist says what a ledger holds of a segment now, and shortens the segment if nobody reaches as far as before.
// Reach 0 takes the ledger off. The caller holds the shard's lock.
func (ix *Index) enlist(h handle, key member, p uint32, reach int, c *covers) {
	sh, s := ix.shard(h), ix.segment(h)
	if s.list.Load()>>32 == 1 && reach > 0 && c[0] == c[fleet.NumTiers-1] && member(s.only.Load()).key() == key {
		// Nearly always.
		before := int(uint32(s.link))
		s.only.Store(uint64(key) | uint64(c[0])<<levelBits)
		s.setLink(p, reach)
		ix.shrink(h, before, reach)
		return
	}
	var buf [fleet.NumTiers]uint64
	var now []uint64
	if reach > 0 {
		now = c.members(key, &buf)
	}
	n, pos := splitList(s.list.Load())
	var w []uint64
	var one [2]uint64
	switch {
	case n == 1:
		one = [2]uint64{s.only.Load(), s.link}
		w = one[:]
	case n > 1:
		w = ix.words(pos, 2*n)
	}
	i, _ := find(w[:n], key)
	end := i
	for end < n && member(w[end]).key() == key {
		end++
	}
	before := 0
	if end > i {
		before = int(uint32(w[n+i]))
	}
	l := makeLink(p, reach)
	if end-i == len(now) && sameLevels(w[i:end], now) {
		isNew := false
		for k, m := range now {
			if n == 1 {
				s.only.Store(m)
				atomic.StoreUint64(&s.link, l)
			} else {
				isNew = isNew || w[i+k] != m
				atomic.StoreUint64(&w[i+k], m)
				atomic.StoreUint64(&w[n+i+k], l)
			}
		}
		if isNew {
			s.turn()
		}
	} else {
		ix.replace(sh, s, w, i, end, now, l)
		s.turn()
	}
	ix.shrink(h, before, reach)
}

// turn says that the list is another one now. The caller holds the shard's lock.
func (s *segment) turn() { s.turns.Store(s.turns.Load() + 1) }

// shrink shortens a segment if a part that reached to its end does no longer, and no other does.
func (ix *Index) shrink(h handle, before, reach int) {
	if _, length := splitBody(ix.segment(h).body.Load()); before == length && reach < before {
		if most := ix.reach(h); most < length {
			ix.trim(h, most)
		}
	}
}

func sameLevels(a, b []uint64) bool {
	for i := range a {
		if member(a[i]).level() != member(b[i]).level() {
			return false
		}
	}
	return true
}

// replace puts other members in the place of w[i:end].
func (ix *Index) replace(sh *shard, s *segment, w []uint64, i, end int, now []uint64, l link) {
	n := len(w) / 2
	m := n - (end - i) + len(now)
	_, old := splitList(s.list.Load())
	to := make([]uint64, 0, 2)
	var pos uint32
	if m > 1 {
		pos = sh.arena.take(2 * m)
		to = ix.words(pos, 2*m)[:0]
	}
	to = append(append(append(to, w[:i]...), now...), w[end:n]...)
	to = append(to, w[n:n+i]...)
	for range now {
		to = append(to, l)
	}
	to = append(to, w[n+end:]...)
	switch m {
	case 0:
		// Somebody who has seen that there is one member may look at it yet.
		s.only.Store(0)
	case 1:
		s.only.Store(to[0])
		atomic.StoreUint64(&s.link, to[1])
	}
	s.list.Store(uint64(m)<<32 | uint64(pos))
	if n > 1 {
		sh.arena.retire(&ix.epochs, old, 2*n)
	}
}

// reach is the most that any ledger's part of a segment reaches to.
func (ix *Index) reach(h handle) int {
	s := ix.segment(h)
	n, pos := splitList(s.list.Load())
	switch n {
	case 0:
		return 0
	case 1:
		return int(uint32(s.link))
	}
	most := uint32(0)
	for _, l := range ix.words(pos, 2*n)[n:] {
		most = max(most, uint32(l))
	}
	return int(most)
}

// isOnly reports whether a list has one member.
func (ix *Index) isOnly(h handle) bool {
	n, _ := splitList(ix.segment(h).list.Load())
	return n == 1
}

// keys lists whose members a list has, for tests.
func (ix *Index) keys(h handle) []member {
	s := ix.segment(h)
	n, pos := splitList(s.list.Load())
	var out []member
	switch n {
	case 0:
	case 1:
		out = append(out, member(s.only.Load()))
	default:
		for _, m := range ix.words(pos, 2*n)[:n] {
			out = append(out, member(m))
		}
	}
	return slices.Clip(out)
}
