package sim

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Options describe a fleet. Engines must be given; the rest runs at zero.
type Options struct {
	Engines   int            // how many, at least 1
	Model     Model          // what they run; zero: Model8B
	BlockSize int            // tokens in a block of their caches, 1 to block.MaxSize; 0: 64
	Keyspace  block.Keyspace // of their block ids
	Sinks     []Sink         // one per engine, for its reports; nil: none
	Observer  Observer       // for the life of requests; nil: none
	LoadEvery float64        // seconds between two load samples of an engine, at least 0.001; 0: no samples
	Speeds    []float64      // by engine, in units of Model's: half as fast takes twice as long for everything; nil: all 1
	Changes   []Change       // in order of time; an engine that joins before anything else happens to it is absent until then
	Watcher   Watcher        // of Changes; nil: nobody
}

// MaxEngines bounds Options.Engines.
const MaxEngines = 4096

// ErrTooLong refuses a request that would not fit an engine's KV cache even alone: see Fleet.Fits.
var ErrTooLong = errors.New("sim: request is longer than the engine's memory")

// Fleet is a set of engines with one virtual clock, which moves only when the caller says so. Time is seconds from 0. It
// is not safe for concurrent use.
type Fleet struct {
	options  Options
	engines  []*engine
	inFlight []int
	observer Observer
	now      float64
	moving   transfers
	changes  []Change  // to come
	lost     []*Job    // of engines that were killed, or have failed them, to be sent again
	failing  []failure // in order of time
	without  []int     // engines that have failed the request in question
	scratch  []int     // of taking

	round        int // of measurement
	measuredFrom float64
	tally        tally
	keep         bool // measured requests one by one
}

// NewFleet makes idle engines with empty caches at time 0.
func NewFleet(o Options) (*Fleet, error) {
	if err := o.normalize(); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	f := &Fleet{options: o, inFlight: make([]int, o.Engines), observer: o.Observer}
	if f.observer == nil {
		f.observer = noReports{}
	}
	f.changes = o.Changes
	for i := range o.Engines {
		e := &engine{
			next: o.Model.at(o.speed(i)), blockSize: o.BlockSize, capacity: o.Model.KVTokens / o.BlockSize,
			sink: noReports{}, fleet: f, cache: newCache(), nextLoad: math.Inf(1), standing: o.first(i),
		}
		e.model = e.next
		if o.Sinks != nil && o.Sinks[i] != nil {
			e.sink = o.Sinks[i]
		}
		if o.LoadEvery > 0 {
			// Real workers do not report in step.
			e.nextLoad = o.LoadEvery * float64(i+1) / float64(o.Engines)
		}
		f.engines = append(f.engines, e)
	}
	return f, nil
}

// normalize fills in defaults and refuses what cannot run.
func (o *Options) normalize() error {
	if o.Model == (Model{}) {
		o.Model = Model8B()
	}
	if o.BlockSize == 0 {
		o.BlockSize = 64
	}
	if err := inRange("Options.Engines", o.Engines, 1, MaxEngines); err != nil {
		return err
	}
	if err := inRange("Options.BlockSize", o.BlockSize, 1, block.MaxSize); err != nil {
		return err
	}
	if o.Sinks != nil && len(o.Sinks) != o.Engines {
		return fmt.Errorf("Options.Sinks: got %d, want one for each of Options.Engines (%d)", len(o.Sinks), o.Engines)
	}
	if o.LoadEvery != 0 {
		if err := inRange("Options.LoadEvery", o.LoadEvery, 1e-3, maxSeconds); err != nil {
			return err
		}
	}
	if err := o.checkChanges(); err != nil {
		return err
	}
	return o.Model.check(o.BlockSize)
}

// Now is the virtual time.
func (f *Fleet) Now() float64 { return f.now }

// Engines is how many there are.
func (f *Fleet) Engines() int { return len(f.engines) }

// InFlight is how many requests an engine (0 to Engines-1) has been given and not finished.
func (f *Fleet) InFlight(engine int) int { return f.inFlight[engine] }

// Unfinished is how many requests are in flight on all engines.
func (f *Fleet) Unfinished() int {
	n := 0
	for _, k := range f.inFlight {
		n += k
	}
	return n
}

