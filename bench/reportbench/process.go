package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// process is one of the others. It ends when its input does.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(role string, args ...string) (*process, error) {
	cmd := exec.Command(os.Args[0], append([]string{"-role=" + role}, args...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &process{cmd, in, bufio.NewReader(out)}, cmd.Start()
}

func (p *process) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

func (p *process) say(word string) error {
	_, err := fmt.Fprintln(p.in, word)
	return err
}

func (p *process) line() (string, error) {
	s, err := p.out.ReadString('\n')
	return strings.TrimSpace(s), err
}

// count asks a process for its number: the fleet how many blocks it has stored that were acknowledged, the server for its
// live memory in MiB.
func (p *process) count() (float64, error) {
	if err := p.say("count"); err != nil {
		return 0, err
	}
	s, err := p.line()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(s, 64)
}

// cpu is the processor time used so far, in seconds; 0 where the system does not say.
func (p *process) cpu() float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
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
