package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"time"
	"unsafe"

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
	cpu     float64 // seconds of processor time spent on that, garbage collection included
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
		start, used := time.Now(), processTime()
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
		l.cpu += processTime() - used
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

// processTime is the processor time used so far, in seconds.
func processTime() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// threadTime is the processor time of this thread in ns: what a call costs when others want the core, too.
func threadTime() float64 {
	const threadCPU = 3
	var t syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&t)), 0)
	return float64(t.Nano())
}

var epoch = time.Now()

// wallTime is the time in ns.
func wallTime() float64 { return float64(time.Since(epoch).Nanoseconds()) }

func quantile(all []float64, q float64) float64 {
	slices.Sort(all)
	return all[min(int(q*float64(len(all))), len(all)-1)]
}

// each measures calls one by one, the clock's own time taken off.
func each(clock func() float64, n int, before, f func(i int)) []float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := make([]float64, 1000)
	for i := range own {
		start := clock()
		own[i] = clock() - start
	}
	off := quantile(own, 0.5)
	all := make([]float64, n)
	for i := range all {
		before(i)
		start := clock()
		f(i)
		all[i] = max(clock()-start-off, 0)
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

// cell measures queries of depth blocks of which so many holders have the first. What the index knows of them is not in the
// core's caches; the question, which has just been hashed, room for the answer and the program are, or the clock's own
// misses would be all there is to see.
func (l *loaded) cell(clock func() float64, holders, depth, n int) []float64 {
	members := l.members(holders, depth)
	cold := newFlush()
	dst := make([]index.Match, 4096)
	var chain []block.ID
	other := l.stream.AppendChain(nil, members[0][0], members[0][1])
	runtime.GC()
	return each(clock, n, func(i int) {
		cold.run()
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
