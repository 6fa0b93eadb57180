package oracle

import (
	"slices"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// unmatched notices a target whose blocks nobody asks for: an engine whose callers send other tokens than it caches, or
// another model name, adapter or salt. Nothing is wrong with any single message then, and nothing is ever matched.
//
// Only one decision in watchEvery looks, so that the others do not pay for it. How many questions there were since one
// began with a block that the target holds is in board.asked.
type unmatched struct {
	isWarned bool // it held enough once, for as many questions; guarded by the lives lock
	isFound  atomic.Bool
}

// find says whether it is one whose blocks nobody asks for. What is found is counted, so that decisions look at a thousand
// feeds only when there is something to take back.
func (u *unmatched) find(o *Oracle, is bool) {
	if u.isFound.Load() == is || u.isFound.Swap(is) == is {
		return
	}
	if is {
		o.unmatched.Add(1)
	} else {
		o.unmatched.Add(-1)
	}
}

const (
	watchEvery         = 16
	unmatchedBlocks    = 64   // so many must be held
	unmatchedQuestions = 4096 // and so many questions have found none of them, once or twice
)

// watch counts for each target whether it has the beginning of a prompt. The deciding lock is held.
func (o *Oracle) watch(r *RouteRequest, w *work) {
	asks := func(size int) bool { return block.Usable(r.Prompt.Length, size) > 0 }
	if w.roster == nil {
		for i := range w.targets {
			if h := &w.targets[i].hold; asks(w.prompts[h.size].size) {
				o.board.cover(h.id)
				o.board.asked[h.id] += watchEvery
				o.asksFor(h)
			}
		}
		return
	}
	all := true
	for i := range w.prompts {
		all = all && asks(w.prompts[i].size)
	}
	var has [maxKinds]bool
	for k := range w.kinds {
		has[k] = w.kinds[k].hold.held.Total() > 0
	}
	isFull, isFound := w.roster.full > 0, o.unmatched.Load() > 0
	for i, id := range w.lineup.ids {
		if isFull && o.board.posts[id].isFull {
			continue // nobody asks it anything
		}
		seat := &w.roster.seats[w.lineup.seats[i]]
		if !all && !asks(seat.worker.BlockSize) {
			continue
		}
		if o.board.asked[id] += watchEvery; has[w.kind[i]] {
			o.board.asked[id] = 0
			if isFound {
				seat.feed.unmatched.find(o, false)
			}
		}
	}
	for i := range w.holds {
		if h := &w.holds[i]; asks(w.prompts[h.size].size) {
			o.asksFor(h)
		}
	}
}

// asksFor begins to count anew for a target that has the beginning of a prompt.
func (o *Oracle) asksFor(h *hold) {
	if h.held.Total() == 0 {
		return
	}
	o.board.asked[h.id] = 0
	if f := o.feed(h.id); f != nil {
		f.unmatched.find(o, false)
	}
}

// askAnew begins to count anew.
func (o *Oracle) askAnew(id fleet.TargetID) {
	o.deciding.Lock()
	defer o.deciding.Unlock()
	if int(id) < len(o.board.asked) {
		o.board.asked[id] = 0
	}
}

// findUnmatched looks at the counts of all targets. The lives lock is held.
func (o *Oracle) findUnmatched(view *fleet.View) {
	for _, id := range o.oftenAsked() {
		w, f := view.Target(id), o.feed(id)
		if w == nil || f == nil || f.unmatched.isFound.Load() {
			continue
		}
		if !f.mu.TryLock() {
			continue // a report is being applied; there is time
		}
		held := heldBlocks(f.ledger)
		f.mu.Unlock()
		u := &f.unmatched
		o.askAnew(id)
		switch {
		case held < unmatchedBlocks:
			u.isWarned = false
		case !u.isWarned:
			u.isWarned = true // it may have come to hold them only now
		default:
			u.isWarned = false
			u.find(o, true)
			o.obs.Unmatched(w, slices.Index(w.Targets, id), held)
		}
	}
}

// oftenAsked lists targets of whose blocks none began a question for long.
func (o *Oracle) oftenAsked() (ids []fleet.TargetID) {
	o.deciding.Lock()
	defer o.deciding.Unlock()
	for id, n := range o.board.asked {
		if n >= unmatchedQuestions {
			ids = append(ids, fleet.TargetID(id))
		}
	}
	return ids
}
