package client_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/client/clienttest"
)

// inBubble runs a test against a real oracle in fake time. A goroutine that outlives it fails it.
func inBubble(t *testing.T, test func(t *testing.T, o *clienttest.Oracle)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, clienttest.Start(t))
	})
}

// running runs something until stop is called or the test ends.
func running(t *testing.T, r interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

const blockSize = 4

func worker(id string) client.Worker {
	return client.Worker{
		ID: id, Model: "m", Address: id + ":8000", BlockSize: blockSize, Incarnation: 1, Repeats: client.RepeatsSet,
	}
}

func newReporter(t *testing.T, o *clienttest.Oracle, w client.Worker, opts ...client.ReporterOption) *client.Reporter {
	t.Helper()
	r, err := client.NewReporter(o.Conn(), w, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func flush(t *testing.T, r interface{ Flush(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.Flush(ctx); err != nil {
		switch r := r.(type) {
		case *client.Reporter:
			t.Fatalf("flush: %v; %+v", err, r.Stats())
		case *client.Router:
			t.Fatalf("flush: %v; %+v", err, r.Stats())
		}
	}
}

// text makes n tokens that begin like every other text of that seed.
func text(seed uint64, n int) []uint32 {
	rng := rand.New(rand.NewPCG(seed, 9))
	out := make([]uint32, n)
	for i := range out {
		out[i] = rng.Uint32N(50_000)
	}
	return out
}

// matched asks what the oracle believes a worker to hold of a prompt.
func matched(t *testing.T, r *client.Router, worker string, tokens []uint32, salt string) client.Matched {
	t.Helper()
	// One token more than the blocks: engines compute the last one again.
	d, err := r.Route(t.Context(), client.Request{
		Model: "m", Tokens: append(tokens[:len(tokens):len(tokens)], 1), CacheSalt: salt,
		DryRun: true, Explain: true, Allowed: []string{worker},
	})
	if err != nil {
		t.Fatalf("route: %v", err)
	}
	for _, c := range d.Raw().GetCandidates() {
		if c.GetTarget().GetWorkerId() == worker {
			m := c.GetMatched()
			return client.Matched{Device: m.GetDevice(), Host: m.GetHost(), Disk: m.GetDisk(), Shared: m.GetShared()}
		}
	}
	t.Fatalf("no row for %s in %v", worker, d.Raw())
	return client.Matched{}
}

func TestReportedBlocksAreRoutedTo(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		a, b := newReporter(t, o, worker("a")), newReporter(t, o, worker("b"))
		running(t, a)
		running(t, b)
		router := client.NewRouter(o.Conn(), client.WithGatewayID("g"))
		running(t, router)
		prompt := text(1, 40)
		ids, err := b.StoreTokens(client.Root(), prompt[:32], client.Variant{}, client.TierDevice)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.StoreTokens(client.After(ids[7]), prompt[32:36], client.Variant{}, client.TierHost); err != nil {
			t.Fatal(err)
		}
		flush(t, a)
		flush(t, b)

		d, err := router.Route(t.Context(), client.Request{ID: "r1", Model: "m", Tokens: prompt})
		if err != nil {
			t.Fatal(err)
		}
		if d.Worker != "b" || d.Address != "b:8000" || d.Source != client.SourceOracle || d.ID == "" ||
			d.Matched != (client.Matched{Device: 32, Host: 4}) || d.PromptTokens != 40 || d.PredictedTTFT <= 0 ||
			len(d.Alternatives) != 1 || d.Alternatives[0].Worker != "a" {
			t.Errorf("decision %+v", d)
		}
		again, err := router.Route(t.Context(), client.Request{ID: "r1", Model: "m", Tokens: prompt})
		if err != nil || !again.Repeated || again.ID != d.ID || router.Stats().InFlight != 1 {
			t.Errorf("again: %+v, %v, %d in flight", again, err, router.Stats().InFlight)
		}
		hashed, err := router.Route(t.Context(), client.Request{
			Model: "m", Hashes: client.LocalHashes(nil, prompt, blockSize), BlockSize: blockSize, TokenCount: 40, DryRun: true,
		})
		if err != nil || hashed.Matched != d.Matched || hashed.Worker != "b" {
			t.Errorf("by hashes: %+v, %v", hashed, err)
		}
		if m := matched(t, router, "b", prompt[:36], "salt"); m != (client.Matched{}) {
			t.Errorf("another salt matches %v", m)
		}

		router.Dispatched(d)
		router.FirstToken(d, 30*time.Millisecond)
		router.Generating(d, 5)
		router.Finished(d, 10, 36)
		router.Finished(d, 10, client.CachedUnknown) // late
		flush(t, router)
		s := router.Stats()
		if s.ProgressQueued != 0 || s.ProgressUnknown+s.ProgressLate != 1 || s.ProgressRefused != 0 || s.InFlight != 0 || s.FleetAge != 0 {
			t.Errorf("stats %+v", s)
		}
		third, err := router.Route(t.Context(), client.Request{ID: "r1", Model: "m", Tokens: prompt})
		if err != nil || third.Repeated {
			t.Errorf("after the end: %+v, %v", third, err)
		}
	})
}

func TestLoadIsHeard(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		r := newReporter(t, o, worker("a"))
		running(t, r)
		r.Load(client.LoadSample{Running: new(7), Waiting: new(2)})
		synctest.Wait()
		if got := r.Stats().Load; got.Applied != 1 || got.InFlight != 9 {
			t.Errorf("belief %+v", got)
		}
		if err := o.Restart(); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		r.Load(client.LoadSample{Running: new(3)})
		synctest.Wait()
		if got := r.Stats().Load; got.Applied != 1 || got.InFlight != 3 {
			t.Errorf("belief of the next oracle %+v", got)
		}
	})
}

func TestRefusedHelloEndsRun(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		w := worker("a")
		w.Incarnation = 5
		newer := newReporter(t, o, w)
		running(t, newer)
		flush(t, newer)
		w.Incarnation = 4
		older := newReporter(t, o, w)
		waiting := make(chan error, 1)
		go func() { waiting <- older.Flush(context.Background()) }()
		err := older.Run(t.Context())
		var e *client.Error
		if !errors.Is(err, client.ErrMismatch) || !errors.As(err, &e) || e.Reason != "OLD_INCARNATION" || !e.FromOracle {
			t.Errorf("got %v", err)
		}
		if got := <-waiting; !errors.Is(got, client.ErrMismatch) {
			t.Errorf("flush: %v", got)
		}
	})
}

