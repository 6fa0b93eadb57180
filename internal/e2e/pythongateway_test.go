//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPythonGateway runs client/python, threaded and asyncio: route, progress, errors, and what it does when the oracle is
// killed.
func TestPythonGateway(t *testing.T) {
	t.Parallel()
	python := os.Getenv(pythonEnv)
	if python == "" {
		t.Fatalf("%s is not set: run this test by `make e2e`", pythonEnv)
	}
	path := makeStubs(t, python) + string(os.PathListSeparator) + filepath.Join("..", "..", "client", "python")
	s := start(t)
	cmd := exec.CommandContext(t.Context(), python, filepath.Join("testdata", "gateway.py"), s.grpc)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if lines.Text() == "kill" {
			s.kill()
			if _, err := fmt.Fprintln(in, "killed"); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || len(said) != 2 {
		t.Fatalf("%v\n%s\n%s", err, strings.Join(said, "\n"), &stderr)
	}
	t.Log(said[1])
}
