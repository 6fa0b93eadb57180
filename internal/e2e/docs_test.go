//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// block is a fenced block of shell commands and what they must print.
type block struct {
	line   int
	script string
	prints []string
}

// shellBlocks are the ```sh blocks of a document. A comment "<!-- prints: TEXT -->" after a block says what must be in its
// output, one that says "<!-- not run: WHY -->" before a block takes it out.
func shellBlocks(t *testing.T, doc string) []block {
	t.Helper()
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	var out []block
	isIn, isLeftOut := false, false
	for i, line := range strings.Split(string(text), "\n") {
		prints, says := strings.CutPrefix(line, "<!-- prints: ")
		switch {
		case isIn && line == "```":
			isIn = false
		case isIn:
			out[len(out)-1].script += line + "\n"
		case line == "```sh" && isLeftOut:
			isLeftOut = false
		case line == "```sh":
			isIn = true
			out = append(out, block{line: i + 1})
		case strings.HasPrefix(line, "<!-- not run: "):
			isLeftOut = true
		case says && len(out) > 0:
			b := &out[len(out)-1]
			b.prints = append(b.prints, strings.TrimSuffix(prints, " -->"))
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s has no commands", doc)
	}
	return out
}

// runBlocks runs a document's commands, one block after another in one folder, with what the document calls its parts
// replaced by those of the test.
func runBlocks(t *testing.T, doc string, env []string, replace *strings.Replacer) {
	t.Helper()
	dir := t.TempDir()
	for _, b := range shellBlocks(t, doc) {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", replace.Replace(b.script))
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s:%d: %v\n%s%s", doc, b.line, err, b.script, out)
		}
		for _, want := range b.prints {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s:%d: prints nothing like %q:\n%s", doc, b.line, want, out)
			}
		}
	}
}

// TestHTTPDoc runs the commands of docs/http.md.
func TestHTTPDoc(t *testing.T) {
	s := start(t, "--http-listen=127.0.0.1:0")
	runBlocks(t, filepath.Join("..", "..", "docs", "http.md"), nil, strings.NewReplacer("127.0.0.1:7072", s.http))
}
