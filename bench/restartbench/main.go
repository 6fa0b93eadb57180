// Command restartbench measures what it costs to keep the index over a restart, and prints one line for each thing promised
// of it:
//
//	bar NAME MEASURED LIMIT ok|short
//
// A million blocks of 65 ranks, one of which holds a quarter of them, are saved to a folder and loaded again, by the code
// that the server runs; decisions and reports to the largest rank are timed with a save every second beside them, which is
// as often as can be set, and without, in turns. Each line is the median of the rounds. It is meant to be run by
// `make bench-restart` on a machine that has nothing else to do.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/snapshot"
)

const (
	blockSize = 16
	ranks     = 64
	chainLong = 160
	smallRank = 75 * chainLong      // blocks
	largeRank = 25 * 64 * chainLong // blocks
	every     = time.Second
	turn      = 3 * every
)

func main() {
	rounds := flag.Int("rounds", 5, "turns with saves and without")
	flag.Parse()
	fmt.Printf("%s %s/%s, %d cores\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if err := run(*rounds); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// world is the oracle with what is needed to ask it and to report to it.
type world struct {
	o       *oracle.Oracle
	prompts [][]uint32
	largest *oracle.BlockSession
	seq     uint64
	blocks  int
}

func run(rounds int) error {
	w, err := newWorld()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "restartbench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary folder
	d, err := snapshot.Open(dir, "")
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // nothing is written by it

	var bytes, save, load, memory, decide, decideSaving, report, reportSaving []float64
	for range rounds {
		quiet, err := w.turn(nil)
		if err != nil {
			return err
		}
		busy, err := w.turn(func() error {
			start := time.Now()
			got, err := d.Write(context.Background(), w.o, start)
			save = append(save, float64(time.Since(start).Nanoseconds())/float64(w.blocks))
			bytes = append(bytes, float64(got.Bytes)/float64(w.blocks))
			return err
		})
		if err != nil {
			return err
		}
		decide, decideSaving = append(decide, bars.Quantile(quiet.decisions, 0.99)), append(decideSaving, bars.Quantile(busy.decisions, 0.99))
		report, reportSaving = append(report, bars.Quantile(quiet.reports, 0.99)), append(reportSaving, bars.Quantile(busy.reports, 0.99))
	}
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := d.Write(context.Background(), w.o, time.Now()); err != nil {
			return err
		}
		runtime.ReadMemStats(&after)
		memory = append(memory, float64(after.TotalAlloc-before.TotalAlloc)/(1<<20))
		start := time.Now()
		l, err := d.Load(context.Background(), oracle.New(oracle.Config{}, nil), start)
		if err != nil || l.Shown < w.blocks {
			return fmt.Errorf("loaded %d of %d blocks: %w", l.Shown, w.blocks, err)
		}
		load = append(load, float64(time.Since(start).Nanoseconds())/float64(w.blocks))
	}
	later := func(saving, quiet []float64) []float64 {
		out := make([]float64, rounds)
		for i := range out {
			out[i] = saving[i] / quiet[i]
		}
		return out
	}
	// Before printing, which sorts.
	decisions, reports := later(decideSaving, decide), later(reportSaving, report)
	for _, b := range []struct {
		bars.Bar
		all []float64
	}{
		{bars.Bar{Name: "file-bytes", Limit: 8.5, Unit: "bytes a block"}, bytes},
		{bars.Bar{Name: "save", Limit: 200, Unit: "ns a block, until it is safe on the disk"}, save},
		{bars.Bar{Name: "load", Limit: 1000, Unit: "ns a block, read twice"}, load},
		{bars.Bar{Name: "save-memory", Limit: 32, Unit: "MiB allocated by a save"}, memory},
		{bars.Bar{Name: "decision-p99", Limit: 1.5, Unit: "times that without saves"}, decisions},
		{bars.Bar{Name: "decision-p99-quiet", Unit: "us without saves"}, decide},
		{bars.Bar{Name: "decision-p99-saving", Unit: "us with a save every second"}, decideSaving},
		{bars.Bar{Name: "report-p99", Limit: 2, Unit: "times that without saves"}, reports},
		{bars.Bar{Name: "report-p99-quiet", Unit: "us for 16 blocks of the largest rank, without saves"}, report},
		{bars.Bar{Name: "report-p99-saving", Unit: "us with a save every second"}, reportSaving},
	} {
		b.Print(b.all)
	}
	return nil
}

func newWorld() (*world, error) {
	w := &world{o: oracle.New(oracle.Config{}, nil)}
	r := rand.New(rand.NewPCG(1, 2))
	ks := block.Identity{Model: "m", BlockSize: blockSize}.Keyspace()
	for i := range ranks + 1 {
		n := smallRank
		if i == ranks {
			n = largeRank
		}
		s, _, err := w.o.OpenBlocks(&oracle.Hello{
			Spec:        fleet.Spec{Worker: fmt.Sprintf("w%02d", i), Model: "m", BlockSize: blockSize, DPSize: 1},
			Incarnation: 1, NextSequence: 1,
		}, time.Now())
		if err != nil {
			return nil, err
		}
		for c := range n / chainLong {
			tokens := make([]uint32, chainLong*blockSize)
			for k := range tokens {
				tokens[k] = r.Uint32()
			}
			if c == 0 {
				w.prompts = append(w.prompts, tokens[:512])
			}
			w.seq = uint64(c + 1)
			op := oracle.Op{Kind: oracle.OpStore, IsRoot: true, IDs: block.AppendTokenChain(nil, ks, tokens, blockSize)}
			if _, err := s.Batch(w.seq, w.seq, []oracle.Op{op}, time.Now()); err != nil {
				return nil, err
			}
		}
		w.blocks += n
		w.largest = s
	}
	return w, nil
}

// times are in microseconds.
type times struct{ decisions, reports []float64 }

// turn asks and reports at a steady pace for a while, with beside run every second.
func (w *world) turn(beside func() error) (times, error) {
	var t times
	var errs [3]error
	var wg sync.WaitGroup
	end := time.Now().Add(turn)
	if beside != nil {
		wg.Go(func() {
			for at := time.Now().Add(every / 2); errs[0] == nil && at.Before(end); at = at.Add(every) {
				time.Sleep(time.Until(at))
				errs[0] = beside()
			}
		})
	}
	wg.Go(func() { t.decisions, errs[1] = paced(end, 500*time.Microsecond, w.decide) })
	wg.Go(func() { t.reports, errs[2] = paced(end, time.Millisecond, w.report) })
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return t, err
		}
	}
	return t, nil
}

