package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvoracle/kvoracle/server"
)

// asProgram makes this test binary the program itself.
const asProgram = "KVORACLECTL_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// terminalPair opens a pseudo-terminal: what is written to one end is typed at, or shown on, the other.
func terminalPair(t *testing.T, width, height uint16) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.Close() })
	resize(t, ours, width, height)
	return ours, theirs
}

func resize(t *testing.T, terminal *os.File, width, height uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		t.Fatal(err)
	}
}

// TestTopOnATerminal runs the program on a terminal: it takes the screen, follows its size, ends by a key and leaves
// everything as it was.
func TestTopOnATerminal(t *testing.T) {
	addr, ops := liveWithOps(t, server.Config{})
	twoWorkers(t, addr)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := terminalPair(t, 120, 24)
	before, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "--server", addr, "top", "--interval", "100ms", "--metrics", "http://"+ops+"/metrics")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	until := func(what string) string {
		t.Helper()
		from := seen.Len()
		buf := make([]byte, 4096)
		for !strings.Contains(seen.String()[from:], what) {
			n, err := ours.Read(buf)
			if err != nil {
				t.Fatalf("%v while waiting for %q in %q", err, what, seen.String()[from:])
			}
			seen.Write(buf[:n])
		}
		return seen.String()[from:]
	}
	if first := until("w2 "); !strings.HasPrefix(first, enterScreen) || !strings.Contains(first, "2 ready") {
		t.Errorf("it begins with %q", first)
	}
	resize(t, ours, 30, 5) // room for the head and nobody
	until("and ")
	if _, err := ours.WriteString("xq"); err != nil {
		t.Fatal(err)
	}
	until(leaveScreen)
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	after, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %v, want %v (%v)", after, before, err)
	}
}
