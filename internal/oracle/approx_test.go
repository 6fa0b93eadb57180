package oracle

import (
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// silent registers a worker that never reports, with room for some blocks.
func silent(t *testing.T, o *Oracle, blocks uint64) {
	t.Helper()
	spec := fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1, Capacity: [fleet.NumTiers]uint64{blocks}}
	if _, err := o.Register(spec, t0); err != nil {
		t.Fatal(err)
	}
}

// serve routes a prompt and lets it end, with so many cached tokens counted (negative: none said).
func serve(t *testing.T, o *Oracle, p Prompt, cached int, now time.Time) *Answer {
	t.Helper()
	a := route(t, o, p, nil, now)
	if out, err := o.Progress(&Event{Decision: a.Decision, Step: Finished, Cached: cached}, now); err != nil || out != Applied {
		t.Fatalf("finished: %v, %v", out, err)
	}
	return a
}

func guessOf(t *testing.T, o *Oracle, p Prompt, now time.Time) int {
	t.Helper()
	a := route(t, o, p, dry, now)
	if a.Blocks != Approximate {
		t.Errorf("confidence %v, want approximate", a.Blocks)
	}
	return a.Matched.Total() / size
}

func TestApproximateIsAnLRUOfTheStatedSize(t *testing.T) {
	o := New(Config{}, nil)
	silent(t, o, 10)
	if a := route(t, o, prompt(1, 2), dry, t0); a.Blocks != Silent || a.Matched.Total() != 0 {
		t.Errorf("before anything was sent: %v, %d", a.Blocks, a.Matched.Total())
	}
	at := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Second) }
	serve(t, o, prompt(1, 2, 3, 4), -1, at(1))
	serve(t, o, prompt(5, 6, 7, 8), -1, at(2))
	serve(t, o, prompt(1, 2, 3, 4), -1, at(3)) // used again
	serve(t, o, prompt(10, 11, 12, 13), -1, at(4))
	for _, tt := range []struct {
		p    Prompt
		want int
	}{{prompt(1, 2, 3, 4, 0), 4}, {prompt(5, 6, 7, 8, 0), 2}, {prompt(10, 11, 12, 13, 0), 4}} {
		if got := guessOf(t, o, tt.p, at(60)); got != tt.want {
			t.Errorf("%v: %d blocks, want %d", tt.p.Tokens[0], got, tt.want)
		}
	}
	if s, err := o.Worker("w", at(60)); err != nil || s.Ranks[0].Blocks != Approximate || s.Ranks[0].Held[fleet.Device] != 10 {
		t.Errorf("the list shows %+v, %v", s.Ranks, err)
	}
	// Facts know nothing of it.
	if got := o.index.Stats(); got.HolderBlocks != 0 {
		t.Errorf("%d guessed blocks are facts", got.HolderBlocks)
	}
	if v, err := o.Verify("w", 0, at(60)); err != nil || len(v.IDs[fleet.Device]) != 0 {
		t.Errorf("verify shows %v, %v", v.IDs, err)
	}
}

// TestWhatIsPresumedComputedIsThere: the prompt of a gateway that tells nothing is in its target's cache once its prefill has
// had its time, and not before.
func TestWhatIsPresumedComputedIsThere(t *testing.T) {
	o := New(Config{}, nil)
	silent(t, o, 10)
	route(t, o, prompt(1, 2, 3), nil, t0)
	o.Tick(t0)
	if a := route(t, o, prompt(1, 2, 3, 4), dry, t0); a.Blocks != Silent || a.Matched.Total() != 0 {
		t.Errorf("while it is computed: %v, %d tokens", a.Blocks, a.Matched.Total())
	}
	later := t0.Add(time.Second)
	route(t, o, prompt(9), dry, later) // who looks at the load notices
	o.Tick(later)
	if got := guessOf(t, o, prompt(1, 2, 3, 4), later); got != 3 {
		t.Errorf("a second later: %d blocks, want 3", got)
	}
}

