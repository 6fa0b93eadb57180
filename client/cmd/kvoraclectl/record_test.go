package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/internal/replay"
	"github.com/kvoracle/kvoracle/internal/sim"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// shout is a writer that says when something was written.
type shout struct {
	want  string // to be there; empty: anything
	mu    sync.Mutex
	buf   bytes.Buffer
	heard chan struct{}
	once  sync.Once
}

func (s *shout) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.buf.Write(b)
	if strings.Contains(s.buf.String(), s.want) {
		s.once.Do(func() { close(s.heard) })
	}
	return n, err
}

// gateway routes requests through a live oracle, tells their whole life and waits until it was heard.
func gateway(t *testing.T, addr string, requests []client.Request) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kvoraclev1.NewFleetServiceClient(conn).RegisterWorker(t.Context(), &kvoraclev1.RegisterWorkerRequest{
		Spec: &kvoraclev1.WorkerSpec{WorkerId: "w1", Model: "demo", BlockSize: 4},
	}); err != nil {
		t.Fatal(err)
	}
	router := client.NewRouter(conn, client.WithTimeout(10*time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- router.Run(ctx) }()
	for i, r := range requests {
		d, err := router.Route(t.Context(), r)
		if err != nil || d.Source != client.SourceOracle {
			t.Fatalf("request %d: %+v, %v", i, d, err)
		}
		router.Dispatched(d)
		router.FirstToken(d, 250*time.Millisecond)
		router.Finished(d, 10+i, 4)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		conn.Close()
	})
}

// TestRecord records live requests and replays the log: the prompts' common heads are in it, and nothing else of them.
func TestRecord(t *testing.T) {
	for _, name := range []string{"log.jsonl", "log.jsonl.gz"} {
		addr, file := live(t), filepath.Join(t.TempDir(), name)
		out, errs := &shout{heard: make(chan struct{})}, &shout{heard: make(chan struct{})}
		code := make(chan int, 1)
		go func() {
			code <- run(t.Context(), []string{"--server", addr, "record", file, "--requests", "3"}, out, errs)
		}()
		select {
		case <-errs.heard: // it records from here on
		case c := <-code:
			t.Fatalf("ended with %d: %s", c, errs.buf.String())
		}
		head := []uint32{700001, 700002, 700003, 700004}
		gateway(t, addr, []client.Request{
			{Model: "demo", Tokens: append(head, 700005), SessionID: "conversation-1"},
			{Model: "demo", Tokens: append(head[:4:4], 700006, 700007, 700008, 700009, 700010), SessionID: "conversation-1"},
			{Model: "demo", Tokens: []uint32{1, 2, 3, 4, 700011, 700012, 700013, 700014}},
		})
		if c := <-code; c != 0 {
			t.Fatalf("%d: %s", c, errs.buf.String())
		}
		if s := out.buf.String(); !strings.HasPrefix(s, "3 requests recorded, 0 left out") {
			t.Errorf("said %q", s)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if s := string(raw); strings.Contains(s, "7000") || strings.Contains(s, "conversation") {
			t.Errorf("the log has what was said:\n%s", s)
		}
		tr, err := replay.ReadFile(file, sim.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if tr.BlockSize != 4 || len(tr.Requests) != 3 {
			t.Fatalf("%d requests in blocks of %d", len(tr.Requests), tr.BlockSize)
		}
		r := tr.Requests
		if r[0].Input != 5 || r[1].Input != 9 || r[2].Input != 8 || r[0].Output != 10 || r[2].Output != 12 {
			t.Errorf("%+v %+v %+v", r[0], r[1], r[2])
		}
		if r[0].Session == "" || r[0].Session != r[1].Session || r[2].Session != "" {
			t.Errorf("sessions %q %q %q", r[0].Session, r[1].Session, r[2].Session)
		}
		a, b, c := r[0].Chain(0, 4), r[1].Chain(0, 4), r[2].Chain(0, 4)
		if len(a) != 1 || len(b) != 2 || len(c) != 2 || a[0] != b[0] || a[0] == c[0] {
			t.Errorf("chains %v %v %v", a, b, c)
		}
		// The log goes through a replay.
		if code, out, errs := ctl(t, "replay", file, "--engines", "1", "--loads", "1", "--policies", "kvoracle", "--no-capacity", "--html", "", "--quiet"); code != 0 {
			t.Errorf("replay: %d\n%s%s", code, out, errs)
		}
	}
}

// It ends when its time is up or it is told to, with a whole file, and says what it cannot do.
func TestRecordEnds(t *testing.T) {
	addr := live(t)
	file := filepath.Join(t.TempDir(), "log.jsonl.gz")
	code, out, errs := ctl(t, "--server", addr, "record", file, "--for", "50ms")
	if code != 0 || !strings.HasPrefix(out, "0 requests recorded") {
		t.Errorf("%d: %s%s", code, out, errs)
	}
	if _, err := replay.ReadFile(file, sim.ReadOptions{}); err == nil || !strings.Contains(err.Error(), "no requests") {
		t.Errorf("an empty log: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	heard := &shout{heard: make(chan struct{})}
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"--server", addr, "record", file}, &bytes.Buffer{}, heard)
	}()
	<-heard.heard
	cancel()
	if c := <-done; c != 0 {
		t.Errorf("interrupted: %d", c)
	}
	for want, args := range map[string][]string{
		"no such file or directory": {"--server", addr, "record", filepath.Join(t.TempDir(), "no", "log")},
		"InvalidArgument":           {"--server", addr, "record", file, "--model", strings.Repeat("m", 2000)},
	} {
		if code, out, errs := ctl(t, args...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d, want %q\n%s%s", args, code, want, out, errs)
		}
	}
}

// Requests without output are counted, not written: a replay could do nothing with them.
func TestRequestLogSkips(t *testing.T) {
	var b bytes.Buffer
	l := newRequestLog(&b, false)
	l.add(&kvoraclev1.RecordedRequest{PromptTokens: 5, BlockSize: 4})
	if err := l.close(); err != nil || l.skipped != 1 || l.requests != 0 || b.Len() != 0 {
		t.Errorf("%v: %s", err, fmt.Sprintf("%+v", l))
	}
}
