package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvoracle/kvoracle/server"
)

// live starts a server on a socket of its own and gives its address.
func live(t *testing.T) string {
	t.Helper()
	return liveWith(t, server.Config{}).Addr().String()
}

// liveWith starts a server on a socket of its own and ends it with the test.
func liveWith(t *testing.T, cfg server.Config) *server.Server {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	s, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// ctl runs a command and gives what it printed.
func ctl(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, &o, &e)
	return code, o.String(), e.String()
}

func TestCommands(t *testing.T) {
	addr := live(t)
	file := filepath.Join(t.TempDir(), "case.txt")
	// Tokens 0x4100 to 0x4103 are block A.
	text := "RB w1 e1 s1 +[A AB]\n----\nack s1 fresh held=2 stored=2\n\nRB w2 e1 s1 +[A]\n----\nack s1 fresh held=1 stored=1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// The workers live as long as the transcript's streams, and a grace longer.
	if code, out, errs := ctl(t, "--server", addr, "script", file); code != 0 {
		t.Fatalf("script: %d\n%s%s", code, out, errs)
	}
	prompt := "16640-16643,16896-16899,1"
	tests := []struct {
		args []string
		code int
		want []string // in either output
	}{
		{[]string{"route", "--model", "m", "--tokens", prompt}, 0, []string{"w1: holds 8 of 9 prompt tokens", "why: least cost", "else: w2 (4 tokens, ", "cache fresh, load booked only)"}},
		{[]string{"route", "--model", "m", "--tokens", prompt, "--explain", "--deny", "w1"}, 0, []string{"w2: holds 4 of 9", "excluded: denied", "prefill"}},
		{[]string{"route", "--model", "none", "--tokens", "1"}, 1, []string{"kvoraclectl: NotFound: model: got \"none\""}},
		{[]string{"route", "--tokens", "x"}, 1, []string{"no token id"}},
		{[]string{"route", "--tokens", "9-1"}, 1, []string{"no range"}},
		{[]string{"route", "--tokens", "0-4294967295"}, 1, []string{"too many"}},
		{[]string{"route"}, 2, []string{"--tokens"}},
		{[]string{"route", "--tokens", "1", "--text", "a"}, 2, []string{"--text"}},
		{[]string{"route", "--model", "m", "--text", strings.Repeat("x", 4*400), "--book", "--deny", "w1"}, 0, []string{"holds 0 of 400 prompt tokens", "decision"}},
		{[]string{"route", "--model", "m", "--text", strings.Repeat("x", 4*400)}, 0, []string{"of 400 prompt tokens"}},
		{[]string{"workers"}, 0, []string{"WORKER", "w1", "fresh", "w2"}},
		{[]string{"workers", "--model", "none"}, 0, []string{"no workers"}},
		{[]string{"verify", "w1", "--ids"}, 0, []string{" device\n", "w1 rank 0 after batch 1: cache fresh", "device 2 blocks, xor "}},
		{[]string{"verify", "w9"}, 1, []string{"NotFound", "w9"}},
		{[]string{"drain", "w1"}, 0, []string{"draining"}},
		{[]string{"drain", "w1", "--undo"}, 0, []string{"ready"}},
		{[]string{"explain", "0000000000000001"}, 1, []string{"NotFound"}},
		{[]string{"--help"}, 0, []string{"route", "explain", "workers", "watch", "script", "demo", "--server"}},
		{[]string{"nonsense"}, 2, []string{"nonsense"}},
	}
	for _, tt := range tests {
		code, out, errs := ctl(t, append([]string{"--server", addr}, tt.args...)...)
		if code != tt.code {
			t.Errorf("%v: exit code %d, want %d\n%s%s", tt.args, code, tt.code, out, errs)
		}
		for _, want := range tt.want {
			if !strings.Contains(out+errs, want) {
				t.Errorf("%v: no %q in\n%s%s", tt.args, want, out, errs)
			}
		}
	}

	_, out, _ := ctl(t, "--server", addr, "route", "--model", "m", "--tokens", prompt, "--book")
	m := regexp.MustCompile(`decision ([0-9a-f]{16})`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no decision id in\n%s", out)
	}
	if code, out, errs := ctl(t, "--server", addr, "explain", m[1]); code != 0 || !strings.Contains(out, "model m") || !strings.Contains(out, "w2") {
		t.Errorf("explain: %d\n%s%s", code, out, errs)
	}
	if code, out, _ := ctl(t, "--server", addr, "remove", "w1"); code != 0 || !strings.Contains(out, "2 blocks forgotten, 1 bookings released") {
		t.Errorf("remove: %d\n%s", code, out)
	}
	if code, _, errs := ctl(t, "--server", addr, "remove", "w1"); code != 1 || !strings.Contains(errs, "NotFound") {
		t.Errorf("remove again: %d\n%s", code, errs)
	}
}

