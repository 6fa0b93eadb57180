// Command envoybench measures what kvoracle adds to a request through Envoy, against Envoy alone with the same buffering of
// the body, and how much memory streams take. Envoy, the pickers and this program, which is client and worker, share the
// machine.
//
// Rounds of the ways alternate in one run, each with requests at a fixed rate whatever the answers do (an open loop: a
// late answer delays no other's start, and is counted from when it was due). The ways are without a picker; with one that answers at
// once, whose share is Envoy's and the machine's; with kvoracle and its access log; both on a Unix socket; both asked by ext_authz over
// HTTP, kvoracle on a Unix socket as well; and kvoracle with the observer of responses too. The floor is what the same call, and
// bytes to another process and back, take here without Envoy. What is added is the difference of their quantiles in one round;
// the bars are about the median of the rounds.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/child"
)

func main() {
	envoy := flag.String("envoy", "envoy", "Envoy's binary")
	oracle := flag.String("kvoracle", "bin/kvoracle", "kvoracle's binary")
	rate := flag.Int("rate", 500, "requests a second")
	size := flag.Int("body", 8000, "bytes of a request's body")
	window := flag.Duration("window", 2*time.Second, "of one way in one round")
	rounds := flag.Int("rounds", 5, "rounds")
	streams := flag.Int("streams", 1000, "streams at once")
	dir := flag.String("trivial", "", "serve the picker that answers at once, with a socket in this folder")
	worker := flag.String("worker", "", "what it chooses")
	awake := flag.Bool("awake", false, "keep processors from sleeping, as those of a busy machine are")
	spins := flag.Bool("spin", false, "be what keeps them")
	flag.Parse()
	var err error
	switch {
	case *dir != "":
		err = serveTrivial(*dir, *worker, *size)
	case *spins:
		err = spin()
	case *awake:
		var p *child.Process
		if p, err = child.Start("-spin"); err == nil {
			err = run(*envoy, *oracle, *rate, *size, *window, *rounds, *streams)
			p.Stop()
		}
	default:
		err = run(*envoy, *oracle, *rate, *size, *window, *rounds, *streams)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// series are measured values by name.
type series map[string][]float64

func (q series) add(name string, v float64) { q[name] = append(q[name], v) }

func run(envoy, binary string, rate, size int, window time.Duration, rounds, streams int) error {
	s, err := newStack(envoy, binary, size)
	if err != nil {
		return err
	}
	defer s.stop()
	bodies := bodies(size)
	for _, way := range ways() { // connections, caches, the first collections
		if _, err := load(s.urls[way], bodies, rate, window/2); err != nil {
			return fmt.Errorf("%s: %w", way, err)
		}
	}
	q := make(series)
	for round := range rounds {
		if err := s.round(q, round, bodies, rate, window); err != nil {
			return err
		}
	}
	var decided [2]float64
	for i := range decided {
		if decided[i], err = s.decided(i); err != nil {
			return err
		}
	}
	before, _ := s.memory()
	if err := s.hold(bodies, streams); err != nil {
		return err
	}
	now, peak := s.memory()

	fmt.Printf("%d requests/s of %d bytes, %d rounds of %v a way; %.0f decisions, %.0f by the socket\n",
		rate, size, rounds, window, decided[oracle], decided[oracle2])
	for _, b := range []bars.Bar{
		{Name: "plain p50", Unit: "us"},
		{Name: "plain p99", Unit: "us"},
		{Name: "kvoracle p50", Unit: "us"},
		{Name: "kvoracle p99", Unit: "us"},
		{Name: "trivial adds p50", Unit: "us"},
		{Name: "trivial adds p99", Unit: "us"},
		{Name: "socket: trivial adds p50", Unit: "us"},
		{Name: "socket: kvoracle adds p50", Unit: "us"},
		{Name: "socket: kvoracle adds p99", Unit: "us"},
		{Name: "authz: trivial adds p50", Unit: "us"},
		{Name: "authz: trivial adds p99", Unit: "us"},
		{Name: "observer adds p50", Unit: "us"},
		{Name: "observer adds p99", Unit: "us"},
		{Name: "Envoy's CPU, plain", Unit: "us a request"},
		{Name: "Envoy's CPU, trivial", Unit: "us a request"},
		{Name: "Envoy's CPU, kvoracle", Unit: "us a request"},
		{Name: "trivial's CPU", Unit: "us a request"},
		{Name: "kvoracle's CPU", Unit: "us a request"},
		{Name: "Envoy's CPU, authz", Unit: "us a request"},
		{Name: "kvoracle's CPU, authz", Unit: "us a request"},
		{Name: "floor: bytes there and back p50", Unit: "us"},
		{Name: "floor: a gRPC call p50", Unit: "us"},
		{Name: "floor: a gRPC call p99", Unit: "us"},
		{Name: "authz: over trivial p50", Unit: "us", Limit: 100},
		{Name: "authz: over trivial p99", Unit: "us", Limit: 500},
		{Name: "authz: added p50", Unit: "us", Limit: 250},
		{Name: "authz: added p99", Unit: "us", Limit: 1000},
		{Name: "authz, socket: added p50", Unit: "us", Limit: 250},
		{Name: "authz, socket: added p99", Unit: "us", Limit: 1000},
		{Name: "over trivial p50", Unit: "us", Limit: 100},
		{Name: "over trivial p99", Unit: "us", Limit: 500},
		{Name: "added p50", Unit: "us", Limit: 250},
		{Name: "added p99", Unit: "us", Limit: 1000},
	} {
		b.Print(q[b.Name])
	}
	for _, b := range []struct {
		bar   bars.Bar
		value float64
	}{
		{bars.Bar{Name: "resident before streams", Unit: "MiB"}, before},
		{bars.Bar{Name: "resident with streams", Unit: "MiB"}, now},
		{bars.Bar{Name: fmt.Sprintf("peak with %d streams", streams), Unit: "MiB", Limit: 300}, peak},
	} {
		b.bar.Print([]float64{b.value})
	}
	return nil
}

// round times each way once, another one first each time.
func (s *stack) round(q series, round int, bodies [][]byte, rate int, window time.Duration) error {
	all := ways()
	times, envoy, picker := make(map[string][]float64), make(map[string]float64), make(map[string]float64)
	for i := range all {
		way := all[(round+i)%len(all)]
		e, p := s.used(way)
		t, err := load(s.urls[way], bodies, rate, window)
		if err != nil {
			return fmt.Errorf("%s: %w", way, err)
		}
		e2, p2 := s.used(way)
		times[way], envoy[way], picker[way] = t, (e2-e)*1e6/float64(len(t)), (p2-p)*1e6/float64(len(t))
	}
	bytes, call, err := s.floor(bodies[0], rate, window/2)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	for _, at := range []struct {
		name string
		q    float64
	}{{" p50", 0.5}, {" p99", 0.99}} {
		v := make(map[string]float64)
		for _, way := range all {
			v[way] = bars.Quantile(times[way], at.q) * 1e6
		}
		q.add("plain"+at.name, v[plain])
		q.add("kvoracle"+at.name, v[picked])
		q.add("trivial adds"+at.name, v[atOnce]-v[plain])
		q.add("socket: trivial adds"+at.name, v[atOnceSocket]-v[plain])
		q.add("socket: kvoracle adds"+at.name, v[pickedSocket]-v[plain])
		q.add("authz: trivial adds"+at.name, v[atOnceAuthz]-v[plain])
		q.add("authz: over trivial"+at.name, v[pickedAuthz]-v[atOnceAuthz])
		q.add("authz: added"+at.name, v[pickedAuthz]-v[plain])
		q.add("authz, socket: added"+at.name, v[pickedAuthzSocket]-v[plain])
		q.add("floor: bytes there and back"+at.name, bars.Quantile(bytes, at.q)*1e6)
		q.add("floor: a gRPC call"+at.name, bars.Quantile(call, at.q)*1e6)
		q.add("observer adds"+at.name, v[observed]-v[picked])
		q.add("over trivial"+at.name, v[picked]-v[atOnce])
		q.add("added"+at.name, v[picked]-v[plain])
	}
	q.add("Envoy's CPU, plain", envoy[plain])
	q.add("Envoy's CPU, trivial", envoy[atOnce])
	q.add("Envoy's CPU, kvoracle", envoy[picked])
	q.add("trivial's CPU", picker[atOnce])
	q.add("kvoracle's CPU", picker[picked])
	q.add("Envoy's CPU, authz", envoy[pickedAuthz])
	q.add("kvoracle's CPU, authz", picker[pickedAuthz])
	return nil
}
