package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/kvoracle/kvoracle/internal/demo"
)

type demoCmd struct {
	Policies  []string `help:"Policies to run, the first against the others." default:"least_time,round_robin,least_loaded,random"`
	Engines   int      `help:"Simulated workers." default:"8"`
	BlockSize int      `help:"Tokens in a KV block." default:"64"`
	Requests  int      `help:"Route only the first N requests of the trace; 0: all." default:"0" placeholder:"N"`
	Speed     float64  `help:"Arrivals, times as fast as in the trace." default:"2.4"`
	Pace      float64  `help:"Virtual seconds per second of wall time." default:"20"`
	Quiet     bool     `help:"No progress bars."`
}

// Run runs the policies and prints the table. It fails if anything failed, and if the first policy did not beat round
// robin where that ran.
func (c *demoCmd) Run(e *env) error {
	fmt.Fprintf(e.out, "A live kvoracle on a loopback socket, %d simulated workers (an 8B model on an H100) that report through the\n"+
		"client library, and the first minutes of Mooncake's conversation trace, replayed at %.0f times real time.\n\n", c.Engines, c.Pace)
	start := time.Now()
	progress := func(string, int, int) {}
	switch {
	case c.Quiet:
	case isTerminal(e.err):
		progress = bars(e.err)
	default:
		progress = lines(e.err)
	}
	outcomes, err := demo.Run(e.ctx, demo.Options{
		Policies: c.Policies, Engines: c.Engines, BlockSize: c.BlockSize, Requests: c.Requests, Speed: c.Speed, Pace: c.Pace, Progress: progress,
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(e.out)
	if err := demo.Print(e.out, outcomes); err != nil {
		return err
	}
	fmt.Fprintf(e.out, "\n%s, took %s.\n", strings.Join(c.Policies, ", "), time.Since(start).Round(time.Second))
	return ahead(outcomes)
}

// bars draws a progress bar for each policy.
func bars(w io.Writer) func(policy string, done, all int) {
	var bar *progressbar.ProgressBar
	var on string
	return func(policy string, done, all int) {
		if policy != on {
			on = policy
			bar = progressbar.NewOptions(all, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(fmt.Sprintf("%-13s", policy)),
				progressbar.OptionSetWidth(40), progressbar.OptionShowCount(), progressbar.OptionThrottle(200*time.Millisecond),
				progressbar.OptionOnCompletion(func() { fmt.Fprintln(w) }))
		}
		_ = bar.Set(done) // a bar that cannot be drawn is no reason to stop
	}
}

// lines says the same in a log: a line for each quarter.
func lines(w io.Writer) func(policy string, done, all int) {
	return func(policy string, done, all int) {
		if quarter := max(all/4, 1); done%quarter == 0 {
			fmt.Fprintf(w, "%-13s %4d of %d requests\n", policy, done, all)
		}
	}
}

// isTerminal says whether somebody is watching.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// ahead checks the point of it all.
func ahead(outcomes []demo.Outcome) error {
	first := outcomes[0]
	for _, o := range outcomes[1:] {
		if o.Policy == "round_robin" && (first.CachedShare <= o.CachedShare || first.TTFT.Mean >= o.TTFT.Mean) {
			return errors.New("round robin was not beaten in cached share and TTFT")
		}
	}
	return nil
}
