// Command wirebench measures what a decision costs over the wire, against an echo on the same port of the same process, and
// prints one line for each thing promised of it:
//
//	bar NAME MEASURED LIMIT ok|short
//
// Client and server are processes of their own, on one core each. The echo takes the same message through the same codec
// and interceptors and sends an answer of the same shape. Calls to the one and to the other take turns; what is printed is
// the median of the rounds. A line that begins with "info" has no limit. It is meant to be run by `make bench-wire` on a
// machine that has nothing else to do.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/kvoracle/kvoracle/bench/bars"
)

const (
	routeMethod       = "/kvoracle.v1.RouteService/Route"
	routeStreamMethod = "/kvoracle.v1.RouteService/RouteStream"
	echoMethod        = "/" + echoName + "/Route"
	echoStreamMethod  = "/" + echoName + "/Stream"
	plainMethod       = "/" + plainName + "/Route"
)

// bench is one run of the program.
type bench struct {
	rounds   int
	server   int // core
	profiles string
	values   map[string][]float64
}

func (b *bench) value(name string, v float64) { b.values[name] = append(b.values[name], v) }

// scenario measures the values of some bars.
type scenario struct {
	name string
	run  func(context.Context, *bench) error
	bars []bars.Bar
}

func main() {
	isServer := flag.Bool("serve", false, "be the measured process")
	core := flag.Int("core", 0, "core of the server; the client takes the next one")
	traced := flag.Bool("traced", false, "with -serve: make spans, and drop them")
	sheds := flag.Bool("sheds", false, "with -serve: refuse calls when there are too many")
	shadow := flag.String("shadow", "", "with -serve: a policy that decides beside the first")
	profiles := flag.String("profiles", "", "host:port where the server shows its profiles while it is measured")
	rounds := flag.Int("rounds", 5, "rounds of each scenario")
	only := flag.String("only", "", "scenarios to run, with commas between: "+strings.Join(names(), ", "))
	flag.Parse()
	var err error
	if *isServer {
		err = serve(*core, options{*traced, *sheds, *shadow, *profiles})
	} else {
		err = measure(&bench{rounds: *rounds, server: *core, profiles: *profiles, values: make(map[string][]float64)}, *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measure(b *bench, only string) error {
	chosen, err := bars.Choose(only, names()...)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s/%s, %d cores\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	runtime.GOMAXPROCS(1)
	if err := pin((b.server + 1) % runtime.NumCPU()); err != nil {
		fmt.Println("not pinned:", err)
	}
	for _, s := range scenarios {
		if !chosen[s.name] {
			continue
		}
		if err := s.run(context.Background(), b); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		for _, bar := range s.bars {
			all := b.values[bar.Name]
			if len(all) == 0 {
				return fmt.Errorf("%s: no value of %s", s.name, bar.Name)
			}
			bar.Print(all)
		}
	}
	return nil
}

// names lists the scenarios.
func names() []string {
	all := make([]string, len(scenarios))
	for i := range scenarios {
		all[i] = scenarios[i].name
	}
	return all
}