// paced calls f at fixed moments and measures from when it should have begun.
func paced(end time.Time, pace time.Duration, f func(n int) error) (all []float64, err error) {
	for at, n := time.Now(), 0; at.Before(end); at, n = at.Add(pace), n+1 {
		time.Sleep(time.Until(at))
		if err := f(n); err != nil {
			return nil, err
		}
		all = append(all, float64(time.Since(at).Nanoseconds())/1e3)
	}
	return all, nil
}

// decide routes a prompt that one worker holds, and gives the booking back.
func (w *world) decide(n int) error {
	p := w.prompts[n%len(w.prompts)]
	a, err := w.o.Route(context.Background(), &oracle.RouteRequest{Model: "m", Prompt: oracle.Prompt{Tokens: p, Length: len(p)}}, time.Now())
	if err != nil {
		return err
	}
	_, err = w.o.Progress(&oracle.Event{Decision: a.Decision, Step: oracle.Cancelled}, time.Now())
	return err
}

// report lets the largest rank take in 16 blocks, and drop them with the next report.
func (w *world) report(n int) error {
	ids := make([]block.ID, 16)
	for i := range ids {
		ids[i] = block.ID(uint64(n/2+1)<<32 | uint64(i+1))
	}
	op := oracle.Op{Kind: oracle.OpStore, IsRoot: true, IDs: ids}
	if n%2 == 1 {
		op = oracle.Op{Kind: oracle.OpRemove, IDs: ids}
	}
	w.seq++
	_, err := w.largest.Batch(w.seq, w.seq, []oracle.Op{op}, time.Now())
	return err
}
