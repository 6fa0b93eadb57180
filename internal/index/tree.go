package index

import "github.com/kvoracle/kvoracle/internal/fleet"

// settle brings an entry whose copies or parent have changed, and all that hangs below it, up to date: flags, levels,
// counters and the shared table. If no tier holds the block any more it becomes a ghost or goes away.
//
// Parents are told before children. On the way a reader may meet an old level below a new one; either was true at
// some moment of the operation that is running, so whatever one list says is true in itself.
func (l *Ledger) settle(top at) {
	for i := top; ; {
		e := l.slab.entry(i)
		if l.update(e) && e.first != nowhere {
			i = e.first
			continue
		}
		for i != top && l.slab.entry(i).next == nowhere {
			i = l.slab.entry(i).parent
		}
		if i == top {
			break
		}
		i = l.slab.entry(i).next
	}
	if e := l.slab.entry(top); e.isHeld() && !e.hasCopies() {
		l.held--
		l.unlink(top)
	}
}

// update recomputes one entry from its copies and its parent, and reports whether its children must follow.
//
// It ends: a change comes from the root or goes to noLevel from a level, and what is connected to the root is a tree.
// A circle of parents, which a reporter can make, is never connected and so never changes.
func (l *Ledger) update(e *entry) bool {
	isConnected := e.hasCopies() && l.isConnected(e.parent)
	to := noLevel
	if isConnected {
		from := rootPlace
		least := level(fleet.Device)
		if e.parent != root {
			p := l.slab.entry(e.parent)
			from, least = p.place, p.level
		}
		// A connected entry keeps its parent and so its place.
		e.place = from.child(e.id)
		for to = least; to < noLevel && e.copies[to] == 0; to++ {
		}
	}
	isChanged := isConnected != (e.flags&connected != 0) || to != e.level
	if to != e.level {
		if to == noLevel {
			l.ix.shard(e.place).remove(e.place, l.slot)
		} else {
			l.ix.shard(e.place).put(e.place, newMember(l.slot, to))
		}
		e.level = to
	}
	l.mark(e, isConnected)
	return isChanged
}

// mark sets the flags and the counters that follow from them.
func (l *Ledger) mark(e *entry, isConnected bool) {
	isOrphan := e.hasCopies() && !isConnected
	if isOrphan != (e.flags&orphan != 0) {
		e.flags ^= orphan
		if isOrphan {
			l.orphans++
		} else {
			l.orphans--
		}
	}
	if !isOrphan && e.flags&waiting != 0 {
		e.flags &^= waiting
		l.waiting--
	}
	e.flags &^= connected
	if isConnected {
		e.flags |= connected
	}
}

// isConnected reports whether blocks below a parent, the root or an entry, are connected.
func (l *Ledger) isConnected(parent at) bool {
	return parent == root || l.slab.entry(parent).flags&connected != 0
}

// unlink takes an entry off its parent and frees whichever of the two is of no more use.
func (l *Ledger) unlink(i at) {
	parent := l.slab.entry(i).parent
	l.slab.unlink(i)
	l.bury(i)
	if parent >= 0 && parent != i {
		l.bury(parent)
	}
}

// bury frees an entry that is neither held nor anybody's parent. It goes no further up: a ghost has no parent.
func (l *Ledger) bury(i at) {
	e := l.slab.entry(i)
	if e.flags&inUse == 0 || e.isHeld() || e.first != nowhere {
		return
	}
	delete(l.byID, e.id)
	l.slab.give(i)
	l.ix.budget.give(1)
}
