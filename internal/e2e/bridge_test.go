//go:build e2e && vllm

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startBridge builds kvoraclectl and runs its bridge over the engines, by a file. It returns the operator's address once
// every rank is heard and told. At the test's end the bridge must stop in time and with exit code 0.
func startBridge(t *testing.T, oracle string, engines []*vllmEngine) (ops string) {
	t.Helper()
	bin, file := build(t, "client/cmd/kvoraclectl"), filepath.Join(t.TempDir(), "bridge.yaml")
	ops = freePorts(t, 1)[0]
	var yaml strings.Builder
	fmt.Fprintf(&yaml, "oracle: %s\nlisten: %s\nengines:\n", oracle, ops)
	for _, e := range engines {
		fmt.Fprintf(&yaml, "  - {worker: %s, address: '127.0.0.1:%d', events: 'tcp://127.0.0.1:%d', replay: 'tcp://127.0.0.1:%d', "+
			"metrics: 'http://127.0.0.1:%d/metrics', load-every: 100ms}\n", e.name, e.http, e.events, e.replay, e.http)
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
	if !answers(t.Context(), "http://"+ops+"/healthz", time.Minute, exited) {
		t.Fatal("not every rank is heard and told after a minute")
	}
	return ops
}
