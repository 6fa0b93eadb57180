package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// yield lowers this process's priority by ten steps, thread by thread as Linux has it; those to come inherit it. Where
// that does not work, everybody competes.
func yield() {
	const steps = 10
	// The system call, unlike the library's function, counts from 40 for the highest priority to 1 for the lowest.
	was, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return
	}
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, 20-was+steps)
		}
	}
}
