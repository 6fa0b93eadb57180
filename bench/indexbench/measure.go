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
// misses would be all there is to see.
func (l *loaded) cell(clock func() float64, holders, depth, n int) []float64 {
	members := l.stream.Members(holders, depth)
	cold := measure.NewFlush()
	dst := make([]index.Match, 4096)
	var chain []block.ID
	other := l.stream.AppendChain(nil, members[0][0], members[0][1])
	runtime.GC()
	return measure.Each(clock, n, func(i int) {
		cold.Run()
		for range 3 {
			start := clock()
			dst = l.ix.Match(other, dst[:0])[:cap(dst)]
			_ = clock() - start
		}
		m := members[1+scatter(i)%uint64(len(members)-1)]
		chain = l.stream.AppendChain(chain[:0], m[0], m[1])[:depth]
		clear(dst[:2*holders])
	}, func(int) {
		dst = l.ix.Match(chain, dst[:0])[:cap(dst)]
	})
}

// scatter spreads numbers.
func scatter(i int) uint64 { return (uint64(i) + 1) * 0x9e3779b97f4a7c15 >> 20 }