// TestWhatIsPresumedToHaveEndedGoesInItsTurn: of a gateway that tells nothing no more is believed to be in a cache than fits
// there: a prompt is expected beyond that only for as long as its request is predicted to last, and a little longer.
func TestWhatIsPresumedToHaveEndedGoesInItsTurn(t *testing.T) {
	const fits, prompts = 6, 12
	o := New(Config{}, nil)
	silent(t, o, fits)
	now, prompts3 := t0, func(i uint32) Prompt { return prompt(10*i+1, 10*i+2, 10*i+3) }
	for i := range uint32(prompts) {
		route(t, o, prompts3(i), func(r *RouteRequest) { r.ExpectedOutput = 10 }, now)
		now = now.Add(2 * time.Second)
		o.Tick(now)
		if n := o.guesses.living.Len(); n > 3 {
			t.Fatalf("%d prompts are believed to be under way, want at most 3", n)
		}
	}
	held := 0
	for i := range uint32(prompts) {
		p := prompts3(i)
		held += (p.Length - route(t, o, p, dry, now).Uncached + size - 1) / size
	}
	if held < 2 || held > fits {
		t.Errorf("%d blocks are believed to be there, want some and at most the %d that fit", held, fits)
	}
}

func TestApproximateIsWorthWhatItWasWorth(t *testing.T) {
	o := New(Config{}, nil)
	silent(t, o, 1000)
	p := prompt(1, 2, 3, 4, 5, 6, 7, 8, 9)
	serve(t, o, p, 0, t0)
	usable := func() int { return route(t, o, p, dry, t0.Add(time.Minute)).Usable.Total() }
	if got, want := usable(), 8*size*3/4; got != want {
		t.Errorf("before any outcome %d tokens count, want %d", got, want)
	}
	for range 40 {
		serve(t, o, p, 8*size, t0)
	}
	if got := usable(); got < 8*size*98/100 {
		t.Errorf("after guesses that came true %d tokens count, want nearly %d", got, 8*size)
	}
	limit := o.feeds[0].approx[asTokens].limit
	serve(t, o, p, 2*size, t0)
	if got := usable(); got > 8*size*95/100 || o.feeds[0].approx[asTokens].limit >= limit {
		t.Errorf("after one that did not %d tokens count, limit %d of %d before", got, o.feeds[0].approx[asTokens].limit, limit)
	}
	// It has computed the prompt since, so the prompt is there; a branch behind what was missing is not.
	if got := guessOf(t, o, p, t0.Add(time.Minute)); got != 9 {
		t.Errorf("%d blocks of the prompt itself, want 9", got)
	}
	// An engine that lost everything and does so again is believed to be empty but for what it was sent last.
	other := prompt(50, 51, 52)
	serve(t, o, other, -1, t0)
	for range firstPatience {
		serve(t, o, p, 0, t0)
	}
	if got := guessOf(t, o, other, t0.Add(time.Minute)); got != 0 {
		t.Errorf("%d blocks of another prompt after it had lost everything", got)
	}
}

// The first word of a report ends all guessing, also for what is still under way.
func TestFactsWin(t *testing.T) {
	o := New(Config{}, nil)
	silent(t, o, 1000)
	serve(t, o, prompt(1, 2, 3), -1, t0)
	late := route(t, o, prompt(4, 5, 6), nil, t0)
	if got := guessOf(t, o, prompt(1, 2, 3, 0), t0.Add(time.Minute)); got != 3 {
		t.Fatalf("%d blocks, want 3", got)
	}
	open(t, o, "w", 1, t0)
	if _, err := o.Progress(&Event{Decision: late.Decision, Step: Finished, Cached: 0}, t0); err != nil {
		t.Fatal(err)
	}
	for _, p := range []Prompt{prompt(1, 2, 3, 0), prompt(4, 5, 6, 0)} {
		if a := route(t, o, p, dry, t0.Add(time.Minute)); a.Blocks != Fresh || a.Matched.Total() != 0 {
			t.Errorf("%v, %d tokens, want fresh and 0", a.Blocks, a.Matched.Total())
		}
	}
	o.approx[asTokens].Reclaim(1 << 20)
	if s := o.Stats(t0).Approx; s.Ledgers != 0 || s.Entries != 0 || o.approximated[asTokens].Load() != 0 {
		t.Errorf("left of the guesses: %+v", s)
	}
}

// All targets together keep to a bound.
func TestApproximateIsBounded(t *testing.T) {
	o := New(Config{ApproxBlocks: 50}, nil)
	for i := range uint32(20) {
		spec := fleet.Spec{Worker: string(rune('a' + i)), Model: "m", BlockSize: size, DPSize: 1}
		if _, err := o.Register(spec, t0); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint32(200) {
		serve(t, o, prompt(1000*i+1, 1000*i+2, 1000*i+3, 1000*i+4, 1000*i+5), -1, t0.Add(time.Duration(i)*time.Second))
		if got := o.Stats(t0).Approx.Entries; got > 50 {
			t.Fatalf("%d blocks after %d prompts, bound 50", got, i)
		}
	}
}
