package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/bridge/enginetest"
)

// TestBridge speaks for engines that it has to find everything out about, by flags and by a file.
func TestBridge(t *testing.T) {
	addr := live(t)
	model := enginetest.Model{Name: "m", BlockSize: 4, Blocks: 64}
	for worker, tt := range map[string]struct {
		cfg   enginetest.Config
		flags func(*enginetest.Engine) []string
	}{
		"by-flags": {enginetest.Config{Model: model, Ring: 100}, func(e *enginetest.Engine) []string {
			return []string{"--engine", "auto", "--worker-id", "by-flags", "--events", e.Events(), "--replay", e.Replay(), "--metrics", e.Web() + "/metrics"}
		}},
		"by-documents": {enginetest.Config{Model: model, Ring: 100, Family: enginetest.SGLang}, func(e *enginetest.Engine) []string {
			return []string{"--worker-id", "by-documents", "--api", e.Web()}
		}},
		"by-file": {enginetest.Config{Model: model, Servicer: enginetest.Keeping, Ring: 100}, func(e *enginetest.Engine) []string {
			file := filepath.Join(t.TempDir(), "bridge.yaml")
			if err := os.WriteFile(file, []byte("engines: [{worker: by-file, events: 'grpc://"+e.GRPC()+"'}]\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return []string{"--file", file}
		}},
	} {
		t.Run(worker, func(t *testing.T) {
			engine, err := enginetest.New(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer engine.Close()
			engine.Serve(0, enginetest.Variant{}, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan int, 1)
			var said, errs bytes.Buffer
			args := append([]string{"--server", addr, "bridge", "--listen", "127.0.0.1:0"}, tt.flags(engine)...)
			go func() { done <- run(ctx, args, &said, &errs) }()
			again := time.NewTicker(20 * time.Millisecond)
			defer again.Stop()
			deadline := time.NewTimer(2 * time.Minute)
			defer deadline.Stop()
			for has := false; !has; {
				_, out, _ := ctl(t, "--server", addr, "verify", worker)
				has = strings.Contains(out, "device 2 blocks")
				select {
				case <-again.C:
				case code := <-done:
					t.Fatalf("it ended with %d\n%s", code, &errs)
				case <-deadline.C:
					t.Fatalf("the oracle knows:\n%s", out)
				}
			}
			cancel()
			if code := <-done; code != 0 {
				t.Errorf("it ended with %d\n%s", code, &errs)
			}
		})
	}
}

func TestBridgeIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bridge.yaml")
	text := "oracle: 'localhost:1'\ntoken-file: /a\nengines: [{worker: w, events: 'tcp://h:1'}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "want a name"},
		{[]string{"--worker-id", "w"}, "events: want"},
		{[]string{"--worker-id", "w", "--events", "tcp://h:1", "--engine", "tgi"}, `engine: got "tgi"`},
		{[]string{"--worker-id", "w", "--events", "grpc://h:1", "--bind"}, "bind: it is for ZeroMQ"},
		{[]string{"--file", file, "--worker-id", "w"}, "not both"},
		{[]string{"--file", file, "--load", "tcp://h:2"}, "not both"},
		{[]string{"--token-file", "/b", "--file", file}, "token-file: " + file + " says /a"},
		{[]string{"--file", file}, "/a"}, // which is not there
	} {
		code, out, errs := ctl(t, append([]string{"bridge", "--listen", ""}, tt.args...)...)
		if code != 1 || !strings.Contains(out+errs, tt.want) {
			t.Errorf("%v: %d, want 1 and %q in\n%s%s", tt.args, code, tt.want, out, errs)
		}
	}
}
