package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"

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

// live is the memory in use, in MiB: what was reachable when a collection began, and the stacks. What the process has from the
// system besides is the collector's to give back when it likes. A collection also takes for reachable all that is allocated
// while it marks, which under a flood, on a machine that others use, is tens of MiB that no message needs: that is taken off.
// The median of several counts, after two collections: a pool keeps what it has through one.
func live() float64 {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // so that no other collection comes between
	runtime.GC()
	runtime.GC()
	counts := make([]float64, 5)
	for i := range counts {
		before, cycles := allocated(), collections()
		collected := make(chan struct{})
		go func() {
			defer close(collected)
			runtime.GC()
		}()
		for collections() == cycles { // until the marking ends; it began at once
			time.Sleep(time.Millisecond)
		}
		meanwhile := allocated() - before
		<-collected
		inUse := read("/gc/heap/live:bytes") - meanwhile + read("/memory/classes/heap/stacks:bytes")
		counts[i] = float64(int64(inUse)) / (1 << 20)
	}
	slices.Sort(counts)
	return counts[len(counts)/2]
}

func allocated() uint64   { return read("/gc/heap/allocs:bytes") }
func collections() uint64 { return read("/gc/cycles/total:gc-cycles") }

func read(name string) uint64 {
	found := []metrics.Sample{{Name: name}}
	metrics.Read(found)
	return found[0].Value.Uint64()
}
