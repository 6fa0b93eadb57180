package index

import (
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
)

// checkLedger checks a ledger's parts, links and counters against their definitions, and its members against its parts.
// It returns how many segments it is on.
func checkLedger(t *testing.T, l *Ledger) (segments int) {
	t.Helper()
	ix := l.ix
	q := ix.enter()
	defer ix.leave(q)
	held, orphans, waits, kids, hooked, pieces := 0, 0, 0, 0, 0, 0
	inside := make(map[block.ID]int32)
	for i := range l.parts {
		p := &l.parts[i]
		if p.flags&inUse == 0 {
			continue
		}
		segments++
		n := uint32(i)
		if p.flags&isDirty != 0 || p.held == 0 {
			t.Errorf("part %d has flags %b and %d blocks", i, p.flags, p.held)
		}
		w := ix.blocks(p.segment)
		at, partHeld, partWaits := -1, 0, 0
		for _, s := range l.all(n) {
			if int(s.from) < at || s.from >= s.to || s.copies == (span{}).copies || int(s.to) > len(w) {
				t.Errorf("part %d of %d blocks: spans %v", i, len(w), l.all(n))
			}
			if s.from > 0 && int(s.from) != at {
				id := block.ID(w[s.from-1])
				inside[id]++
				if up := l.find(id); up.part != 0 && l.parts[up.part].isJoined(up.index) {
					t.Errorf("block %d is held elsewhere than where its successor is", id)
				}
			}
			at = int(s.to)
			partHeld += int(s.to - s.from)
			if s.waiting {
				partWaits += int(s.to - s.from)
			}
		}
		if partHeld != int(p.held) || partHeld != int(p.was) || partWaits != int(p.waits) {
			t.Errorf("part %d: held %d, was %d, waits %d; want %d, %d", i, p.held, p.was, p.waits, partHeld, partWaits)
		}
		if p.flags&hasSpans != 0 {
			pieces++
		}
		held += partHeld
		waits += partWaits
		covers, joined := l.cover(n)
		if covers != p.covers || joined != p.joined {
			t.Errorf("part %d: covers %v, joined %d; want %v, %d", i, p.covers, p.joined, covers, joined)
		}
		orphans += partHeld - int(joined)
		if isFirst := l.holds(place{n, 0}); isFirst != (p.flags&isHung != 0) {
			t.Errorf("part %d: hung %v", i, !isFirst)
		}
		if p.flags&isHung != 0 && !ix.segment(p.segment).isRoot {
			hooked++
			if up := l.find(ix.segment(p.segment).parent); up != (place{p.up, int(p.upIndex)}) {
				t.Errorf("part %d hangs on %d, %d; its parent is at %v", i, p.up, p.upIndex, up)
			}
		}
		kids += l.checkKids(t, p.kid, n, int(p.kidMost))
		checkMember(t, l, n)
	}
	for id, g := range l.ghosts {
		if !l.isGhost(id) {
			t.Errorf("ghost %d is not known as one", id)
		}
		kids += l.checkKids(t, g.kid, 0, 0)
		if g == (ghost{}) || l.find(id).part != 0 || g.inside != inside[id] {
			t.Errorf("ghost %d: %+v, want %d inside; held at %v", id, g, inside[id], l.find(id))
		}
		delete(inside, id)
	}
	for id, n := range l.strays {
		if up := l.find(id); up.part == 0 || l.parts[up.part].isJoined(up.index) || n != inside[id] {
			t.Errorf("stray after %d: %d inside, want %d; held at %v", id, n, inside[id], up)
		}
		delete(inside, id)
	}
	if len(inside) > 0 {
		t.Errorf("no ghosts or strays for %v", inside)
	}
	if held != l.held || orphans != l.orphans || waits != l.waiting || kids != hooked || l.entries != held+len(l.ghosts) {
		t.Errorf("held %d, orphans %d, waiting %d, entries %d, kids %d; want %d, %d, %d, %d, %d",
			l.held, l.orphans, l.waiting, l.entries, kids, held, orphans, waits, held+len(l.ghosts), hooked)
	}
	if pieces != l.spans.used {
		t.Errorf("%d parts have spans, and %d pieces of the slab are in use", pieces, l.spans.used)
	}
	return segments
}

// checkKids checks a list of siblings and counts them.
func (l *Ledger) checkKids(t *testing.T, first, up uint32, most int) (n int) {
	t.Helper()
	for k, prev := first, uint32(0); k != 0; k = l.parts[k].next {
		p := &l.parts[k]
		if p.up != up || p.prev != prev || int(p.upIndex) > most || p.flags&isHung == 0 {
			t.Errorf("kid %d of %d: %+v", k, up, p)
		}
		prev = k
		n++
	}
	return n
}

