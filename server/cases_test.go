package server_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/client/clienttest"
	"github.com/kvoracle/kvoracle/internal/script"
	"github.com/kvoracle/kvoracle/server"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata/cases")

// TestCases runs every transcript in testdata/cases against a server of its own. Most are faults that users of such
// systems met; the file's first lines say which, and its answers are the right ones.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.txt")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d transcripts: %v", len(files), err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f[:len(f)-len(".txt")]), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { runCase(t, f) }) // so that waiting costs nothing
		})
	}
}

func runCase(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	steps, err := script.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r := script.New(clienttest.Start(t, clienttest.WithConfig(configOf(t, text))).Conn())
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
	defer cancel()
	answers := make([]string, len(steps))
	for i, s := range steps {
		if answers[i], err = r.Step(ctx, s.Command); err != nil {
			t.Fatalf("%s:%d: %s: %v", file, s.Line, s.Command, err)
		}
		if diff := cmp.Diff(s.Want, answers[i]); diff != "" && !*update {
			t.Errorf("%s:%d: %s (-want +got)\n%s", file, s.Line, s.Command, diff)
		}
	}
	if *update {
		var out bytes.Buffer
		if err := script.Rewrite(bytes.NewReader(text), &out, answers); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// configOf configures the server of a transcript as that wants it.
func configOf(t *testing.T, text []byte) func(*server.Config) {
	t.Helper()
	return func(c *server.Config) {
		for _, s := range script.Settings(string(text)) {
			if _, err := fmt.Sscanf(s, "max_blocks=%d", &c.MaxBlocks); err != nil {
				t.Errorf("%q: %v", s, err)
			}
		}
	}
}
