//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startBridge builds kvoraclectl and runs its bridge over the engines, by a file; each is an entry of it. It returns the
// operator's address once every rank is heard and told. At the test's end the bridge must stop in time and with exit code 0.
func startBridge(t *testing.T, oracle string, engines ...string) (ops string) {
	t.Helper()
	bin, file := build(t, "client/cmd/kvoraclectl"), filepath.Join(t.TempDir(), "bridge.yaml")
	ops = freePort(t)
	var yaml strings.Builder
	fmt.Fprintf(&yaml, "oracle: %s\nlisten: %s\nengines:\n", oracle, ops)
	for _, e := range engines {
		fmt.Fprintf(&yaml, "  - {%s, load-every: 100ms}\n", e)
	}
	if err := os.WriteFile(file, []byte(yaml.String()), 0o600); err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(bin, "bridge", "--file", file) //nolint:noctx // stopped by a signal, below
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	var exit error
	go func() {
		exit = cmd.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(stopTimeout):
			t.Errorf("the bridge did not stop within %v of SIGTERM; killing it: %v", stopTimeout, cmd.Process.Kill())
			<-exited
		}
		if exit != nil {
			t.Errorf("the bridge ended with %v, want exit code 0", exit)
		}
		if t.Failed() {
			t.Logf("the bridge said:\n%s", &log)
		}
	})
	if !answers(t.Context(), "http://"+ops+"/healthz", 3*time.Minute, exited) {
		t.Fatal("not every rank is heard and told after three minutes")
	}
	return ops
}

// answers waits until an address answers 200; false: it did not in time, or its process has ended.
func answers(ctx context.Context, url string, within time.Duration, exited <-chan struct{}) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return false
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return true
			}
		}
		select {
		case <-again.C:
		case <-exited:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
