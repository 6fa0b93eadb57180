package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/bench/child"
	"github.com/kvoracle/kvoracle/internal/bridge"
	"github.com/kvoracle/kvoracle/server"
)

// figures is what a bridge says of itself.
type figures struct{ events, outbox, resident float64 }

// ask asks a bridge for them.
func ask(bridge *child.Process) (f figures, err error) {
	s, err := bridge.Ask("figures")
	if err != nil {
		return f, err
	}
	_, err = fmt.Sscan(s, &f.events, &f.outbox, &f.resident)
	return f, err
}

// serve is the oracle.
func serve() error {
	debug.SetGCPercent(server.GCPercent) // as the program does
	cfg := server.DefaultConfig()
	cfg.Listen, cfg.OpsListen = "127.0.0.1:0", ""
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
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return s.Run(ctx)
}

// hear is the bridge.
func hear(s *settings) error {
	runtime.GOMAXPROCS(1)
	if s.profile != "" {
		f, err := os.Create(s.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	cfg := bridge.Config{Oracle: s.oracle}
	for i, at := range strings.Split(s.events, ",") {
		cfg.Engines = append(cfg.Engines, bridge.Engine{
			Worker: fmt.Sprint("w-", i), Kind: "vllm", Events: at, Model: "m", BlockSize: blockSize,
		})
	}
	conn, err := grpc.NewClient(s.oracle, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	b, err := bridge.New(cfg, conn, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			var events, outbox uint64
			for _, st := range b.Status() {
				events += st.Events
				outbox += uint64(st.OutboxBytes)
			}
			fmt.Println(events, outbox, resident())
		}
		cancel()
	}()
	return b.Run(ctx)
}

// resident is the most memory that the process ever had from the system, in MiB.
func resident() float64 {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return n / 1024
		}
	}
	return 0
}
