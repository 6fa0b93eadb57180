//go:build linux || darwin

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestADiskThatHangsHoldsUpNobody: the file that is written is a pipe that nobody reads.
func TestADiskThatHangsHoldsUpNobody(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "index.tmp")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "--data-dir="+dir, "--snapshot-interval=1s")
	rep := reporter(t, p.conn, "w")
	large := make([]uint32, 60_000*16) // more than a pipe and our buffers hold
	for i := range large {
		large[i] = 1<<20 + uint32(i)
	}
	store(t, rep, large)
	flush(t, rep)
	hole, err := os.Open(pipe) // returns when a save has begun
	if err != nil {
		t.Fatal(err)
	}
	a := prompt(1)
	store(t, rep, a)
	flush(t, rep)
	if !isAll(p, fresh, a) {
		t.Error("a report that came while a save hung is not there")
	}
	if err := hole.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the next save", func() bool {
		all, err := filepath.Glob(filepath.Join(dir, "*.kvsnap"))
		return err == nil && len(all) > 0
	})
	if !strings.Contains(p.log.String(), "the index was not saved") {
		t.Errorf("nothing was said of the save that failed:\n%s", p.log)
	}
}
