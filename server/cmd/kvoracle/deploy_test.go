package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/server"
)

// What is in deploy/ is held against the program here: its flags, settings and times. What is for Kubernetes is in tools/deploy.

func inDeploy(t *testing.T, name ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", "..", ".."}, name...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// deployed are the settings of a file in deploy/.
func deployed(t *testing.T, name ...string) *settings {
	t.Helper()
	s, err := parse([]string{"--config", filepath.Join(append([]string{"..", "..", "..", "deploy"}, name...)...)}, environ(nil))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mostStop is how long a server with these settings takes to end, with some seconds to spare.
func mostStop(s *settings) time.Duration {
	return s.DrainDelay + s.DrainTimeout + 5*time.Second + 5*time.Second
}

// flagsOnly says whether the program takes these arguments.
func flagsOnly(t *testing.T, args []string) {
	t.Helper()
	if err := (&settings{Config: server.DefaultConfig()}).flagSet().Parse(args); err != nil {
		t.Error(err)
	}
}

func TestSystemdUnit(t *testing.T) {
	s := deployed(t, "kvoracle.yaml")
	unit := make(map[string]string)
	for line := range strings.SplitSeq(inDeploy(t, "deploy", "kvoracle.service"), "\n") {
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			unit[key] = value
		}
	}
	command := strings.Fields(unit["ExecStart"])
	if len(command) == 0 || command[0] != "/usr/local/bin/kvoracle" {
		t.Fatalf("it starts %q", unit["ExecStart"])
	}
	flagsOnly(t, command[1:])
	if !strings.Contains(unit["ExecReload"], "-HUP $MAINPID") {
		t.Errorf("it reloads by %q", unit["ExecReload"])
	}
	if stop, err := time.ParseDuration(unit["TimeoutStopSec"] + "s"); err != nil || stop < mostStop(s) {
		t.Errorf("TimeoutStopSec is %v, %v; the drain may take %v", stop, err, mostStop(s))
	}
}

// TestSystemdTakesTheUnit: systemd's own check has nothing to say of it, nor much of what the service may do.
func TestSystemdTakesTheUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("there is no systemd-analyze here")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "kvoracle.service")
	text := strings.ReplaceAll(inDeploy(t, "deploy", "kvoracle.service"), "/usr/local/bin/kvoracle", exe)
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	// In tenths of systemd's points: below 3 is the best that it has a word for.
	if out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--threshold=30", unit).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDockerfile(t *testing.T) {
	text := inDeploy(t, "Dockerfile")
	for _, pkg := range regexp.MustCompile(`\./\S+/cmd/\S+`).FindAllString(text, -1) {
		if _, err := os.Stat(filepath.Join("..", "..", "..", pkg)); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []string{"CGO_ENABLED=0", "GOOS=$TARGETOS GOARCH=$TARGETARCH", "USER 65532:65532", "EXPOSE 7070 7071 7072", `ENTRYPOINT ["/usr/local/bin/kvoracle"]`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	var mod struct{ major string }
	if m := regexp.MustCompile(`(?m)^go (1\.\d+)`).FindStringSubmatch(inDeploy(t, "go.mod")); m != nil {
		mod.major = m[1]
	}
	if mod.major == "" || !strings.Contains(text, "golang:"+mod.major+" AS build") {
		t.Errorf("the module wants Go %s", mod.major)
	}
}
