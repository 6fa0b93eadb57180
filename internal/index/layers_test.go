package index

import (
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// matches is what Match would say.
func (l *Layers) matches() []Match {
	var out []Match
	words := 0
	for _, x := range l.All {
		words = max(words, len(x.Set))
	}
	for id := range fleet.TargetID(64 * words) {
		if slices.ContainsFunc(l.Others, func(m Match) bool { return m.Target == id }) {
			continue
		}
		for _, x := range slices.Backward(l.All) {
			if x.Set.Has(id) {
				out = append(out, Match{Target: id, Blocks: [fleet.NumTiers]uint32{x.Blocks}})
				break
			}
		}
	}
	out = append(out, l.Others...)
	slices.SortFunc(out, func(a, b Match) int { return int(a.Target) - int(b.Target) })
	return out
}

// TestLayersAreMatches: hundreds of targets that hold anything of a few ways, in any tier, part ways and go.
func TestLayersAreMatches(t *testing.T) {
	r := seeded(t)
	const targets, ways = 300, 4
	ids := numbered(300)
	chains := [ways][]block.ID{ids[:40]} // each goes on from inside the one before
	for i := 1; i < ways; i++ {
		chains[i] = append(slices.Clone(chains[i-1][:15*i]), ids[50*i:50*i+30]...)
	}
	ix := New(Config{})
	ledgers := make([]*Ledger, targets)
	begin := func(id int) {
		l := ix.NewLedger(fleet.TargetID(id), false)
		ix.Publish(l)
		ledgers[id] = l
	}
	begin(0)
	for _, c := range chains {
		ledgers[0].Store(Parent{IsRoot: true}, c, fleet.Device)
	}
	var layers Layers
	deep, most, beside := 0, 0, 0
	steps := 20_000
	if isRace {
		steps = 4000
	}
	for step := range steps {
		id := r.IntN(targets)
		if r.IntN(3) == 0 {
			id = r.IntN(12) // busier than others
		}
		c := chains[r.IntN(ways)]
		switch n := r.IntN(100); {
		case ledgers[id] == nil || n < 1:
			begin(id)
		case n < 2:
			ix.Drop(fleet.TargetID(id))
			ledgers[id] = nil
		case n < 94:
			end := len(c)
			if r.IntN(12) == 0 {
				end = 1 + r.IntN(len(c))
			}
			from := 0
			if r.IntN(30) == 0 {
				from = r.IntN(end)
			}
			tier := fleet.Tier(max(0, r.IntN(40)-36))
			ledgers[id].Store(parentOf(c, from), c[from:end], tier)
		default:
			at := r.IntN(len(c))
			ledgers[id].Remove(c[at:min(at+1+r.IntN(9), len(c))], fleet.Tier(max(0, r.IntN(40)-36)))
		}
		if step%97 == 0 {
			ix.Reclaim(50)
		}
		if step%4 != 0 {
			continue
		}
		c = chains[r.IntN(ways)]
		want := ix.Match(c, nil)
		if ix.MatchLayers(c, &layers); !slices.Equal(layers.matches(), want) {
			t.Fatalf("step %d:\ngot  %v of %+v\nwant %v", step, layers.matches(), layers, want)
		}
		for i := 1; i < len(layers.All); i++ {
			a, b := layers.All[i-1], layers.All[i]
			if b.Blocks <= a.Blocks {
				t.Fatalf("step %d: %d blocks after %d", step, b.Blocks, a.Blocks)
			}
			for k := range b.Set {
				if b.Set[k]&^a.Set.Word(k) != 0 {
					t.Fatalf("step %d: layer %d is no part of the one before", step, i)
				}
			}
		}
		deep, most, beside = max(deep, len(layers.All)), max(most, len(want)), max(beside, len(layers.Others))
	}
	if deep < 3 || most < targets/2 || beside < 20 {
		t.Errorf("%d layers, %d matches, %d beside layers at most: too few", deep, most, beside)
	}
}

// TestLayersAreBounded: where a chain ends on every target at another segment there are no more layers than allowed, and
// nothing is lost.
func TestLayersAreBounded(t *testing.T) {
	const ways = 3 * LayersMost
	ix := New(Config{})
	chain := numbered(2 * ways)
	for i := range ways {
		publish(ix, fleet.TargetID(i), chain[:2*(i+1)])
	}
	for i := range ways {
		l := ix.NewLedger(fleet.TargetID(ways+i), false)
		l.Store(Parent{IsRoot: true}, chain[:2*i+1], fleet.Device) // parts ways with all others behind each piece
		l.Store(parentOf(chain, 2*i+1), []block.ID{block.ID(i + 1)}, fleet.Device)
		ix.Publish(l)
	}
	var layers Layers
	ix.MatchLayers(chain, &layers)
	if want := ix.Match(chain, nil); !slices.Equal(layers.matches(), want) {
		t.Errorf("got  %v\nwant %v", layers.matches(), want)
	}
	if len(layers.All) > LayersMost {
		t.Errorf("%d layers, want at most %d", len(layers.All), LayersMost)
	}
}
