package sim

import (
	"fmt"
	"math"
	"slices"
)

// Change is what happens to an engine while requests are served.
type Change struct {
	At     float64 // virtual second
	Engine int
	Kind   ChangeKind
	Speed  float64 // from a Pace on, in units of the Model's
}

// ChangeKind says what happens.
type ChangeKind uint8

// The kinds.
const (
	// Join brings an engine that is absent, idle and with an empty cache; one that drains takes requests again.
	Join ChangeKind = iota
	// Drain lets it finish what it has and take nothing new.
	Drain
	// Kill takes it away with all that it was doing and all that it had cached. Its requests are sent again at that
	// moment: one without a first token goes on waiting for it, one with a first token begins anew.
	//
	// Of one that has vanished it is the moment from which on everybody knows.
	Kill
	// Vanish takes it away as Kill does, and nobody who chooses knows before a Kill or a Join: it looks idle. Each request that it
	// had fails at once, and each that is sent to it when a second has passed, as a gateway that cannot connect finds out. The
	// gateway says so and asks again, for any engine but those where the request has failed.
	Vanish
	// Pace makes it faster or slower from its next iteration on.
	Pace
)

// Watcher learns of changes at the moment they happen: of a Kill with the jobs that were lost, before they are sent again.
type Watcher interface {
	Changed(t float64, c Change, lost []*Job)
	// Failed tells of a request that an engine has failed which had vanished.
	Failed(t float64, j *Job)
}

// standing is what an engine is to those who choose.
type standing uint8

const (
	present standing = iota
	draining
	absent
)

const (
	minSpeed = 1e-3
	maxSpeed = 1e3

	failsAfter = 1.0 // seconds until it is known of a request that nobody takes it
)

// at is the model of an engine that is so many times as fast in everything.
func (m *Model) at(speed float64) Model {
	out := *m
	for _, cost := range []*float64{
		&out.PrefillPerToken, &out.PrefillPerTokenContext, &out.IterationFixed, &out.IterationBase, &out.DecodePerKVToken,
	} {
		*cost /= speed
	}
	return out
}

// speed is an engine's at the beginning.
func (o *Options) speed(engine int) float64 {
	if o.Speeds == nil {
		return 1
	}
	return o.Speeds[engine]
}

// first is an engine's standing at the beginning.
func (o *Options) first(engine int) standing {
	for _, c := range o.Changes {
		if c.Engine == engine && c.Kind != Pace {
			if c.Kind == Join {
				return absent
			}
			break
		}
	}
	return present
}

func (o *Options) checkChanges() error {
	if o.Speeds != nil && len(o.Speeds) != o.Engines {
		return fmt.Errorf("Options.Speeds: got %d, want one for each of Options.Engines (%d)", len(o.Speeds), o.Engines)
	}
	for _, s := range o.Speeds {
		if err := inRange("Options.Speeds", s, minSpeed, maxSpeed); err != nil {
			return err
		}
	}
	last := 0.0
	for _, c := range o.Changes {
		if err := inRange("Change.At", c.At, last, maxSeconds); err != nil {
			return err
		}
		last = c.At
		if err := inRange("Change.Engine", c.Engine, 0, o.Engines-1); err != nil {
			return err
		}
		if c.Kind > Pace {
			return fmt.Errorf("Change.Kind: got %d, want at most %d", c.Kind, Pace)
		}
		if c.Kind == Pace {
			if err := inRange("Change.Speed", c.Speed, minSpeed, maxSpeed); err != nil {
				return err
			}
		}
	}
	return nil
}

// Takes reports whether an engine is there for the request in question, as far as is known.
func (f *Fleet) Takes(engine int) bool {
	return f.engines[engine].standing == present && !slices.Contains(f.without, engine)
}

// taking lists the engines that Takes says are there. The slice is good until the next call.
func (f *Fleet) taking() []int {
	f.scratch = f.scratch[:0]
	for e := range f.engines {
		if f.Takes(e) {
			f.scratch = append(f.scratch, e)
		}
	}
	return f.scratch
}

// nextChange is when the next change is due; +Inf: none is.
func (f *Fleet) nextChange() float64 {
	if len(f.changes) == 0 {
		return math.Inf(1)
	}
	return f.changes[0].At
}

// change lets the change happen that is due.
func (f *Fleet) change() {
	c := f.changes[0]
	f.changes = f.changes[1:]
	e := f.engines[c.Engine]
	var lost []*Job
	switch c.Kind {
	case Join:
		if e.isGone && e.standing == present { // nobody knows yet
			f.tell(Change{At: c.At, Engine: c.Engine, Kind: Kill}, nil)
		}
		e.standing, e.isGone = present, false
	case Drain:
		if e.standing == present {
			e.standing = draining
		}
	case Kill:
		e.standing = absent
		if e.isGone {
			break // what is on its way there fails yet
		}
		lost = e.die(f.now)
		f.inFlight[c.Engine] = 0
		f.lost = append(f.lost, lost...)
	case Vanish:
		for _, j := range e.die(f.now) {
			f.fail(j)
		}
		e.isGone = true
	case Pace:
		e.next = f.options.Model.at(c.Speed)
		if !e.isRunning {
			e.model = e.next
		}
		e.cutShort(f.now)
	}
	f.tell(c, lost)
}

func (f *Fleet) tell(c Change, lost []*Job) {
	if f.options.Watcher != nil {
		f.options.Watcher.Changed(f.now, c, lost)
	}
}

// fail gives a job back that an engine has failed which had vanished.
func (f *Fleet) fail(j *Job) {
	f.inFlight[j.Engine]--
	j.failed = append(j.failed[:len(j.failed):len(j.failed)], j.Engine)
	f.lost = append(f.lost, j)
	if f.options.Watcher != nil {
		f.options.Watcher.Failed(f.now, j)
	}
}

// nextFailure is when the next request fails that was sent to an engine which had vanished; +Inf: none is on its way.
func (f *Fleet) nextFailure() float64 {
	if len(f.failing) == 0 {
		return math.Inf(1)
	}
	return f.failing[0].at
}

// failure is a request that will have failed at a moment.
type failure struct {
	at  float64
	job *Job
}

// die empties the engine at t and gives the jobs it had, in the order in which they came.
func (e *engine) die(t float64) []*Job {
	if e.isRunning {
		e.busy += max(t-max(e.begin, e.fleet.measuredFrom), 0)
	}
	lost := slices.Concat(e.decode, e.prefill, e.waiting)
	slices.SortStableFunc(lost, func(a, b *Job) int { return a.Request.Index - b.Request.Index })
	e.waiting, e.prefill, e.decode, e.chunks = nil, nil, nil, nil
	e.cache, e.private, e.decodeKV, e.pending, e.isRunning = newCache(), 0, 0, 0, false
	return lost
}

// takeLost gives the jobs that have to be sent again, and forgets them.
func (f *Fleet) takeLost() []*Job {
	lost := f.lost
	f.lost = nil
	return lost
}
