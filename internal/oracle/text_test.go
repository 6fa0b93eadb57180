package oracle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// words is a text of so many blocks of 16 bytes, each of one letter.
func words(letters string) Prompt {
	var pieces [][]byte
	for _, l := range letters {
		pieces = append(pieces, []byte(strings.Repeat(string(l), size*textBytes)))
	}
	return TextPrompt(pieces)
}

// TestTextHasAKeyspaceOfItsOwn holds ids against values of the C reference implementation (by Python's xxhash).
func TestTextHasAKeyspaceOfItsOwn(t *testing.T) {
	id := block.Identity{Model: "m", BlockSize: size, IsText: true}
	p := TextPrompt([][]byte{[]byte("The quick b"), []byte("rown fox jumps o"), nil, []byte("ver the lazy dog")})
	if p.Length != 11 {
		t.Errorf("43 bytes are %d tokens, want 11", p.Length)
	}
	got := p.appendChain(nil, id.Keyspace(), size)
	if want := []block.ID{0x87ef7c00541a2fb7, 0x5d9e93d7058dcf28}; !slices.Equal(got, want) {
		t.Errorf("ids %x, want %x", got, want)
	}
	if p := TextPrompt(nil); p.Length != 1 {
		t.Errorf("an empty text has %d tokens, want 1: an engine computes something", p.Length)
	}
}

// TestTextIsLearnedFromWhatWasSent is text mode on a target that reports its blocks: they say nothing about text.
func TestTextIsLearnedFromWhatWasSent(t *testing.T) {
	o := New(Config{}, nil)
	s := open(t, o, "w", 1, t0)
	store(t, s, 1, chain(1, 2, 3), t0)
	facts := o.index.Stats()

	a := serve(t, o, words("abcdefgh"), -1, t0)
	if a.Blocks != Silent || a.Matched.Total() != 0 || !a.IsText || a.PromptTokens != 8*size {
		t.Errorf("a first text: %v, %d matched, %d tokens", a.Blocks, a.Matched.Total(), a.PromptTokens)
	}
	later := t0.Add(time.Minute)
	s.Close(t0) // it has not spoken since: text is no staler for that
	a = route(t, o, words("abcdxy"), dry, later)
	if a.Blocks != Approximate || a.Matched.Total() != 4*size || a.Usable.Total() != 4*size*3/4 {
		t.Errorf("a text that begins alike: %v, %d matched, %d counted", a.Blocks, a.Matched.Total(), a.Usable.Total())
	}
	// Tokens of the same bytes are another thing, and what is known of tokens is as it was.
	same := words("abcd")
	same.IsText = false
	if a := route(t, o, same, dry, later); a.Matched.Total() != 0 || a.Blocks != Stale {
		t.Errorf("as tokens: %d matched, %v", a.Matched.Total(), a.Blocks)
	}
	if got := o.index.Stats(); got != facts {
		t.Errorf("facts have changed: %+v, were %+v", got, facts)
	}
	if got := o.Stats(later); got.Text.HolderBlocks != 8 || got.Approx.HolderBlocks != 0 {
		t.Errorf("%d blocks of text and %d others are guessed, want 8 and 0", got.Text.HolderBlocks, got.Approx.HolderBlocks)
	}
	// Nothing of a worker that has gone is left.
	if _, _, err := o.Remove("w"); err != nil {
		t.Fatal(err)
	}
	o.Tick(later)
	if got := o.Stats(later).Text; got.Ledgers != 0 || o.approximated[asText].Load() != 0 {
		t.Errorf("after the worker: %+v", got)
	}
}

// TestTextOutcomesAreShares holds an engine's count of real tokens against guessed ones.
func TestTextOutcomesAreShares(t *testing.T) {
	for _, tt := range []struct {
		prompt, cached int // as the engine counted
		credit         float64
	}{
		{320, 280, 0.75 + 0.25/8}, // 7 of 8 blocks were guessed, and found
		{320, 140, 0.75 - 0.25/8}, // half of that
		{320, 0, 0.75 - 0.75/8},
		{0, 7 * size, 0.75 + 0.25/8}, // no length told: the tokens are taken to be equal
	} {
		o := New(Config{}, nil)
		silent(t, o, 1000)
		serve(t, o, words("abcdefgh"), -1, t0)
		a := route(t, o, words("abcdefgh"), nil, t0)
		e := &Event{Decision: a.Decision, Step: Finished, Cached: tt.cached, PromptTokens: tt.prompt}
		if out, err := o.Progress(e, t0); err != nil || out != Applied {
			t.Fatal(out, err)
		}
		if got := o.feeds[0].approx[asText].credit; got != tt.credit {
			t.Errorf("%d of %d: credit %v, want %v", tt.cached, tt.prompt, got, tt.credit)
		}
	}
}

