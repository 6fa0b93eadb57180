package main

import (
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// filler stores prompts of 40 blocks, in batches, in turn into some ledgers.
type filler struct {
	ix      *index.Index
	ledgers []*index.Ledger
	ids     []block.ID
	n       int
}

func newFiller(ledgers, limit int) *filler {
	f := &filler{ix: index.New(index.Config{MaxBlocks: limit})}
	for t := range ledgers {
		f.ledgers = append(f.ledgers, publish(f.ix, t))
	}
	return f
}

const fillerPrompt = 40

func (f *filler) store() {
	l := f.ledgers[f.n%len(f.ledgers)]
	f.n++
	f.ix.SetClock(uint32(f.n))
	f.ids = chainOf(f.ids[:0], uint64(f.n), fillerPrompt)
	parent := index.Parent{IsRoot: true}
	for batch := range slices.Chunk(f.ids, 8) {
		l.Store(parent, batch, fleet.Device)
		parent = index.Parent{ID: batch[len(batch)-1]}
	}
}

// fill stores so many blocks and gives the time for one.
func (f *filler) fill(blocks int) float64 {
	start := time.Now()
	for range blocks / fillerPrompt {
		f.store()
	}
	return float64(time.Since(start).Nanoseconds()) / float64(blocks)
}

// full measures what a store costs when the index drives out a block for each that comes, over what it cost before.
func full(r *report) {
	for _, c := range []struct {
		name           string
		ledgers, limit int
	}{{"full-few", 8, 1 << 20}, {"full-many", 1024, 100_000}} {
		ratios := make([]float64, 0, 5)
		for range 5 {
			f := newFiller(c.ledgers, c.limit)
			below := f.fill(c.limit * 9 / 10)
			f.fill(c.limit / 2)
			ratios = append(ratios, f.fill(c.limit)/below)
		}
		r.value(c.name, bars.Quantile(ratios, 0.5))
	}
}
