package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvoracle/kvoracle/internal/sim"
)

// Options describe a demonstration. The zero value of all but Policies runs.
type Options struct {
	// Policies are run one after the other, each on a fresh oracle and a fresh fleet.
	Policies []string
	// Engines is the number of simulated workers; 0: 8.
	Engines int
	// BlockSize is the tokens in a block of their caches; 0: 64.
	BlockSize int
	// Requests is how many requests of the sample are routed; 0: all.
	Requests int
	// Speed is how much faster than in the trace requests arrive; 0: 2.4, which keeps 8 engines busy.
	Speed float64
	// Pace is virtual seconds per second of wall time; 0: 20.
	Pace float64
	// Progress is told how far a run has come; nil: nobody.
	Progress func(policy string, done, all int)
}

func (o Options) withDefaults() Options {
	if o.Engines == 0 {
		o.Engines = 8
	}
	if o.BlockSize == 0 {
		o.BlockSize = 64
	}
	if o.Speed == 0 {
		o.Speed = 2.4
	}
	if o.Pace == 0 {
		o.Pace = 20
	}
	if o.Progress == nil {
		o.Progress = func(string, int, int) {}
	}
	return o
}

// Outcome is what one policy came to.
type Outcome struct {
	Policy string
	sim.Result

	Decisions  int           // made by the oracle over the socket
	DecideP50  time.Duration // wall time of one decision, as the gateway sees it
	DecideP99  time.Duration
	PerSecond  float64 // decisions a second when nothing paces them
	Verified   int     // workers whose picture in the oracle equals their engine's cache
	HeldBlocks int     // blocks in those caches at the end
}

// Run routes the sample once for each policy.
func Run(ctx context.Context, o Options) ([]Outcome, error) {
	o = o.withDefaults()
	if len(o.Policies) == 0 {
		return nil, errors.New("demo: no policies")
	}
	trace, err := sim.Sample()
	if err != nil {
		return nil, fmt.Errorf("demo: the shipped trace: %w", err)
	}
	if o.Requests > 0 && o.Requests < len(trace.Requests) {
		trace.Requests = trace.Requests[:o.Requests]
	}
	var out []Outcome
	for _, p := range o.Policies {
		r, err := runPolicy(ctx, o, p, trace)
		if err != nil {
			return nil, fmt.Errorf("demo: %s: %w", p, err)
		}
		out = append(out, r)
	}
	return out, nil
}
