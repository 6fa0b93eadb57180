package metrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// serve answers with what is in pages; everything else is not served.
func serve(t *testing.T, pages map[string]string) *Source {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if report, isReport := strings.CutPrefix(page, "ORCA "); isReport {
			w.Header().Set(ORCAHeader, report)
			page = ""
		}
		_, _ = w.Write([]byte(page))
	}))
	t.Cleanup(srv.Close)
	return &Source{Fetcher: Fetcher{Client: srv.Client()}, Metrics: srv.URL + "/metrics", API: srv.URL}
}

func TestDiscover(t *testing.T) {
	s := serve(t, map[string]string{
		"/metrics":     string(read(t, "sglang-0.5.12.txt")),
		"/v1/models":   `{"data":[{"id":"qwen","owned_by":"sglang"}]}`,
		"/server_info": `{"served_model_name":"qwen","page_size":64,"dp_size":2,"max_running_requests":48}`,
	})
	got, err := s.Discover(t.Context(), Facts{Source: "the flags", Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	got.Source = ""
	want := Facts{Engine: SGLang, Models: []string{"qwen"}, BlockSize: 64, TotalBlocks: 1600, MaxRunning: 48, Ranks: 2}
	if d := cmp.Diff(want, got, ignoreSources); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	_, err = s.Discover(t.Context(), Facts{Source: "the flags", Ranks: 4})
	if err == nil || err.Error() != "ranks: the flags says 4, /server_info says 2" {
		t.Errorf("contradiction: %v", err)
	}
}

func TestDiscoverWithoutAnEngine(t *testing.T) {
	s := serve(t, nil)
	got, err := s.Discover(t.Context(), Facts{Source: "the flags", BlockSize: 16})
	if err != nil || got.BlockSize != 16 {
		t.Errorf("an engine that serves nothing: %+v, %v", got, err)
	}
	s.Client = &http.Client{Transport: refusing{}}
	if got, err := s.Discover(t.Context(), Facts{}); !errors.Is(err, errRefused) {
		t.Errorf("nobody there: %+v, %v", got, err)
	}
}

var errRefused = errors.New("refused")

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errRefused }

func TestLoad(t *testing.T) {
	s := serve(t, map[string]string{
		"/metrics":  string(read(t, "sglang-0.5.12.txt")),
		"/v1/loads": `{"loads":[{"dp_rank":0,"num_running_reqs":3,"num_waiting_uncached_tokens":77}]}`,
	})
	r, err := s.Load(t.Context(), SGLang)
	if d := cmp.Diff(map[int]Sample{0: {Running: new(3), WaitingPrefillTokens: new(77)}}, r.Ranks); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	// Without the load document the metrics say it.
	s = serve(t, map[string]string{"/metrics": string(read(t, "sglang-0.5.12.txt"))})
	if r, err := s.Load(t.Context(), SGLang); err != nil || len(r.Ranks) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	s = serve(t, map[string]string{"/metrics": "ORCA TEXT named_metrics.kv_cache_usage_perc=0.5"})
	if r, err := s.Load(t.Context(), VLLM); err != nil || r.Ranks[0].Usage == nil || *r.Ranks[0].Usage != 0.5 {
		t.Errorf("in the header: %+v, %v", r, err)
	}
	s = serve(t, map[string]string{"/metrics": `[{"numActiveRequests":2}]`})
	if r, err := s.Load(t.Context(), TRTLLM); err != nil || *r.Ranks[0].Running != 2 {
		t.Errorf("iterations: %+v, %v", r, err)
	}
	s.Metrics = ""
	if r, err := s.Load(t.Context(), TRTLLM); !errors.Is(err, ErrAbsent) {
		t.Errorf("no address: %+v, %v", r, err)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	s := serve(t, map[string]string{"/metrics": strings.Repeat("#\n", MaxBody/2+1)})
	if _, err := s.Load(t.Context(), VLLM); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a body above the limit: %v", err)
	}
}

func TestEngineThatHangsIsLeft(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(release) }) // before the server is closed, which waits for its calls
	s := &Source{Fetcher: Fetcher{Client: srv.Client(), Bearer: "secret-token"}, Metrics: srv.URL, Timeout: time.Millisecond}
	_, err := s.Load(t.Context(), VLLM)
	if err == nil || strings.Contains(err.Error(), "secret-token") {
		t.Errorf("got %v", err)
	}
}

func TestBase(t *testing.T) {
	if got, err := Base("http://h:8000/metrics"); err != nil || got != "http://h:8000" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "h:8000/metrics", "ftp://h/metrics", "http:///metrics", ":"} {
		if got, err := Base(bad); err == nil {
			t.Errorf("%q gives %q", bad, got)
		}
	}
}
