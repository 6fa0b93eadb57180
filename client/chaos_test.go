package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/client/clienttest"
)

// engine is what the reporter should hold, kept the plain way: texts cut into blocks, one set of prefixes a tier.
type engine struct {
	counted bool
	copies  map[string]*[2]int // by prefix: in device and host memory
	ids     map[string]client.BlockID
}

// prefix names the first n blocks of a text. Texts share beginnings.
func prefix(text, n int) string {
	// Texts 2k and 2k+1 are the same up to their fourth block.
	if n <= 4 {
		text &^= 1
	}
	return fmt.Sprint(text, "/", n)
}

func tokensOf(t, blocks int) []uint32 {
	out := text(uint64(t&^1), 4*blockSize)
	out = append(out, text(uint64(t)+1000, 8*blockSize)...)
	return out[:blocks*blockSize]
}

// expect is the match by the rule itself: leading blocks in the device, then as far as host memory continues them.
func (e *engine) expect(text, blocks int) (m client.Matched) {
	n := 1
	for ; n <= blocks; n++ {
		if c := e.copies[prefix(text, n)]; c == nil || c[0] == 0 {
			break
		}
		m.Device += blockSize
	}
	for ; n <= blocks; n++ {
		if c := e.copies[prefix(text, n)]; c == nil || c[1] == 0 {
			break
		}
		m.Host += blockSize
	}
	return m
}

// TestOracleHoldsExactlyTheMirror is the promise of the whole reporting path: an engine does random things, the network
// is cut and the oracle is restarted, stopped or crashed at random moments; after Flush the oracle's answers are exactly
// what the engine holds, for every prefix.
func TestOracleHoldsExactlyTheMirror(t *testing.T) {
	total := make(map[string]int)
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) { chaos(t, seed, total) })
	}
	for _, what := range []string{"cut", "restart", "stop", "snapshot", "overflow", "checked", "matched", "resumed"} {
		if total[what] == 0 {
			t.Errorf("never tried: %s (%v)", what, total)
		}
	}
}

func chaos(t *testing.T, seed uint64, total map[string]int) {
	const texts, deepest = 8, 10
	rng := rand.New(rand.NewPCG(seed, 6))
	o := clienttest.Start(t)
	w := worker("w")
	e := &engine{counted: seed%2 == 1, copies: make(map[string]*[2]int), ids: make(map[string]client.BlockID)}
	if e.counted {
		w.Repeats = client.RepeatsCounted
	}
	reporter := newReporter(t, o, w, client.WithOutbox(4000), client.WithDigests(5, time.Second),
		client.WithReconnect(10*time.Millisecond, time.Second))
	running(t, reporter)
	router := client.NewRouter(o.Conn(), client.WithTimeout(time.Second), client.WithBreaker(0, 0, 0))

	check := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := reporter.Flush(ctx); err != nil {
			t.Fatalf("seed %d: flush: %v; %+v", seed, err, reporter.Stats())
		}
		if s := reporter.Stats(); s.HeldByOracle != s.Held[client.TierDevice]+s.Held[client.TierHost] {
			t.Fatalf("seed %d: the oracle counts %d blocks: %+v", seed, s.HeldByOracle, s)
		}
		for x := range texts {
			want := e.expect(x, deepest)
			if got := matched(t, router, "w", tokensOf(x, deepest), ""); got != want {
				t.Fatalf("seed %d: text %d: the oracle has %v, the engine %v; %+v", seed, x, got, want, reporter.Stats())
			}
			total["checked"]++
			total["matched"] += int(want.Total())
		}
	}
	for range 300 {
		switch n := rng.IntN(100); {
		case n < 45:
			e.store(t, reporter, rng.IntN(texts), 1+rng.IntN(deepest), rng.IntN(2))
		case n < 70:
			e.remove(t, reporter, rng.IntN(texts), 1+rng.IntN(deepest), rng.IntN(2))
		case n < 72:
			tier := rng.IntN(2)
			if err := reporter.Clear([]client.Tier{client.TierDevice, client.TierHost}[tier]); err != nil {
				t.Fatal(err)
			}
			for _, c := range e.copies {
				c[tier] = 0
			}
		case n < 80:
			<-time.After(time.Duration(rng.IntN(1000)) * time.Millisecond)
		case n < 86:
			o.Cut()
			total["cut"]++
		case n < 88:
			if err := o.Restart(); err != nil {
				t.Fatal(err)
			}
			total["restart"]++
		case n < 89:
			if err := o.Stop(); err != nil {
				t.Fatal(err)
			}
			for range rng.IntN(400) { // while nobody listens
				e.store(t, reporter, rng.IntN(texts), 1+rng.IntN(deepest), rng.IntN(2))
				e.remove(t, reporter, rng.IntN(texts), 1+rng.IntN(deepest), rng.IntN(2))
			}
			if err := o.Restart(); err != nil {
				t.Fatal(err)
			}
			total["stop"]++
		case n < 92:
			check()
		default:
			synctest.Wait()
		}
	}
	check()
	s := reporter.Stats()
	total["snapshot"] += int(s.Snapshots)
	total["overflow"] += int(s.Overflows)
	total["resumed"] += max(int(s.Disconnects)-int(s.Snapshots), 0)
}

// store makes the engine compute the n-th block of a text, or the whole text up to it, as engines do either way.
func (e *engine) store(t *testing.T, r *client.Reporter, text, n, tier int) {
	t.Helper()
	first := n
	parent, isHeld := e.ids[prefix(text, n-1)]
	p := client.After(parent)
	if n == 1 || !isHeld {
		first, p = 1, client.Root()
	}
	tokens := tokensOf(text, n)[(first-1)*blockSize:]
	ids, err := r.StoreTokens(p, tokens, client.Variant{}, []client.Tier{client.TierDevice, client.TierHost}[tier])
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		name := prefix(text, first+i)
		e.ids[name] = id
		c := e.copies[name]
		if c == nil {
			c = &[2]int{}
			e.copies[name] = c
		}
		if e.counted || c[tier] == 0 {
			c[tier]++
		}
	}
}

// remove evicts a block, from the middle of a text as well.
func (e *engine) remove(t *testing.T, r *client.Reporter, text, n, tier int) {
	t.Helper()
	id, ok := e.ids[prefix(text, n)]
	if !ok {
		return
	}
	if err := r.Remove([]client.BlockID{id}, []client.Tier{client.TierDevice, client.TierHost}[tier]); err != nil {
		t.Fatal(err)
	}
	if c := e.copies[prefix(text, n)]; c[tier] > 0 {
		c[tier]--
	}
}
