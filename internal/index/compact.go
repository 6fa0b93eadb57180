package index

import "github.com/kvoracle/kvoracle/internal/block"

// compact moves a ledger's entries together when most of its memory is unused, so that memory follows what is held and
// not what was once held. The work is paid for by the removals that made it necessary. Positions held by the caller are
// void afterwards; the shared table knows none.
func (l *Ledger) compact() {
	old := l.slab
	if !old.isSparse() {
		return
	}
	moved := make([]at, old.end)
	l.slab = newSlab()
	l.byID = make(map[block.ID]at, old.used)
	for i := at(0); i < old.end; i++ {
		if e := old.entry(i); e.flags&inUse != 0 {
			moved[i] = l.slab.take(e.id)
			l.byID[e.id] = moved[i]
			*l.slab.entry(moved[i]) = *e
		}
	}
	follow := func(i *at) {
		if *i >= 0 {
			*i = moved[*i]
		}
	}
	for i := at(0); i < l.slab.end; i++ {
		e := l.slab.entry(i)
		follow(&e.parent)
		follow(&e.first)
		follow(&e.next)
		follow(&e.prev)
	}
}
