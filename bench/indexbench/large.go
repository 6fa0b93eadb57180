package main

import (
	"math"
	"runtime"
	"runtime/metrics"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/measure"
	"github.com/kvoracle/kvoracle/bench/workload"
)

func large(r *report) {
	collect := func(blocks int) collection {
		p := workload.Large
		p.Blocks = blocks
		return load(p, false).collect()
	}
	first := collect(1_000_000)
	second := collect(10_000_000)
	l := load(workload.Large, false)
	r.value("large-resident", l.bytes/(1<<30))
	r.value("large-write", float64(l.told)/l.seconds/1e6)
	r.value("large-cell", bars.Quantile(l.cell(measure.WallTime, 64, 78, 2000, false), 0.99))
	r.value("large-cell-cpu", bars.Quantile(l.cell(measure.ThreadTime, 64, 78, 2000, false), 0.99))
	third := l.collect()
	r.value("gc-growth", third.cpu/first.cpu)
	r.value("gc-1m", first.cpu*1e3)
	r.value("gc-10m", second.cpu*1e3)
	r.value("gc-100m", third.cpu*1e3)
	r.value("gc-scan-1m", first.scan/1e6)
	r.value("gc-scan-100m", third.scan/1e6)
	r.value("gc-pause-100m", third.pause*1e6)
}

// collection is what a garbage collection costs.
type collection struct {
	cpu   float64 // seconds of processor time a cycle, sweeping included
	scan  float64 // bytes that may have pointers
	pause float64 // seconds, the longest time that everything stood still
}

// collect measures collections of a process that has nothing but the index.
func (l *loaded) collect() (c collection) {
	l.stream = nil
	runtime.GC()
	runtime.GC()
	const pauses, scan = "/sched/pauses/total/gc:seconds", "/gc/scan/heap:bytes"
	read := func() []metrics.Sample {
		s := []metrics.Sample{{Name: pauses}, {Name: scan}}
		metrics.Read(s)
		return s
	}
	before := read()[0].Value.Float64Histogram()
	counts := append([]uint64(nil), before.Counts...)
	const cycles = 20
	start := measure.ProcessTime()
	for range cycles {
		runtime.GC()
	}
	c.cpu = (measure.ProcessTime() - start) / cycles
	after := read()
	c.scan = float64(after[1].Value.Uint64())
	h := after[0].Value.Float64Histogram()
	for i := range h.Counts {
		if h.Counts[i] > counts[i] && !math.IsInf(h.Buckets[i+1], 1) {
			c.pause = h.Buckets[i+1]
		}
	}
	runtime.KeepAlive(l)
	return c
}
