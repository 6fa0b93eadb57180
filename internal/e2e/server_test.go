//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// What the server says on stdout once it can be called.
	servingPrefix     = "kvoracle: serving on "
	servingHTTPPrefix = "kvoracle: serving HTTP on "
	startTimeout      = 30 * time.Second
	stopTimeout       = 20 * time.Second
)

// startServer starts a server and returns its address.
func startServer(t *testing.T) string {
	t.Helper()
	return start(t).grpc
}

// served is a running server.
type served struct {
	grpc, http string // its addresses; http is empty unless asked for
	stop       func() // ends it before the test does
	kill       func() // ends it as a crash does; it is gone on return
}

// programs is where what was built lies, for the life of this process; TestMain removes it.
var programs string

// TestMain makes a place for programs.
func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "kvoracle-e2e-"); err != nil {
		panic(err)
	}
	m.Run()
	_ = os.RemoveAll(programs) // a temporary folder
}

// building is held while a program is built: tests run side by side.
var building sync.Mutex

// build builds a program of this tree, once for all tests, and returns where it is.
func build(t *testing.T, pkg string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	bin := filepath.Join(programs, filepath.Base(pkg))
	if _, err := os.Stat(bin); err != nil {
		run(t, exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../"+pkg))
	}
	return bin
}

// start builds the server from this tree and starts it on free ports. At the test's end it is asked to stop, and must do so
// in time and with exit code 0.
func start(t *testing.T, args ...string) *served {
	t.Helper()
	bin := build(t, "server/cmd/kvoracle")
	// Not tied to t.Context, which ends before the clean-up that stops the server in an orderly way.
	cmd := exec.Command(bin, append([]string{"--listen=127.0.0.1:0", "--ops-listen="}, args...)...) //nolint:noctx // see above
	stdout := newLineFinder(servingPrefix)
	wantHTTP := slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--http-listen=") })
	if wantHTTP {
		stdout = newLineFinder(servingPrefix, servingHTTPPrefix)
	}
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = stdout, &stderr
	cmd.WaitDelay = time.Second // a child of the server that keeps its stdout open must not keep us
	if err := cmd.Start(); err != nil {
		t.Fatalf("server did not start: %v", err)
	}
	var exit error
	exited := make(chan struct{})
	go func() {
		exit = cmd.Wait()
		close(exited)
	}()
	isKilled := false
	stop := sync.OnceFunc(func() {
		if isKilled {
			return
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("server could not be told to stop: %v", err)
		}
		select {
		case <-exited:
		case <-time.After(stopTimeout):
			t.Errorf("server did not stop within %v of SIGTERM; killing it: %v", stopTimeout, cmd.Process.Kill())
			<-exited
		}
		if exit != nil {
			t.Errorf("server ended with %v, want exit code 0", exit)
		}
		if t.Failed() {
			t.Logf("server's stderr:\n%s", &stderr)
		}
	})
	t.Cleanup(stop)

	select {
	case lines := <-stdout.found:
		s := &served{grpc: lines[0], stop: stop, kill: func() {
			isKilled = true
			_ = cmd.Process.Kill() // it may have ended by itself
			<-exited
		}}
		if wantHTTP {
			s.http = lines[1]
		}
		return s
	case <-exited:
		t.Fatal("server ended before it served")
	case <-time.After(startTimeout):
		t.Fatalf("server did not say %q within %v", servingPrefix, startTimeout)
	}
	return nil
}

// lineFinder is a process's stdout. It passes on what follows the prefixes that it looks for, once all were seen, and
// forgets the rest.
type lineFinder struct {
	found    chan []string // must hold one
	prefixes []string
	seen     []string
	line     []byte // begun and not ended
}

func newLineFinder(prefixes ...string) *lineFinder {
	return &lineFinder{found: make(chan []string, 1), prefixes: prefixes}
}

// Write never fails, so that the process is never blocked.
func (f *lineFinder) Write(p []byte) (int, error) {
	f.line = append(f.line, p...)
	for {
		line, rest, ended := bytes.Cut(f.line, []byte{'\n'})
		if !ended {
			return len(p), nil
		}
		if n := len(f.seen); n < len(f.prefixes) {
			if value, ok := strings.CutPrefix(string(line), f.prefixes[n]); ok {
				if f.seen = append(f.seen, strings.TrimSpace(value)); len(f.seen) == len(f.prefixes) {
					f.found <- f.seen
				}
			}
		}
		f.line = rest
	}
}

// run runs a command to its end, which must be exit code 0, and returns what it printed.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}
