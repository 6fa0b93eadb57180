package orca

import (
	"context"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/status"
)

// start serves gRPC's own ORCA service and returns what it reports and a connection to it.
func start(t *testing.T) (orca.ServerMetricsRecorder, *grpc.ClientConn) {
	t.Helper()
	recorder := orca.NewServerMetricsRecorder()
	g := grpc.NewServer()
	if err := orca.Register(g, orca.ServiceOptions{ServerMetricsProvider: recorder, MinReportingInterval: 30 * time.Second}); err != nil {
		t.Fatal(err)
	}
	return recorder, dial(t, g)
}

func dial(t *testing.T, g *grpc.Server) *grpc.ClientConn {
	t.Helper()
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return conn
}

func TestReportsOfARealServer(t *testing.T) {
	recorder, conn := start(t)
	recorder.SetNamedUtilization("some_utilization", 0.75)
	recorder.SetNamedUtilization("kv_cache_usage_perc", 0.5)
	recorder.SetMemoryUtilization(0.25)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got map[string]float64
	r := Reader{Conn: conn, Interval: time.Second, Take: func(v map[string]float64) {
		got = v
		cancel()
	}}
	r.Run(ctx)
	want := map[string]float64{"some_utilization": 0.75, "kv_cache_usage_perc": 0.5, "mem_utilization": 0.25}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestServerWithoutTheService(t *testing.T) {
	conn := dial(t, grpc.NewServer())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var failures atomic.Int64
	r := Reader{Conn: conn, Take: func(map[string]float64) { t.Error("a report out of nothing") }, Fail: func(err error) {
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v", err)
		}
		failures.Add(1)
		cancel()
	}}
	r.Run(ctx)
	if failures.Load() != 1 {
		t.Errorf("%d failures", failures.Load())
	}
}

func TestOversizedReports(t *testing.T) {
	m := &v3.OrcaLoadReport{NamedMetrics: make(map[string]float64)}
	for i := range maxNames {
		m.NamedMetrics[strings.Repeat("x", i+1)] = 1
	}
	if Values(m) == nil {
		t.Error("a report at the limit was passed over")
	}
	m.Utilization = map[string]float64{"one more": 1}
	if v := Values(m); v != nil {
		t.Errorf("%d names", len(v))
	}
}
