package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// What is compared with must be right, too: both structures answer as plain sets do.
func TestBothAnswerAsSets(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		b := &both{ix: index.New(index.Config{}), local: newRuns()}
		prompt := func() (locals []block.Local) {
			for range 1 + r.IntN(40) {
				locals = append(locals, block.Local(1+min(r.IntN(12), r.IntN(12), r.IntN(12))))
			}
			return locals
		}
		ledgers := make([]*index.Ledger, 10)
		holds := make([]map[block.ID]bool, 10)
		for i := range ledgers {
			ledgers[i] = b.ix.NewLedger(fleet.TargetID(i), false)
			b.ix.Publish(ledgers[i])
			holds[i] = make(map[block.ID]bool)
		}
		for range 300 {
			locals, i := prompt(), r.IntN(10)
			ids := block.AppendChain(nil, keyspace, locals)
			ledgers[i].Store(index.Parent{IsRoot: true}, ids, fleet.Device)
			b.local.store(fleet.TargetID(i), ids, locals)
			for _, id := range ids {
				holds[i][id] = true
			}
		}
		for range 300 {
			locals := prompt()
			ids := block.AppendChain(nil, keyspace, locals)
			var want []holder
			for i := range holds {
				n := 0
				for n < len(ids) && holds[i][ids[n]] {
					n++
				}
				if n > 0 {
					want = append(want, holder{fleet.TargetID(i), uint32(n)})
				}
			}
			if got := b.local.match(locals, nil); !slices.Equal(got, want) {
				t.Fatalf("seed %d, local hashes: %v, want %v", seed, got, want)
			}
			var got []holder
			for _, m := range b.ix.Match(ids, nil) {
				got = append(got, holder{m.Target, uint32(m.Total())})
			}
			slices.SortFunc(got, func(a, b holder) int { return cmp.Compare(a.target, b.target) })
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, ids: %v, want %v", seed, got, want)
			}
		}
		for i, id := range b.local.ids {
			if at := *b.local.slot(id); at != uint32(i)+1 {
				t.Fatalf("block %d is found at %d", i, at-1)
			}
		}
	}
}
