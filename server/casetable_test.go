package server_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cases are the ids of docs/cases.md. Numbers have gaps; none may get lost.
const cases = `01 02 03 05 06 07 08 09 10 11 13 14 16 17
	18 19 20 21 22 23 24 26 27 28 30 31 32 33 34 35
	36 37 38 39 40 42 43 45 46 48 49 50 51 52
	53 54 55 56 57 58 59 61 62 63 65 66 67 68 69 71
	72 73 75 77 78 79 80
	81 82 83 85 87 89 90 91 92 94
	95 96 97 99 100 102 103 104 105 111 112`

// TestEveryCaseIsProven reads docs/cases.md: every case has its row, every transcript and test that a row names is there,
// and every transcript is in the table.
func TestEveryCaseIsProven(t *testing.T) {
	doc, err := os.ReadFile("../docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	where := make(map[string][]string) // by first column
	for line := range strings.Lines(string(doc)) {
		if f := strings.Split(line, "|"); len(f) >= 4 && !strings.HasPrefix(f[1], "-") {
			where[strings.TrimSpace(f[1])] = strings.Split(strings.TrimSpace(f[len(f)-2]), ", ")
		}
	}
	named := make(map[string]bool)
	for n := range strings.FieldsSeq(cases) {
		id := "B" + n
		proofs, ok := where[id]
		if !ok {
			t.Errorf("docs/cases.md has no row for %s", id)
		}
		for _, proof := range proofs {
			named[proof] = true
			_, err := os.Stat(filepath.Join("testdata", "cases", proof+".txt"))
			if err != nil && !slices.Contains(tests, proof) {
				t.Errorf("%s: %s is neither a transcript nor a test", id, proof)
			}
		}
	}
	files, err := filepath.Glob("testdata/cases/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".txt")
		id, _, _ := strings.Cut(name, "_")
		if where[id] == nil && where[name] == nil && !named[name] {
			t.Errorf("docs/cases.md does not have the transcript %s", name)
		}
	}
}

// testNames lists the test functions of the whole module.
func testNames(t *testing.T) []string {
	t.Helper()
	var out []string
	name := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range name.FindAllStringSubmatch(string(text), -1) {
			out = append(out, m[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
