//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/client"
)

// inNamespace is set where file systems may be mounted that nobody else sees.
const inNamespace = "KVORACLE_TEST_IN_NAMESPACE"

// withMounts runs the test that calls it again where it may mount file systems, and says whether this is there.
func withMounts(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inNamespace) != "" {
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, syscall.EPERM) || strings.Contains(string(out), "--- SKIP: "+t.Name()):
		t.Skipf("no file system can be mounted here: %v", err)
	case err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "_test.go:") {
			t.Log(strings.TrimSpace(line))
		}
	}
	return false
}

// smallDisk is a file system of so many MiB.
func smallDisk(t *testing.T, size int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err == nil {
		err = syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", size))
	}
	if errors.Is(err, syscall.EPERM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes what is left of a disk.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size >= 1; size /= 2 {
		for err == nil {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// resident is the memory that a process has.
func (p *process) resident() (bytes int) {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				p.t.Fatal(err)
			}
			return n << 10
		}
	}
	p.t.Fatal("it has no memory")
	return 0
}

// TestAFullDisk: the disk of --data-dir fills up while a worker reports, until nothing more can be written. Reports are
// acknowledged without the log, which is said, decisions go on, memory stays as it is however much is reported; when there is
// room again all is written whole, so that a kill then loses nothing of what was acknowledged while the disk was full.
func TestAFullDisk(t *testing.T) {
	if !withMounts(t) {
		return
	}
	dir := smallDisk(t, 64)
	ballast := filepath.Join(dir, "ballast")
	p := start(t, "--data-dir="+dir, "--snapshot-interval=1h")
	rep := reporter(t, p.conn, "w")
	a, b := prompt(1), prompt(1_000_000)
	store(t, rep, a)
	flush(t, rep)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("it has said:\n%s", p.log)
		}
	})
	eventually(t, "well", func() bool { return p.is("replication") })

	fill(t, ballast)
	began := time.Now()
	passing, ids := uint32(0), make([]client.BlockID, 4096)
	pass := func() { // a prompt comes and goes
		passing++
		for i := range ids {
			ids[i] = client.BlockID(passing)<<32 | client.BlockID(i)
		}
		err := rep.Store(client.Root(), ids, client.TierDevice)
		if err == nil {
			err = rep.Remove(ids, client.TierDevice)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it is said", func() bool { // a file may have room to the end of its page
		pass()
		flush(t, rep)
		return !p.is("replication")
	})
	store(t, rep, b)
	flush(t, rep)
	t.Logf("acknowledged without the log %v after the disk was full", time.Since(began).Round(time.Millisecond))
	if !p.is("readiness") || !isAll(p, fresh, a, b) {
		t.Error("it does not decide as before")
	}
	before := 0
	passes := 2500 // the last two thousand would take 128 MiB, were they kept
	if isRace {
		passes = 500
	}
	for i := range passes {
		if pass(); i%50 == 0 {
			flush(t, rep)
		}
		if i == 450 {
			before = p.resident()
		}
	}
	flush(t, rep)
	grown := p.resident() - before
	if t.Logf("it has grown by %d MiB", grown>>20); grown > 64<<20 && !isRace {
		t.Error("that is too much")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	eventually(t, "all is written", func() bool { return p.is("replication") })
	t.Logf("well again %v after there was room", time.Since(began).Round(time.Millisecond))
	p.kill()

	next := start(t, "--data-dir="+dir)
	eventually(t, "all that was acknowledged", func() bool { return isAll(next, stale, a, b) })
}
