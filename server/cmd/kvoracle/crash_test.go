package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/client"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// kill ends it as kill -9 does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have gone
	_ = p.cmd.Wait()         // it was killed
	if p.t.Failed() {
		p.t.Logf("a process said:\n%s", p.log)
	}
}

// asks is how many tokens of a prompt a process finds matched, and how far it trusts that.
func (p *process) asks(tokens []uint32) (matched uint64, c kvoraclev1.BlockConfidence) {
	p.t.Helper()
	a, err := kvoraclev1.NewRouteServiceClient(p.conn).Route(p.t.Context(), &kvoraclev1.RouteRequest{
		Model: "m", DryRun: true, Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: tokens}},
	}, grpc.WaitForReady(true))
	if err != nil {
		return 0, 0
	}
	return a.GetMatched().GetDevice(), a.GetConfidence().GetBlocks()
}

// eventually waits for something that must come, however slow the machine.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// door is an address that stays while the processes behind it come and go. Closed, it cuts what is open and lets nobody
// in.
type door struct {
	lis net.Listener

	mu     sync.Mutex
	behind string // empty: closed
	open   []net.Conn
	wg     sync.WaitGroup
}

func newDoor(t *testing.T) *door {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{lis: lis}
	d.wg.Go(d.accept)
	t.Cleanup(func() {
		_ = lis.Close()
		d.set("")
		d.wg.Wait()
	})
	return d
}

func (d *door) accept() {
	for {
		in, err := d.lis.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		if d.behind == "" {
			d.mu.Unlock()
			_ = in.Close()
			continue
		}
		out, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", d.behind)
		if err != nil {
			d.mu.Unlock()
			_ = in.Close()
			continue
		}
		d.open = append(d.open, in, out)
		d.mu.Unlock()
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			d.wg.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				_ = way[0].Close()
				_ = way[1].Close()
			})
		}
	}
}

// set says who is behind the door, and cuts what leads to who was.
func (d *door) set(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.behind = address
	for _, c := range d.open {
		_ = c.Close()
	}
	d.open = nil
}

// TestACrashLosesNothingThatIsToldAgain kills the program with signal 9 and starts it again, four times: what was saved is
// credited by half from the first question on; a reporter that has said nothing since goes on without a word; one that has
// tells everything; and files that are damaged are named and left out.
func TestACrashLosesNothingThatIsToldAgain(t *testing.T) {
	dir := t.TempDir()
	args := []string{"--data-dir=" + dir, "--snapshot-interval=1s"}
	files := func() []string {
		all, err := filepath.Glob(filepath.Join(dir, "*.kvsnap"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	d := newDoor(t)
	conn, err := grpc.NewClient(d.lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	rep, err := client.NewReporter(conn, client.Worker{ID: "w", Model: "m", BlockSize: 16, Incarnation: 3, Repeats: client.RepeatsSet},
		client.WithReconnect(10*time.Millisecond, 100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- rep.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the reporter ended with %v", err)
		}
		_ = conn.Close()
	}()
	prompt := func(from uint32) []uint32 {
		tokens := make([]uint32, 321) // twenty blocks and a token
		for i := range tokens {
			tokens[i] = from + uint32(i)
		}
		return tokens
	}
	tell := func(tokens []uint32) {
		t.Helper()
		if _, err := rep.StoreTokens(client.Root(), tokens[:320], client.Variant{}, client.TierDevice); err != nil {
			t.Fatal(err)
		}
		flush, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := rep.Flush(flush); err != nil {
			t.Fatal(err)
		}
	}
	const (
		fresh = kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH
		stale = kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_STALE
	)
	isAll := func(p *process, c kvoraclev1.BlockConfidence, prompts ...[]uint32) bool {
		for _, tokens := range prompts {
			if n, got := p.asks(tokens); n != 320 || got != c {
				return false
			}
		}
		return true
	}

	first := start(t, args...)
	d.set(first.addr)
	a, b := prompt(1), prompt(100_000)
	tell(a)
	was := files()
	eventually(t, "two saves", func() bool {
		now := files()
		return len(now) == 2 && !slices.Contains(was, now[0]) && !slices.Contains(was, now[1])
	})
	d.set("")
	first.kill()

	second := start(t, args...)
	eventually(t, "what was saved, by half", func() bool { return isAll(second, stale, a) })
	d.set(second.addr)
	eventually(t, "the reporter that goes on", func() bool { return isAll(second, fresh, a) })
	if n := rep.Stats().Snapshots; n != 0 {
		t.Errorf("%d snapshots were sent though nothing had changed", n)
	}
	tell(b)
	d.set("")
	second.kill() // mostly before b was saved

	third := start(t, args...)
	eventually(t, "what was saved, by half", func() bool { return isAll(third, stale, a) })
	d.set(third.addr)
	eventually(t, "all that was acknowledged", func() bool { return isAll(third, fresh, a, b) })
	d.set("")
	third.kill()

	for _, name := range files() {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)/2] ^= 4
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damaged := files()
	fourth := start(t, args...)
	d.set(fourth.addr)
	eventually(t, "all, by a snapshot", func() bool { return isAll(fourth, fresh, a, b) })
	if rep.Stats().Snapshots == 0 {
		t.Error("a damaged file was taken")
	}
	for _, name := range damaged {
		if !strings.Contains(fourth.log.String(), name) {
			t.Errorf("%s was not named:\n%s", name, fourth.log.String())
		}
	}
}
