package index

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// What the twin does when it is full: see evict.go.

func (l *twinLedger) isPartial() bool { return l.lost != [len(l.lost)]Digest{} }

// fitting is how many blocks of a list need no more than room entries.
func (l *twinLedger) fitting(p Parent, ids []block.ID, room int) int {
	all := known(l.parent)
	if !p.IsRoot && !all[p.ID] {
		all[p.ID] = true
		if room--; room < 0 {
			return 0
		}
	}
	for n, id := range ids {
		if !all[id] {
			all[id] = true
			if room--; room < 0 {
				return n
			}
		}
	}
	return len(ids)
}

// makeRoom lets the one who has most give up something, in one round.
func (w *twin) makeRoom(l *twinLedger, p Parent, ids []block.ID, granted, want int, isOrphan bool) bool {
	size := func(o *twinLedger) int { return len(known(o.parent)) }
	if old := w.visible[l.target]; old != nil && old != l && size(old) > 0 {
		old.give(want, nil)
		return true
	}
	if isOrphan {
		return false
	}
	most, next := l, 0
	for _, o := range w.ledgers { // in the order they were made
		a, b := size(o), size(most)
		if most == l {
			b += granted
		}
		if o != l && a > b {
			most = o
		}
	}
	top := size(most)
	if most == l {
		top += granted
	}
	for _, o := range w.ledgers {
		n := size(o)
		if o == l {
			n += granted
		}
		if o != most {
			next = max(next, n)
		}
	}
	n := max(1, min(want, top-next))
	if most != l {
		most.give(n, nil)
		return true
	}
	var keep *block.ID
	if !p.IsRoot {
		keep = &p.ID
	}
	for i := range ids {
		if _, ok := l.parent[ids[i]]; !ok {
			break
		}
		keep = &ids[i]
	}
	return l.give(n, keep) > 0
}

// give drives out n blocks or a 64th of all, of few 32 or an eighth, one by one.
func (l *twinLedger) give(n int, keep *block.ID) int {
	before := len(known(l.parent))
	if before >= 64 {
		n = max(n, before/64, min(before/8, 32))
	}
	goal := before - n
	for len(known(l.parent)) > goal {
		id, ok := l.victim(keep)
		if !ok {
			break
		}
		for t := range l.copies {
			if l.copies[t][id] > 0 {
				l.lost[t].add(id)
				delete(l.copies[t], id)
			}
		}
		l.tidy()
	}
	return before - len(known(l.parent))
}

// victim is the block that goes next: the least orphan by hash, or else the deepest leaf.
func (l *twinLedger) victim(keep *block.ID) (victim block.ID, ok bool) {
	hasKids := make(map[block.ID]bool)
	for _, p := range l.parent {
		if !p.IsRoot {
			hasKids[p.ID] = true
		}
	}
	isLess := func(a, b block.ID) bool {
		x, y := l.depth(a), l.depth(b)
		if x == 0 || y == 0 {
			if x != y {
				return x == 0
			}
		} else if x != y {
			return x > y
		}
		return mix(a) < mix(b)
	}
	for id := range l.parent {
		if l.depth(id) > 0 && (hasKids[id] || keep != nil && *keep == id) {
			continue
		}
		if !ok || isLess(id, victim) {
			victim, ok = id, true
		}
	}
	return victim, ok
}

// depth is how many blocks there are from the start to this one; 0 for an orphan.
func (l *twinLedger) depth(id block.ID) int {
	for n := range len(l.parent) {
		p, ok := l.parent[id]
		switch {
		case !ok:
			return 0
		case p.IsRoot:
			return n + 1
		}
		id = p.ID
	}
	return 0
}

// restore stores what is missing, run by run.
func (w *twin) restore(l *twinLedger, chain []block.ID) int {
	n := 0
	for i := 0; i < len(chain); {
		if _, ok := l.parent[chain[i]]; ok {
			i++
			continue
		}
		from := i
		for i < len(chain) {
			if _, ok := l.parent[chain[i]]; ok {
				break
			}
			i++
		}
		r := w.store(l, parentIn(chain, from), chain[from:i], fleet.Device)
		n += r.Stored
		for _, id := range chain[from:][:r.Stored] {
			if !l.isCounted && l.lost[fleet.Device].Count > 0 {
				l.lost[fleet.Device].remove(id, 1)
			}
		}
		if r.Refused != None {
			break
		}
	}
	return n
}

// prune removes a block and then, as long as there are any, those whose parent was removed.
func (l *twinLedger) prune(id block.ID) int {
	gone := map[block.ID]bool{}
	if _, ok := l.parent[id]; ok {
		gone[id] = true
	}
	for n := -1; n != len(gone); {
		n = len(gone)
		for k, p := range l.parent {
			if !p.IsRoot && gone[p.ID] {
				gone[k] = true
			}
		}
	}
	for k := range gone {
		for t := range l.copies {
			delete(l.copies[t], k)
		}
	}
	l.tidy()
	return len(gone)
}
