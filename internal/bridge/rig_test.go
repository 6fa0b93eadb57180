package bridge

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/client/clienttest"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/bridge/enginetest"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// patience is how long a test waits for what must come; nothing depends on how fast it does.
const patience = 2 * time.Minute

// rig is an engine, a bridge and an oracle, all real but for the engine's model.
type rig struct {
	t      *testing.T
	engine *enginetest.Engine
	oracle *clienttest.Oracle
	bridge *Bridge
	random *rand.Rand
	cfg    enginetest.Config
	prefix [][]uint32
	log    logged // of its bridges
}

func small() enginetest.Config {
	return enginetest.Config{Model: enginetest.Model{Name: "m", BlockSize: 4, Blocks: 64}, Ring: 10_000}
}

// start puts them together; change may edit what the bridge is told.
func start(t *testing.T, cfg enginetest.Config, change func(*Engine)) *rig {
	t.Helper()
	var r *rig
	return startWith(t, cfg, &r, change)
}

// startWith is start for a change that needs the rig: it is there when change is called, but for its bridge.
func startWith(t *testing.T, cfg enginetest.Config, at **rig, change func(*Engine)) *rig {
	t.Helper()
	engine, err := enginetest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	r := &rig{t: t, engine: engine, oracle: clienttest.Start(t), random: rand.New(rand.NewPCG(1, 2)), cfg: cfg}
	*at = r
	e := Engine{Worker: "w", Events: engine.Events(), Replay: engine.Replay(), API: engine.Web(), LoadEvery: Duration(20 * time.Millisecond)}
	if !cfg.Silent && cfg.Family != enginetest.SGLang {
		e.Metrics = engine.Web() + "/metrics"
	}
	if cfg.Ring == 0 {
		e.Replay = ""
	}
	if cfg.Silent {
		e.BlockSize = cfg.BlockSize
	}
	if cfg.Ranks > 1 {
		e.Ranks = cfg.Ranks
	}
	if change != nil {
		change(&e)
	}
	r.run(e)
	return r
}

// logged is what a bridge has logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// says is how often it says something.
func (l *logged) says(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// run starts the bridge, and stops it at the test's end.
func (r *rig) run(engines ...Engine) {
	r.t.Helper()
	var err error
	r.bridge, err = New(Config{Oracle: "in memory", Engines: engines}, r.oracle.Conn(), slog.New(slog.NewTextHandler(io.MultiWriter(r.t.Output(), &r.log), nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.bridge.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("the bridge ended with %v", err)
		}
	})
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-again.C:
		case <-deadline.C:
			t.Fatalf("not yet: %s", what)
		}
	}
}

// live waits until the bridge hears every rank and is heard. It is connected a little before the engine has taken its
// subscription.
func (r *rig) live() {
	r.t.Helper()
	eventually(r.t, "every rank is live", func() bool { return healthy(r.bridge.Status()) })
	if err := r.engine.WaitSubscribers(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// restart ends the engine's life and begins another, which does something before anybody hears it, and then is heard. Not by
// the bridge's state, which may be that of before.
func (r *rig) restart(before ...func(*enginetest.Engine)) {
	r.t.Helper()
	r.engine.Crash()
	if err := r.engine.Start(before...); err != nil {
		r.t.Fatal(err)
	}
	if err := r.engine.WaitSubscribers(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// round lets every rank compute, and waits until the oracle believes what is true.
func (r *rig) round() {
	r.t.Helper()
	for rank := range max(r.cfg.Ranks, 1) {
		r.steps(rank, 20)
	}
	r.settled()
}

// steps lets a rank compute some prompts that have beginnings in common, now and then several at once.
func (r *rig) steps(rank, n int) {
	for range n {
		var v enginetest.Variant
		switch r.random.IntN(6) {
		case 0:
			v = enginetest.Variant{LoRA: "sql"}
		case 1:
			v = enginetest.Variant{Salt: "tenant"}
		case 2:
			v = enginetest.Variant{LoRA: "sql", Salt: "tenant"}
		}
		if r.cfg.Family != enginetest.VLLM {
			v.LoRA = "" // the others do not say it
		}
		var prompts [][]uint32
		for range 1 + r.random.IntN(2) {
			prompts = append(prompts, r.prompt())
		}
		r.engine.Serve(rank, v, prompts...)
	}
}

func (r *rig) prompt() []uint32 {
	var p []uint32
	if len(r.prefix) > 0 && r.random.IntN(3) > 0 {
		p = slices.Clone(r.prefix[r.random.IntN(len(r.prefix))])
		p = p[:r.random.IntN(len(p)+1)]
	}
	for range 1 + r.random.IntN(30) {
		p = append(p, r.random.Uint32N(1000))
	}
	if len(r.prefix) < 20 {
		r.prefix = append(r.prefix, p)
	}
	return p
}

// view is what the oracle believes a rank holds.
func (r *rig) view(rank int) map[block.ID]bool {
	out := make(map[block.ID]bool)
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	s, err := kvoraclev1.NewFleetServiceClient(r.oracle.Conn()).VerifyWorker(ctx, &kvoraclev1.VerifyWorkerRequest{
		Target: &kvoraclev1.Target{WorkerId: "w", DpRank: uint32(rank)},
	})
	for err == nil {
		var m *kvoraclev1.VerifyWorkerResponse
		if m, err = s.Recv(); err == nil {
			for _, id := range m.GetBlockIds() {
				out[block.ID(id)] = true
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil // the oracle does not know it, or is away
	}
	return out
}

// truth is what a rank holds.
func (r *rig) truth(rank int) map[block.ID]bool {
	out := make(map[block.ID]bool)
	for id := range r.engine.Held(rank) {
		out[id] = true
	}
	return out
}

// settled waits until the oracle believes the truth about every rank.
func (r *rig) settled() {
	r.t.Helper()
	for rank := range max(r.cfg.Ranks, 1) {
		want := r.truth(rank)
		var got map[block.ID]bool
		ok := func() bool {
			got = r.view(rank)
			return got != nil && maps.Equal(got, want)
		}
		deadline := time.Now().Add(patience)
		again := time.NewTicker(5 * time.Millisecond)
		for !ok() {
			if time.Now().After(deadline) {
				r.t.Fatalf("rank %d: the oracle believes something else than what is true; -true +believed:\n%s\n%+v", rank, cmp.Diff(want, got), r.bridge.Status())
			}
			<-again.C
		}
		again.Stop()
	}
}

// caughtUp waits until everything that was published is with the oracle.
func (r *rig) caughtUp(rank int) Status {
	r.t.Helper()
	want := r.engine.Published(rank)
	var s Status
	eventually(r.t, "everything is told", func() bool {
		s = r.bridge.Status()[rank]
		return s.State == Live && s.Next == want && s.OutboxBytes == 0
	})
	return s
}

// nothingFalse checks that all the oracle believes of a rank is true, and returns how much it is.
func (r *rig) nothingFalse(rank int) int {
	r.t.Helper()
	truth, view := r.truth(rank), r.view(rank)
	for id := range view {
		if !truth[id] {
			r.t.Fatalf("%x is not held", id)
		}
	}
	return len(view)
}
