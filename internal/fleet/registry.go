package fleet

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of the registry.
var (
	// ErrOldIncarnation refuses a report from a former life of the engine.
	ErrOldIncarnation = errors.New("fleet: incarnation is below the known one")
	// ErrContradiction refuses a spec that changes the model, block size or rank count of a living incarnation.
	ErrContradiction = errors.New("fleet: spec contradicts the same incarnation")
	// ErrFull refuses a worker beyond the limit.
	ErrFull = errors.New("fleet: too many workers")
	// ErrUnknown names a worker that is not there.
	ErrUnknown = errors.New("fleet: no such worker")
)

// View is the fleet at one moment. It never changes and may be read by any number of goroutines.
type View struct {
	workers []*Worker            // ordered by name
	byName  map[string]*Worker   // the same
	byModel map[string][]*Worker // ordered by name
	targets []*Worker            // by TargetID; nil where unused
}

// Workers lists all workers ordered by name. The slice must not be changed.
func (v *View) Workers() []*Worker { return v.workers }

// Worker finds one by name, or nil.
func (v *View) Worker(name string) *Worker { return v.byName[name] }

// Model lists the workers of a model ordered by name, or nil. The slice must not be changed.
func (v *View) Model(model string) []*Worker { return v.byModel[model] }

// OnlyModel is the model of all workers; false: there are several, or none.
func (v *View) OnlyModel() (model string, ok bool) {
	for model = range v.byModel {
		return model, len(v.byModel) == 1
	}
	return "", false
}

// Target tells whose target an id is, or nil.
func (v *View) Target(id TargetID) *Worker {
	if int(id) >= len(v.targets) {
		return nil
	}
	return v.targets[id]
}

// Registry is the writable fleet. All methods may be called concurrently.
type Registry struct {
	maxWorkers int
	view       atomic.Pointer[View]

	mu   sync.Mutex
	byID []*Worker // by TargetID
	free []TargetID
	born uint64 // lives begun
}

// NewRegistry makes an empty fleet of at most maxWorkers.
func NewRegistry(maxWorkers int) *Registry {
	r := &Registry{maxWorkers: maxWorkers}
	r.view.Store(&View{})
	return r
}

// View is the fleet now.
func (r *Registry) View() *View { return r.view.Load() }

// Change says what a registration did.
type Change struct {
	Worker  *Worker    // as it is now
	IsNew   bool       // its targets are new: a new worker, or a new life of a known one
	Dropped []TargetID // targets of the former life; give them to Recycle once nothing refers to them
}

// Check says with which error Register would refuse. It changes nothing.
func (r *Registry) Check(spec *Spec, incarnation uint64) error {
	return r.view.Load().check(spec, incarnation, r.maxWorkers)
}

func (v *View) check(spec *Spec, incarnation uint64, maxWorkers int) error {
	old := v.byName[spec.Worker]
	switch {
	case old == nil && len(v.workers) >= maxWorkers:
		return ErrFull
	case old == nil:
		return nil
	case incarnation != 0 && incarnation < old.Incarnation:
		return ErrOldIncarnation
	case incarnation != 0 && incarnation == old.Incarnation && !old.sameLife(spec):
		return ErrContradiction
	default:
		return nil
	}
}

