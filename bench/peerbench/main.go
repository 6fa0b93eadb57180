// Command peerbench plays one operation file to this project's index and to published ones of others, each in fresh
// processes, and prints what was measured side by side. `make bench-peers` builds what it needs and runs it.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/kvoracle/kvoracle/bench/bars"
)

// engine is an index to be measured.
type engine struct {
	name, title string
	isOurs      bool
}

var engines = []engine{
	{"kvoracle", "kvoracle", true},
	{"smg", "smg-radix-tree", false},
	{"dynamo-concurrent", "dynamo concurrent", false},
	{"dynamo-positional", "dynamo positional", false},
	{"dynamo-tree", "dynamo tree", false},
}

// row is a line of the table.
type row struct{ value, title string }

var rows = []row{
	{"bytes", "bytes of resident memory a holder-block"},
	{"write", "M blocks/s told, one writer"},
	{"one", "16 blocks, one holder, any of all prompts: p50 ns"},
	{"cell-p50", "78 blocks, 64 holders, cold: p50 ns"},
	{"cell-p99", "78 blocks, 64 holders, cold: p99 ns"},
	{"deep", "8,192 blocks, one holder, warm: ns"},
	{"miss", "unknown prompt: p50 ns"},
	{"one-ids", "  the first of these from block ids"},
	{"cell-p50-ids", "  the cell's p50 from block ids"},
	{"cell-p99-ids", "  the cell's p99 from block ids"},
	{"deep-ids", "  the deep one from block ids"},
}

func main() {
	file := flag.String("file", "", "operation file")
	reuse := flag.Bool("reuse", false, "take the operation file as it is")
	blocks := flag.Int("blocks", 10_000_000, "holder-blocks of the gate workload")
	peers := flag.String("peers", "", "program with the indexes in Rust; without it only ours is measured")
	runs := flag.Int("runs", 3, "processes for each index")
	only := flag.String("only", "", "indexes to measure, with commas between")
	child := flag.String("engine", "", "measure ours here and print raw values")
	flag.Parse()
	var err error
	switch {
	case *child != "":
		err = measureOurs(*file)
	case !*reuse:
		err = writeFile(*file, *blocks, 1)
	}
	if err == nil && *child == "" {
		err = compare(*file, *peers, *runs, *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measureOurs(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return ours(f, os.Stdout)
}

func compare(file, peers string, runs int, only string) error {
	var names []string
	for _, e := range engines {
		names = append(names, e.name)
	}
	chosen, err := bars.Choose(only, names...)
	if err != nil {
		return err
	}
	results := make(map[string]map[string]float64)
	var asked []engine
	for _, e := range engines {
		if !chosen[e.name] || !e.isOurs && peers == "" {
			continue
		}
		values, err := e.measure(file, peers, runs)
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		results[e.name] = values
		asked = append(asked, e)
	}
	if len(asked) == 0 {
		return fmt.Errorf("no index named %q", only)
	}
	print(asked, results)
	return nil
}

// measure runs an index in fresh processes and gives the medians.
func (e *engine) measure(file, peers string, runs int) (map[string]float64, error) {
	all := make(map[string][]float64)
	for range runs {
		cmd := exec.Command(peers, e.name, file)
		if e.isOurs {
			cmd = exec.Command(os.Args[0], "-engine", e.name, "-file", file)
		}
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, err
		}
		for in := bufio.NewScanner(bytes.NewReader(out)); in.Scan(); {
			var name string
			var v float64
			if n, _ := fmt.Sscanf(in.Text(), "value %s %g", &name, &v); n == 2 {
				all[name] = append(all[name], v)
			}
		}
	}
	medians := make(map[string]float64)
	for name, values := range all {
		medians[name] = bars.Quantile(values, 0.5)
	}
	return medians, nil
}

func print(asked []engine, results map[string]map[string]float64) {
	fmt.Printf("| %-50s |", "")
	for _, e := range asked {
		fmt.Printf(" %17s |", e.title)
	}
	fmt.Printf("\n|%s|%s\n", strings.Repeat("-", 52), strings.Repeat(strings.Repeat("-", 18)+":|", len(asked)))
	line := func(title string, cell func(e engine) string) {
		fmt.Printf("| %-50s |", title)
		for _, e := range asked {
			fmt.Printf(" %17s |", cell(e))
		}
		fmt.Println()
	}
	for _, r := range rows {
		line(r.title, func(e engine) string {
			v, ok := results[e.name][r.value]
			if !ok {
				return ""
			}
			return fmt.Sprintf("%.4g", v)
		})
	}
	// All were asked the same, so whoever answers otherwise than the first is wrong somewhere, or the first is.
	line("answers that are the first one's, blocks in all", func(e engine) string {
		first := results[asked[0].name]
		for _, g := range groups {
			for _, what := range []string{"-holders", "-blocks"} {
				if results[e.name][g.name+what] != first[g.name+what] {
					return fmt.Sprintf("NO: %s %.0f", g.name, results[e.name][g.name+what]-first[g.name+what])
				}
			}
		}
		return "yes"
	})
}
