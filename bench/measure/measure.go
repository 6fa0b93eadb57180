// Package measure has what the benchmarks measure with: resident memory, two clocks, cold caches.
package measure

import (
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"github.com/kvoracle/kvoracle/bench/bars"
)

// Resident is the process's resident memory in bytes, after everything that can be given back has been.
func Resident() float64 {
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

// Flush takes the core's own caches away from the index. A last-level cache of hundreds of megabytes, as large virtual
// machines have, stays; so cold is what it is for a router between two requests.
type Flush []uint64

// NewFlush makes one.
func NewFlush() Flush { return make(Flush, 16<<20/8) }

// Run empties the caches.
func (f Flush) Run() {
	for i := 0; i < len(f); i += 8 {
		f[i]++
	}
}

// ProcessTime is the processor time used so far, in seconds.
func ProcessTime() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// ThreadTime is the processor time of this thread in ns: what a call costs when others want the core, too.
func ThreadTime() float64 {
	const threadCPU = 3
	var t syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&t)), 0)
	return float64(t.Nano())
}

var epoch = time.Now()

// WallTime is the time in ns.
func WallTime() float64 { return float64(time.Since(epoch).Nanoseconds()) }

// Each measures calls one by one, the clock's own time taken off.
func Each(clock func() float64, n int, before, f func(i int)) []float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := make([]float64, 1000)
	for i := range own {
		start := clock()
		own[i] = clock() - start
	}
	off := bars.Quantile(own, 0.5)
	all := make([]float64, n)
	for i := range all {
		before(i)
		start := clock()
		f(i)
		all[i] = max(clock()-start-off, 0)
	}
	return all
}

// PerCall is the time of a call in a loop, in ns.
func PerCall(n int, f func(i int)) float64 {
	start := time.Now()
	for i := range n {
		f(i)
	}
	return float64(time.Since(start).Nanoseconds()) / float64(n)
}
