//go:build e2e

package e2e

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// What the server says on stdout once it can be called.
	servingPrefix = "kvoracle: serving on "
	startTimeout  = 10 * time.Second
	stopTimeout   = 10 * time.Second
)

// startServer builds the server from this tree, starts it on a free port and returns its address. At the test's end it
// is asked to stop, and must do so in time and with exit code 0.
func startServer(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "kvoracle")
	run(t, exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../server/cmd/kvoracle"))

	// Not tied to t.Context, which ends before the clean-up that stops the server in an orderly way.
	cmd := exec.Command(bin, "--listen=127.0.0.1:0", "--ops-listen=") //nolint:noctx // see above
	stdout := &addrFinder{found: make(chan string, 1)}
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
	t.Cleanup(func() {
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

	select {
	case addr := <-stdout.found:
		return addr
	case <-exited:
		t.Fatal("server ended before it served")
	case <-time.After(startTimeout):
		t.Fatalf("server did not say %q within %v", servingPrefix, startTimeout)
	}
	return ""
}

// addrFinder is a server's stdout. It passes the address on and forgets the rest.
type addrFinder struct {
	found chan string // must hold one
	line  []byte      // begun and not ended
	done  bool
}

// Write never fails, so that the server is never blocked.
func (f *addrFinder) Write(p []byte) (int, error) {
	f.line = append(f.line, p...)
	for {
		line, rest, ended := bytes.Cut(f.line, []byte{'\n'})
		if !ended {
			return len(p), nil
		}
		if addr, ok := strings.CutPrefix(string(line), servingPrefix); ok && !f.done {
			f.found <- strings.TrimSpace(addr)
			f.done = true
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
