//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// pythonEnv names the interpreter that has testdata/requirements.txt installed; `make e2e` sets it.
const pythonEnv = "KVORACLE_E2E_PYTHON"

// TestPythonClient proves that a client which shares no code with us gets along with the server: stubs made by
// Python's own generator from proto/, and hashes made by Python's own XXH3.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	python := os.Getenv(pythonEnv)
	if python == "" {
		t.Fatalf("%s is not set: run this test by `make e2e`", pythonEnv)
	}
	stubs := makeStubs(t, python)
	addr := startServer(t)

	script := exec.CommandContext(t.Context(), python, filepath.Join("testdata", "route.py"), addr)
	script.Env = append(os.Environ(), "PYTHONPATH="+stubs, "PYTHONDONTWRITEBYTECODE=1")
	t.Logf("%s", run(t, script))
}

// makeStubs has Python's own generator make stubs from proto/.
func makeStubs(t *testing.T, python string) string {
	t.Helper()
	stubs := t.TempDir()
	protoDir := filepath.Join("..", "..", "proto")
	files, err := filepath.Glob(filepath.Join(protoDir, "kvoracle", "v1", "*.proto"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no proto files in %s (error: %v)", protoDir, err)
	}
	args := []string{"-m", "grpc_tools.protoc", "-I", protoDir, "--python_out", stubs, "--grpc_python_out", stubs}
	run(t, exec.CommandContext(t.Context(), python, append(args, files...)...))
	return stubs
}
