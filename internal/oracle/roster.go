package oracle

import (
	"cmp"
	"slices"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// roster is a model's targets as decisions need them, made once for each change of the model's workers. What is above the
// blank line never changes; the deciding lock guards the rest.
type roster struct {
	model   string
	workers []*fleet.Worker // of the view that it was made from; tells which one that was
	seats   []seat          // by id
	plain   lineup          // who can take a request that asks for nobody in particular
	sizes   []int           // block sizes in use among those
	named   bool            // all of those say where they are reached
	steady  steadiness      // of all targets, at least these

	peers *load.Peers    // nil: nothing was decided yet
	busy  int            // of plain, those that are not full and have prefill pending
	full  int            // seats that are full
	least []policy.Least // of the board's rows of plain, in its order, where these are many; see board.settle
	stale []uint64       // a bit for each of them that is to be found anew
}

// seat is one target.
type seat struct {
	worker  *fleet.Worker
	feed    *feed
	most    int // requests that it takes at once; 0: any number
	id      fleet.TargetID
	rank    int32
	place   int32 // in plain; not isPlain: nowhere
	isPlain bool
}

// lineup is some of a roster's targets in ascending order, with their places among its seats.
type lineup struct {
	ids   []fleet.TargetID
	seats []int32
	sets  []index.Set // the same ids, by block size, in the order of work.prompts
}

// add appends a target whose block size is that of so many before it.
func (l *lineup) add(id fleet.TargetID, seat, size int) {
	l.ids, l.seats = append(l.ids, id), append(l.seats, int32(seat))
	for size >= len(l.sets) {
		l.sets = append(l.sets, nil)
	}
	s := &l.sets[size]
	if n := int(id/64) + 1 - len(*s); n > 0 {
		*s = append(*s, make(index.Set, n)...)
	}
	(*s)[id/64] |= 1 << (id % 64)
}

// reset empties it and keeps its memory.
func (l *lineup) reset() {
	l.ids, l.seats = l.ids[:0], l.seats[:0]
	for i := range l.sets {
		l.sets[i] = l.sets[i][:0]
	}
}

// rosterOf gives the roster of a model, or nil when no worker serves it.
func (o *Oracle) rosterOf(view *fleet.View, model string) *roster {
	workers := view.Model(model)
	if len(workers) == 0 {
		return nil
	}
	if ro := o.knownRoster(model); ro != nil && ro.isOf(workers) {
		return ro
	}
	o.rosterMu.Lock()
	defer o.rosterMu.Unlock()
	if ro := o.knownRoster(model); ro != nil && ro.isOf(workers) {
		return ro
	}
	ro := o.newRoster(model, workers)
	o.rosters.Range(func(m, _ any) bool {
		if name, ok := m.(string); !ok || len(view.Model(name)) == 0 {
			o.rosters.Delete(m)
		}
		return true
	})
	o.rosters.Store(model, ro)
	o.newest.Store(ro)
	return ro
}

func (o *Oracle) knownRoster(model string) *roster {
	if ro := o.newest.Load(); ro != nil && ro.model == model {
		return ro // nearly always: to look for it would cost more than it seems
	}
	v, _ := o.rosters.Load(model)
	ro, _ := v.(*roster)
	return ro
}

// forgetRoster makes the next decision look at a model's targets anew.
func (o *Oracle) forgetRoster(model string) {
	o.rosterMu.Lock()
	defer o.rosterMu.Unlock()
	o.rosters.Delete(model)
	o.newest.Store(nil)
}

// isCurrent reports whether nothing has changed since a roster was made.
func (o *Oracle) isCurrent(ro *roster) bool {
	return o.knownRoster(ro.model) == ro && ro.isOf(o.fleet.View().Model(ro.model))
}

// isOf reports whether the roster was made from this list: views that differ in a model's workers have lists of their own.
func (ro *roster) isOf(workers []*fleet.Worker) bool {
	return len(workers) == len(ro.workers) && len(workers) > 0 && &workers[0] == &ro.workers[0]
}

// newRoster makes a roster. rosterMu is held.
func (o *Oracle) newRoster(model string, workers []*fleet.Worker) *roster {
	ro := &roster{model: model, workers: workers, named: true}
	nobody := names{}
	o.feedsMu.RLock()
	ro.steady = o.steady
	for _, x := range workers {
		plain := exclusion(x, &RouteRequest{}, &nobody, &nobody, &nobody) == NotExcluded
		for rank, id := range x.Targets {
			if int(id) >= len(o.feeds) || o.feeds[id] == nil {
				continue // it is being born, or has just gone
			}
			ro.seats = append(ro.seats, seat{worker: x, feed: o.feeds[id], most: x.MaxRequests, id: id, rank: int32(rank), isPlain: plain})
			ro.named = ro.named && (!plain || x.Address != "")
			if plain && !slices.Contains(ro.sizes, x.BlockSize) {
				ro.sizes = append(ro.sizes, x.BlockSize)
			}
		}
	}
	o.feedsMu.RUnlock()
	slices.SortFunc(ro.seats, func(a, b seat) int { return cmp.Compare(a.id, b.id) })
	for i := range ro.seats {
		if s := &ro.seats[i]; s.isPlain {
			s.place = int32(len(ro.plain.ids))
			ro.plain.add(s.id, i, slices.Index(ro.sizes, s.worker.BlockSize))
		}
	}
	if n := len(ro.plain.ids); n >= o.sieveLeast {
		groups := (n + policy.LeastRows - 1) / policy.LeastRows
		ro.least, ro.stale = make([]policy.Least, groups), make([]uint64, (groups+63)/64)
	}
	return ro
}

// at finds a target's seat, or nil.
func (ro *roster) at(id fleet.TargetID) *seat {
	if len(ro.seats) == 0 || id < ro.seats[0].id {
		return nil
	}
	if i := int(id - ro.seats[0].id); i < len(ro.seats) && ro.seats[i].id == id {
		return &ro.seats[i] // ids without gaps
	}
	i, ok := slices.BinarySearchFunc(ro.seats, id, func(s seat, id fleet.TargetID) int { return cmp.Compare(s.id, id) })
	if !ok {
		return nil
	}
	return &ro.seats[i]
}

// enlist finds who may take a request, as far as load does not matter, and at which block sizes its prompt is wanted.
// False: nobody, which the long way explains.
func (o *Oracle) enlist(view *fleet.View, r *RouteRequest, w *work) bool {
	ro := o.rosterOf(view, r.Model)
	if ro == nil {
		return false
	}
	w.roster = ro
	if ro.isPlain(r) {
		w.lineup = ro.plain
		for _, size := range ro.sizes {
			w.promptFor(size)
		}
		return len(w.lineup.ids) > 0
	}
	allowed, denied, addresses := newNames(r.Allowed), newNames(r.Denied), newNames(r.Addresses)
	w.own.reset()
	for i := range ro.seats {
		if s := &ro.seats[i]; exclusion(s.worker, r, &allowed, &denied, &addresses) == NotExcluded {
			w.own.add(s.id, i, w.promptFor(s.worker.BlockSize))
		}
	}
	w.lineup = w.own
	return len(w.lineup.ids) > 0
}