// Register adds a worker, updates it, or begins a new life of it.
//
// A higher incarnation, or a registration without one (incarnation 0) that changes model, block size or rank count,
// begins a new life: new targets, the old ones in Change.Dropped. The same incarnation updates the rest of the spec in
// place. A lower one is refused with ErrOldIncarnation.
func (r *Registry) Register(spec Spec, incarnation uint64, now time.Time) (Change, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	if err := v.check(&spec, incarnation, r.maxWorkers); err != nil {
		return Change{}, err
	}
	old := v.byName[spec.Worker]
	next := &Worker{Spec: spec.clone(), Incarnation: incarnation, RegisteredAt: now.UnixNano()}

	switch {
	case old == nil:
	case incarnation > old.Incarnation && old.Incarnation != 0, !old.sameLife(&spec):
		next.IsDraining = old.IsDraining
	default:
		// The same life goes on: a first report of a worker that was registered by hand, or an update.
		next.IsDraining = old.IsDraining
		next.Life = old.Life
		next.Targets = old.Targets
		next.IsLost = old.IsLost
		next.RegisteredAt = old.RegisteredAt
		next.Incarnation = max(incarnation, old.Incarnation)
		for _, id := range next.Targets {
			r.byID[id] = next
		}
		r.publish(v, old, next)
		return Change{Worker: next}, nil
	}

	r.born++
	next.Life = r.born
	next.Targets = make([]TargetID, spec.DPSize)
	for i := range next.Targets {
		next.Targets[i] = r.take(next)
	}
	c := Change{Worker: next, IsNew: true}
	if old != nil {
		c.Dropped = old.Targets
		for _, id := range old.Targets {
			r.byID[id] = nil
		}
	}
	r.publish(v, old, next)
	return c, nil
}

// take gives out an unused id.
func (r *Registry) take(w *Worker) TargetID {
	if n := len(r.free); n > 0 {
		id := r.free[n-1]
		r.free = r.free[:n-1]
		r.byID[id] = w
		return id
	}
	r.byID = append(r.byID, w)
	return TargetID(len(r.byID) - 1)
}

// Remove forgets a worker. Its targets are unknown to every View loaded from now on; hand them to Recycle once nothing
// refers to them.
func (r *Registry) Remove(name string) (*Worker, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	old := v.byName[name]
	if old == nil {
		return nil, ErrUnknown
	}
	for _, id := range old.Targets {
		r.byID[id] = nil
	}
	r.publish(v, old, nil)
	return old, nil
}

// Recycle returns ids whose targets are gone and which no state room knows any more.
func (r *Registry) Recycle(ids []TargetID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = append(r.free, ids...)
}

// SetDraining takes a worker out of new choices, or back in.
func (r *Registry) SetDraining(name string, draining bool) (*Worker, error) {
	return r.edit(name, func(w *Worker) { w.IsDraining = draining })
}

// SetLost marks a worker that gave no sign of life for longer than the grace, or one that is back.
func (r *Registry) SetLost(name string, lost bool) (*Worker, error) {
	return r.edit(name, func(w *Worker) { w.IsLost = lost })
}

func (r *Registry) edit(name string, change func(*Worker)) (*Worker, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	old := v.byName[name]
	if old == nil {
		return nil, ErrUnknown
	}
	next := *old
	change(&next)
	if next.IsDraining == old.IsDraining && next.IsLost == old.IsLost {
		return old, nil
	}
	for _, id := range next.Targets {
		r.byID[id] = &next
	}
	r.publish(v, old, &next)
	return &next, nil
}

// publish makes the view in which old is replaced by next; either may be nil.
func (r *Registry) publish(v *View, old, next *Worker) {
	nv := &View{
		workers: replace(v.workers, old, next),
		byName:  make(map[string]*Worker, len(v.byName)+1),
		byModel: make(map[string][]*Worker, len(v.byModel)+1),
		targets: slices.Clone(r.byID),
	}
	for _, w := range nv.workers {
		nv.byName[w.Worker] = w
	}
	maps.Copy(nv.byModel, v.byModel)
	for _, w := range []*Worker{old, next} {
		if w != nil {
			delete(nv.byModel, w.Model)
		}
	}
	for _, w := range nv.workers {
		if (old != nil && w.Model == old.Model) || (next != nil && w.Model == next.Model) {
			nv.byModel[w.Model] = append(nv.byModel[w.Model], w)
		}
	}
	r.view.Store(nv)
}

func replace(ws []*Worker, old, next *Worker) []*Worker {
	out := make([]*Worker, 0, len(ws)+1)
	for _, w := range ws {
		if w != old {
			out = append(out, w)
		}
	}
	if next == nil {
		return out
	}
	i, _ := slices.BinarySearchFunc(out, next.Worker, func(w *Worker, name string) int { return strings.Compare(w.Worker, name) })
	return slices.Insert(out, i, next)
}
