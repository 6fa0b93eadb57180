package client

import (
	"slices"
	"sync"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// amnesiaGrace is how long a worker that vanished with a broken watch is still believed in: an oracle that restarts knows
// no workers until they have come back, which takes each of them one reconnect.
const amnesiaGrace = 30 * time.Second

// fleet is the last known list of workers, for the fallback. mu is a leaf lock.
type fleet struct {
	mu       sync.RWMutex
	known    bool // some list was seen
	current  fleetList
	held     fleetList // in the list before the watch broke and not in one since
	heldTill time.Time
	watching bool      // a watch keeps current right
	seenAt   time.Time // last list, or the end of the watch
}

// fleetList is one look, READY workers only, by model.
type fleetList map[string][]*fleetWorker

type fleetWorker struct {
	name, address string
	ranks         uint32
	roles         []Role
	labels        map[string]string
}

// set takes a new list. first marks the first one after the watch (or the poll) had failed.
func (f *fleet) set(workers []*kvoraclev1.Worker, first, watching bool, now time.Time) {
	next := make(fleetList)
	named := make(map[string]bool, len(workers))
	for _, w := range workers {
		spec := w.GetSpec()
		named[spec.GetWorkerId()] = true
		if w.GetState() != kvoraclev1.WorkerState_WORKER_STATE_READY {
			continue
		}
		next[spec.GetModel()] = append(next[spec.GetModel()], &fleetWorker{
			name:    spec.GetWorkerId(),
			address: spec.GetAddress(),
			ranks:   max(spec.GetDpSize(), 1),
			roles:   spec.GetRoles(),
			labels:  spec.GetLabels(),
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if first && f.known {
		if !now.Before(f.heldTill) {
			f.held = make(fleetList)
		}
		for model, ws := range f.current {
			f.held[model] = append(f.held[model], ws...)
		}
		f.heldTill = now.Add(amnesiaGrace)
	}
	// Whoever is listed, in whatever state, needs no memory of ours.
	for model, ws := range f.held {
		f.held[model] = slices.DeleteFunc(ws, func(w *fleetWorker) bool { return named[w.name] })
	}
	f.known, f.current, f.watching, f.seenAt = true, next, watching, now
}

// lost says that nothing keeps the list right any more.
func (f *fleet) lost(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watching {
		f.watching, f.seenAt = false, now
	}
}

// candidates are the targets of the list that may take the request; those that are held count only if there are none.
func (f *fleet) candidates(r *Request, now time.Time) []Target {
	f.mu.RLock()
	defer f.mu.RUnlock()
	c := f.current.candidates(r)
	if len(c) == 0 && now.Before(f.heldTill) {
		c = f.held.candidates(r)
	}
	return c
}

// vouches reports whether a recent list has the model: then an oracle that does not know it has forgotten it.
func (f *fleet) vouches(model string, now time.Time) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	recent := f.watching || f.known && now.Sub(f.seenAt) < amnesiaGrace
	return recent && len(f.current[model]) > 0 || now.Before(f.heldTill) && len(f.held[model]) > 0
}

// names are the workers of the list and those that are held.
func (f *fleet) names() map[string]bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	names := make(map[string]bool)
	for _, l := range []fleetList{f.current, f.held} {
		for _, ws := range l {
			for _, w := range ws {
				names[w.name] = true
			}
		}
	}
	return names
}

// age is how long ago the list was right; negative if there never was one.
func (f *fleet) age(now time.Time) time.Duration {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case !f.known:
		return -1
	case f.watching:
		return 0
	default:
		return now.Sub(f.seenAt)
	}
}

func (l fleetList) candidates(r *Request) []Target {
	allowed, denied := nameSet(r.Allowed), nameSet(r.Denied)
	out := make([]Target, 0, len(l[r.Model]))
	for _, w := range l[r.Model] {
		if len(r.Allowed) > 0 && !allowed[w.name] || denied[w.name] || !w.serves(r.Phase) || !w.hasLabels(r.RequiredLabels) {
			continue
		}
		for rank := range w.ranks {
			out = append(out, Target{Worker: w.name, Rank: rank, Address: w.address})
		}
	}
	return out
}

// serves reports whether the worker's roles fit the phase. An aggregated worker does everything; for PhaseBoth nobody else
// does, see fallbackPair.
func (w *fleetWorker) serves(p Phase) bool {
	var want Role
	switch p {
	case kvoraclev1.Phase_PHASE_UNSPECIFIED, kvoraclev1.Phase_PHASE_BOTH:
		want = RoleAggregated
	case kvoraclev1.Phase_PHASE_PREFILL:
		want = RolePrefill
	case kvoraclev1.Phase_PHASE_DECODE:
		want = RoleDecode
	default:
		return false
	}
	return len(w.roles) == 0 || slices.Contains(w.roles, want) || slices.Contains(w.roles, RoleAggregated) ||
		slices.Contains(w.roles, kvoraclev1.Role_ROLE_UNSPECIFIED)
}

func (w *fleetWorker) hasLabels(want map[string]string) bool {
	for k, v := range want {
		if have, ok := w.labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func nameSet(names []string) map[string]bool {
	if len(names) == 0 {
		return nil
	}
	set := make(map[string]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	return set
}
