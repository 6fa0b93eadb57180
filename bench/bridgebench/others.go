package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/internal/bridge"
	"github.com/kvoracle/kvoracle/server"
)

// figures is what a bridge says of itself.
type figures struct{ events, outbox, resident float64 }

// process is one of the others. It ends when its input does.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(role string, args ...string) (*process, error) {
	cmd := exec.Command(os.Args[0], append([]string{"-role=" + role}, args...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &process{cmd, in, bufio.NewReader(out)}, cmd.Start()
}

func (p *process) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

func (p *process) line() (string, error) {
	s, err := p.out.ReadString('\n')
	return strings.TrimSpace(s), err
}

// figures asks a bridge.
func (p *process) figures() (f figures, err error) {
	if _, err := fmt.Fprintln(p.in, "figures"); err != nil {
		return f, err
	}
	s, err := p.line()
	if err != nil {
		return f, err
	}
	_, err = fmt.Sscan(s, &f.events, &f.outbox, &f.resident)
	return f, err
}

// cpu is the processor time used so far, in seconds; 0 where the system does not say.
func (p *process) cpu() float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold anything; user and system time are the 12th and 13th fields behind it.
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const ticks = 100 // a second, on every Linux there is
	var sum float64
	for _, v := range f[11:13] {
		n, _ := strconv.ParseFloat(v, 64)
		sum += n / ticks
	}
	return sum
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
