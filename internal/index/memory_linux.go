//go:build linux && !race

package index

import (
	"syscall"
	"unsafe"
)

// mapped asks the system for zeroed memory, in large pages where it has them. all is what to give back, used what to use;
// nil if there is none.
func mapped(n int) (all, used []byte) {
	all, err := syscall.Mmap(-1, 0, n+hugeBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, nil
	}
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(all))) & (hugeBytes - 1))
	used = all[off : off+n : off+n]
	// Refused where there are none; then they are small.
	_ = syscall.Madvise(used, syscall.MADV_HUGEPAGE)
	return all, used
}

func unmap(b []byte) { _ = syscall.Munmap(b) }
