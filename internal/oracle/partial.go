package oracle

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
)

// A target whose blocks were given up at the memory limit is PARTIAL: what it is credited with is true, and there may be
// more. Three things make it whole again: its engine removes what is missing, a request finds it in the engine's cache, or
// there is room again and a snapshot is asked for, once. A digest that differs proves nothing meanwhile, and is followed by a
// snapshot once an hour at most.

const (
	// restoreEvery is how long a target is left alone after it was asked for a snapshot for the sake of the limit. It
	// doubles each time that has not lasted, so that an index which is full again and again costs ever fewer of them.
	restoreEvery = time.Minute
	restoreMost  = time.Hour
	// restoreShare is the share of the index that must be free before anybody is asked: a 16th.
	restoreShare = 16
	// doubtEvery is how often a digest of a partial target may cost a snapshot.
	doubtEvery = time.Hour
)

// restoring is a feed's history of such requests.
type restoring struct {
	at    time.Time // of the last one
	pause time.Duration
	owed  int // blocks that the one under way will bring back; 0: none is

	doubted time.Time // last snapshot asked for because a digest differed while blocks were missing
}

// mayDoubt reports whether a digest that differs is reason enough for a snapshot although blocks are missing: now and then,
// since what was lost on the way would otherwise stay lost for as long as the index is full. The one asked for takes the room
// of what it replaces, and beyond it only that of targets which have more.
func (r *restoring) mayDoubt(now time.Time) bool {
	if !r.doubted.IsZero() && now.Before(r.doubted.Add(doubtEvery)) {
		return false
	}
	r.doubted = now
	return true
}

// evictions is what acks have told of blocks that the index gave up.
type evictions struct{ shown, building uint64 }

// since is how many there were that no ack has told of. The feed is locked.
func (e *evictions) since(f *feed) uint64 {
	was := e.shown + e.building
	if f.ledger != nil {
		e.shown = f.ledger.Evicted()
	}
	if f.building != nil {
		e.building = f.building.Evicted()
	}
	return e.shown + e.building - was
}

// publish makes the view that was built the one that is shown.
func (e *evictions) publish() { *e = evictions{shown: e.building} }

// restore asks partial targets for snapshots as far as there is room for what they lack, those first that lack least. What
// was asked for and has not come yet counts as there, so that two of them do not count on the same room.
func (o *Oracle) restore(now time.Time) {
	if o.index.Evicted() == 0 {
		return
	}
	free := o.index.Free()
	if free <= o.index.Limit()/restoreShare {
		return
	}
	free /= 2 // what comes back must not be what drives others out
	type lack struct {
		f *feed
		n int
	}
	var all []lack
	o.feedsMu.RLock()
	feeds := slices.Clone(o.feeds)
	o.feedsMu.RUnlock()
	for _, f := range feeds {
		if f == nil || f.confidence(now) != Partial && f.confidence(now) != Stale {
			continue
		}
		f.mu.Lock()
		switch {
		case f.gone || f.session == nil || f.ledger == nil:
		case f.awaiting:
			free -= f.restoring.owed
		case f.building == nil && f.ledger.IsPartial() && !now.Before(f.restoring.at.Add(f.restoring.pause)):
			// It may be less, which would not matter if half of the index were free.
			all = append(all, lack{f, min(f.ledger.Missing(), o.index.Limit()/4)})
		}
		f.mu.Unlock()
	}
	slices.SortStableFunc(all, func(a, b lack) int { return cmp.Compare(a.n, b.n) })
	for _, l := range all {
		if l.n > free {
			return
		}
		if l.f.askBack(l.n, now) {
			free -= l.n
		}
	}
}

// askBack asks for a snapshot for the sake of what the limit has cost.
func (f *feed) askBack(missing int, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone || f.session == nil || f.awaiting || f.building != nil {
		return false
	}
	r := &f.restoring
	if now.Sub(r.at) > restoreMost {
		r.pause = 0
	}
	r.at, r.pause, r.owed = now, min(max(restoreEvery, 2*r.pause), restoreMost), missing
	q := f.await(ResyncCapacity)
	f.sign()
	f.tell(q)
	return true
}

// found brings blocks back that an engine has counted as cached although the limit had driven them out: they are in its
// cache, and it will not announce them again. chain is what the request's prompt is still believed to have there: as far
// as the target has not reported anything of it gone since the decision.
func (f *feed) found(chain []block.ID, cached int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone || f.awaiting || f.building != nil || f.ledger == nil || !f.ledger.IsPartial() {
		return 0
	}
	return f.ledger.Restore(chain[:min(cached, len(chain))])
}

// touch notes that the leading blocks of a chain are in use.
func (f *feed) touch(chain []block.ID) {
	if s := f.signs.Load(); s != nil && s.shown != nil && len(chain) > 0 {
		s.shown.Touch(chain[len(chain)-1])
	}
}
