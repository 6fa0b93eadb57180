package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/kvoracle/kvoracle/internal/script"
)

type scriptCmd struct {
	File string `arg:"" help:"Transcript to run, against an oracle that nobody else uses." type:"existingfile"`
}

// Run runs the transcript; an answer that differs is an error.
func (c *scriptCmd) Run(e *env) error {
	text, err := os.ReadFile(c.File)
	if err != nil {
		return err
	}
	steps, err := script.Parse(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	for _, s := range script.Settings(string(text)) {
		fmt.Fprintf(e.out, "for a server that was started with --%s\n", strings.ReplaceAll(s, "_", "-"))
	}
	conn, err := e.dial()
	if err != nil {
		return err
	}
	r := script.New(conn)
	defer r.Close()
	differ := 0
	for _, s := range steps {
		got, err := r.Step(e.ctx, s.Command)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", c.File, s.Line, err)
		}
		fmt.Fprintf(e.out, "%s\n%s", s.Command, indent(got))
		if got != s.Want {
			differ++
			fmt.Fprintf(e.out, "  expected:\n%s", indent(s.Want))
		}
	}
	if differ > 0 {
		return fmt.Errorf("%d of %d answers differ", differ, len(steps))
	}
	return nil
}

func indent(s string) string {
	if s == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n    ") + "\n"
}
