package index

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// TestMatchLocalsEqualsMatch asks the same in both ways, of prompts that part ways everywhere, with holes and ends.
func TestMatchLocalsEqualsMatch(t *testing.T) {
	seed := newSeed()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	ix := New(Config{})
	var ledgers []*Ledger
	for target := range fleet.TargetID(5) {
		ledgers = append(ledgers, publish(ix, target, nil))
	}
	// Each prompt begins as another one does, and some are longer than a segment.
	prompts := [][]block.Local{{1}}
	for len(prompts) < 60 {
		from := prompts[r.IntN(len(prompts))]
		p := slices.Clone(from[:1+r.IntN(len(from))])
		for n := 1 + r.IntN(1+r.IntN(900)); n > 0; n-- {
			p = append(p, block.Local(r.Uint64()))
		}
		prompts = append(prompts, p)
	}
	var all int
	for range 1500 {
		locals := slices.Clone(prompts[r.IntN(len(prompts))])
		chain := block.AppendChain(nil, 1, locals)
		l := ledgers[r.IntN(len(ledgers))]
		switch i := r.IntN(len(chain)); r.IntN(4) {
		case 0:
			l.Store(Parent{IsRoot: true}, chain[:i+1], fleet.Device)
		case 1:
			slices.Reverse(chain[i:])
			l.Remove(chain[i:], fleet.Device)
			slices.Reverse(chain[i:])
		case 2:
			l.Remove(chain[i:i+1], fleet.Device)
		default:
			l.Store(Parent{IsRoot: true}, chain[:i+1], fleet.Host)
		}
		if i := r.IntN(2 * len(locals)); i < len(locals) {
			locals[i]++
			chain = block.AppendChain(nil, 1, locals)
		}
		want := ix.Match(chain, nil)
		known, got := ix.MatchLocals(chain[0], locals[1:], nil, nil)
		if !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		most := 0
		for _, m := range want {
			most = max(most, m.Total())
		}
		if len(known) < max(most, 1) || !slices.Equal(known, chain[:len(known)]) {
			t.Fatalf("%d ids are known of %d blocks, %d held", len(known), len(chain), most)
		}
		all += most
	}
	if all < 1500*20 {
		t.Errorf("only %d blocks were found", all)
	}
}

// An unknown prompt costs one id, whatever its length, and one known in part not many more than are known.
func TestMatchLocalsMakesNoIDsInVain(t *testing.T) {
	ix := New(Config{})
	locals := make([]block.Local, 3000)
	for i := range locals {
		locals[i] = block.Local(i)
	}
	chain := block.AppendChain(nil, 1, locals)
	publish(ix, 0, chain, 1300)
	for _, tt := range []struct {
		first block.ID
		known int
	}{{chain[0] + 1, 1}, {chain[0], 1301}} {
		dst := make([]block.ID, 0, 3000)
		if known, _ := ix.MatchLocals(tt.first, locals[1:], dst, nil); len(known) > tt.known || &known[0] != &dst[:1][0] {
			t.Errorf("%d ids were made, want at most %d, in the memory given", len(known), tt.known)
		}
	}
}
