package extproc

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// authz serves Check as the server does; hasLeft is what it says of Envoy.
func (r *rig) authz(hasLeft func() bool) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			r.t.Error(err)
		}
		r.s.Check(w, q, body, hasLeft)
	}))
	r.t.Cleanup(s.Close)
	return s
}

func (r *rig) check(s *httptest.Server, method, path, body string, header ...string) (code int, h http.Header, text string) {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), method, s.URL+"/envoy"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	resp, err := s.Client().Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// TestAuthz: a request that Envoy's ext_authz asks about is decided and booked as any other, and the access log ends it, at whoever has
// really served it.
func TestAuthz(t *testing.T) {
	sessions := make(chan string, 10)
	r := start(t, 3, nil)
	route := r.s.cfg.Route
	r.s.cfg.Route = func(ctx context.Context, parent string, q *oracle.RouteRequest) (*oracle.Answer, error) {
		sessions <- q.Session + " " + parent
		return route(ctx, parent, q)
	}
	s := r.authz(func() bool { return false })
	code, h, text := r.check(s, http.MethodPost, textPath, question, "X-Session-Id", "s1", "Traceparent", "p1")
	to := strings.Split(h.Get(keyChoice), ",")
	if code != 200 || text != "" || len(to) != 1+alternatives || next(t, r.picked) != Decided {
		t.Fatalf("%d %v %q", code, h, text)
	}
	if got := next(t, sessions); got != "s1 p1" {
		t.Errorf("heard of its headers: %q", got)
	}
	if got := r.heard(); got != nil {
		t.Errorf("before its end: %v", got)
	}
	e := entryOf("", workerAt(to[1]), 200) // the second choice has served it
	e.CommonProperties.Metadata = &corev3.Metadata{FilterMetadata: meta(t, spaceAuthz, map[string]any{keyDecision: h.Get(keyDecision)}).GetFilterMetadata()}
	if d := cmp.Diff([]Entry{EntryEnded}, r.log(e)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"dispatched applied", "finished applied"}, r.heard()); d != "" {
		t.Error(d)
	}
}

// TestAuthzWithoutAChoice: what is not for us to judge is allowed, and nothing that a client has made up is left of a choice.
func TestAuthzWithoutAChoice(t *testing.T) {
	isBusy := false
	r := start(t, 2, func(c *Config) { c.Overloaded = func(context.Context) bool { return isBusy } })
	s := r.authz(func() bool { return false })
	for _, tt := range []struct {
		body   string
		isBusy bool
		want   Outcome
	}{{"not JSON", false, Unparsed}, {"", false, Unparsed}, {`{"model":"x","prompt":[1]}`, false, UnknownModel}, {question, true, Overloaded}} {
		isBusy = tt.isBusy
		code, h, text := r.check(s, http.MethodPost, textPath, tt.body, keyChoice, "10.66.66.66:1")
		if code != 200 || text != "" || h.Get(keyChoice) != "" || h.Get(keyDecision) != "" || h.Get("X-Envoy-Auth-Headers-To-Remove") != keyChoice {
			t.Errorf("%v: %d %v %q", tt.want, code, h, text)
		}
		if got := next(t, r.picked); got != tt.want {
			t.Errorf("%.20q: %v, want %v", tt.body, got, tt.want)
		}
	}
	var all []string
	for range 2 {
		_, h, _ := r.check(s, http.MethodGet, "/v1/models", "")
		to := strings.Split(h.Get(keyChoice), ",")
		if all = append(all, to[0]); next(t, r.picked) != InTurn || h.Get(keyDecision) != "" {
			t.Errorf("no prompt: %v", h)
		}
	}
	if slices.Sort(all); !slices.Equal(all, []string{at(1), at(2)}) {
		t.Errorf("sent to %v, want each in turn", all)
	}
}

// TestAuthzRefuses: what the client is told. Nothing of it is 5xx, which to Envoy is a picker that is ill.
func TestAuthzRefuses(t *testing.T) {
	r := start(t, 0, func(c *Config) { c.MaxBody = 100 })
	r.register(1, 1)
	s := r.authz(func() bool { return false })
	_, first, _ := r.check(s, http.MethodPost, textPath, question)
	refused := func(body string, want int, words string, counted Outcome) {
		t.Helper()
		code, h, text := r.check(s, http.MethodPost, textPath, body)
		if code != want || !strings.Contains(text, words) || h.Get("Content-Type") != "application/json" || (h.Get("Retry-After") != "") != (want == 429) {
			t.Errorf("%d %v %s, want %d, %s", code, h, text, want, words)
		}
		if got := next(t, r.picked); got != counted {
			t.Errorf("counted as %v, want %v", got, counted)
		}
	}
	next(t, r.picked)
	refused(question, 429, "at its limit", Shed)
	refused(question+strings.Repeat(" ", 100), 413, "longer than the limit", TooLarge)
	if _, err := r.o.Drain("w1", true); err != nil {
		t.Fatal(err)
	}
	refused(question, 429, "no worker can take", NoEndpoint)
	r.log(entryOf(first.Get(keyDecision), 1, 200))
}

// TestAuthzUnheard: what an Envoy that has given up was not told is not booked.
func TestAuthzUnheard(t *testing.T) {
	r := start(t, 1, nil)
	s := r.authz(func() bool { return true })
	r.check(s, http.MethodPost, textPath, question)
	if got := next(t, r.steps); got != "cancelled applied" {
		t.Errorf("heard %q", got)
	}
}
