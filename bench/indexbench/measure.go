package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/bench/workload"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// resident is the process's resident memory in bytes, after everything that can be given back has been.
func resident() float64 {
	debug.FreeOSMemory()
	debug.FreeOSMemory()
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	field := 0
	var pages float64
	for _, c := range raw {
		if c == ' ' {
			if field++; field > 1 {
				break
			}
			continue
		}
		if field == 1 {
			pages = 10*pages + float64(c-'0')
		}
	}
	return pages * float64(os.Getpagesize())
}

// loaded is an index with a whole stream in it.
type loaded struct {
	stream  *workload.Stream
	ix      *index.Index
	ledgers []*index.Ledger
	blocks  int     // holder-blocks in it
	told    int     // blocks told, repetitions included
	seconds float64 // spent on that
	bytes   float64 // resident growth
}

// load applies a profile's stream with one writer. Making operations is not timed.
func load(p workload.Profile, quick bool) *loaded {
	if quick {
		p.Blocks /= 10
	}
	l := &loaded{stream: workload.New(p, 1)}
	before := resident()
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
		start := time.Now()
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
	}
	clear(ops)
	l.blocks = l.ix.Stats().HolderBlocks
	l.bytes = resident() - before
	return l
}

// flush takes the core's own caches away from the index. A last-level cache of hundreds of megabytes, as large virtual
// machines have, stays; so cold is what it is for a router between two requests.
type flush []uint64

func newFlush() flush { return make(flush, 16<<20/8) }

func (f flush) run() {
	for i := 0; i < len(f); i += 8 {
		f[i]++
	}
}

// clock is what a measurement of nothing takes.
func clock() float64 {
	all := make([]float64, 1000)
	for i := range all {
		start := time.Now()
		all[i] = float64(time.Since(start).Nanoseconds())
	}
	return quantile(all, 0.5)
}

func quantile(all []float64, q float64) float64 {
	slices.Sort(all)
	return all[min(int(q*float64(len(all))), len(all)-1)]
}

// each measures calls one by one, the clock's own time taken off.
func each(n int, before func(i int), f func(i int)) []float64 {
	own := clock()
	all := make([]float64, n)
	for i := range all {
		before(i)
		start := time.Now()
		f(i)
		all[i] = max(float64(time.Since(start).Nanoseconds())-own, 0)
	}
	return all
}

// perCall is the time of a call in a loop, in ns.
func perCall(n int, f func(i int)) float64 {
	start := time.Now()
	for i := range n {
		f(i)
	}
	return float64(time.Since(start).Nanoseconds()) / float64(n)
}

// members lists which members of which families have a number of holders and at least so many blocks.
func (l *loaded) members(holders, least int) (out [][2]int) {
	for f := range l.stream.Families {
		fam := &l.stream.Families[f]
		for m := range fam.Holders {
			if len(fam.Holders) == holders && fam.Prefix+int(fam.Tails[m]) >= least {
				out = append(out, [2]int{f, m})
			}
		}
	}
	return out
}

// cell measures queries of depth blocks of which so many holders have the first, with cold caches.
func (l *loaded) cell(holders, depth, n int) []float64 {
	members := l.members(holders, depth)
	cold := newFlush()
	dst := make([]index.Match, 0, 4096)
	var chain []block.ID
	runtime.GC()
	return each(n, func(i int) {
		m := members[scatter(i)%uint64(len(members))]
		chain = l.stream.AppendChain(chain[:0], m[0], m[1])[:depth]
		cold.run()
	}, func(int) {
		dst = l.ix.Match(chain, dst[:0])
	})
}

// scatter spreads numbers.
func scatter(i int) uint64 { return (uint64(i) + 1) * 0x9e3779b97f4a7c15 >> 20 }
