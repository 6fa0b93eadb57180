package load

// believed lists the targets whose report is believed, from the oldest report to the newest. The tracker's clock never goes back, so a
// report is always the newest when it comes.
type believed struct{ first, last *target }

// hearing is a target's place among those that are believed.
type hearing struct {
	older, newer *target
	isIn         bool
}

// hear puts a target last.
func (h *believed) hear(g *target) {
	h.forget(g)
	g.older, g.isIn = h.last, true
	if h.last == nil {
		h.first = g
	} else {
		h.last.newer = g
	}
	h.last = g
}

// forget takes a target out, if it is in.
func (h *believed) forget(g *target) {
	if !g.isIn {
		return
	}
	if g.older == nil {
		h.first = g.newer
	} else {
		g.older.newer = g.newer
	}
	if g.newer == nil {
		h.last = g.older
	} else {
		g.newer.older = g.older
	}
	g.hearing = hearing{}
}

// age forgets the reports that have become too old to be believed, and tells the peers of whose they were.
func (t *Tracker) age() {
	for g := t.believed.first; g != nil && !t.isFresh(&g.report); g = t.believed.first {
		t.believed.forget(g)
		if g.peers != nil {
			g.peers.report(g)
		}
	}
}
