package server

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

const (
	serving    = healthpb.HealthCheckResponse_SERVING
	notServing = healthpb.HealthCheckResponse_NOT_SERVING
)

// states asks the gRPC health service for every component.
func (r *rig) states() map[string]healthpb.HealthCheckResponse_ServingStatus {
	r.t.Helper()
	out := make(map[string]healthpb.HealthCheckResponse_ServingStatus)
	for _, c := range components() {
		resp, err := r.s.health.rpc.Check(context.Background(), &healthpb.HealthCheckRequest{Service: c})
		if err != nil {
			r.t.Fatalf("%q: %v", c, err)
		}
		out[c] = resp.GetStatus()
	}
	return out
}

func (r *rig) expect(when string, up ...string) {
	r.t.Helper()
	for c, got := range r.states() {
		want := notServing
		if slices.Contains(up, c) {
			want = serving
		}
		if got != want {
			r.t.Errorf("%s: %q is %v, want %v", when, c, got, want)
		}
	}
}

// get reads a page of the operator's server.
func (r *rig) get(path string) (code int, text string) {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.s.OpsHandler().ServeHTTP(w, httptest.NewRequestWithContext(r.t.Context(), http.MethodGet, path, http.NoBody))
	return w.Code, w.Body.String()
}

func TestComponentsStartUnwellAndFollowTheFacts(t *testing.T) {
	r := newRig(t, Config{ExpectedWorkers: 2})
	services := []string{"kvoracle.v1.RouteService", "kvoracle.v1.FleetService"}
	r.expect("at first")
	b := r.s.health
	b.serving()
	r.expect("serving", append(services, "liveness", "index")...)
	b.workers(1)
	r.expect("one of two", append(services, "liveness", "index")...)
	if code, text := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "fleet: not serving (1 of 2 expected workers fresh)") {
		t.Errorf("readyz: %d, %q", code, text)
	}
	if code, _ := r.get("/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d", code)
	}
	b.workers(2)
	r.expect("two of two", append(services, "liveness", "fleet", "index", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "")...)
	b.workers(0)
	r.expect("warm stays warm", append(services, "liveness", "fleet", "index", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "")...)
	if code, text := r.get("/readyz"); code != http.StatusOK || !strings.Contains(text, "readiness: serving\n") {
		t.Errorf("readyz: %d, %q", code, text)
	}
	b.draining()
	r.expect("draining", "liveness", "fleet", "index")
	b.ended()
	r.expect("ended")
	if code, _ := r.get("/healthz"); code != http.StatusServiceUnavailable {
		t.Errorf("healthz at the end: %d", code)
	}

	var got []string
	for _, line := range r.logs.lines(t, "health") {
		got = append(got, line["component"].(string)+" "+line["status"].(string))
	}
	want := []string{
		"liveness SERVING", "index SERVING", "kvoracle.v1.RouteService SERVING", "kvoracle.v1.FleetService SERVING",
		"fleet SERVING", "readiness SERVING", "envoy.service.ext_proc.v3.ExternalProcessor SERVING", "server SERVING",
		"kvoracle.v1.RouteService NOT_SERVING", "kvoracle.v1.FleetService NOT_SERVING", "readiness NOT_SERVING",
		"envoy.service.ext_proc.v3.ExternalProcessor NOT_SERVING", "server NOT_SERVING",
		"liveness NOT_SERVING", "fleet NOT_SERVING", "index NOT_SERVING",
	}
	if !slices.Equal(got, want) {
		t.Errorf("transitions logged:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := r.s.Close(); err != nil {
		t.Error(err)
	}
}

// TestFreshWorkersOfNoneExpected: where nobody said how many there should be, the page says that.
func TestFreshWorkersOfNoneExpected(t *testing.T) {
	r := newRig(t, Config{})
	r.s.health.serving()
	r.s.health.workers(3)
	if _, text := r.get("/readyz"); !strings.Contains(text, "fleet: serving (3 workers fresh, none expected)\n") {
		t.Errorf("readyz: %q", text)
	}
	if err := r.s.Close(); err != nil {
		t.Error(err)
	}
}

