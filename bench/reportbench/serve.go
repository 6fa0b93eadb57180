package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

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

// live is the memory in use, in MiB: what a collection leaves of the heap, and the stacks. What the process has from the
// system besides is the collector's to give back when it likes.
func live() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc+m.StackInuse) / (1 << 20)
}
