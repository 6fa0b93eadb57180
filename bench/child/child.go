// Package child runs the other side of a benchmark as a process of its own: this program again, told by its arguments what
// to be. The two talk by lines.
package child

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Process is one such process. It should end when its input does. Not safe for concurrent use.
type Process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start runs this program with other arguments. What it says of errors goes where ours do.
func Start(args ...string) (*Process, error) {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &Process{cmd, in, bufio.NewReader(out)}, cmd.Start()
}

// Stop ends its input and waits for it.
func (p *Process) Stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// Say gives it a line.
func (p *Process) Say(line string) error {
	_, err := fmt.Fprintln(p.in, line)
	return err
}

// Line is the next line it prints.
func (p *Process) Line() (string, error) {
	s, err := p.out.ReadString('\n')
	return strings.TrimSpace(s), err
}

// Ask gives it a line and reads the one it answers.
func (p *Process) Ask(line string) (string, error) {
	if err := p.Say(line); err != nil {
		return "", err
	}
	return p.Line()
}

// CPU is the processor time it has used so far, in seconds; 0 where the system does not say.
func (p *Process) CPU() float64 { return CPUOf(p.cmd.Process.Pid) }

// CPUOf is the same of any process.
func CPUOf(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold anything; user and system time are the 12th and 13th fields behind it.
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const ticks = 100 // a second, on every Linux there is
	var sum float64
	for _, v := range f[11:13] {
		n, _ := strconv.ParseFloat(v, 64)
		sum += n / ticks
	}
	return sum
}
