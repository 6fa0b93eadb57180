package sim

import "fmt"

// Chooser decides which engine serves a request. One that keeps books of what it has sent is also the Observer in
// Options, and one that must know what engines hold has its Sinks there.
type Chooser interface {
	// Choose picks an engine (0 to Engines-1) for a request that arrives at virtual time t. Of the fleet it may use
	// the read-only methods, and should use only what a router could know.
	Choose(t float64, r *Request, f *Fleet) int
}

// RunOptions describe a run. The zero value of all but Options.Engines runs.
type RunOptions struct {
	Options
	Speed  float64 // arrivals come so many times as fast as in the trace; 0: 1
	Warmup float64 // leading share of the requests that is served but not measured, 0 to below 1
}

// Run replays a trace in virtual time from empty caches until the last request has finished. A request longer than an
// engine's memory is counted as refused, without asking the chooser. A choice that is no engine ends the run with an error.
func Run(tr *Trace, c Chooser, o RunOptions) (Result, error) {
	if o.Speed == 0 {
		o.Speed = 1
	}
	if err := inRange("RunOptions.Speed", o.Speed, 1e-3, 1e6); err != nil {
		return Result{}, fmt.Errorf("sim: %w", err)
	}
	if !(o.Warmup >= 0 && o.Warmup < 1) {
		return Result{}, fmt.Errorf("sim: RunOptions.Warmup: got %v, want 0 to below 1", o.Warmup)
	}
	f, err := NewFleet(o.Options)
	if err != nil {
		return Result{}, err
	}
	refused := 0
	warm := int(o.Warmup * float64(len(tr.Requests)))
	for i, r := range tr.Requests {
		t := r.Arrival / o.Speed
		f.Advance(t)
		if i == warm {
			f.Measure()
			refused = 0
		}
		if !f.Fits(r) {
			refused++
			continue
		}
		if _, err := f.Submit(c.Choose(t, r, f), r, t); err != nil {
			return Result{}, fmt.Errorf("%w, for request %d", err, i)
		}
	}
	for f.Unfinished() > 0 {
		t, _ := f.Next()
		f.Advance(t)
	}
	res := f.Result()
	res.Refused = refused
	return res, nil
}
