package main

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// spin keeps every processor from sleeping until its input ends, and takes none of the time that anybody else wants: threads that do
// nothing, in the scheduler's idle class. A processor that sleeps is woken for each message, which a virtual machine pays twice.
func spin() error {
	n := runtime.NumCPU()
	runtime.GOMAXPROCS(n + 1)
	failed := make(chan error, n)
	for range n {
		go func() {
			runtime.LockOSThread()
			a := &unix.SchedAttr{Size: uint32(unsafe.Sizeof(unix.SchedAttr{})), Policy: unix.SCHED_IDLE}
			if err := unix.SchedSetAttr(0, a, 0); err != nil {
				failed <- err
				return
			}
			for {
			}
		}()
	}
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		failed <- nil
	}()
	return <-failed
}
