package oracle

import (
	"math"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// TestNothingIsGuessedOfWhoReportsOrHasGone: what ends late is not learned for a target that has gone, not for the one that has its id
// now, and not for one that has begun to report, but for text, of which it says nothing.
func TestNothingIsGuessedOfWhoReportsOrHasGone(t *testing.T) {
	o := New(Config{}, nil)
	chain := block.AppendChain(nil, 1, []block.Local{1, 2, 3})
	learns := func(f *feed, as form, want bool) {
		t.Helper()
		f.learn(chain, as, t0)
		f.mu.Lock()
		defer f.mu.Unlock()
		guessed := 0
		if want {
			guessed = 1
		}
		if got := f.credited[as].Load() != 0; got != want {
			t.Errorf("decisions count guesses of it: %v, want %v", got, want)
		}
		if got := f.approx[as] != nil; got != want || int(o.approximated[as].Load()) != guessed {
			t.Errorf("is guessed of: %v, %d targets, want %v", got, o.approximated[as].Load(), want)
		}
	}
	silent(t, o, 10)
	old := o.feeds[0]
	learns(old, asTokens, true)
	if _, _, err := o.Remove("w"); err != nil {
		t.Fatal(err)
	}
	learns(old, asTokens, false)
	silent(t, o, 10)
	if o.feeds[0] == old {
		t.Fatal("the id has not changed hands")
	}
	learns(old, asTokens, false)
	f := o.feeds[0]
	learns(f, asTokens, true)
	open(t, o, "w", 1, t0)
	learns(f, asTokens, false)
	learns(f, asText, true)

	// The registry forgets a target before its feed does.
	if _, _, err := o.Remove("w"); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.gone = false
	f.mu.Unlock()
	learns(f, asText, false)
}

// TestCapacityOfASilentTarget: its device holds what it states, else what its load samples say, else what an accelerator usually has left,
// and never nothing.
func TestCapacityOfASilentTarget(t *testing.T) {
	for _, tt := range []struct {
		what            string
		stated, sampled uint64
		blockSize, want int
	}{
		{"stated", 10, 20, 16, 10},
		{"sampled", 0, 20, 16, 20},
		{"neither", 0, 0, 16, 1 << 15},
		{"blocks as long as all that fits", 0, 0, 1 << 20, 1},
		{"more than is counted", 1 << 40, 0, 16, math.MaxInt32},
	} {
		f := &feed{}
		f.kvBlocks.Store(tt.sampled)
		w := &fleet.Worker{Spec: fleet.Spec{BlockSize: tt.blockSize, Capacity: [fleet.NumTiers]uint64{fleet.Device: tt.stated}}}
		if got := f.capacity(w); got != tt.want {
			t.Errorf("%s: %d blocks, want %d", tt.what, got, tt.want)
		}
	}
}

// TestOutcomesHaveBounds: an outcome of a prompt of which nothing was guessed says nothing, and no number of them takes the
// last of the credit.
func TestOutcomesHaveBounds(t *testing.T) {
	o := New(Config{}, nil)
	silent(t, o, 1000)
	chain := block.AppendChain(nil, 1, []block.Local{1, 2, 3})
	f := o.feeds[0]
	f.correct(chain, asTokens, 3*size, size, size) // nothing was learned
	f.learn(chain, asTokens, t0)
	credit := func(want float64) {
		t.Helper()
		if got := f.credit(Approximate, asTokens); math.Abs(got-want) > 1e-12 {
			t.Errorf("credit %v, want %v", got, want)
		}
	}
	credit(0.75)
	limit := f.approx[asTokens].limit
	for _, guessed := range []int{0, -1} {
		f.correct(chain, asTokens, guessed, size, size)
	}
	credit(0.75)
	if got := f.approx[asTokens].limit; got != limit {
		t.Errorf("the limit went from %d to %d", limit, got)
	}
	for range 100 {
		f.correct(chain, asTokens, 3*size, 0, size)
	}
	credit(0.05)

	// Nor the last block of those that are believed to fit.
	o = New(Config{}, nil)
	silent(t, o, 2)
	f = o.feeds[0]
	f.learn(chain, asTokens, t0)
	for range 5 {
		f.correct(chain, asTokens, size, 0, size)
	}
	if got := f.approx[asTokens].limit; got != 1 {
		t.Errorf("%d blocks are believed to fit, want 1", got)
	}

	// A hit gives back its share of what the device holds.
	o = New(Config{}, nil)
	silent(t, o, 1024)
	f = o.feeds[0]
	f.learn(chain, asTokens, t0)
	f.correct(chain, asTokens, size, 0, size)
	f.correct(chain, asTokens, size, size, size)
	if got := f.approx[asTokens].limit; got != 1024*7/8+8 {
		t.Errorf("%d blocks are believed to fit, want %d", got, 1024*7/8+8)
	}
}
