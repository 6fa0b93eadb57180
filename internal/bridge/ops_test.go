package bridge

import (
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/orca"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

func (r *rig) page(path string) (code int, body string) {
	rec := httptest.NewRecorder()
	r.bridge.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(r.t.Context(), "GET", path, nil))
	return rec.Code, rec.Body.String()
}

func TestPages(t *testing.T) {
	r := start(t, small(), nil)
	r.live()
	r.steps(0, 20)
	r.settled()
	r.caughtUp(0)
	if code, body := r.page("/healthz"); code != 200 || !strings.Contains(body, "w/0  live  trust whole") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := r.page("/"); code != 200 || !strings.Contains(body, "/metrics") {
		t.Errorf("%d %s", code, body)
	}
	_, body := r.page("/metrics")
	for _, want := range []string{
		`kvoracle_bridge_up{rank="0",worker="w"} 1`, `kvoracle_bridge_gaps_total{rank="0",worker="w"} 0`,
		`kvoracle_bridge_trust{rank="0",worker="w"} 1`, `kvoracle_bridge_next_batch{rank="0",worker="w"} `,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s", want)
		}
	}
	r.engine.Publish(0, []byte{0xc1})
	eventually(t, "garbage is counted", func() bool {
		_, body := r.page("/metrics")
		return strings.Contains(body, `kvoracle_bridge_dropped_total{rank="0",reason="payload",worker="w"} 1`)
	})
	r.engine.Crash()
	eventually(t, "a dead engine shows", func() bool {
		code, body := r.page("/healthz")
		return code == 503 && strings.Contains(body, "w/0  disconnected")
	})
}

// What the configuration says and what the engine says must agree; else nothing is told of it.
func TestContradictionIsRefused(t *testing.T) {
	r := start(t, small(), func(e *Engine) { e.BlockSize = 16 })
	eventually(t, "it is said by name", func() bool {
		code, body := r.page("/healthz")
		return code == 503 && strings.Contains(body, "block-size: the configuration says 16, /metrics says 4")
	})
	m, err := kvoraclev1.NewFleetServiceClient(r.oracle.Conn()).ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
	if err != nil || len(m.GetWorkers()) != 0 {
		t.Errorf("%v, %v", m, err)
	}
}

func TestLoadIsReported(t *testing.T) {
	cfg := small()
	cfg.Ranks = 2
	r := start(t, cfg, nil)
	r.live()
	eventually(t, "the oracle has a report of each rank", func() bool {
		m, err := kvoraclev1.NewFleetServiceClient(r.oracle.Conn()).ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
		if err != nil || len(m.GetWorkers()) != 1 {
			return false
		}
		for rank, x := range m.GetWorkers()[0].GetRanks() {
			if x.GetConfidence().GetLoad() != kvoraclev1.LoadConfidence_LOAD_CONFIDENCE_REPORTED || x.GetInFlight() != uint32(rank)+1 {
				return false
			}
		}
		return true
	})
}

// An engine's ORCA service says what nothing else does, over the connection that is made for it.
func TestLoadByORCA(t *testing.T) {
	recorder := orca.NewServerMetricsRecorder()
	recorder.SetNamedUtilization("kv_cache_usage_perc", 0.5)
	recorder.SetNamedUtilization("num_requests_running", 1) // this server takes nothing above 1
	recorder.SetNamedUtilization("num_requests_waiting", 1)
	server := grpc.NewServer()
	if err := orca.Register(server, orca.ServiceOptions{ServerMetricsProvider: recorder, MinReportingInterval: 30 * time.Second}); err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	cfg := small()
	cfg.Silent = true
	r := start(t, cfg, func(e *Engine) { e.ORCA = lis.Addr().String() })
	r.live()
	r.reported(t, 2)
}
