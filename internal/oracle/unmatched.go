package oracle

import (
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// unmatched notices a target whose blocks nobody asks for: an engine whose callers send other tokens than it caches, or
// another model name, adapter or salt. Nothing is wrong with any single message then, and nothing is ever matched.
//
// Only one decision in watchEvery looks, so that the others do not pay for it.
type unmatched struct {
	asked    atomic.Uint64 // questions since one began with a block that the target holds; changed under the deciding lock
	isWarned bool          // it held enough once, for as many questions; guarded by the lives lock
	isFound  atomic.Bool
}

const (
	watchEvery         = 16
	unmatchedBlocks    = 64   // so many must be held
	unmatchedQuestions = 4096 // and so many questions have found none of them, once or twice
)

// watch counts for each target whether it has the beginning of a prompt. The deciding lock is held.
func (o *Oracle) watch(r *RouteRequest, w *work) {
	for i := range w.targets {
		c := &w.targets[i]
		f := o.feed(c.id)
		if f == nil || block.Usable(r.Prompt.Length, w.prompts[c.size].size) == 0 {
			continue
		}
		if c.held.Total() > 0 {
			f.unmatched.asked.Store(0)
			f.unmatched.isFound.Store(false)
			continue
		}
		f.unmatched.asked.Add(watchEvery)
	}
}

// findUnmatched looks at the counts of a worker's targets. The lives lock is held.
func (o *Oracle) findUnmatched(w *fleet.Worker) {
	for rank, id := range w.Targets {
		f := o.feed(id)
		if f == nil || f.unmatched.asked.Load() < unmatchedQuestions || f.unmatched.isFound.Load() {
			continue
		}
		if !f.mu.TryLock() {
			continue // a report is being applied; there is time
		}
		held := heldBlocks(f.ledger)
		f.mu.Unlock()
		u := &f.unmatched
		u.asked.Store(0)
		switch {
		case held < unmatchedBlocks:
			u.isWarned = false
		case !u.isWarned:
			u.isWarned = true // it may have come to hold them only now
		default:
			u.isWarned = false
			u.isFound.Store(true)
			o.obs.Unmatched(w, rank, held)
		}
	}
}
