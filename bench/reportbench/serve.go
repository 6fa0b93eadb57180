package main

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/kvoracle/kvoracle/server"
)

// serve is the measured process: the server with its default settings. profiles is where it shows its profiles, or empty.
// It answers each line of its input with its live memory, and ends with its input.
func serve(profiles string) error {
	debug.SetGCPercent(server.GCPercent) // as the program does
	cfg := server.DefaultConfig()
	cfg.Listen, cfg.OpsListen = "127.0.0.1:0", profiles
	s, err := server.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := s.Listen(ctx); err != nil {
		return err
	}
	fmt.Println(s.Addr())
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Println(live())
		}
		cancel()
	}()
	return s.Run(ctx)
}

// live is the memory in use, in MiB: what a collection has found to be reachable, and the stacks. What the process has from the
// system besides is the collector's to give back when it likes. The least of several counts: a pool keeps what it has through
// one collection, and what is allocated while one marks is taken for reachable, which under a flood is a hundred MiB a second.
func live() float64 {
	least := math.Inf(1)
	for range 5 {
		runtime.GC()
		found := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
		metrics.Read(found)
		least = min(least, float64(found[0].Value.Uint64()+found[1].Value.Uint64())/(1<<20))
	}
	return least
}
