package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// asProgram makes this test binary the program itself, so that tests can send it signals.
const asProgram = "KVORACLE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process is the program in a process of its own.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *lines
	addr string
	conn *grpc.ClientConn
}

// start starts it and waits until it serves. A deadline on the whole test is the only one there is.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, append([]string{"--listen=127.0.0.1:0", "--ops-listen=", "--log-format=json"}, args...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	p := &process{t: t, cmd: cmd, log: newLines()}
	cmd.Stderr = p.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := bufio.NewScanner(out)
	first.Scan()
	var ok bool
	if p.addr, ok = strings.CutPrefix(first.Text(), "kvoracle: serving on "); !ok {
		t.Fatalf("it says %q; its log: %s", first.Text(), p.log)
	}
	if p.conn, err = grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.conn.Close() })
	return p
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// lines is a log that can be waited for.
type lines struct {
	mu   sync.Mutex
	cond *sync.Cond
	text strings.Builder
}

func newLines() *lines {
	l := &lines{}
	l.cond = sync.NewCond(&l.mu)
	return l
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cond.Broadcast()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// wait waits for a text to be there so many times.
func (l *lines) wait(text string, times int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for strings.Count(l.text.String(), text) < times {
		l.cond.Wait()
	}
}

func (p *process) policy() string {
	p.t.Helper()
	m, err := kvoraclev1.NewRouteServiceClient(p.conn).Route(p.t.Context(), &kvoraclev1.RouteRequest{
		Model: "demo", DryRun: true, Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: []uint32{1}}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return m.GetPolicy()
}

func (p *process) register() {
	p.t.Helper()
	if _, err := kvoraclev1.NewFleetServiceClient(p.conn).RegisterWorker(p.t.Context(), &kvoraclev1.RegisterWorkerRequest{
		Spec: &kvoraclev1.WorkerSpec{WorkerId: "w1", Address: "w1:8000", Model: "demo", BlockSize: 16},
	}); err != nil {
		p.t.Fatal(err)
	}
}

// TestHangup: SIGHUP and a changed file put new settings in force; what cannot be is named, and nothing of it is.
func TestHangup(t *testing.T) {
	path := file(t, "policy: random\n")
	p := start(t, "--config", path)
	p.register()
	if got := p.policy(); got != "random" {
		t.Fatal(got)
	}
	write := func(text string) {
		t.Helper()
		next := path + ".next" // as whoever mounts such a file does: whole or not at all
		if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
	}
	const applied, refused = `"msg":"a file that has changed is in force","file":"config"`, `"msg":"a file that has changed cannot be used`
	write("policy: round_robin\nmax-rate: 100000\nlog-level: warn\n")
	p.signal(syscall.SIGHUP)
	p.log.wait(applied, 1)
	p.log.wait(`"msg":"log level","level":"WARN"`, 1)
	if got := p.policy(); got != "round_robin" {
		t.Error(got)
	}
	write("policy: least_time\nmax-blocks: 77\nlog-level: info\n") // nobody signals: the file is watched
	p.log.wait(refused, 1)
	write("policy: least_time\nlog-level: inof\n")
	p.log.wait(refused, 2)
	if got := p.policy(); got != "round_robin" {
		t.Errorf("a refused file is in force: %s", got)
	}
	for _, want := range []string{"MaxBlocks: it cannot change while the server runs", "inof"} {
		if !strings.Contains(p.log.String(), want) {
			t.Errorf("the log does not name %q: %s", want, p.log)
		}
	}
	write("policy: least_time\nlog-level: info\n")
	p.log.wait(`"msg":"log level","level":"INFO"`, 1)
	if got := p.policy(); got != "least_time" {
		t.Error(got)
	}
	p.signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, p.log)
	}
}

// TestTermWithLongStreams is the drain as a process manager sees it: streams that nobody would end are told, the process
// ends by itself with exit code 0, within delay and timeout.
func TestTermWithLongStreams(t *testing.T) {
	p := start(t, "--drain-delay=1s", "--drain-timeout=120s") // far above what it takes, however slow the machine
	p.register()
	route := kvoraclev1.NewRouteServiceClient(p.conn)
	blocks, err := route.ReportBlocks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := blocks.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
		Worker:      &kvoraclev1.WorkerSpec{WorkerId: "w2", Address: "w2:8000", Model: "demo", BlockSize: 16},
		Incarnation: 1, NextSequence: 1, HashScheme: "xxh3-64/1337", Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
	}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := blocks.Recv(); err != nil {
		t.Fatal(err)
	}
	asks, err := route.RouteStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	health, err := healthpb.NewHealthClient(p.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		t.Fatal(err)
	}
	state := func() healthpb.HealthCheckResponse_ServingStatus {
		t.Helper()
		m, err := health.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return m.GetStatus()
	}
	if s := state(); s != healthpb.HealthCheckResponse_SERVING {
		t.Fatal(s)
	}
	p.signal(syscall.SIGTERM)
	if s := state(); s != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the first that is heard is %v", s)
	}
	for name, recv := range map[string]func() (bool, error){
		"ReportBlocks": func() (bool, error) { m, err := blocks.Recv(); return m.GetGoAway() != nil, err },
		"RouteStream":  func() (bool, error) { m, err := asks.Recv(); return m.GetGoAway() != nil, err },
	} {
		told := false
		for {
			isGoAway, err := recv()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("%s ended with %v, want a good end", name, err)
				}
				break
			}
			told = told || isGoAway
		}
		if !told {
			t.Errorf("%s was not told", name)
		}
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, p.log)
	}
	if strings.Contains(p.log.String(), "calls are cut") {
		t.Errorf("streams held it up: %s", p.log)
	}
}

// TestSecondSignalEndsAtOnce: nobody has to wait for a drain.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	p := start(t, "--drain-delay=10m")
	p.signal(syscall.SIGTERM)
	p.log.wait(`"msg":"draining"`, 1)
	var exit *exec.ExitError
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
				t.Errorf("it ended with %v, want to be ended by the signal", err)
			}
			return
		case <-tick.C: // the first may still be on its way to where a second one is let through
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		case <-ctx.Done():
			t.Fatal("it goes on")
		}
	}
}
