package boards

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvoracle/kvoracle/internal/telemetry"
)

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", "..", ".."}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var update = flag.Bool("update", false, "write the files in deploy/monitoring")

func TestFilesAreThoseOfToday(t *testing.T) {
	dashboard, err := Dashboard()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{RulesFile: Rules(), DashboardFile: dashboard} {
		if *update {
			if err := os.WriteFile(filepath.Join("..", "..", "..", "deploy", "monitoring", name), want, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(read(t, "deploy", "monitoring", name), want) {
			t.Errorf("deploy/monitoring/%s is not what the tables say; run: make generate", name)
		}
	}
}

// expressions are all that go out, by where they stand.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for _, a := range Alerts() {
		out["alert "+a.Name] = a.Expr
	}
	for _, r := range rows() {
		for _, p := range r.panels {
			for _, q := range p.queries {
				out["panel "+p.title+" "+q.legend] = q.expr
			}
		}
	}
	return out
}

// TestExpressionsNameWhatThereIs: metrics are instruments' and labels their attributes, also those that are summed by.
func TestExpressionsNameWhatThereIs(t *testing.T) {
	attributes := make(map[string][]string)
	for _, i := range telemetry.Instruments() {
		attributes[i.Prometheus()] = i.Attributes
	}
	by := regexp.MustCompile(`\bby \(([^)]*)\)`)
	for where, expr := range expressions(t) {
		known := []string{"instance", "job", "le"}
		for _, m := range metricsOf(expr) {
			if m.instrument == "" {
				t.Errorf("%s: %s is no series of an instrument", where, m.series)
			}
			for _, l := range m.labels {
				if l != "instance" && !slices.Contains(attributes[m.instrument], l) {
					t.Errorf("%s: %s has no label %s", where, m.series, l)
				}
			}
			known = append(known, attributes[m.instrument]...)
		}
		for _, m := range by.FindAllStringSubmatch(expr, -1) {
			for l := range strings.SplitSeq(m[1], ",") {
				if !slices.Contains(known, strings.TrimSpace(l)) {
					t.Errorf("%s: summed by %s, which nothing in it has", where, l)
				}
			}
		}
		if len(metricsOf(expr)) == 0 && !strings.HasPrefix(expr, "up{") {
			t.Errorf("%s: no metric of ours in %s", where, expr)
		}
	}
	for expr, want := range map[string]string{
		"rate(kvoracle_nothing_total[5m])": "", "kvoracle_decision_duration_seconds": "", "kvoracle_decisions_total_sum": "",
		"kvoracle_decision_duration_seconds_sum": "kvoracle_decision_duration_seconds", "kvoracle_workers{state=\"lost\"}": "kvoracle_workers",
	} {
		if got := metricsOf(expr); len(got) != 1 || got[0].instrument != want {
			t.Errorf("%s: %+v, want %q", expr, got, want)
		}
	}
}

// TestDashboardShowsEverything: every instrument is on it, and panels do not lie on each other.
func TestDashboardShowsEverything(t *testing.T) {
	text, err := Dashboard()
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if (len(p.Targets) == 0) != (p.Type == "row") {
			t.Errorf("%s has %d queries", p.Title, len(p.Targets))
		}
		for _, q := range p.Targets {
			all.WriteString(q.Expr + "\n")
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := cells[at]; other != "" || at[0] >= 24 {
					t.Fatalf("%s lies on %q or outside", p.Title, other)
				}
				cells[at] = p.Title
			}
		}
	}
	for _, i := range telemetry.Instruments() {
		if !mentions(all.String(), &i) {
			t.Errorf("%s is not on the dashboard", i.Name)
		}
	}
}

// TestOperationsDocument: every alert has a row in the table of failures, every row's instruments exist, and every
// instrument is spoken of, so that a new one makes somebody think of what it means to an operator.
func TestOperationsDocument(t *testing.T) {
	doc := string(read(t, "docs", "operations.md"))
	_, table, ok := strings.Cut(doc, "<!-- failures -->")
	table, rest, isClosed := strings.Cut(table, "<!-- end -->")
	if !ok || !isClosed {
		t.Fatal("no table of failures")
	}
	lines := strings.Split(strings.TrimSpace(table), "\n")[2:]
	for _, a := range Alerts() {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "`"+a.Name+"`") }) {
			t.Errorf("%s has no row in docs/operations.md", a.Name)
		}
	}
	known := make(map[string]bool)
	for _, i := range telemetry.Instruments() {
		known[i.Name] = true
		isFailure := isAboutFailure(&i)
		inTable, inRest := strings.Contains(table, "`"+i.Name+"`"), strings.Contains(rest, "`"+i.Name+"`")
		switch {
		case isFailure && !inTable:
			t.Errorf("%s counts what was refused, lost or wrong, and has no row in the table of failures", i.Name)
		case !inTable && !inRest:
			t.Errorf("%s is not in docs/operations.md: in the table of failures, or below it", i.Name)
		}
	}
	for _, m := range regexp.MustCompile("`(kvoracle\\.[a-z_.]+)`").FindAllStringSubmatch(doc, -1) {
		if !known[m[1]] {
			t.Errorf("docs/operations.md speaks of %s, which there is not", m[1])
		}
	}
	names := make(map[string]bool)
	for _, a := range Alerts() {
		names[a.Name] = true
	}
	for _, m := range regexp.MustCompile("`(Kvoracle[A-Za-z]+)`").FindAllStringSubmatch(doc, -1) {
		if !names[m[1]] {
			t.Errorf("docs/operations.md speaks of the alert %s, which there is not", m[1])
		}
	}
	for i, l := range lines {
		if strings.Count(l, " | ") != 3 {
			t.Errorf("row %d of the table has not four columns: %s", i+1, l)
		}
	}
}

// isAboutFailure says whether an instrument's own words mean that something was refused, dropped or wrong.
func isAboutFailure(i *telemetry.Instrument) bool {
	if i.Kind == telemetry.Histogram {
		return false
	}
	return regexp.MustCompile(`refus|drop|clos|given up|not applied|missed|forgone|not expected|error|bug|lost|without word|mismatch|held back|in vain|not known here|done without`).
		MatchString(strings.ToLower(i.Meaning))
}
