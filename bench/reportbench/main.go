// Command reportbench measures what a fleet's block reports cost those who ask for decisions, and prints one line for each
// thing promised of it:
//
//	bar NAME MEASURED LIMIT ok|short
//
// Three processes share the machine over real sockets: the server as it comes, a fleet of client.Reporter, each on a
// connection of its own, and this one, which asks for decisions at a steady rate and times each from when it was due. The
// fleet runs at a lower priority where the system has such: in the world it is on other machines. In each round the
// fleet is quiet for a while and then reports; the bar is the median of the rounds' ratios. A line that begins with "info"
// has no limit. It is meant to be run by `make bench-reports` on a machine with nothing else to do.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/child"
)

// settings is what can be asked of the bench.
type settings struct {
	streams  int
	blocks   int           // a second, of the whole fleet
	every    time.Duration // how often each engine has something to say
	gather   time.Duration // how long a reporter collects what it has to say
	holds    int           // blocks of each worker
	routes   float64       // a second
	rounds   int
	window   time.Duration // of each half of a round
	stall    time.Duration
	profiles string
	address  string
}

func main() {
	var s settings
	role := flag.String("role", "", "be one of the other processes: server, fleet")
	flag.IntVar(&s.streams, "streams", 1000, "report streams")
	flag.IntVar(&s.blocks, "blocks", 50_000, "blocks stored a second, and as many removed")
	flag.DurationVar(&s.every, "every", 100*time.Millisecond, "time between an engine's changes")
	flag.DurationVar(&s.gather, "gather", 200*time.Millisecond, "least time between two batches of a reporter")
	flag.IntVar(&s.holds, "holds", 2000, "blocks a worker holds")
	flag.Float64Var(&s.routes, "routes", 300, "decisions asked for a second")
	flag.IntVar(&s.rounds, "rounds", 7, "rounds")
	flag.DurationVar(&s.window, "window", 4*time.Second, "length of a round's quiet half, and of its loaded one")
	flag.DurationVar(&s.stall, "stall", 10*time.Second, "how long the stalled reporter does not read")
	flag.StringVar(&s.profiles, "profiles", "", "host:port where the server shows its profiles")
	flag.StringVar(&s.address, "address", "", "with -role=fleet: the server")
	flag.Parse()
	var err error
	switch *role {
	case "server":
		err = serve(s.profiles)
	case "fleet":
		err = fleet(&s)
	default:
		err = measure(&s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measure(s *settings) error {
	debug.SetGCPercent(800) // the caller is on another machine, too
	ctx := context.Background()
	fmt.Printf("%s %s/%s, %d cores; %d streams, %d blocks/s stored and as many removed, each stream every %v, told every %v; %v decisions/s\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), s.streams, s.blocks, s.every, s.gather, s.routes)
	server, err := child.Start("-role=server", "-profiles="+s.profiles)
	if err != nil {
		return err
	}
	defer server.Stop()
	address, err := server.Line()
	if err != nil {
		return err
	}
	fleet, err := child.Start("-role=fleet", "-address="+address, fmt.Sprintf("-streams=%d", s.streams), fmt.Sprintf("-blocks=%d", s.blocks),
		fmt.Sprintf("-every=%v", s.every), fmt.Sprintf("-gather=%v", s.gather), fmt.Sprintf("-holds=%d", s.holds))
	if err != nil {
		return err
	}
	defer fleet.Stop()
	if _, err := fleet.Line(); err != nil { // all streams are open and all blocks are there
		return err
	}
	p, err := newProbe(address)
	if err != nil {
		return err
	}
	if err := rounds(ctx, s, p, server, fleet); err != nil {
		return err
	}
	return stalled(ctx, s, p, server, address)
}

// rounds measures decisions without and with reports, in turns.
func rounds(ctx context.Context, s *settings, p *probe, server, fleet *child.Process) error {
	if _, err := p.run(ctx, s.routes, time.Second); err != nil { // warms everybody up
		return err
	}
	var r struct{ ratio, quiet99, loaded99, quiet50, loaded50, achieved, cores, idle, fleetCores []float64 }
	for range s.rounds {
		used := server.CPU()
		quiet, err := p.run(ctx, s.routes, s.window)
		if err != nil {
			return err
		}
		r.idle = append(r.idle, (server.CPU()-used)/s.window.Seconds())
		if err := fleet.Say("go"); err != nil {
			return err
		}
		time.Sleep(s.window / 8) // all have begun
		before, err := count(fleet)
		if err != nil {
			return err
		}
		used, fleetUsed, begin := server.CPU(), fleet.CPU(), time.Now()
		loaded, err := p.run(ctx, s.routes, s.window)
		if err != nil {
			return err
		}
		took := time.Since(begin).Seconds()
		r.cores = append(r.cores, (server.CPU()-used)/took)
		r.fleetCores = append(r.fleetCores, (fleet.CPU()-fleetUsed)/took)
		after, err := count(fleet)
		if err != nil {
			return err
		}
		r.achieved = append(r.achieved, (after-before)/took)
		if err := fleet.Say("stop"); err != nil {
			return err
		}
		time.Sleep(s.window / 8)
		r.ratio = append(r.ratio, bars.Quantile(loaded, 0.99)/bars.Quantile(quiet, 0.99))
		r.quiet99, r.loaded99 = append(r.quiet99, bars.Quantile(quiet, 0.99)), append(r.loaded99, bars.Quantile(loaded, 0.99))
		r.quiet50, r.loaded50 = append(r.quiet50, bars.Quantile(quiet, 0.5)), append(r.loaded50, bars.Quantile(loaded, 0.5))
	}
	cost := make([]float64, len(r.achieved))
	for i := range cost {
		cost[i] = (r.cores[i] - r.idle[i]) / r.achieved[i] * 1e6
	}
	info("route-p50-quiet", r.quiet50, "ms")
	info("route-p50-under-reports", r.loaded50, "ms")
	info("route-p99-quiet", r.quiet99, "ms")
	info("route-p99-under-reports", r.loaded99, "ms")
	info("server-cores-quiet", r.idle, "cores")
	info("server-cores-under-reports", r.cores, "cores")
	info("fleet-cores", r.fleetCores, "cores")
	info("server-per-block", cost, "us of processor time a block stored, with its removal and its share of the batch")
	bar("route-p99-under-reports", r.ratio, 2, false, "times quiet")
	bar("reports-achieved", r.achieved, 0.98*float64(s.blocks), true, "blocks/s stored and acknowledged")
	return nil
}

// info prints a median, bar one with a promise about it.
func info(name string, all []float64, unit string) { (&bars.Bar{Name: name, Unit: unit}).Print(all) }

func bar(name string, all []float64, limit float64, atLeast bool, unit string) {
	(&bars.Bar{Name: name, Limit: limit, AtLeast: atLeast, Unit: unit}).Print(all)
}

// count asks a process for its number: the fleet how many blocks it has stored that were acknowledged, the server for its
// live memory in MiB.
func count(p *child.Process) (float64, error) {
	s, err := p.Ask("count")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(s, 64)
}
