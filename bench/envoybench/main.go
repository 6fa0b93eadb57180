// Command envoybench measures what kvoracle adds to a request through Envoy, against Envoy alone with the same buffering of
// the body, and how much memory streams take. Envoy, kvoracle and this program, which is client and worker, share the
// machine.
//
// Rounds of the ways alternate in one run (without kvoracle; with it and its access log, which the bars are about; and with the
// observer of responses too), each with requests at a fixed rate whatever the answers do (an open loop: a
// late answer delays no other's start, and is counted from when it was due). What is added is the difference of their quantiles
// in one round; the bar is about the median of the rounds.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/kvoracle/kvoracle/bench/bars"
)

func main() {
	envoy := flag.String("envoy", "envoy", "Envoy's binary")
	oracle := flag.String("kvoracle", "bin/kvoracle", "kvoracle's binary")
	rate := flag.Int("rate", 500, "requests a second")
	size := flag.Int("body", 8000, "bytes of a request's body")
	window := flag.Duration("window", 3*time.Second, "of one way in one round")
	rounds := flag.Int("rounds", 6, "rounds")
	streams := flag.Int("streams", 1000, "streams at once")
	flag.Parse()
	if err := run(*envoy, *oracle, *rate, *size, *window, *rounds, *streams); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(envoy, oracle string, rate, size int, window time.Duration, rounds, streams int) error {
	s, err := newStack(envoy, oracle)
	if err != nil {
		return err
	}
	defer s.stop()
	bodies := bodies(size)
	for _, way := range []string{s.plain, s.picked, s.observed} { // connections, caches, the first collections
		if _, err := load(way, bodies, rate, window/2); err != nil {
			return err
		}
	}
	q := map[string][]float64{}
	for range rounds {
		plain, err := load(s.plain, bodies, rate, window)
		if err != nil {
			return err
		}
		picked, err := load(s.picked, bodies, rate, window)
		if err != nil {
			return err
		}
		observed, err := load(s.observed, bodies, rate, window)
		if err != nil {
			return err
		}
		for _, at := range []struct {
			name string
			q    float64
		}{{"p50", 0.5}, {"p99", 0.99}} {
			a, b, c := bars.Quantile(plain, at.q)*1e6, bars.Quantile(picked, at.q)*1e6, bars.Quantile(observed, at.q)*1e6
			q["plain "+at.name] = append(q["plain "+at.name], a)
			q["picked "+at.name] = append(q["picked "+at.name], b)
			q["added "+at.name] = append(q["added "+at.name], b-a)
			q["observer adds "+at.name] = append(q["observer adds "+at.name], c-b)
		}
	}
	decided, err := s.decided()
	if err != nil {
		return err
	}
	before, _ := s.memory()
	if err := s.hold(bodies, streams); err != nil {
		return err
	}
	now, peak := s.memory()

	fmt.Printf("%d requests/s of %d bytes, %d rounds of %v a way; %.0f decisions\n", rate, size, rounds, window, decided)
	for _, b := range []bars.Bar{
		{Name: "plain p50", Unit: "us"},
		{Name: "plain p99", Unit: "us"},
		{Name: "picked p50", Unit: "us"},
		{Name: "picked p99", Unit: "us"},
		{Name: "observer adds p50", Unit: "us"},
		{Name: "observer adds p99", Unit: "us"},
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
