//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
func runBlocks(t *testing.T, doc, dir string, env []string, replace *strings.Replacer) {
	t.Helper()
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
	t.Parallel()
	s := start(t, "--http-listen=127.0.0.1:0")
	runBlocks(t, filepath.Join("..", "..", "docs", "http.md"), t.TempDir(), nil, strings.NewReplacer("127.0.0.1:7072", s.http))
}

// TestAdoptingDoc runs the commands of docs/adopting.md on the built programs, and looks for each metric that it names.
func TestAdoptingDoc(t *testing.T) {
	t.Parallel()
	build(t, "server/cmd/kvoracle")
	build(t, "client/cmd/kvoraclectl")
	dir := t.TempDir()
	t.Cleanup(func() { // of a document that failed on the way
		text, err := os.ReadFile(filepath.Join(dir, "kvoracle.pid"))
		if err != nil {
			return
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && t.Failed() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	doc := filepath.Join("..", "..", "docs", "adopting.md")
	runBlocks(t, doc, dir, []string{"PATH=" + programs + string(os.PathListSeparator) + os.Getenv("PATH")},
		strings.NewReplacer("127.0.0.1:7070", freePort(t), "127.0.0.1:7071", freePort(t), "127.0.0.1:7072", freePort(t)))

	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := os.ReadFile(filepath.Join(dir, "metrics.txt"))
	if err != nil {
		t.Fatal(err)
	}
	there := strings.Split(string(metrics), "\n")
	for _, name := range regexp.MustCompile(`kvoracle_[a-z_]+`).FindAllString(string(text), -1) {
		if !slices.ContainsFunc(there, func(line string) bool { return strings.HasPrefix(line, name) }) {
			t.Errorf("%s names %s, which a server that has just worked does not show", doc, name)
		}
	}
}

// TestEnvoyDoc runs the commands of docs/envoy.md.
func TestEnvoyDoc(t *testing.T) {
	t.Parallel()
	s := newStack(t, bufferedMode, 2000)
	var addresses []string
	for _, e := range s.engines {
		addresses = append(addresses, e.address)
	}
	runBlocks(t, filepath.Join("..", "..", "docs", "envoy.md"), t.TempDir(), nil, strings.NewReplacer(
		"127.0.0.1:7072", s.http, "127.0.0.1:7071", s.ops, "http://127.0.0.1:8080", s.url,
		"127.0.0.1:800'$i'", "'$(echo "+strings.Join(addresses, " ")+" | cut -d' ' -f$i)'",
	))
}

// TestDiscoveryDoc runs the commands of docs/discovery.md.
func TestDiscoveryDoc(t *testing.T) {
	t.Parallel()
	build(t, "client/cmd/kvoraclectl")
	s := start(t)
	dir := t.TempDir()
	t.Cleanup(func() { // of a document that failed on the way
		text, err := os.ReadFile(filepath.Join(dir, "discover.pid"))
		if err != nil {
			return
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && t.Failed() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	runBlocks(t, filepath.Join("..", "..", "docs", "discovery.md"), dir,
		[]string{"PATH=" + programs + string(os.PathListSeparator) + os.Getenv("PATH")}, strings.NewReplacer("127.0.0.1:7070", s.grpc))
}
