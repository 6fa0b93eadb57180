package oracle

import (
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// alarms notes unmatched targets.
type alarms struct {
	NopObserver

	blocks []int
}

func (a *alarms) Unmatched(_ *fleet.Worker, _, blocks int) { a.blocks = append(a.blocks, blocks) }

func TestBlocksThatNobodyAsksFor(t *testing.T) {
	seen := &alarms{}
	o := New(Config{}, seen)
	s := open(t, o, "w", 1, t0)
	roots := func(from, to int) []Op {
		var ops []Op
		for n := from; n < to; n++ {
			ops = append(ops, Op{Kind: OpStore, IsRoot: true, IDs: []block.ID{chain(uint32(n))[0]}})
		}
		return ops
	}
	if _, err := s.Batch(1, 1, roots(0, unmatchedBlocks-1), t0); err != nil {
		t.Fatal(err)
	}
	ask := func(n int, p Prompt) {
		t.Helper()
		for range n {
			a, err := o.Route(t.Context(), &RouteRequest{Model: "m", Prompt: p}, t0)
			if err != nil {
				t.Fatal(err)
			}
			o.release(a.Decision, t0)
		}
		o.Tick(t0)
	}
	expect := func(when string, warned int, flag bool) {
		t.Helper()
		st, err := o.Worker("w", t0)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		if flag {
			want = 1
		}
		if len(seen.blocks) != warned || st.Ranks[0].Unmatched != flag || o.Stats(t0).Unmatched != want {
			t.Errorf("%s: %d alarms, flag %v, %d counted; want %d and %v", when, len(seen.blocks), st.Ranks[0].Unmatched, o.Stats(t0).Unmatched, warned, flag)
		}
	}
	other := prompt(900, 901)
	ask(3*unmatchedQuestions, other)
	expect("too few blocks", 0, false)
	if _, err := s.Batch(2, 2, roots(unmatchedBlocks-1, unmatchedBlocks), t0); err != nil {
		t.Fatal(err)
	}
	ask(unmatchedQuestions, other)
	expect("held for a while", 0, false)
	ask(unmatchedQuestions, prompt(1)) // shorter than what an engine could reuse: no question about the cache
	expect("short prompts", 0, false)
	ask(watchEvery, prompt(0, 1))
	ask(unmatchedQuestions-watchEvery, other)
	expect("one match between", 0, false)
	ask(2*unmatchedQuestions, other)
	ask(watchEvery, other)
	ask(unmatchedQuestions, other)
	expect("nobody asks for them", 1, true)
	ask(3*unmatchedQuestions, other)
	expect("said once", 1, true)
	if len(seen.blocks) == 1 && seen.blocks[0] != unmatchedBlocks {
		t.Errorf("alarm about %d blocks, want %d", seen.blocks[0], unmatchedBlocks)
	}
	ask(watchEvery, prompt(3, 4))
	expect("somebody does", 1, false)
}
