package server

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRunOnSockets: all three doors on Unix sockets, in the place of those that a dead process has left, answer whoever may write
// the files, and take them away at the end.
func TestRunOnSockets(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	left, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", at("grpc"))
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Config{Listen: "unix:" + at("grpc"), OpsListen: "unix://" + at("ops"), HTTPListen: "unix:" + at("http")})
	if err := r.s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { r.ended <- r.s.Run(ctx) }()
	target := AddressOf(r.s.Addr())
	if want := "unix:" + at("grpc"); target != want {
		t.Fatalf("serves on %s, want %s", target, want)
	}
	r.dial(target)
	r.worker("w1")
	resp, err := r.route.Route(t.Context(), prompt(1, 2, 3))
	if err != nil || resp.GetTarget().GetWorkerId() != "w1" {
		t.Errorf("got %v, %v", resp, err)
	}
	for name, path := range map[string]string{"ops": "/healthz", "http": "/v1/workers"} {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", at(name))
		}}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", name, resp.Status)
		}
		f, err := os.Stat(at(name))
		if err != nil || f.Mode().Perm() != socketMode {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	cancel()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	if rest, err := os.ReadDir(dir); err != nil || len(rest) > 0 {
		t.Errorf("left behind: %v, %v", rest, err)
	}
}

// TestSocketsOfOthersStay: a socket on which somebody listens, and a file that is no socket, are nobody's to remove.
func TestSocketsOfOthersStay(t *testing.T) {
	dir := t.TempDir()
	taken, file := filepath.Join(dir, "taken"), filepath.Join(dir, "file")
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", taken)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{taken: syscall.EADDRINUSE.Error(), file: syscall.EADDRINUSE.Error(), filepath.Join(dir, "no", "where"): "no such file"} {
		r := newRig(t, Config{Listen: "unix:" + path})
		if err := r.s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Listen: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
	c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", taken)
	if err != nil {
		t.Fatalf("the other's socket is gone: %v", err)
	}
	_ = c.Close()
}
