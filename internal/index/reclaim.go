package index

import "sync"

// garbage is the queue of what dropped ledgers have left: their parts, and their members in the lists.
type garbage struct {
	mu      sync.Mutex
	queue   []*remains
	entries int // in the queue and in the hands of a Reclaim
}

// remains is one dropped ledger's. It belongs to whoever took it off the queue.
type remains struct {
	key     member
	epoch   uint64 // whoever entered up to it may still believe in the ledger
	parts   []part
	entries int // not paid for yet
	paid    int // entries paid for by steps of Reclaim and not used up yet
}

// retire kills a ledger that has just lost its owner, queues what it had, and returns how many blocks it held.
func (ix *Index) retire(l *Ledger) int {
	ix.mu.Lock()
	last := len(ix.living) - 1
	ix.living[l.livingAt] = ix.living[last]
	ix.living[l.livingAt].livingAt = l.livingAt
	ix.living[last] = nil
	ix.living = ix.living[:last]
	ix.mu.Unlock()

	l.mu.Lock()
	// A store that was waiting for the lock finds the ledger dead; one that came before is in the parts. Either way
	// nothing is added to the lists under this slot from here on.
	l.isDead = true
	held, left := l.held, &remains{key: l.key, parts: l.parts, entries: l.entries}
	l.reset()
	l.mu.Unlock()

	left.epoch = ix.epochs.turn()
	if left.entries == 0 && ix.epochs.oldest() > left.epoch {
		// Empty lives, however many, leave nothing behind.
		ix.release(left.key.slot())
		return held
	}
	g := &ix.garbage
	g.mu.Lock()
	g.queue = append(g.queue, left)
	g.entries += left.entries
	g.mu.Unlock()
	return held
}

func (ix *Index) hasGarbage() bool {
	ix.garbage.mu.Lock()
	defer ix.garbage.mu.Unlock()
	return ix.garbage.entries > 0
}

// Reclaim frees memory of dropped ledgers, no more than maxBlocks of their entries, and returns how many are left. Call
// it until it returns 0, or now and then. Calls may overlap. It never waits: what a Match under way may still look at is
// left for the next call.
func (ix *Index) Reclaim(maxBlocks int) (left int) {
	for maxBlocks > 0 {
		seen := ix.reclaim(maxBlocks)
		if seen == 0 {
			break
		}
		maxBlocks -= seen
	}
	ix.garbage.mu.Lock()
	defer ix.garbage.mu.Unlock()
	return ix.garbage.entries
}

// reclaim works on one dropped ledger and returns how many entries it freed, or 1 for an empty one; 0 if there is
// nothing to take.
func (ix *Index) reclaim(most int) int {
	g := &ix.garbage
	g.mu.Lock()
	// The readers are looked at after the ledger was dropped: who came between an earlier look and that would be missed.
	if len(g.queue) == 0 || g.queue[0].epoch >= ix.epochs.oldest() {
		g.mu.Unlock()
		return 0
	}
	r := g.queue[0]
	g.queue[0] = nil
	g.queue = g.queue[1:]
	g.mu.Unlock()

	n := min(most, r.entries)
	ix.dissolve(r, n)
	isDone := r.entries == 0
	if isDone {
		ix.release(r.key.slot())
	}

	g.mu.Lock()
	g.entries -= n
	// Under the same lock that Stats takes, so that one entry is not counted as neither.
	ix.budget.give(n)
	if !isDone {
		// In front, to keep the queue in the order of epochs.
		g.queue = append([]*remains{r}, g.queue...)
	}
	if len(g.queue) == 0 {
		g.queue = nil
	}
	g.mu.Unlock()
	return max(n, 1)
}

// dissolve pays for n entries and takes parts off the end that are paid for. A part goes as a whole, so a step may come
// one segment short of its size; the last one takes the rest.
func (ix *Index) dissolve(r *remains, n int) {
	q := ix.enter()
	defer ix.leave(q)
	r.entries -= n
	r.paid += n
	for k := len(r.parts) - 1; k >= 0; k-- {
		p := &r.parts[k]
		if p.flags&inUse != 0 {
			if r.entries > 0 && int(p.held) > r.paid {
				return
			}
			r.paid -= int(p.held)
			ix.unlist(p.segment, r.key)
			ix.parts.Add(-1)
		}
		r.parts = r.parts[:k]
	}
}