func TestScriptTellsDifferences(t *testing.T) {
	addr := live(t)
	file := filepath.Join(t.TempDir(), "case.txt")
	if err := os.WriteFile(file, []byte("# config max_blocks=3\nlist\n----\nw9 is there\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := ctl(t, "--server", addr, "script", file)
	if code != 1 || !strings.Contains(out, "for a server that was started with --max-blocks=3\n") || !strings.Contains(out, "no workers") || !strings.Contains(errs, "1 of 1 answers differ") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
}

func TestWatchShowsAndEnds(t *testing.T) {
	addr := live(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := net.Pipe()
	defer func() { _ = r.Close() }()
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"--server", addr, "watch", "--interval", "100ms"}, w, w) }()
	buf := make([]byte, 64)
	var seen strings.Builder
	for !strings.Contains(seen.String(), "no workers\n\n") {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		seen.Write(buf[:n])
	}
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestNobodyThere(t *testing.T) {
	code, _, errs := ctl(t, "--server", "127.0.0.1:1", "--timeout", "2s", "workers")
	if code != 1 || !strings.Contains(errs, "Unavailable") {
		t.Errorf("%d\n%s", code, errs)
	}
}

func TestDemoPrintsItsTable(t *testing.T) {
	code, out, errs := ctl(t, "demo", "--requests", "40", "--pace", "200", "--engines", "2", "--policies", "least_time,random")
	if code != 0 {
		t.Fatalf("%d\n%s%s", code, out, errs)
	}
	for _, want := range []string{"kvoracle", "random", "TTFT p99", "decisions/s", "2 workers", "least_time, random, took"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if !strings.Contains(errs, "least_time      40 of 40 requests") {
		t.Errorf("no progress in\n%s", errs)
	}
	if code, _, errs := ctl(t, "demo", "--policies", "nonsense"); code != 1 || !strings.Contains(errs, "nonsense") {
		t.Errorf("an unknown policy: %d\n%s", code, errs)
	}
}

func TestConfigFile(t *testing.T) {
	addr := live(t)
	write := func(text string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "ctl.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	good := write("server: " + addr + "\nworkers:\n  model: m\nroute:\n  deny: [w1, w2]\n")
	if code, out, errs := ctl(t, "--config", good, "workers"); code != 0 || !strings.Contains(out, "no workers") {
		t.Errorf("from the file: %d\n%s%s", code, out, errs)
	}
	// A flag and the environment win over the file.
	if code, _, errs := ctl(t, "--config", good, "--server", "127.0.0.1:1", "--timeout", "1s", "workers"); code != 1 || !strings.Contains(errs, "Unavailable") {
		t.Errorf("flag over file: %d\n%s", code, errs)
	}
	t.Setenv("KVORACLE_SERVER", "127.0.0.1:1")
	if code, _, errs := ctl(t, "--config", good, "--timeout", "1s", "workers"); code != 1 || !strings.Contains(errs, "Unavailable") {
		t.Errorf("environment over file: %d\n%s", code, errs)
	}
	for text, want := range map[string]string{
		"sever: x\n":            "sever",
		"workers:\n  mode: m\n": "mode",
		"workers: m\n":          "workers",
		"server: [\n":           "config",
	} {
		if code, _, errs := ctl(t, "--config", write(text), "workers"); code != 2 || !strings.Contains(errs, want) {
			t.Errorf("%q: %d\n%s", text, code, errs)
		}
	}
}
