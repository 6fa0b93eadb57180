package main

import (
	"math/rand/v2"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/measure"
)

// What the machine itself takes, measured in the same process and in memory as large as an index: no index can answer in
// less than the looks at memory that follow from one another, and a virtual machine adds waits of its own to some of them.

const (
	controlBytes = 128 << 20
	lineWords    = 8
	pageBytes    = 2 << 20
)

// control is memory of our own, in large pages where there are any, as the index has.
func control() []uint64 {
	b, err := syscall.Mmap(-1, 0, controlBytes+pageBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return make([]uint64, controlBytes/8)
	}
	off := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (pageBytes - 1)
	b = b[off : off+controlBytes]
	_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE)
	w := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), controlBytes/8)
	// One circle through all lines.
	lines := rand.New(rand.NewPCG(1, 1)).Perm(len(w) / lineWords)
	for i, line := range lines {
		w[line*lineWords] = uint64(lines[(i+1)%len(lines)] * lineWords)
	}
	return w
}

// dependent is the time of a load whose address the load before gave, the median of some rounds.
func dependent(w []uint64) float64 {
	var at uint64
	all := make([]float64, 0, 21)
	for range cap(all) {
		all = append(all, measure.PerCall(50_000, func(int) { at = w[at] }))
	}
	runtime.KeepAlive(at)
	return bars.Quantile(all, 0.5)
}

// grouped is the time of one of eight lines, anywhere, that are looked at together and then written: what entering a
// batch of blocks into a table takes at least.
func grouped(w []uint64) float64 {
	var sum uint64
	ns := measure.PerCall(500_000, func(i int) {
		var at [8]int
		for k := range at {
			at[k] = int(scatter(8*i+k)) % len(w) &^ (lineWords - 1)
			sum += w[at[k]+1]
		}
		for _, k := range at {
			w[k+1]++
		}
	}) / 8
	runtime.KeepAlive(sum)
	return ns
}

// oneLoad are the times of single loads after the core's caches were emptied, as a cell's are.
func oneLoad(w []uint64, n int) []float64 {
	cold := measure.NewFlush()
	var sum uint64
	all := measure.Each(measure.WallTime, n, func(int) { cold.Run() }, func(i int) { sum += w[int(scatter(i))%len(w)] })
	runtime.KeepAlive(sum)
	return all
}

// fresh is the time in ns a KiB of memory that was never touched.
func fresh() float64 {
	b, err := syscall.Mmap(-1, 0, controlBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return 0
	}
	_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE)
	start := time.Now()
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	ns := float64(time.Since(start).Nanoseconds()) / (controlBytes >> 10)
	_ = syscall.Munmap(b)
	return ns
}

func machine(r *report) {
	w := control()
	r.value("machine-dependent", dependent(w))
	r.value("machine-grouped", grouped(w))
	r.value("machine-fresh", fresh())
	one := oneLoad(w, 2000)
	r.value("machine-load-p50", bars.Quantile(one, 0.5))
	r.value("machine-load-p99", bars.Quantile(one, 0.99))
	r.value("machine-empty-p99", bars.Quantile(measure.Each(measure.WallTime, 100_000, func(int) {}, func(int) {}), 0.99))
}
