package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// TestCaptureAndPlay writes what two ranks publish to a file and hears it again from there, with an answer to who asks for
// what went by.
func TestCaptureAndPlay(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, file := range []string{"engine.kvcap", "engine.kvcap.gz"} {
		dir := t.TempDir()
		at, out := "ipc://"+filepath.Join(dir, "engine"), filepath.Join(dir, file)
		publish := func(s *zmtp.Socket, rank int) {
			t.Helper()
			if err := s.WaitPeers(ctx, 1); err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				if err := s.Send(ctx, [][]byte{[]byte("kv"), {0, 0, 0, 0, 0, 0, 0, byte(i)}, {byte(rank)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		code := make(chan int, 1)
		var said, errs bytes.Buffer
		go func() {
			args := []string{"capture", "--out", out}
			if strings.HasSuffix(file, ".gz") {
				args = []string{"record", out}
			}
			code <- run(ctx, append(args, "--endpoint", at, "--ranks", "2", "--topic", "kv", "--messages", "6"), &said, &errs)
		}()
		for rank := range 2 {
			name := at
			if rank > 0 {
				name += "-1"
			}
			s, err := zmtp.Listen(ctx, zmtp.Config{Type: zmtp.PUB, Endpoint: name})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			publish(s, rank)
		}
		if c := <-code; c != 0 || !strings.HasPrefix(said.String(), "6 messages (66 bytes) captured from 2 publishers") {
			t.Fatalf("%d: %s%s", c, &said, &errs)
		}
		info, err := os.Stat(out)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}

		stage, replay := "ipc://"+filepath.Join(dir, "again"), "ipc://"+filepath.Join(dir, "replay")
		said.Reset()
		told := &shout{want: "all was played", heard: make(chan struct{})}
		playing, stop := context.WithCancel(ctx)
		t.Cleanup(stop)
		go func() {
			code <- run(playing, []string{"play", out, "--bind", stage, "--replay", replay, "--speed", "0", "--linger", "1h"}, &said, told)
		}()
		var subs []*zmtp.Socket
		for rank := range 2 {
			sub, err := zmtp.Dial(ctx, zmtp.Config{Type: zmtp.SUB, Endpoint: stage + strings.Repeat("-1", rank)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(sub.Close)
			subs = append(subs, sub)
		}
		for rank := range 2 {
			for i := range 3 {
				expectMessage(t, subs[rank], "kv", string([]byte{0, 0, 0, 0, 0, 0, 0, byte(i)}), string([]byte{byte(rank)}))
			}
			dealer, err := zmtp.Dial(ctx, zmtp.Config{Type: zmtp.DEALER, Endpoint: replay + strings.Repeat("-1", rank)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(dealer.Close)
			if err := dealer.Send(ctx, [][]byte{{}, {0, 0, 0, 0, 0, 0, 0, 2}}); err != nil {
				t.Fatal(err)
			}
			expectMessage(t, dealer, "", "kv", "\x00\x00\x00\x00\x00\x00\x00\x02", string([]byte{byte(rank)}))
			expectMessage(t, dealer, "", "", strings.Repeat("\xff", 8), "")
		}
		select {
		case <-told.heard: // what subscribers have is not yet what the player knows of
		case <-ctx.Done():
			t.Fatal("it does not say that all was played")
		}
		stop()
		if c := <-code; c != 0 || !strings.HasPrefix(said.String(), "6 messages (66 bytes) of ") || !strings.Contains(said.String(), "played by 2 publishers") {
			t.Errorf("%d: %s%s", c, &said, &told.buf)
		}
	}
}

func TestCaptureAndPlayRefuse(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte(strings.Repeat("{\"timestamp\": 1}\n", 9)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"capture", "--endpoint", "tcp://h:1"}, 2, "--out"},
		{[]string{"capture", "--out", other + "2"}, 2, "--endpoint"},
		{[]string{"capture", "--endpoint", "h:1", "--out", other + "2"}, 1, "endpoint: got \"h:1\""},
		{[]string{"capture", "--endpoint", "tcp://h:65535", "--ranks", "2", "--out", other + "2"}, 1, "rank 1"},
		{[]string{"capture", "--endpoint", "tcp://h:1", "--ranks", "0", "--out", other + "2"}, 1, "--ranks"},
		{[]string{"capture", "--help"}, 0, "token ids"},
		{[]string{"record", other + "2", "--endpoint", "h:1"}, 1, "endpoint: got \"h:1\""},
		{[]string{"record", other + "2", "--endpoint", "tcp://h:1", "--requests", "3"}, 1, "--requests"},
		{[]string{"record", other + "2", "--ranks", "2"}, 1, "want --endpoint"},
		{[]string{"record", "--help"}, 0, "the tokens in them"},
		{[]string{"play", other + "3"}, 1, "no such file"},
		{[]string{"play", other}, 1, "not a capture"},
		{[]string{"play", other, "--speed=-1"}, 1, "--speed"},
		{[]string{"play", other, "--steps", "0"}, 1, "--steps"},
		{[]string{"play", other, "--hwm", "0"}, 1, "--hwm"},
	} {
		code, out, errs := ctl(t, tt.args...)
		if code != tt.code || !strings.Contains(out+errs, tt.want) {
			t.Errorf("%v: %d, want %d and %q in\n%s%s", tt.args, code, tt.code, tt.want, out, errs)
		}
	}
}

func TestRankEndpoint(t *testing.T) {
	for _, tt := range []struct {
		in   string
		rank int
		want string
	}{
		{"tcp://*:5557", 0, "tcp://*:5557"},
		{"tcp://[::1]:5557", 3, "tcp://[::1]:5560"},
		{"tcp://h:*", 2, "tcp://h:*"},
		{"ipc:///run/kv", 0, "ipc:///run/kv"},
		{"ipc:///run/kv", 2, "ipc:///run/kv-2"},
	} {
		if got, err := rankEndpoint(tt.in, tt.rank); got != tt.want || err != nil {
			t.Errorf("%s rank %d: got %s, %v, want %s", tt.in, tt.rank, got, err, tt.want)
		}
	}
}

// expectMessage reads the next message, passing over events.
func expectMessage(t *testing.T, s *zmtp.Socket, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		d, err := s.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if d.Event != nil {
			continue
		}
		if diff := cmp.Diff(fmt.Sprintf("%q", want), fmt.Sprintf("%q", d.Message)); diff != "" {
			t.Fatal(diff)
		}
		return
	}
}
