package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvoracle/kvoracle/bench/kvops"
	"github.com/kvoracle/kvoracle/internal/block"
)

// naive is what the file says, by nothing but sets.
func naive(t *testing.T, path string) map[string]int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := kvops.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	holds := make(map[block.ID]map[int]bool)
	out := make(map[string]int)
	for {
		var rec kvops.Record
		if err := r.Next(&rec); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch rec.Kind {
		case kvops.Store:
			for i, id := range kvops.Chain(nil, rec.Locals) {
				if rec.IsRoot && id != rec.IDs[i] {
					t.Fatalf("block %d of a prompt is %x, its hashes say %x", i, rec.IDs[i], id)
				}
			}
			for _, id := range rec.IDs {
				if holds[id] == nil {
					holds[id] = make(map[int]bool)
				}
				holds[id][rec.Holder] = true
			}
		case kvops.Remove:
			for _, id := range rec.IDs {
				delete(holds[id], rec.Holder)
			}
		default:
			name := groups[rec.Group].name
			out[name]++
			chain := kvops.Chain(nil, rec.Locals)
			for h := range holds[chain[0]] {
				out[name+"-holders"]++
				for _, id := range chain {
					if !holds[id][h] {
						break
					}
					out[name+"-blocks"]++
				}
			}
		}
	}
	for id := range holds {
		out["held"] += len(holds[id])
	}
	return out
}

func TestOursAnswersAsTheFileSays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gate.kvops")
	if err := writeFile(path, 100_000, 200); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out bytes.Buffer
	if err := ours(f, &out); err != nil {
		t.Fatal(err)
	}
	want := naive(t, path)
	if want["one-holders"] == 0 || want["cell-holders"] != 64*want["cell"] || want["deep-blocks"] != deepBlocks || want["miss-holders"] != 0 {
		t.Errorf("the questions are not what they should be: %v", want)
	}
	for _, name := range []string{"held", "one-holders", "one-blocks", "cell-holders", "cell-blocks", "deep-holders", "deep-blocks", "miss-holders", "miss-blocks"} {
		if line := fmt.Sprintf("value %s %g\n", name, float64(want[name])); !strings.Contains(out.String(), line) {
			t.Errorf("no line %q in\n%s", line, out.String())
		}
	}
	for _, r := range rows {
		if !strings.Contains(out.String(), "value "+r.value+" ") {
			t.Errorf("no value of %s", r.value)
		}
	}
}
