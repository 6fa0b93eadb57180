//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestExamples runs the programs that the guides show: the worker tells of two blocks, and the gateway is sent to them.
func TestExamples(t *testing.T) {
	t.Parallel()
	oracle := startServer(t)
	environment := append(os.Environ(), "KVORACLE_SERVER="+oracle)
	ctx, cancel := context.WithCancel(t.Context())
	worker := exec.CommandContext(ctx, build(t, "examples/worker"))
	worker.Env = environment
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = worker.Wait() // killed
	})
	gateway := build(t, "examples/gateway")
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		cmd := exec.CommandContext(t.Context(), gateway)
		cmd.Env = environment
		out, err := cmd.CombinedOutput()
		if err == nil && strings.HasPrefix(string(out), "worker-1 at 127.0.0.1:8000 holds 8 of 9 tokens (oracle, ") {
			return
		}
		select {
		case <-again.C: // the worker may not be known yet, and a busy machine slower than the gateway waits
		case <-deadline.C:
			t.Fatalf("%v\n%s", err, out)
		}
	}
}