// TestTextEndsWithTheCache: an engine that has emptied its cache has no text in it either.
func TestTextEndsWithTheCache(t *testing.T) {
	o := New(Config{}, nil)
	s := open(t, o, "w", 1, t0)
	serve(t, o, words("abcd"), -1, t0)
	if _, err := s.Batch(1, 1, []Op{{Kind: OpClear}}, t0); err != nil {
		t.Fatal(err)
	}
	if a := route(t, o, words("abcd"), dry, t0.Add(time.Minute)); a.Matched.Total() != 0 {
		t.Errorf("%d tokens are still believed to be there", a.Matched.Total())
	}
}

func TestAddressesNarrowTheChoice(t *testing.T) {
	o := New(Config{}, nil)
	for name, address := range map[string]string{"a": "10.0.0.1:80", "b": "http://10.0.0.2:80/v1", "c": "", "d": "[::1]:80"} {
		if _, err := o.Register(fleet.Spec{Worker: name, Address: address, Model: "m", BlockSize: size, DPSize: 1}, t0); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		only  []string
		needs bool
		want  string // the workers that can be chosen
	}{
		{nil, false, "abcd"},
		{nil, true, "abd"},
		{[]string{}, false, ""},
		{[]string{"10.0.0.2:80", "10.9.9.9:80"}, true, "b"},
		{[]string{"[::1]:80", "10.0.0.1:80"}, true, "ad"},
		{[]string{"10.9.9.9:80"}, false, ""},
	} {
		var got []string
		a, err := o.Route(context.Background(), &RouteRequest{
			Model: "m", Prompt: prompt(1), DryRun: true, Explain: true, Addresses: tt.only, NeedsAddress: tt.needs,
		}, t0)
		if err == nil {
			for _, r := range a.Rows {
				if r.Excluded == NotExcluded {
					got = append(got, r.Target.Worker)
				}
			}
		} else if !isKind(err, Unavailable) {
			t.Errorf("%v: %v", tt.only, err)
		}
		slices.Sort(got)
		if got := strings.Join(got, ""); got != tt.want {
			t.Errorf("%v, needs %v: %q, want %q", tt.only, tt.needs, got, tt.want)
		}
	}
	if got, want := o.Addresses(nil), []string{"10.0.0.1:80", "10.0.0.2:80", "[::1]:80"}; !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
	if _, err := o.Drain("a", true); err != nil {
		t.Fatal(err)
	}
	if got, want := o.Addresses([]string{"10.0.0.1:80", "[::1]:80"}), []string{"[::1]:80"}; !slices.Equal(got, want) {
		t.Errorf("of some, one draining: %v, want %v", got, want)
	}
	if w, ok := o.At("m", "10.0.0.2:80"); w != "b" || !ok {
		t.Errorf("at 10.0.0.2:80 is %q", w)
	}
	if w, ok := o.At("m", "10.0.0.3:80"); ok {
		t.Errorf("at 10.0.0.3:80 is %q", w)
	}
}

// TestFullIsToldFromGone: a limit passes, other reasons may not.
func TestFullIsToldFromGone(t *testing.T) {
	o := New(Config{}, nil)
	if _, err := o.Register(fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1, MaxRequests: 1}, t0); err != nil {
		t.Fatal(err)
	}
	isFull := func() bool {
		_, err := o.Route(context.Background(), &RouteRequest{Model: "m", Prompt: prompt(1)}, t0)
		var e *Error
		if !isKind(err, Unavailable) {
			t.Fatalf("err = %v, want unavailable", err)
		}
		return errors.As(err, &e) && e.IsFull
	}
	route(t, o, prompt(1), nil, t0)
	if !isFull() {
		t.Error("at its limit: not said to be full")
	}
	if _, err := o.Drain("w", true); err != nil {
		t.Fatal(err)
	}
	if isFull() {
		t.Error("draining: said to be full")
	}
}