func TestRestartedWorkerReplacesItsFormerLife(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		router := client.NewRouter(o.Conn())
		prompt := text(1, 8)
		former := newReporter(t, o, worker("a"))
		ctx, kill := context.WithCancel(t.Context())
		died := make(chan error, 1)
		go func() { died <- former.Run(ctx) }()
		if _, err := former.StoreTokens(client.Root(), prompt, client.Variant{}, client.TierDevice); err != nil {
			t.Fatal(err)
		}
		flush(t, former)
		if m := matched(t, router, "a", prompt, ""); m.Device != 8 {
			t.Fatalf("matched %v", m)
		}
		kill()
		if err := <-died; err != nil {
			t.Fatal(err)
		}
		if former.Stats().Connected {
			t.Error("connected without a Run")
		}
		w := worker("a")
		w.Incarnation = 2
		next := newReporter(t, o, w)
		running(t, next)
		flush(t, next)
		if m := matched(t, router, "a", prompt, ""); m.Total() != 0 {
			t.Errorf("the former life's blocks match: %v", m)
		}
	})
}

func TestRanksOfOneProcessShareAnIncarnation(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		router := client.NewRouter(o.Conn())
		w := worker("a")
		w.DPSize, w.Incarnation = 2, 0
		var ranks []*client.Reporter
		for rank := range 2 {
			w.Rank = rank
			r := newReporter(t, o, w)
			running(t, r)
			if _, err := r.StoreTokens(client.Root(), text(uint64(rank), 8), client.Variant{}, client.TierDevice); err != nil {
				t.Fatal(err)
			}
			ranks = append(ranks, r)
		}
		for rank, r := range ranks {
			flush(t, r)
			d, err := router.Route(t.Context(), client.Request{Model: "m", Tokens: append(text(uint64(rank), 8), 1)})
			if err != nil || d.Rank != uint32(rank) || d.Matched.Device != 8 {
				t.Errorf("rank %d: %+v, %v", rank, d, err)
			}
		}
	})
}

func TestDrainedOracleSaysGoodbye(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		r := newReporter(t, o, worker("a"))
		running(t, r)
		router := client.NewRouter(o.Conn(), client.WithStreams(1))
		running(t, router)
		if _, err := r.StoreTokens(client.Root(), text(1, 8), client.Variant{}, client.TierDevice); err != nil {
			t.Fatal(err)
		}
		flush(t, r)
		<-time.After(2 * time.Second) // the next look at the fleet
		start := time.Now()
		if err := o.Stop(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("the oracle waited %v for its clients to leave", took)
		}
		d, err := router.Route(t.Context(), client.Request{Model: "m", Tokens: text(1, 9)})
		if err != nil || d.Source != client.SourceFallback || d.Worker != "a" {
			t.Errorf("without an oracle: %+v, %v", d, err)
		}
		if err := o.Restart(); err != nil {
			t.Fatal(err)
		}
		flush(t, r)
		<-time.After(10 * time.Second) // the breaker's pause
		if m := matched(t, router, "a", text(1, 8), ""); m.Device != 8 {
			t.Errorf("after the restart: %v", m)
		}
	})
}

func TestInvalidatedWorkerIsRestored(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		r := newReporter(t, o, worker("a"))
		running(t, r)
		router := client.NewRouter(o.Conn())
		if _, err := r.StoreTokens(client.Root(), text(1, 8), client.Variant{}, client.TierDevice); err != nil {
			t.Fatal(err)
		}
		flush(t, r)
		invalidate(t, o, "a")
		synctest.Wait()
		if m := matched(t, router, "a", text(1, 8), ""); m.Device != 8 {
			t.Errorf("matched %v", m)
		}
		if s := r.Stats(); s.Snapshots != 1 || s.Resyncs != 1 {
			t.Errorf("%d snapshots, %d resyncs", s.Snapshots, s.Resyncs)
		}
	})
}

func TestRemovedWorkerComesBack(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		r := newReporter(t, o, worker("a"))
		running(t, r)
		router := client.NewRouter(o.Conn())
		if _, err := r.StoreTokens(client.Root(), text(1, 8), client.Variant{}, client.TierDevice); err != nil {
			t.Fatal(err)
		}
		flush(t, r)
		remove(t, o, "a")
		flush(t, r)
		if m := matched(t, router, "a", text(1, 8), ""); m.Device != 8 {
			t.Errorf("matched %v", m)
		}
	})
}
