package server

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/gateway/extproc"
)

// TestAuthz: what Envoy's ext_authz asks goes the way of a call of its picker, and what is refused on that way is no answer to a
// client but a fault, at which Envoy goes on without us.
func TestAuthz(t *testing.T) {
	var refuses atomic.Bool
	r := upHTTP(t, Config{MaxMessageBytes: 4096, MaxPromptTokens: 512}, WithAuth(func(ctx context.Context, method string) (context.Context, error) {
		if method == extproc.Process && refuses.Load() {
			return nil, errors.New("not you")
		}
		return ctx, nil
	}))
	const path = "/envoy/v1/completions"
	for _, tt := range []struct {
		what, body string
		refuses    bool
		code       int
		choice     string
	}{
		{"a prompt", gieBody, false, 200, "w1:8000"},
		{"nobody who may ask", gieBody, true, 500, ""},
		{"more than the door takes", gieBody + strings.Repeat(" ", 3*4096), false, 500, ""},
	} {
		refuses.Store(tt.refuses)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.s.HTTPAddr().String()+path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		if got.StatusCode != tt.code || got.Header.Get(gieChoice) != tt.choice {
			t.Errorf("%s: %s %v, want %d and %q", tt.what, got.Status, got.Header, tt.code, tt.choice)
		}
	}
	if got := r.counted("kvoracle.extproc.requests", "outcome=decided"); got != 1 {
		t.Errorf("%d were decided, want 1", got)
	}
	// That of the last body, which is longer than ExtProcMaxBody; it is counted when net/http has it.
	for end := time.Now().Add(time.Minute); r.counted("kvoracle.http.connections", "outcome=handed") != 1; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("want one connection to be counted as handed on")
		}
	}
}

// TestAuthzPathsAreTheClients: they are no paths of ours to mend, and a redirection would be Envoy's answer to its client.
func TestAuthzPathsAreTheClients(t *testing.T) {
	r := upHTTP(t, Config{})
	ask := func(path, name, value string) (code int, choice string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.s.HTTPAddr().String()+"/envoy"+path, strings.NewReader(gieBody))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(name, value)
		got, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		return got.StatusCode, got.Header.Get(gieChoice)
	}
	for _, path := range []string{"//v1/completions", "/a/../v1/completions", "/./v1/completions/", "/..//v1/completions"} {
		for _, agent := range []string{"envoy", "ünlesbar"} { // the second is left to net/http
			if code, choice := ask(path, "X-Name", agent); code != http.StatusOK || choice != "w1:8000" {
				t.Errorf("%s by %s: %d and %q", path, agent, code, choice)
			}
		}
	}
	if code, _ := ask("/v1/completions", "Sec-Fetch-Site", "cross-site"); code != http.StatusForbidden {
		t.Errorf("from a page of another origin: %d", code)
	}
}

// TestAuthzIsAnsweredWhereItIsRead: Envoy's questions are answered by the goroutine of their connection, unless they may wait: for a place
// in a queue or for an engine, which nobody would give up when Envoy does.
func TestAuthzIsAnsweredWhereItIsRead(t *testing.T) {
	for _, tt := range []struct {
		what string
		cfg  Config
		want bool
	}{
		{"at once", Config{}, true},
		{"with a queue", Config{GatewayMaxQueue: time.Second}, false},
		{"with a tokenizer", Config{TokenizeURL: "http://127.0.0.1:1"}, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			var isDirect atomic.Bool
			r := upHTTP(t, tt.cfg, WithAuth(func(ctx context.Context, method string) (context.Context, error) {
				if method == extproc.Process {
					isDirect.Store(strings.Contains(string(debug.Stack()), "gateway/direct."))
				}
				return ctx, nil
			}))
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.s.HTTPAddr().String()+"/envoy/v1/completions", strings.NewReader(gieBody))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("User-Agent", "envoy")
			got, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = got.Body.Close()
			if got.StatusCode != http.StatusOK || got.Header.Get(gieChoice) != "w1:8000" {
				t.Errorf("%s %v", got.Status, got.Header)
			}
			if isDirect.Load() != tt.want {
				t.Errorf("answered where it was read: %v, want %v", isDirect.Load(), tt.want)
			}
		})
	}
}
