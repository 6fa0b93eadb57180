//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package snapshot

import (
	"os"
	"syscall"
)

// lockFile takes a file for this process, or says that another one has it. The system lets go of it when the file is
// closed, also by the end of the process.
func lockFile(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
