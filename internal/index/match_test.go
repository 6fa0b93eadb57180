package index

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// numbered is a chain of n ids that nobody else uses.
func numbered(n int) []block.ID {
	ids := make([]block.ID, n)
	for i := range ids {
		ids[i] = block.ID(i+1) * 0x9e3779b97f4a7c15
	}
	return ids
}

// publish makes a visible ledger of a chain of which the first ends[0] blocks lie in the device, those from there to
// ends[1] in the host, and so on.
func publish(ix *Index, t fleet.TargetID, chain []block.ID, ends ...int) *Ledger {
	l := ix.NewLedger(t, false)
	at := 0
	for tier, end := range ends {
		if end > at {
			l.Store(parentOf(chain, at), chain[at:end], fleet.Tier(tier))
			at = end
		}
	}
	ix.Publish(l)
	return l
}

func parentOf(chain []block.ID, at int) Parent {
	if at == 0 {
		return Parent{IsRoot: true}
	}
	return Parent{ID: chain[at-1]}
}

// TestMatchFindsEveryDivergence has many targets that end and change tiers anywhere, so that wherever the bisection
// looks one block beside the right one somebody's count is wrong.
func TestMatchFindsEveryDivergence(t *testing.T) {
	r := seeded(t)
	for _, length := range []int{1, 2, 3, 4, 5, 16, 78, 200} {
		chain := numbered(length)
		for range 20 {
			ix := New(Config{})
			var want []Match
			for target := range fleet.TargetID(1 + r.IntN(100)) {
				ends := make([]int, fleet.NumTiers)
				for i := range ends {
					ends[i] = r.IntN(length + 1)
				}
				slices.Sort(ends)
				publish(ix, target, chain, ends...)
				m := Match{Target: target}
				at := 0
				for tier, end := range ends {
					m.Blocks[tier] = uint32(end - at)
					at = end
				}
				if at > 0 {
					want = append(want, m)
				}
			}
			if d := cmp.Diff(want, ix.Match(chain, nil)); d != "" {
				t.Fatalf("%d blocks (-want +got):\n%s", length, d)
			}
		}
	}
}

// TestMatchReadsOneListPerSegment counts lists: where holders end does not matter, and nobody's end is walked past.
func TestMatchReadsOneListPerSegment(t *testing.T) {
	const length = 8 * segmentMax
	chain := numbered(length)
	for _, c := range []struct {
		name  string
		ends  []int
		reads int
	}{
		{"all the same", []int{length, length, length}, 8},
		{"one ends early", []int{length, 1000, length}, 8},
		{"all end early", []int{500, 1000, 800}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			ix := New(Config{})
			for target, end := range c.ends {
				publish(ix, fleet.TargetID(target), chain, end)
			}
			q := ix.enter()
			defer ix.leave(q)
			q.chain = chain
			for target, m := range ix.match(q, nil) {
				if m.Total() != c.ends[target] {
					t.Errorf("target %d has %d, want %d", target, m.Total(), c.ends[target])
				}
			}
			if q.reads != c.reads {
				t.Errorf("%d reads, want %d", q.reads, c.reads)
			}
		})
	}
}

func TestMatchAppendsAndOrdersByTarget(t *testing.T) {
	ix := New(Config{})
	chain := numbered(3)
	for _, target := range []fleet.TargetID{9, 2, 7, 4_000_000_000} {
		publish(ix, target, chain, 3)
	}
	full := [fleet.NumTiers]uint32{3}
	got := ix.Match(chain, []Match{{Target: 100}})
	want := []Match{{Target: 100}, {2, full}, {7, full}, {9, full}, {4_000_000_000, full}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Match (-want +got):\n%s", d)
	}
	if got := ix.Match(nil, nil); got != nil {
		t.Errorf("Match of nothing = %v", got)
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	if isRace {
		t.Skip("the race detector makes sync.Pool forget")
	}
	ix := New(Config{})
	chain := numbered(78)
	for target := range fleet.TargetID(64) {
		publish(ix, target, chain, int(target)+1, 78)
	}
	dst := make([]Match, 0, 64)
	if n := testing.AllocsPerRun(200, func() { dst = ix.Match(chain, dst[:0]) }); n != 0 {
		t.Errorf("Match allocates %v times", n)
	}
	known, locals := make([]block.ID, 0, 78), make([]block.Local, 77)
	if n := testing.AllocsPerRun(200, func() { known, dst = ix.MatchLocals(chain[0], locals, known, dst[:0]) }); n != 0 {
		t.Errorf("MatchLocals allocates %v times", n)
	}
	if len(dst) != 64 {
		t.Errorf("%d matches, want 64", len(dst))
	}
}

// A target that reports a block under another parent than the chain's is not credited with it there.
func TestMatchBelievesLinksNotNames(t *testing.T) {
	ix := New(Config{})
	chain := numbered(8)
	l := publish(ix, 1, chain, 1)
	l.Store(Parent{IsRoot: true}, chain[4:], fleet.Device)
	honest := publish(ix, 2, chain, 8)
	want := []Match{{1, [fleet.NumTiers]uint32{1}}, {2, [fleet.NumTiers]uint32{8}}}
	if d := cmp.Diff(want, ix.Match(chain, nil)); d != "" {
		t.Errorf("Match (-want +got):\n%s", d)
	}
	// It may go by its own story.
	if d := cmp.Diff([]Match{{1, [fleet.NumTiers]uint32{4}}}, ix.Match(chain[4:], nil)); d != "" {
		t.Errorf("Match of the story (-want +got):\n%s", d)
	}
	if n := honest.Orphans() + l.Orphans(); n != 0 {
		t.Errorf("%d orphans", n)
	}
}
