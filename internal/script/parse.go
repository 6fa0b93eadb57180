package script

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Settings lists how a transcript wants its server to be configured: what stands behind "# config " in its comments, such as
// max_blocks=3.
func Settings(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if s, ok := strings.CutPrefix(strings.TrimSpace(line), "# config "); ok {
			out = append(out, s)
		}
	}
	return out
}

// Step is one command with the answer it is expected to get.
type Step struct {
	Line    int    // of the command, from 1
	Command string // the command line
	Want    string // the answer, lines ending in newlines; empty for a command without an answer
}

// Parse reads a transcript. Lines that begin with # and empty lines between steps are comments.
func Parse(r io.Reader) ([]Step, error) {
	var steps []Step
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	inAnswer := false
	for line := 1; sc.Scan(); line++ {
		text := strings.TrimRight(sc.Text(), " \t\r")
		switch {
		case text == "----":
			if len(steps) == 0 || inAnswer {
				return nil, fmt.Errorf("line %d: ---- without a command", line)
			}
			inAnswer = true
		case text == "":
			inAnswer = false
		case inAnswer:
			steps[len(steps)-1].Want += text + "\n"
		case strings.HasPrefix(text, "#"):
		default:
			steps = append(steps, Step{Line: line, Command: text})
		}
	}
	return steps, sc.Err()
}

// Rewrite copies a transcript with other answers, one for each step in order. Comments stay where they are.
func Rewrite(r io.Reader, w io.Writer, answers []string) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	inAnswer, n := false, 0
	var err error
	put := func(s string) {
		if err == nil {
			_, err = io.WriteString(w, s)
		}
	}
	for sc.Scan() {
		text := strings.TrimRight(sc.Text(), " \t\r")
		switch {
		case text == "----":
			inAnswer = true
		case text == "":
			inAnswer = false
			put("\n")
		case inAnswer:
		case strings.HasPrefix(text, "#"):
			put(text + "\n")
		default:
			put(text + "\n")
			if n < len(answers) && answers[n] != "" {
				put("----\n" + answers[n])
			}
			n++
		}
	}
	if err != nil {
		return err
	}
	return sc.Err()
}

// command is a command line taken apart.
type command struct {
	words   []string // without options
	options map[string]string
}

func split(line string) (command, error) {
	c := command{options: make(map[string]string)}
	depth, word := 0, ""
	flush := func() {
		if word == "" {
			return
		}
		if k, v, ok := strings.Cut(word, "="); ok && !strings.ContainsAny(k, "[{(") {
			c.options[k] = v
		} else {
			c.words = append(c.words, word)
		}
		word = ""
	}
	for _, r := range line {
		switch {
		case strings.ContainsRune("[{(", r):
			depth++
		case strings.ContainsRune("]})", r):
			depth--
		case r == ' ' && depth == 0:
			flush()
			continue
		}
		word += string(r)
	}
	if depth != 0 {
		return c, fmt.Errorf("unbalanced brackets in %q", line)
	}
	flush()
	if len(c.words) == 0 {
		return c, fmt.Errorf("no command in %q", line)
	}
	return c, nil
}
