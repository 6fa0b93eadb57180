package index

import (
	"slices"
	"testing"
)

// checkSlab checks a ledger's entries and links against their definitions and returns how many members the ledger has
// in the shared table.
func checkSlab(t *testing.T, l *Ledger) (members int) {
	t.Helper()
	s := &l.slab
	var used, held, orphans, waits, children, hanging int
	for i := range s.end {
		e := s.entry(i)
		if e.flags&inUse == 0 {
			if e.hasCopies() {
				t.Errorf("free entry %d has copies", i)
			}
			continue
		}
		used++
		if got, ok := l.byID[e.id]; !ok || got != i {
			t.Errorf("block %d is at %d, the map says %d, %v", e.id, i, got, ok)
		}
		if e.isHeld() != e.hasCopies() {
			t.Errorf("block %d: held %v, has copies %v", e.id, e.isHeld(), e.hasCopies())
		}
		if !e.isHeld() && e.first == nowhere {
			t.Errorf("ghost %d has no child", e.id)
		}
		if e.isHeld() {
			held++
		}
		if e.parent >= 0 {
			hanging++
		}
		for c, prev := e.first, nowhere; c != nowhere; c = s.entry(c).next {
			child := s.entry(c)
			children++
			if child.parent != i || child.prev != prev {
				t.Errorf("block %d: child %d has parent %d and prev %d, want %d and %d", e.id, child.id, child.parent, child.prev, i, prev)
			}
			prev = c
		}
		if e.flags&orphan != 0 {
			orphans++
		}
		if e.flags&waiting != 0 {
			waits++
		}
		isConnected, least, from := false, noLevel, rootPlace
		switch {
		case e.parent == root:
			isConnected, least = true, 0
		case e.parent >= 0:
			p := s.entry(e.parent)
			isConnected, least, from = p.flags&connected != 0, p.level, p.place
		}
		for least < noLevel && e.copies[least] == 0 {
			least++
		}
		if got := e.flags&connected != 0; got != isConnected || e.level != least {
			t.Errorf("block %d: connected %v, level %d, want %v, %d", e.id, got, e.level, isConnected, least)
		}
		if isOrphan := e.isHeld() && !isConnected; isOrphan != (e.flags&orphan != 0) {
			t.Errorf("block %d: flags %b, want orphan %v", e.id, e.flags, isOrphan)
		}
		if isConnected && e.place != from.child(e.id) {
			t.Errorf("block %d has the wrong place", e.id)
		}
		if e.level != noLevel {
			members++
			sh := l.ix.shard(e.place)
			var one [1]member
			if list := sh.members(e.place, &one); !slices.Contains(list, newMember(l.slot, e.level)) {
				t.Errorf("block %d: %v does not contain slot %d, level %d", e.id, list, l.slot, e.level)
			}
		}
	}
	free := 0
	for i := s.free; i != nowhere; i = s.entry(i).next {
		free++
	}
	if used != s.used || used != len(l.byID) || used+free != int(s.end) {
		t.Errorf("%d entries in use, slab says %d, map %d; %d free of %d", used, s.used, len(l.byID), free, s.end)
	}
	if held != l.held || orphans != l.orphans || waits != l.waiting || children != hanging {
		t.Errorf("held %d, orphans %d, waiting %d, children %d; want %d, %d, %d, %d", l.held, l.orphans, l.waiting, children, held, orphans, waits, hanging)
	}
	return members
}

// countMembers checks the lists of the shared table and counts what is in them.
func countMembers(t *testing.T, ix *Index) (members int) {
	t.Helper()
	for i := range ix.shards {
		s := &ix.shards[i]
		lists := 0
		for p, r := range s.refs {
			if r&isList == 0 {
				members++
				continue
			}
			lists++
			list := s.lists[r&^isList]
			members += len(list)
			if len(list) < 2 || !slices.IsSortedFunc(list, func(a, b member) int { return int(a.slot()) - int(b.slot()) }) {
				t.Errorf("place %x: list %v", p, list)
			}
			for i := 1; i < len(list); i++ {
				if list[i].slot() == list[i-1].slot() {
					t.Errorf("place %x: slot %d is there twice", p, list[i].slot())
				}
			}
		}
		if lists+len(s.spare) != len(s.lists) {
			t.Errorf("shard %d: %d lists in use, %d spare, of %d", i, lists, len(s.spare), len(s.lists))
		}
	}
	return members
}
