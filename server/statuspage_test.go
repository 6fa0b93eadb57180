package server

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// statusOf reads the page as a browser does.
func (r *rig) statusOf() (*html.Node, http.Header) {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.s.OpsHandler().ServeHTTP(w, httptest.NewRequestWithContext(r.t.Context(), http.MethodGet, "/status", http.NoBody))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		r.t.Fatalf("%d %v", w.Code, w.Header())
	}
	doc, err := html.Parse(w.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return doc, w.Header()
}

// textOf is a node's text with the parts of it apart.
func textOf(n *html.Node) string {
	var out []string
	for d := range n.Descendants() {
		if text := strings.TrimSpace(d.Data); d.Type == html.TextNode && text != "" {
			out = append(out, text)
		}
	}
	return strings.Join(out, "|")
}

// rowsOf are the cells of the table with an id.
func rowsOf(doc *html.Node, id string) (rows []string) {
	for n := range doc.Descendants() {
		if n.Data != "table" || !slices.Contains(n.Attr, html.Attribute{Key: "id", Val: id}) {
			continue
		}
		for row := range n.Descendants() {
			if row.Type == html.ElementNode && row.Data == "tr" && row.Parent.Data == "tbody" {
				rows = append(rows, textOf(row))
			}
		}
	}
	return rows
}

// TestStatusPageIsSafe: whatever workers call themselves, the page is the elements of its template, loads nothing and runs
// nothing.
func TestStatusPageIsSafe(t *testing.T) {
	r := up(t, Config{})
	const name, model, address = `<script>alert(1)</script>`, `"><img src=x onerror=alert(2)>`, `javascript:alert(3)`
	elements := func() map[string]int {
		doc, _ := r.statusOf()
		n := map[string]int{}
		for d := range doc.Descendants() {
			if d.Type == html.ElementNode && d.Data != "tr" && d.Data != "td" {
				n[d.Data]++
			}
		}
		return n
	}
	register := func(name, model, address string) {
		t.Helper()
		if _, err := r.fleet.RegisterWorker(t.Context(), &kvoraclev1.RegisterWorkerRequest{
			Spec: &kvoraclev1.WorkerSpec{WorkerId: name, Address: address, Model: model, BlockSize: 16},
		}); err != nil {
			t.Fatal(err)
		}
		ask := prompt(1, 2, 3)
		ask.Model = model
		if _, err := r.route.Route(t.Context(), ask); err != nil {
			t.Fatal(err)
		}
	}
	register("w1", "demo", "w1:8000")
	plain := elements()
	register(name, model, address)
	if got := elements(); fmt.Sprint(got) != fmt.Sprint(plain) {
		t.Errorf("the page has other elements: %v, want %v", got, plain)
	}

	doc, header := r.statusOf()
	for n := range doc.Descendants() {
		if slices.Contains([]string{"script", "img", "link", "iframe", "object", "a", "form"}, n.Data) && n.Type == html.ElementNode {
			t.Errorf("there is a <%s>", n.Data)
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || slices.Contains([]string{"src", "href", "style", "action"}, a.Key) {
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
		}
		if n.Data == "style" && n.Type == html.ElementNode {
			sum := sha256.Sum256([]byte(n.FirstChild.Data))
			if want := "style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(header.Get("Content-Security-Policy"), want) {
				t.Errorf("the policy %q does not allow the page's style, %s", header.Get("Content-Security-Policy"), want)
			}
		}
	}
	for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'"} {
		if !strings.Contains(header.Get("Content-Security-Policy"), want) {
			t.Errorf("no %s in the policy", want)
		}
	}
	if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", header)
	}
	for id, want := range map[string][]string{"fleet": {name, model, address}, "decisions": {name, model}} {
		rows := rowsOf(doc, id)
		i := slices.IndexFunc(rows, func(row string) bool { return strings.Contains(row, name) })
		if i < 0 {
			t.Fatalf("%s: nobody is called that in %q", id, rows)
		}
		for _, text := range want {
			if !slices.Contains(strings.Split(rows[i], "|"), text) {
				t.Errorf("%s: %q is not shown as it is in %q", id, text, rows[i])
			}
		}
	}
}

func TestStatusPageShowsWhatHappened(t *testing.T) {
	r := up(t, Config{ShadowPolicy: "random"})
	if doc, _ := r.statusOf(); !strings.Contains(textOf(doc), "no workers") || !strings.Contains(textOf(doc), "none yet") {
		t.Errorf("an empty one: %s", textOf(doc))
	}
	r.worker("w1")
	var ids []string
	for range statusDecisions + 3 {
		m, err := r.route.Route(t.Context(), prompt(make([]uint32, 512)...))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.GetDecisionId())
	}
	if _, err := r.route.RecordProgress(t.Context(), &kvoraclev1.RecordProgressRequest{Events: []*kvoraclev1.ProgressEvent{
		{DecisionId: ids[0], Step: &kvoraclev1.ProgressEvent_FirstToken{FirstToken: &kvoraclev1.FirstToken{TtftSeconds: 2.5}}},
	}}); err != nil {
		t.Fatal(err)
	}
	doc, _ := r.statusOf()
	text := textOf(doc)
	for _, want := range []string{"policy least_time, beside it random", "1 workers, ", "First token after 2.5 s", "(1 requests)", "readiness: serving"} {
		if !strings.Contains(strings.ReplaceAll(text, "|", ""), want) && !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	rows := rowsOf(doc, "decisions")
	if len(rows) != statusDecisions {
		t.Fatalf("%d decisions, want %d", len(rows), statusDecisions)
	}
	for i, row := range rows {
		if want := ids[len(ids)-1-i]; !strings.HasPrefix(row, want+"|") || !strings.Contains(row, "only_candidate|") || !strings.Contains(row, "prefill ") {
			t.Fatalf("decision %d is %q, want %s with its reasons", i, row, want)
		}
	}
}

func TestStatusPageIsBounded(t *testing.T) {
	r := up(t, Config{})
	for i := range statusRanks + 7 {
		r.worker(fmt.Sprintf("w%04d", i))
	}
	doc, _ := r.statusOf()
	if n := len(rowsOf(doc, "fleet")); n != statusRanks || !strings.Contains(textOf(doc), "and 7 more") {
		t.Errorf("%d rows", n)
	}
}
