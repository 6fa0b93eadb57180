package sim

import (
	"errors"
	"fmt"
	"math"
)

// Chooser decides which engine serves a request. One that must be told what happens is an Attached.
type Chooser interface {
	// Choose picks an engine (0 to Engines-1, one that Takes requests) for a request that is to be sent at virtual time t.
	// Of the fleet it may use the read-only methods, and should use only what a router could know.
	Choose(t float64, r *Request, f *Fleet) int
}

// submitted is a Chooser of this package that wants the jobs its choices became.
type submitted interface{ submitted(j *Job) }

// RunOptions describe a run. The zero value of all but Options.Engines runs.
type RunOptions struct {
	Options
	Speed  float64 // arrivals come so many times as fast as in the trace; 0: 1. Not with Users
	Warmup float64 // leading share of the requests (with Users: of Horizon) that is served but not measured, 0 to below 1

	// Users makes the loop a closed one: so many users work through the trace's sessions, one after the other. Each sends
	// a request, waits until it has finished, thinks for the next one's Delay and sends that. Sessions are handed out in
	// an order drawn from Seed, again and again; from the second time on, what a session does not share with others is
	// new. 0: an open loop, requests arrive when the trace says.
	Users int
	// Horizon is the virtual second after which users send nothing any more; 0: 600.
	Horizon float64
	// MostThought bounds a user's thinking, in seconds; 0: 120.
	MostThought float64
	// Seed varies the order of sessions.
	Seed uint64

	// Keep puts every measured request into Result.Requests.
	Keep bool
}

// Run serves a trace in virtual time from empty caches until the last request has finished. A request longer than an
// engine's memory is counted as refused, without asking the chooser. A choice that is no engine ends the run with an error.
func Run(tr *Trace, c Chooser, o RunOptions) (Result, error) {
	watcher, _ := c.(submitted)
	return run(tr, c, func(f *Fleet, r *Request, at float64) error {
		j, err := f.Submit(c.Choose(max(at, f.Now()), r, f), r, at)
		if err == nil && watcher != nil {
			watcher.submitted(j)
		}
		return err
	}, o)
}

// giving gives a request to the fleet that has arrived at that time, now or, if an engine was lost, before.
type giving func(f *Fleet, r *Request, at float64) error

// run is Run, with whoever chooses asked by way of give.
func run(tr *Trace, c any, give giving, o RunOptions) (Result, error) {
	if err := o.normalize(); err != nil {
		return Result{}, fmt.Errorf("sim: %w", err)
	}
	if a, ok := c.(interface{ Attach(o *Options) error }); ok {
		if err := a.Attach(&o.Options); err != nil {
			return Result{}, fmt.Errorf("sim: chooser: %w", err)
		}
	}
	var source arrivals = &openLoop{trace: tr, speed: o.Speed, warm: int(o.Warmup * float64(len(tr.Requests)))}
	if o.Users > 0 {
		loop, err := newClosedLoop(tr, &o)
		if err != nil {
			return Result{}, fmt.Errorf("sim: %w", err)
		}
		source = loop
	}
	f, err := NewFleet(o.Options)
	if err != nil {
		return Result{}, err
	}
	f.keep = o.Keep
	refused, err := serve(f, source, give)
	if failing, ok := c.(interface{ Err() error }); ok {
		if cause := failing.Err(); cause != nil {
			err = fmt.Errorf("sim: chooser: %w", cause)
		}
	}
	if err != nil {
		return Result{}, err
	}
	res := f.Result()
	res.Refused = refused
	return res, nil
}

// arrivals says what arrives next.
type arrivals interface {
	// next is when the next request arrives; +Inf: none is known.
	next() float64
	// take gives that request, and says whether the measurement begins with it.
	take() (r *Request, warm bool)
	// refused says that the request just taken was not served.
	refused(r *Request)
}

// serve is the loop: whatever happens first, an arrival or something in the fleet.
func serve(f *Fleet, source arrivals, give giving) (refused int, err error) {
	for {
		for _, j := range f.takeLost() {
			at := f.now
			if j.FirstToken == 0 {
				at = j.Arrived
			}
			f.without = j.failed
			err := give(f, j.Request, at)
			f.without = nil
			if err != nil {
				return 0, fmt.Errorf("%w, for request %d, sent again", err, j.Request.Index)
			}
		}
		at := source.next()
		if t, ok := f.Next(); ok && t <= at && (f.Unfinished() > 0 || !math.IsInf(at, 1)) {
			f.Advance(t) // may bring an earlier arrival
			continue
		}
		if math.IsInf(at, 1) {
			return refused, nil
		}
		r, warm := source.take()
		f.Advance(at)
		if warm {
			f.Measure()
			refused = 0
		}
		if !f.Fits(r) {
			refused++
			source.refused(r)
			continue
		}
		if err := give(f, r, at); err != nil {
			return 0, fmt.Errorf("%w, for request %d", err, r.Index)
		}
	}
}

// normalize fills in defaults and refuses what cannot run.
func (o *RunOptions) normalize() error {
	if o.Speed == 0 {
		o.Speed = 1
	}
	if o.Horizon == 0 {
		o.Horizon = 600
	}
	if o.MostThought == 0 {
		o.MostThought = 120
	}
	if err := inRange("RunOptions.Speed", o.Speed, 1e-3, 1e6); err != nil {
		return err
	}
	if !(o.Warmup >= 0 && o.Warmup < 1) {
		return fmt.Errorf("RunOptions.Warmup: got %v, want 0 to below 1", o.Warmup)
	}
	if err := inRange("RunOptions.Users", o.Users, 0, MaxRequests); err != nil {
		return err
	}
	if err := inRange("RunOptions.Horizon", o.Horizon, 1e-3, maxSeconds); err != nil {
		return err
	}
	if err := inRange("RunOptions.MostThought", o.MostThought, 0, maxSeconds); err != nil {
		return err
	}
	return o.Options.normalize()
}

// openLoop sends requests at the trace's times.
type openLoop struct {
	trace *Trace
	speed float64
	warm  int
	at    int
}

func (l *openLoop) next() float64 {
	if l.at == len(l.trace.Requests) {
		return math.Inf(1)
	}
	return l.trace.Requests[l.at].Arrival / l.speed
}

func (l *openLoop) take() (*Request, bool) {
	l.at++
	return l.trace.Requests[l.at-1], l.at-1 == l.warm
}

func (l *openLoop) refused(*Request) {}

var errNoSessions = errors.New("RunOptions.Users: the trace has no sessions")
