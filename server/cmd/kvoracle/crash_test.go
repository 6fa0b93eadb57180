package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/client"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

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

const (
	fresh = kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH
	stale = kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_STALE
)

// isAll says whether a process matches all of each prompt, and trusts it so far.
func isAll(p *process, c kvoraclev1.BlockConfidence, prompts ...[]uint32) bool {
	for _, tokens := range prompts {
		if n, got := p.asks(tokens); n != 320 || got != c {
			return false
		}
	}
	return true
}

// prompt is twenty blocks and a token.
func prompt(from uint32) []uint32 {
	tokens := make([]uint32, 321)
	for i := range tokens {
		tokens[i] = from + uint32(i)
	}
	return tokens
}

// reporter speaks for a worker until the test ends.
func reporter(t *testing.T, conn *grpc.ClientConn, name string) *client.Reporter {
	t.Helper()
	rep, err := client.NewReporter(conn, client.Worker{ID: name, Model: "m", BlockSize: 16, Incarnation: 3, Repeats: client.RepeatsSet},
		client.WithReconnect(10*time.Millisecond, 100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- rep.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the reporter ended with %v", err)
		}
	})
	return rep
}

func store(t *testing.T, rep *client.Reporter, tokens []uint32) {
	t.Helper()
	if _, err := rep.StoreTokens(client.Root(), tokens[:len(tokens)/16*16], client.Variant{}, client.TierDevice); err != nil {
		t.Fatal(err)
	}
}

func flush(t *testing.T, rep *client.Reporter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := rep.Flush(ctx); err != nil {
		t.Fatal(err)
	}
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
	t.Cleanup(func() { _ = conn.Close() })
	rep := reporter(t, conn, "w")
	tell := func(tokens []uint32) {
		t.Helper()
		store(t, rep, tokens)
		flush(t, rep)
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

// TestARestartUnderLoadIsNotNoticed ends the program in an orderly way and starts it again, three times, while eight workers
// report all the time: what was acknowledged is saved, what was not is sent again, and nobody has to state its contents.
func TestARestartUnderLoadIsNotNoticed(t *testing.T) {
	args := []string{"--data-dir=" + t.TempDir()}
	d := newDoor(t)
	conn, err := grpc.NewClient(d.lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p := start(t, args...)
	d.set(p.addr)
	var reps []*client.Reporter
	var told [][]uint32
	for i := range 8 {
		reps = append(reps, reporter(t, conn, string(rune('a'+i))))
	}
	say := func() {
		for _, rep := range reps {
			tokens := prompt(uint32(1000 * (len(told) + 1)))
			store(t, rep, tokens)
			told = append(told, tokens)
		}
	}
	for range 3 {
		for range 5 {
			say()
		}
		flush(t, reps[0]) // the others are somewhere on the way
		p.signal(syscall.SIGTERM)
		say()
		ended := make(chan error, 1)
		go func() { ended <- p.cmd.Wait() }()
		say()
		if err := <-ended; err != nil {
			t.Fatalf("it ended with %v:\n%s", err, p.log)
		}
		say()
		p = start(t, args...)
		d.set(p.addr)
	}
	for i, rep := range reps {
		flush(t, rep)
		if s := rep.Stats(); s.Snapshots != 0 {
			t.Errorf("worker %d has sent %d snapshots", i, s.Snapshots)
		}
	}
	eventually(t, "all that was told", func() bool { return isAll(p, fresh, told...) })
}

// TestWhatWasAcknowledgedOutlivesAKill kills the program with signal 9 right after it has acknowledged, again and again, with
// saves going on and with none. Each time the next process knows all of it before any reporter has spoken, and believes it by
// half; the reporter goes on without a word.
func TestWhatWasAcknowledgedOutlivesAKill(t *testing.T) {
	for _, interval := range []string{"1s", "1h"} {
		t.Run(interval, func(t *testing.T) {
			args := []string{"--data-dir=" + t.TempDir(), "--snapshot-interval=" + interval}
			d := newDoor(t)
			conn, err := grpc.NewClient(d.lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			rep := reporter(t, conn, "w")
			var told [][]uint32
			for range 4 {
				p := start(t, args...)
				eventually(t, "all that was acknowledged, by half", func() bool { return isAll(p, stale, told...) })
				eventually(t, "the log is there", func() bool { return p.is("replication") })
				d.set(p.addr)
				for range 5 {
					for range 20 {
						told = append(told, prompt(uint32(1000*(len(told)+1))))
						store(t, rep, told[len(told)-1])
					}
					flush(t, rep)
				}
				d.set("")
				p.kill()
			}
			if n := rep.Stats().Snapshots; n != 0 {
				t.Errorf("%d snapshots were sent", n)
			}
		})
	}
}

// is says whether a component of a process's health is well.
func (p *process) is(component string) bool {
	a, err := healthpb.NewHealthClient(p.conn).Check(p.t.Context(), &healthpb.HealthCheckRequest{Service: component})
	return err == nil && a.GetStatus() == healthpb.HealthCheckResponse_SERVING
}