// checkMember checks what a segment's list says of a part.
func checkMember(t *testing.T, l *Ledger, i uint32) {
	t.Helper()
	p := &l.parts[i]
	if got, ok := l.ix.listed(p.segment, l.key); !ok || got != i {
		t.Errorf("part %d is listed as %d, %v", i, got, ok)
	}
	var buf [len(p.covers)]uint64
	want := p.covers.members(l.key, &buf)
	var got []uint64
	for _, m := range l.ix.keys(p.segment) {
		if m.key() == l.key {
			got = append(got, uint64(m))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("part %d: members %x, want %x", i, got, want)
	}
	if reach := l.ix.reach(p.segment); reach < l.reach(i) {
		t.Errorf("part %d reaches to %d, the list says %d", i, l.reach(i), reach)
	}
}

// checkMemory checks that table, heads, segments and lists agree, and counts how many ledgers are on how many segments in all.
func checkMemory(t *testing.T, ix *Index) (listed int) {
	t.Helper()
	q := ix.enter()
	defer ix.leave(q)
	found := make(map[handle]int)
	names := make(map[block.ID]int)
	heads := make(map[Parent]map[block.ID]bool)
	for i := range ix.tables {
		n := 0
		s := ix.load(&ix.tables[i])
		farther := make([]uint32, groupMost<<s.log)
		for line := range uint32(len(farther)) {
			if line%groupMost >= s.size {
				continue
			}
			for k, w := range s.line(line)[lineFirst:] {
				if w == 0 {
					continue
				}
				n++
				at := location(w)
				found[at.segment()]++
				id := ix.blocks(at.segment())[at.index()]
				home, first, tag := s.home(ix.hash(block.ID(id)))
				if ix.table(ix.hash(block.ID(id))) != &ix.tables[i] {
					t.Errorf("%d is in table %d", id, i)
				}
				if line-first >= groupMost && s.line(line)[lineNotes]&(foreignBit<<(k/4)) == 0 {
					t.Errorf("%v, of group %d, is in line %d unnoted", at, first/groupMost, line)
				}
				if got := s.line(line)[k/4]>>(8*(k%4))&0xff<<2 | tagOf(s.line(line)[lineNotes], k); got != tag {
					t.Errorf("%v has tag %x, want %x", at, got, tag)
				}
				for k := home; k != line; k = s.next(k, home, first) {
					farther[k]++
				}
				names[block.ID(id)]++
				isThere := false
				ix.each(block.ID(id), func(o location) bool { isThere = isThere || o == at; return false })
				if !isThere {
					t.Errorf("%v is not found by its id %d", at, id)
				}
				if at.index() == 0 {
					g := ix.segment(at.segment())
					p := Parent{IsRoot: g.isRoot}
					if !g.isRoot {
						p.ID = g.parent
					}
					if heads[p] == nil {
						heads[p] = make(map[block.ID]bool)
					}
					if heads[p][g.head] || uint64(g.head) != id {
						t.Errorf("two segments begin with %d after %v", g.head, p)
					}
					heads[p][g.head] = true
				}
			}
		}
		for line, want := range farther {
			if line%groupMost >= int(s.size) {
				continue
			}
			if got := passed(s.line(uint32(line))[lineNotes]); got != min(want, passedMost) && got != passedMost {
				t.Errorf("table %d, line %d: %d passed, want %d", i, line, got, want)
			}
		}
		if n != ix.tables[i].count {
			t.Errorf("table %d has %d locations, says %d", i, n, ix.tables[i].count)
		}
	}
	checkHeads(t, ix, heads)
	twins := 0
	for _, n := range names {
		twins += n - 1
	}
	if int64(twins) != ix.twins.Load() {
		t.Errorf("%d twins, want %d", ix.twins.Load(), twins)
	}
	for h, n := range found {
		if len(ix.blocks(h)) != n || ix.reach(h) != n {
			t.Errorf("segment %d: %d locations, %d blocks, reach %d", h, n, len(ix.blocks(h)), ix.reach(h))
		}
		keys := ix.keys(h)
		if !slices.IsSorted(keys) {
			t.Errorf("segment %d: list %x", h, keys)
		}
		for _, m := range keys {
			if m.level() == 0 {
				listed++
			}
		}
	}
	if int64(listed) != ix.parts.Load() {
		t.Errorf("%d parts, want %d", ix.parts.Load(), listed)
	}
	return listed
}

// checkHeads checks that the heads of all shards are the segments, once each and where they are found.
func checkHeads(t *testing.T, ix *Index, want map[Parent]map[block.ID]bool) {
	t.Helper()
	live := 0
	for i := range ix.shards {
		hs, where := &ix.shards[i].heads, ix.headsAt[i].Load()
		if where == 0 {
			if *hs != (heads{}) {
				t.Errorf("shard %d has no words and %+v", i, *hs)
			}
			continue
		}
		w, _ := ix.headsWords(where)
		n, used := 0, 0
		for _, v := range w {
			if v == 0 {
				continue
			}
			used++
			if v == gone {
				continue
			}
			n++
			h := handle(uint32(v))
			s := ix.segment(h)
			p := Parent{ID: s.parent, IsRoot: s.isRoot}
			if p.IsRoot {
				p.ID = 0
			}
			if got := ix.head(p, s.head); !want[p][s.head] || int(h%numShards) != i || got != h {
				t.Errorf("shard %d: %x is segment %d, %d after %v; found %d", i, v, h, s.head, p, got)
			}
		}
		if n == 0 || n != hs.live || used != hs.used || 4*used > 3*len(w) {
			t.Errorf("shard %d: %d heads in %d of %d words, says %+v", i, n, used, len(w), *hs)
		}
		live += n
	}
	segments := 0
	for _, heads := range want {
		segments += len(heads)
	}
	if live != segments {
		t.Errorf("%d heads, want %d", live, segments)
	}
}
