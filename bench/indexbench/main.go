// Command indexbench measures the prefix index on published workloads and prints one line for each thing promised of it:
//
//	bar NAME MEASURED LIMIT ok|short
//
// Each scenario runs in processes of its own, three times; what is printed is the median. A line that begins with "info" has
// no limit. It is meant to be run by `make bench-index` on a machine that has nothing else to do.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"

	"github.com/kvoracle/kvoracle/bench/bars"
)

type scenario struct {
	name string
	run  func(*report)
	slow bool // left out by -quick
	bars []bars.Bar
}

// report collects a scenario's values and prints them for the parent process.
type report struct {
	w     io.Writer
	quick bool
}

func (r *report) value(name string, v float64) { fmt.Fprintf(r.w, "value %s %g\n", name, v) }

func main() {
	quick := flag.Bool("quick", false, "a tenth of the blocks, one process each, nothing of 100 M blocks")
	only := flag.String("only", "", "scenarios to run, with commas between")
	child := flag.String("scenario", "", "run this one here and print raw values")
	profile := flag.String("cpuprofile", "", "with -scenario: write a CPU profile here")
	runs := flag.Int("runs", 3, "processes for each scenario")
	flag.Parse()
	if *quick {
		*runs = 1
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		defer pprof.StopCPUProfile()
	}
	if *child != "" {
		for _, s := range scenarios {
			if s.name == *child {
				s.run(&report{os.Stdout, *quick})
				return
			}
		}
		fmt.Fprintf(os.Stderr, "no scenario %q\n", *child)
		os.Exit(2)
	}
	fmt.Printf("%s %s/%s, %d cores\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	chosen, err := bars.Choose(*only, names...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for _, s := range scenarios {
		if !chosen[s.name] || *quick && s.slow {
			continue
		}
		if err := s.measure(*runs, *quick); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", s.name, err)
			os.Exit(1)
		}
	}
}

// measure runs a scenario in fresh processes and prints medians.
func (s *scenario) measure(runs int, quick bool) error {
	values := make(map[string][]float64)
	for range runs {
		cmd := exec.Command(os.Args[0], "-scenario", s.name, fmt.Sprintf("-quick=%v", quick))
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return err
		}
		for in := bufio.NewScanner(bytes.NewReader(out)); in.Scan(); {
			var name string
			var v float64
			if n, _ := fmt.Sscanf(in.Text(), "value %s %g", &name, &v); n == 2 {
				values[name] = append(values[name], v)
			}
		}
	}
	for _, b := range s.bars {
		all := values[b.Name]
		if len(all) == 0 {
			return fmt.Errorf("no value of %s", b.Name)
		}
		b.Print(all)
	}
	return nil
}