// Generated is how many output tokens a job has by now.
func (f *Fleet) Generated(j *Job) int {
	n := j.generated
	if j.FirstToken > 0 && j.Finished == 0 {
		n += f.engines[j.Engine].iterationsBy(f.now)
	}
	return n
}

// Next is when something happens by itself: an iteration ends, a load sample is due, an engine changes. It is false if
// nothing will, which never is the case with Options.LoadEvery.
func (f *Fleet) Next() (t float64, ok bool) {
	_, t = f.next()
	t = min(t, f.moving.next(), f.nextChange(), f.nextFailure())
	return t, !math.IsInf(t, 1)
}

// next finds the engine whose turn it is; of several the first.
func (f *Fleet) next() (first *engine, t float64) {
	t = math.Inf(1)
	for _, e := range f.engines {
		if n := e.wakes(); n < t {
			first, t = e, n
		}
	}
	return first, t
}

// Advance moves the clock to the given time and lets everything happen that happens until then, in order of time; at
// one time, of one engine, an iteration ends before a sample is taken. A time that is past, above 1e10, or no number
// changes nothing.
func (f *Fleet) Advance(to float64) {
	if !(to >= f.now && to <= maxSeconds) {
		return
	}
	for {
		e, t := f.next()
		if at := f.nextFailure(); at <= min(t, to, f.moving.next(), f.nextChange()) {
			f.now = at
			j := f.failing[0].job
			f.failing = f.failing[1:]
			f.fail(j)
			continue
		}
		if at := f.nextChange(); at <= min(t, to, f.moving.next()) {
			f.now = at
			f.change()
			continue
		}
		if at := f.moving.next(); at <= min(t, to) {
			f.now = at
			f.arrive(f.moving.take())
			continue
		}
		if t > to {
			break
		}
		f.now = t
		if e.isRunning && e.end <= t {
			e.finish()
		} else {
			e.sample(t, f.options.LoadEvery)
		}
	}
	f.now = to
}

// Fits reports whether an engine can hold a request's prompt and output. One that does not fit is refused by Submit.
func (f *Fleet) Fits(r *Request) bool {
	e := f.engines[0]
	return e.need(r) <= e.capacity
}

// Submit gives a request to an engine, which must be present, or have vanished and not be back: see Takes. It has arrived at t: the clock is advanced to t, or if t is past, the request
// joins now, and its time to first token counts from t all the same. The job belongs to the Fleet and changes as time
// moves on.
func (f *Fleet) Submit(engine int, r *Request, t float64) (*Job, error) {
	if err := f.takes(engine, r, t); err != nil {
		return nil, err
	}
	f.Advance(t)
	return f.place(engine, r, t, nil), nil
}

func (f *Fleet) place(engine int, r *Request, t float64, on *onward) *Job {
	j := &Job{
		Request: r, Engine: engine, Arrived: t, onward: on,
		chain: r.Chain(f.options.Keyspace, f.options.BlockSize), round: f.round, failed: f.without,
	}
	f.inFlight[engine]++
	if e := f.engines[engine]; e.isGone {
		f.failing = append(f.failing, failure{f.now + failsAfter, j})
	} else {
		e.enqueue(j, f.now)
	}
	return j
}

// takes says why an engine cannot take a request.
func (f *Fleet) takes(engine int, r *Request, t float64) error {
	if err := inRange("engine", engine, 0, len(f.engines)-1); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	if err := inRange("arrival", t, 0, maxSeconds); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	if e := f.engines[engine]; e.standing == absent && !e.isGone {
		return fmt.Errorf("sim: engine %d is not there", engine)
	}
	if r.blockSize < 1 {
		return errors.New("sim: request was not made by ReadTrace")
	}
	if !f.Fits(r) {
		return ErrTooLong
	}
	return nil
}

// firstToken and finished are called by engines, with the clock at t.
func (f *Fleet) firstToken(j *Job, t float64) {
	j.FirstToken = t
	f.observer.FirstToken(t, j)
}

func (f *Fleet) finished(j *Job, t float64) {
	j.Finished = t
	f.inFlight[j.Engine]--
	if j.round == f.round {
		f.tally.add(j, f.keep)
	}
	f.observer.Finished(t, j)
}
