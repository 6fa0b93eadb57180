//go:build linux

package main

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// attachedTo is what strace says when it holds a process.
const attachedTo = " attached"

// slowly makes each write of a process to what is in a folder take so long, until the returned function is called. strace does
// it, as it holds the system calls up.
func (p *process) slowly(files []string, each time.Duration) (quick func()) {
	p.t.Helper()
	args := []string{"-f", "-o", "/dev/null", "-p", strconv.Itoa(p.cmd.Process.Pid)}
	for _, f := range files {
		args = append(args, "-P", f)
	}
	const calls = "write,pwrite64,fsync,fdatasync"
	args = append(args, "-e", "trace="+calls, "-e", "inject="+calls+":delay_enter="+strconv.FormatInt(each.Microseconds(), 10))
	cmd := exec.CommandContext(p.t.Context(), "strace", args...)
	said := newLines()
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it says so itself
		close(ended)
		_, _ = said.Write([]byte(attachedTo)) // for who waits to hear it
	}()
	said.wait(attachedTo, 1)
	select {
	case <-ended:
		p.t.Skipf("strace may not slow a process down here: %s", said)
	default:
	}
	return sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // it lets go of the process
		<-ended                                // and says that it was interrupted
		if p.t.Failed() {
			p.t.Logf("strace says %s", said)
		}
	})
}

// TestASlowDisk: each write to the log takes longer than an acknowledgement waits. Reports are acknowledged without the log, which
// is said, and decisions go on; when the disk is as it was, all is written whole, so that a kill loses nothing.
func TestASlowDisk(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("a disk is made slow by strace, which is not here")
	}
	t.Parallel() // most of it is waiting
	dir := t.TempDir()
	p := start(t, "--data-dir="+dir, "--snapshot-interval=1h")
	rep := reporter(t, p.conn, "w")
	a, b, c := prompt(1), prompt(1_000_000), prompt(2_000_000)
	store(t, rep, a)
	flush(t, rep)
	eventually(t, "well", func() bool { return p.is("replication") })
	files, err := filepath.Glob(filepath.Join(dir, "log", "jetstream", "*", "streams", "*", "msgs", "*.blk"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	quick := p.slowly(files, 15*time.Second)
	defer quick()
	began := time.Now()
	eventually(t, "it is said", func() bool {
		store(t, rep, b)
		flush(t, rep)
		return !p.is("replication")
	})
	t.Logf("acknowledged without the log %v after", time.Since(began).Round(time.Millisecond))
	if !p.is("readiness") || !isAll(p, fresh, a, b) {
		t.Error("it does not decide as before")
	}
	store(t, rep, c)
	flush(t, rep)
	if !isAll(p, fresh, a, b, c) {
		t.Error("it does not decide as before")
	}
	quick()
	began = time.Now()
	eventually(t, "all is written", func() bool { return p.is("replication") })
	t.Logf("well again %v after", time.Since(began).Round(time.Millisecond))
	p.kill()

	next := start(t, "--data-dir="+dir)
	eventually(t, "all that was acknowledged", func() bool { return isAll(next, stale, a, b, c) })
}
