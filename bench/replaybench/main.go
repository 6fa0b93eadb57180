// Command replaybench makes docs/results.md: every policy on every workload, in virtual time. It prints a bar line for
// each promise, and ends with an error only when something could not be measured.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/replay"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "replaybench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("replaybench", flag.ContinueOnError)
	traces := f.String("traces", "bench/traces", "folder of the traces")
	quick := f.Bool("quick", false, "a few hundred requests of each: checks the machinery, its numbers mean nothing")
	out := f.String("out", "", "write the page here; empty: nowhere")
	data := f.String("json", "", "write what was measured here, too")
	only := f.String("only", "", "measure only the cells (workload/class/engines) and scenarios (workload/class/engines/name) that match this regular expression")
	fast := f.Bool("fast", false, "no capacities, no degrees of information, no scenarios, one seed")
	from := f.String("from", "", "measure nothing, take what -json wrote")
	if err := f.Parse(args); err != nil {
		return err
	}
	cells, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	report, err := measure(ctx, *traces, *quick, *fast, cells, *from)
	if err != nil {
		return err
	}
	if *data != "" {
		b, err := json.Marshal(report)
		if err != nil {
			return err
		}
		if err := os.WriteFile(*data, b, 0o600); err != nil {
			return err
		}
	}
	command := "make replay"
	flags := "-out docs/results.md"
	if *quick {
		flags += " -quick"
	}
	if *fast {
		flags += " -fast"
	}
	if *only != "" {
		flags += fmt.Sprintf(" -only '%s'", *only)
	}
	isPart := *quick || *fast || *only != ""
	if isPart {
		command += fmt.Sprintf(" REPLAYFLAGS=%q", flags)
	}
	var page bytes.Buffer
	if err := report.Markdown(&page, command, isPart); err != nil {
		return err
	}
	if *out != "" {
		if err := os.WriteFile(*out, page.Bytes(), 0o644); err != nil { //nolint:gosec // a page to be read
			return err
		}
	}
	return replay.PrintBars(os.Stdout, report.Bars())
}

// measure runs the suite, or reads what an earlier run measured.
func measure(ctx context.Context, traces string, quick, fast bool, only *regexp.Regexp, from string) (*replay.Report, error) {
	if from != "" {
		b, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		report := new(replay.Report)
		return report, json.Unmarshal(b, report)
	}
	plan, err := replay.Suite(traces, quick)
	if err != nil {
		return nil, err
	}
	plan.Cells = slices.DeleteFunc(plan.Cells, func(c replay.Cell) bool { return !only.MatchString(c.Name()) })
	plan.Scenarios = slices.DeleteFunc(plan.Scenarios, func(s replay.Scenario) bool { return !only.MatchString(s.Cell.Name() + "/" + s.Name) })
	if fast {
		plan.Scenarios = nil
		plan.Capacity, plan.WithDegrees, plan.Degrees, plan.Seeds = nil, nil, nil, 1
	}
	if len(plan.Cells)+len(plan.Scenarios) == 0 {
		return nil, errors.New("-only: no cell and no scenario matches")
	}
	start := time.Now()
	plan.Progress = func(done, all int, what string) {
		if done%max(all/20, 1) == 0 || done == all {
			fmt.Fprintf(os.Stderr, "%4d of %d, %s, %s\n", done, all, time.Since(start).Round(time.Second), what)
		}
	}
	return replay.Run(ctx, plan)
}