// TestTheCountOfFreshWorkersGoesOn: what is well stays so; how many workers are fresh is told as it is.
func TestTheCountOfFreshWorkersGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{ExpectedWorkers: 1})
		r.s.health.serving()
		over := make(chan struct{})
		var janitor sync.WaitGroup
		janitor.Go(func() { r.s.janitor(over) })
		session, _, err := r.s.oracle.OpenBlocks(&oracle.Hello{
			Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: 16, DPSize: 1}, Incarnation: 1, NextSequence: 1,
		}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		expect := func(after time.Duration, want string) {
			t.Helper()
			<-time.After(after)
			if _, text := r.get("/readyz"); !strings.Contains(text, want) {
				t.Errorf("readyz: %q, want %q", text, want)
			}
		}
		expect(time.Second, "fleet: serving (1 of 1 expected workers fresh)")
		session.Close(time.Now())
		expect(30*time.Second, "fleet: serving (0 of 1 expected workers fresh)")
		close(over)
		janitor.Wait()
		if err := r.s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestReadyAtOnceWithoutExpectations(t *testing.T) {
	r := up(t, Config{})
	watch, err := healthpb.NewHealthClient(r.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetStatus() == serving {
			break
		}
	}
	if _, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown component: %v", err)
	}
}

// TestReadyOnceTheFleetReports goes the whole way: two workers report, and the probe turns.
func TestReadyOnceTheFleetReports(t *testing.T) {
	r := up(t, Config{ExpectedWorkers: 2})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch, err := healthpb.NewHealthClient(r.conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := watch.Recv(); err != nil || m.GetStatus() != notServing {
		t.Fatalf("at first: %v, %v", m, err)
	}
	for _, name := range []string{"w1", "w2"} {
		s := r.report(ctx, name)
		if m, err := s.Recv(); err != nil || m.GetAccepted() == nil {
			t.Fatalf("%s: %v, %v", name, m, err)
		}
	}
	if m, err := watch.Recv(); err != nil || m.GetStatus() != serving {
		t.Fatalf("after both reported: %v, %v", m, err)
	}
	if code, text := r.get("/readyz"); code != http.StatusOK || !strings.Contains(text, "fleet: serving (2 of 2 expected workers fresh)") {
		t.Errorf("readyz: %d, %q", code, text)
	}
	if n := r.counted("kvoracle.targets", "confidence=fresh"); n != 2 {
		t.Errorf("%d fresh targets shown, want 2", n)
	}
	if n := r.counted("kvoracle.worker.events", "event=registered"); n != 2 {
		t.Errorf("%d registrations counted, want 2", n)
	}
}

// report opens a block stream for a worker and says hello.
func (r *rig) report(ctx context.Context, name string) kvoraclev1.RouteService_ReportBlocksClient {
	r.t.Helper()
	s, err := r.route.ReportBlocks(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := s.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: hello(name)}}); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func TestOpsPages(t *testing.T) {
	r := up(t, Config{})
	for path, want := range map[string]string{
		"/":                              "/readyz",
		"/metrics":                       "kvoracle_bookings ",
		"/debug/pprof/":                  "goroutine ",
		"/debug/pprof/goroutine?debug=1": "goroutine profile:",
		"/debug/pprof/heap?debug=1&gc=1": "heap profile:",
	} {
		if code, text := r.get(path); code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d, lacks %q", path, code, want)
		}
	}
	for path, want := range map[string]int{
		"/nothing": http.StatusNotFound, "/debug/pprof/nothing": http.StatusNotFound,
		"/debug/pprof/profile?seconds=-1": http.StatusBadRequest, "/debug/pprof/profile?seconds=1e9": http.StatusBadRequest,
		"/debug/pprof/trace?seconds=x": http.StatusBadRequest,
	} {
		if code, _ := r.get(path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	for _, path := range []string{"/debug/pprof/profile?seconds=0.01", "/debug/pprof/trace?seconds=0.01", "/debug/pprof/heap"} {
		if code, text := r.get(path); code != http.StatusOK || text == "" {
			t.Errorf("%s: %d, %d bytes", path, code, len(text))
		}
	}
	for _, p := range r.s.pages() {
		if _, index := r.get("/"); !strings.Contains(index, p.path) {
			t.Errorf("the index lacks %s", p.path)
		}
	}
}

func TestOpsOnAPortOfItsOwn(t *testing.T) {
	r := newRig(t, Config{OpsListen: "127.0.0.1:0"})
	r.serve()
	for r.s.OpsAddr() == nil { // Serve opens it
		if _, err := r.fleet.ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.s.OpsAddr().String()+"/healthz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), "liveness: serving") {
		t.Errorf("%d %q %v", resp.StatusCode, text, err)
	}
}
