package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/kvoracle/kvoracle/internal/replay"
	"github.com/kvoracle/kvoracle/internal/sim"
)

type replayCmd struct {
	Trace       string    `arg:"" help:"Request log: JSON lines, plain or gzip, each with timestamp (ms), output_length, and hash_ids with input_length, token_ids, messages or prompt."`
	Engines     int       `help:"Simulated workers." default:"8"`
	Speeds      []float64 `help:"How fast each worker is in units of the class, one number for each, like 1,1,0.4,0.4; policies are not told." placeholder:"X,..."`
	Class       string    `help:"What they run: 8b (one H100) or 70b (four)." enum:"8b,70b" default:"8b"`
	Loads       []float64 `help:"Loads to serve it at; 1 is the most that keeps the promise of 4 times the unloaded p90 TTFT and 3 times the mean TPOT." default:"0.3,0.5,0.7,0.9,1"`
	Policies    []string  `help:"Policies to compare, or all." default:"all"`
	BlockSize   int       `help:"Tokens a hash id stands for; 0: what the log says, or 512 for hash ids and 64 for tokens and text." default:"0" placeholder:"N"`
	EngineBlock int       `help:"Tokens in a KV block of the workers; 0: as in the log." default:"0" placeholder:"N"`
	First       int       `help:"Only the first N requests; 0: all." default:"0" placeholder:"N"`
	Spread      float64   `help:"Spread requests of one and the same moment over so many seconds, for logs with a coarse clock." default:"0" placeholder:"SECONDS"`
	Sessions    bool      `help:"Work through the log's sessions with users who wait for each answer, instead of at the log's times."`
	Capacity    bool      `help:"Search how much each policy can take." default:"true" negatable:""`
	HTML        string    `help:"Write a page with plots here; empty: none." default:"replay.html" placeholder:"FILE"`
	Quiet       bool      `help:"No progress bar."`
}

// Run serves the log with every policy and shows what came of it.
func (c *replayCmd) Run(e *env) error {
	contestants := replay.Contestants()
	if len(c.Policies) != 1 || c.Policies[0] != "all" {
		all := contestants
		var unknown string
		if contestants, unknown = replay.ByName(all, c.Policies); unknown != "" {
			return fmt.Errorf("--policies: got %q, want all or some of %s", unknown, names(all))
		}
	}
	for _, l := range c.Loads {
		if !(l > 0 && l <= 10) {
			return fmt.Errorf("--loads: got %v, want above 0, to 10", l)
		}
	}
	if c.Engines < 1 || c.Engines > 256 {
		return fmt.Errorf("--engines: got %d, want 1 to 256", c.Engines)
	}
	if n := len(c.Speeds); n != 0 && n != c.Engines {
		return fmt.Errorf("--speeds: got %d, want one for each of --engines (%d)", n, c.Engines)
	}
	for _, v := range c.Speeds {
		if !(v >= 0.01 && v <= 100) {
			return fmt.Errorf("--speeds: got %v, want 0.01 to 100", v)
		}
	}
	trace, err := replay.ReadFile(c.Trace, sim.ReadOptions{BlockSize: c.BlockSize, First: c.First, Spread: c.Spread})
	if err != nil {
		return err
	}
	model := sim.Model8B()
	if c.Class == sim.Model70B().Name {
		model = sim.Model70B()
	}
	w := replay.Workload{
		Name: "log", Title: filepath.Base(c.Trace), Trace: trace, BlockSize: c.EngineBlock, IsClosed: c.Sessions,
	}
	start := time.Now()
	report, err := replay.Run(e.ctx, replay.Plan{
		Cells: []replay.Cell{{Workload: &w, Model: model, Engines: c.Engines, Speeds: c.Speeds}}, Loads: c.Loads, Contestants: contestants,
		Capacity: func(*replay.Contestant) bool { return c.Capacity }, Keep: greatest(c.Loads), Progress: c.progress(e.err),
	})
	if err != nil {
		return err
	}
	if err := c.print(e.out, report); err != nil {
		return err
	}
	if c.HTML != "" {
		if err := writePage(c.HTML, report, "Replay of "+filepath.Base(c.Trace)); err != nil {
			return err
		}
		fmt.Fprintf(e.out, "\nPlots: %s\n", c.HTML)
	}
	fmt.Fprintf(e.out, "Took %s.\n", time.Since(start).Round(time.Second))
	return nil
}

func names(cs []replay.Contestant) string {
	var out []string
	for _, c := range cs {
		out = append(out, c.Name)
	}
	return strings.Join(out, ", ")
}

func greatest(loads []float64) float64 {
	most := 0.0
	for _, l := range loads {
		most = max(most, l)
	}
	return most
}

// progress draws a bar where somebody watches, and writes ten lines elsewhere.
func (c *replayCmd) progress(w io.Writer) func(done, all int, what string) {
	if c.Quiet {
		return nil
	}
	if !isTerminal(w) {
		return func(done, all int, _ string) {
			if done%max(all/10, 1) == 0 || done == all {
				fmt.Fprintf(w, "%d of %d runs\n", done, all)
			}
		}
	}
	var bar *progressbar.ProgressBar
	return func(done, all int, _ string) {
		if bar == nil {
			bar = progressbar.NewOptions(all, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription("runs"),
				progressbar.OptionSetWidth(40), progressbar.OptionShowCount(), progressbar.OptionThrottle(200*time.Millisecond),
				progressbar.OptionOnCompletion(func() { fmt.Fprintln(w) }))
		}
		_ = bar.Set(done) // a bar that cannot be drawn is no reason to stop
	}
}

// print writes a table for each load.
func (c *replayCmd) print(w io.Writer, r *replay.Report) error {
	cell := &r.Cells[0]
	fmt.Fprintf(w, "%d requests on %d engines (%s). Promised: p90 TTFT %.3g s, mean TPOT %.3g ms.\n",
		cell.Requests, cell.Engines, cell.Model, cell.Scale.TTFT90, cell.Scale.TPOT*1e3)
	if cell.IsClosed {
		fmt.Fprintf(w, "Load 1 is %.0f users.\n", cell.Scale.Full)
	} else {
		fmt.Fprintf(w, "Load 1 is %.3g times as fast as the log, whose own speed is load %.3g.\n", cell.Scale.Full, 1/cell.Scale.Full)
	}
	if n := cell.Scale.Unloaded.Refused; n > 0 {
		fmt.Fprintf(w, "%d of the requests measured are longer than an engine's memory and were left out.\n", n)
	}
	for _, load := range r.Loads {
		fmt.Fprintf(w, "\nload %.2g\n", load)
		tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
		fmt.Fprintln(tw, "policy\tTTFT mean\tp50\tp90\tp99\tTPOT mean\tcached\timbalance\tcapacity by p90 TTFT\tand by mean TPOT\t")
		for _, l := range r.Policies {
			x := cell.At(l.Name, load)
			if x == nil {
				continue
			}
			capacity := "\t"
			if v, ok := cell.Capacities[l.Name]; ok {
				capacity = fmt.Sprintf("%.2f\t%.2f", v.TTFT, v.Promise)
			}
			t := &x.Result.TTFT
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%.1f %%\t%.2f\t%s\t\n", l.Title, span(t.Mean), span(t.P50), span(t.P90), span(t.P99),
				span(x.Result.TPOT.Mean), 100*x.Result.CachedShare, x.Result.Imbalance, capacity)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// span writes seconds with a fitting unit.
func span(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.1f ms", s*1e3)
	}
	return fmt.Sprintf("%.2f s", s)
}

func writePage(path string, r *replay.Report, title string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := r.HTML(f, title); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
