package index

import "sync"

// garbage is the queue of what dropped ledgers have left: their entries, and their members in the shared table.
type garbage struct {
	mu      sync.Mutex
	queue   []*remains
	entries int // in the queue and in the hands of a Reclaim
}

// remains is one dropped ledger's. It belongs to whoever took it off the queue.
type remains struct {
	slot slot
	slab slab
}

// retire kills a ledger that has just lost its owner, queues what it had, and returns how many blocks it held.
func (ix *Index) retire(l *Ledger) int {
	l.mu.Lock()
	// A store that was waiting for the lock finds the ledger dead; one that came before is in the slab. Either way
	// nothing is added to the lists under this slot from here on.
	l.isDead = true
	held, left := l.held, &remains{slot: l.slot, slab: l.slab}
	l.reset()
	l.mu.Unlock()

	if left.slab.used == 0 {
		// Empty lives, however many, leave nothing behind.
		ix.release(left.slot)
		return held
	}
	g := &ix.garbage
	g.mu.Lock()
	g.queue = append(g.queue, left)
	g.entries += left.slab.used
	g.mu.Unlock()
	return held
}

// Reclaim frees memory of dropped ledgers, looking at no more than maxBlocks of their entries, and returns how many
// are left. Call it until it returns 0, or now and then. Calls may overlap.
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

// reclaim works on one dropped ledger and returns how many positions it looked at; 0 if there is nothing to take.
func (ix *Index) reclaim(most int) int {
	g := &ix.garbage
	g.mu.Lock()
	if len(g.queue) == 0 {
		g.mu.Unlock()
		return 0
	}
	r := g.queue[0]
	g.queue[0] = nil
	g.queue = g.queue[1:]
	g.mu.Unlock()

	seen, freed := ix.dissolve(r, most)
	ix.budget.give(freed)
	isDone := r.slab.used == 0
	if isDone {
		ix.release(r.slot)
	}

	g.mu.Lock()
	g.entries -= freed
	if !isDone {
		g.queue = append(g.queue, r)
	}
	if len(g.queue) == 0 {
		g.queue = nil
	}
	g.mu.Unlock()
	return seen
}

// dissolve takes entries off the end of a slab, and their members out of the shared table.
func (ix *Index) dissolve(r *remains, most int) (seen, freed int) {
	s := &r.slab
	for seen < most && s.used > 0 {
		s.end--
		seen++
		if e := s.entry(s.end); e.flags&inUse != 0 {
			if e.level != noLevel {
				ix.shard(e.place).remove(e.place, r.slot)
			}
			s.used--
			freed++
		}
		if s.end&(chunkLen-1) == 0 {
			s.chunks[s.end>>chunkBits] = nil
		}
	}
	return seen, freed
}

// room grants up to want entries. When there are none, what dropped ledgers still hold is freed first: a store is not
// refused for the sake of garbage.
func (ix *Index) room(want int) int {
	for {
		if got := ix.budget.take(want); got > 0 {
			return got
		}
		// The caller has its ledger's lock. That is in order: garbage belongs to no ledger.
		if ix.reclaim(chunkLen) == 0 {
			return 0
		}
	}
}
