package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func TestServesAndStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, nil, []string{"--listen=127.0.0.1:0", "--ops-listen=", "--log-format=json", "--hint"}, environ(nil), in, &stderr)
		_ = in.Close()
	}()
	lines := bufio.NewScanner(out)
	lines.Scan()
	address, ok := strings.CutPrefix(lines.Text(), "kvoracle: serving on ")
	if !ok {
		t.Fatalf("the first line is %q; stderr: %s", lines.Text(), &stderr)
	}
	lines.Scan()
	if want := "try: go run ./client/cmd/kvoraclectl route --server " + address + " "; !strings.HasPrefix(lines.Text(), want) {
		t.Errorf("the hint is %q", lines.Text())
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if resp, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", resp, err)
	}
	cancel()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d; stderr: %s", got, &stderr)
	}
	if lines.Scan() {
		t.Errorf("another line on stdout: %q", lines.Text())
	}
	for _, want := range []string{`"msg":"serving"`, `"msg":"drained"`, `"msg":"ended"`} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, &stderr)
		}
	}
}

func TestExitCodes(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for _, c := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"help", []string{"--help"}, 0, "Usage: kvoracle", ""},
		{"version", []string{"--version"}, 0, "kvoracle devel", ""},
		{"wrong settings", []string{"--policy=magic"}, 2, "", "magic"},
		{"not loopback", []string{"--listen=0.0.0.0:0"}, 2, "", "Insecure"},
		{"taken port", []string{"--listen", taken.Addr().String()}, 1, "", taken.Addr().String()},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), nil, c.args, environ(nil), &stdout, &stderr); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.Contains(stdout.String(), c.stdout) || (c.stdout == "") != (stdout.Len() == 0) {
				t.Errorf("stdout %q, want %q", &stdout, c.stdout)
			}
			if !strings.Contains(stderr.String(), c.stderr) || (c.stderr == "") != (stderr.Len() == 0) {
				t.Errorf("stderr %q, want %q", &stderr, c.stderr)
			}
		})
	}
}
