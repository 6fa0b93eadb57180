package main

import (
	"runtime"
	"time"

	"github.com/kvoracle/kvoracle/bench/measure"
	"github.com/kvoracle/kvoracle/bench/workload"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// loaded is an index with a whole stream in it.
type loaded struct {
	stream  *workload.Stream
	ix      *index.Index
	ledgers []*index.Ledger
	blocks  int     // holder-blocks in it
	told    int     // blocks told, repetitions included
	seconds float64 // spent on that
	cpu     float64 // seconds of processor time spent on that, garbage collection included
	bytes   float64 // resident growth
}

// load applies a profile's stream with one writer. Making operations is not timed.
func load(p workload.Profile, quick bool) *loaded {
	if quick {
		p.Blocks /= 10
	}
	l := &loaded{stream: workload.New(p, 1)}
	before := measure.Resident()
	l.ix = index.New(index.Config{MaxBlocks: 2 * p.Blocks})
	for h := range p.Holders {
		led := l.ix.NewLedger(fleet.TargetID(h), false)
		l.ix.Publish(led)
		l.ledgers = append(l.ledgers, led)
	}
	ops := make([]workload.Op, 4096)
	times := make([]int, len(ops))
	for more := true; more; {
		n := 0
		for n < len(ops) {
			if times[n] = l.stream.Next(&ops[n]); times[n] == 0 {
				more = false
				break
			}
			n++
		}
		start, used := time.Now(), measure.ProcessTime()
		for i := range ops[:n] {
			op := &ops[i]
			for range times[i] {
				l.told += len(op.IDs)
				if op.IsRemove {
					l.ledgers[op.Holder].Remove(op.IDs, fleet.Device)
				} else {
					l.ledgers[op.Holder].Store(index.Parent{ID: op.Parent, IsRoot: op.IsRoot}, op.IDs, fleet.Device)
				}
			}
		}
		l.seconds += time.Since(start).Seconds()
		l.cpu += measure.ProcessTime() - used
	}
	clear(ops)
	l.blocks = l.ix.Stats().HolderBlocks
	l.bytes = measure.Resident() - before
	return l
}

// cell measures queries of depth blocks of which so many holders have the first. What the index knows of them is not in the
// core's caches; the question, which has just been hashed, room for the answer and the program are, or the clock's own
// misses would be all there is to see. Each prompt was asked for just before the caches were emptied, or some of the
// answers would wait for the hypervisor, which takes pages away that were not touched for long; unless isFirst is set.
func (l *loaded) cell(clock func() float64, holders, depth, n int, isFirst bool) []float64 {
	members := l.stream.Members(holders, depth)
	cold := measure.NewFlush()
	dst := make([]index.Match, 4096)
	var chain []block.ID
	other := l.stream.AppendChain(nil, members[0][0], members[0][1])
	runtime.GC()
	return measure.Each(clock, n, func(i int) {
		m := members[1+scatter(i)%uint64(len(members)-1)]
		chain = l.stream.AppendChain(chain[:0], m[0], m[1])[:depth]
		if !isFirst {
			dst = l.ix.Match(chain, dst[:0])[:cap(dst)]
		}
		cold.Run()
		for range 3 {
			start := clock()
			dst = l.ix.Match(other, dst[:0])[:cap(dst)]
			_ = clock() - start
		}
		// The question comes into the caches again.
		chain = l.stream.AppendChain(chain[:0], m[0], m[1])[:depth]
		clear(dst[:2*holders])
	}, func(int) {
		dst = l.ix.Match(chain, dst[:0])[:cap(dst)]
	})
}

// once measures queries as the published gate does: no more than 2,000 prompts with a number of holders, of each so many
// blocks of the shared prefix, or a random number if depth is 0, one after another, each for the first time after the
// index was filled, and nothing done to the caches. There are few such prompts of 64 holders; they are gone through again
// after all others were asked for.
func (l *loaded) once(holders, depth, rounds int) []float64 {
	var chains, others [][]block.ID
	for f := range l.stream.Families {
		fam := &l.stream.Families[f]
		isOne := len(fam.Holders) == holders && fam.Prefix >= depth && len(chains) < 2000
		if !isOne && rounds == 1 {
			continue
		}
		chain := l.stream.AppendChain(nil, f, -1)
		switch {
		case !isOne:
			others = append(others, chain[:min(len(chain), 16)])
		case depth == 0:
			chains = append(chains, chain[:1+scatter(f)%uint64(len(chain))])
		default:
			chains = append(chains, chain[:depth])
		}
	}
	dst := make([]index.Match, 0, 4096)
	var all []float64
	for range rounds {
		all = append(all, measure.Each(measure.WallTime, len(chains), func(int) {}, func(i int) { dst = l.ix.Match(chains[i], dst[:0]) })...)
		for _, c := range others {
			dst = l.ix.Match(c, dst[:0])
		}
	}
	return all
}

// scatter spreads numbers.
func scatter(i int) uint64 { return (uint64(i) + 1) * 0x9e3779b97f4a7c15 >> 20 }
