// Command replicabench runs replicas of one service, each a process of its own, with a NATS server in another, gives them
// reports and questions, and measures how soon what one decides is known to the others. At the end it holds what they
// believe of each worker against each other. It prints lines like
//
//	bar NAME MEASURED LIMIT ok|short
//
// `make bench-replicas` runs it with questions alone, `make soak-cluster` with everything and for long.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/child"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// plan is what is asked for.
type plan struct {
	last                time.Duration
	replicas, reporters int
	blocks, decisions   int // a second, of all together
	blocksEach          int // held by a worker
	profiles            string
}

func main() {
	var p plan
	be := flag.String("be", "", "what to be: nats, or a replica's name (for its own use)")
	url := flag.String("nats", "", "NATS to use (for its own use)")
	flag.DurationVar(&p.last, "for", 20*time.Second, "how long")
	flag.IntVar(&p.replicas, "replicas", 3, "replicas, at least two")
	flag.IntVar(&p.reporters, "reporters", 16, "workers that report")
	flag.IntVar(&p.blocks, "blocks", 1000, "blocks reported a second")
	flag.IntVar(&p.decisions, "decisions", 200, "decisions a second")
	flag.IntVar(&p.blocksEach, "held", 4000, "blocks that a worker holds")
	flag.StringVar(&p.profiles, "profiles", "", "folder for a profile of each process's processor time; empty: none")
	flag.Parse()
	err := error(nil)
	if *be != "" {
		err = serve(*be, *url, p.profiles)
	} else {
		err = run(&p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// replica is one as its clients see it.
type replica struct {
	name   string
	route  kvoraclev1.RouteServiceClient
	fleet  kvoraclev1.FleetServiceClient
	health grpc_health_v1.HealthClient
}

func run(p *plan) error {
	fmt.Printf("%s %s/%s, %d cores; %d replicas, %d reporters, %d blocks/s, %d decisions/s, %v\n", runtime.Version(), runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU(), p.replicas, p.reporters, p.blocks, p.decisions, p.last)
	broker, err := child.Start("-be=nats", "-profiles="+p.profiles)
	if err != nil {
		return err
	}
	defer broker.Stop()
	url, err := broker.Line()
	if err != nil {
		return err
	}
	procs := []*child.Process{broker}
	var all []*replica
	for i := range max(p.replicas, 2) {
		name := string(rune('a' + i))
		c, err := child.Start("-be="+name, "-nats="+url, "-profiles="+p.profiles)
		if err != nil {
			return err
		}
		defer c.Stop()
		procs = append(procs, c)
		address, err := c.Line()
		if err != nil {
			return fmt.Errorf("replica %s: %w", name, err)
		}
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		all = append(all, &replica{
			name, kvoraclev1.NewRouteServiceClient(conn), kvoraclev1.NewFleetServiceClient(conn), grpc_health_v1.NewHealthClient(conn),
		})
	}
	w, err := newWorld(p, all)
	if err != nil {
		return err
	}
	w.procs = procs
	return w.play()
}

// cpu is the processor time of NATS, of each replica, and of this process.
func (w *world) cpu() (all []float64) {
	for _, p := range w.procs {
		all = append(all, p.CPU())
	}
	return append(all, child.CPUOf(os.Getpid()))
}

// names are whose, but for NATS.
func (w *world) names() (all []string) {
	for _, r := range w.all {
		all = append(all, r.name)
	}
	return append(all, "who asks and reports")
}

// play runs everything for the time, and says how it was.
func (w *world) play() error {
	ctx, cancel := context.WithTimeout(context.Background(), w.plan.last)
	defer cancel()
	g, whole := errgroup.WithContext(context.Background())
	stop := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
		case <-whole.Done():
		}
		close(stop)
	}()
	start, before := time.Now(), w.cpu()
	for i := range w.plan.reporters {
		g.Go(func() error { return w.report(whole, stop, i) })
	}
	for i := range deciders {
		g.Go(func() error { return w.decide(whole, stop, i) })
	}
	g.Go(func() error { return w.probe(whole, stop) })
	if err := g.Wait(); err != nil {
		return err
	}
	took, after := time.Since(start), w.cpu()
	for i, name := range append([]string{"NATS"}, w.names()...) {
		bar := bars.Bar{Name: "cores of " + name, Unit: "cores"}
		bar.Print([]float64{(after[i] - before[i]) / took.Seconds()})
	}
	caught := time.Now()
	differ, err := w.compare(context.Background())
	if err != nil {
		return err
	}
	fmt.Printf("\n%d blocks in %d batches reported (%.0f/s), %d decisions (%.0f/s), %d refused; %v until all was known alike\n", w.blocks.Load(),
		w.batches.Load(), float64(w.blocks.Load())/took.Seconds(), w.decided.Load(), float64(w.decided.Load())/took.Seconds(), w.refused.Load(),
		time.Since(caught).Round(time.Millisecond))
	for i, r := range w.all {
		fmt.Printf("  %s: %d blocks of %d workers, digest %016x\n", r.name, w.sums[i].count, w.plan.reporters, w.sums[i].digest)
	}
	for _, q := range []struct {
		name  string
		of    float64
		limit float64
	}{{"visible p50", 0.5, 10}, {"visible p99", 0.99, 50}} {
		bar := bars.Bar{Name: q.name, Limit: q.limit, Unit: "ms"}
		bar.Print([]float64{bars.Quantile(w.visible, q.of)})
	}
	for _, q := range []float64{0.5, 0.99} {
		bar := bars.Bar{Name: fmt.Sprintf("decision p%.0f", 100*q), Unit: "ms"}
		bar.Print([]float64{bars.Quantile(w.latency, q)})
	}
	for _, q := range []struct {
		name      string
		done, due float64
	}{
		{"blocks reported", float64(w.blocks.Load()), 0.98 * float64(w.plan.blocks)}, {"decisions", float64(w.decided.Load()), 0.98 * float64(w.plan.decisions)},
	} {
		bar := bars.Bar{Name: q.name, Limit: q.due, AtLeast: true, Unit: "a second"}
		bar.Print([]float64{q.done / took.Seconds()})
	}
	same := bars.Bar{Name: "workers known alike", Limit: 1, AtLeast: true, Unit: "share"}
	same.Print([]float64{1 - float64(differ)/float64(max(w.plan.reporters, 1))})
	return nil
}
