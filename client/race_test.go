package client_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/client/clienttest"
)

// TestManyGoroutines uses everything at once from many goroutines, with cuts, in real time and under the race detector;
// in the end nothing of it is left running.
func TestManyGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	o, err := clienttest.New()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	reporter := newReporter(t, o, worker("a"), client.WithReconnect(time.Millisecond, 5*time.Millisecond))
	router := client.NewRouter(o.Conn(), client.WithStreams(2), client.WithReconnect(time.Millisecond, 5*time.Millisecond))
	var wg sync.WaitGroup
	wg.Go(func() { _ = reporter.Run(ctx) })
	wg.Go(func() { _ = router.Run(ctx) })
	var users sync.WaitGroup
	for g := range uint64(8) {
		users.Go(func() {
			for i := range uint64(200) {
				tokens := text(g<<32|i, 8)
				ids, err := reporter.StoreTokens(client.Root(), tokens, client.Variant{}, client.TierDevice)
				if err != nil {
					t.Error(err)
				}
				d, err := router.Route(ctx, client.Request{Model: "m", Tokens: tokens})
				if err == nil {
					router.Dispatched(d)
					router.FirstToken(d, 0)
					router.Finished(d, 1, client.CachedUnknown)
				}
				reporter.Load(client.LoadSample{Running: new(int(i))})
				if i%2 == 0 {
					_ = reporter.Remove(ids, client.TierDevice)
				}
				if i%50 == g {
					o.Cut()
				}
				_, _ = reporter.Stats(), router.Stats()
			}
		})
	}
	users.Wait()
	flush(t, reporter)
	flush(t, router)
	if s := reporter.Stats(); s.HeldByOracle != s.Held[client.TierDevice] || s.Held[client.TierDevice] != 8*100*2 {
		t.Errorf("stats %+v", s)
	}
	if s := router.Stats(); s.InFlight != 0 {
		t.Errorf("%d requests in flight after the last has ended", s.InFlight)
	}
	cancel()
	wg.Wait()
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	// Goroutines of the transport end a moment after their connection; nothing announces it.
	deadline := time.Now().Add(time.Minute)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > before {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
	}
}
