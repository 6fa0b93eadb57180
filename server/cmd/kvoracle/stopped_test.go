//go:build unix

package main

import (
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestTimeThatTheServerLostIsNotItsCallers: the process is stopped for longer than a first message may take, as one in a starved
// container is, and the messages come meanwhile. They have been in time.
func TestTimeThatTheServerLostIsNotItsCallers(t *testing.T) {
	t.Parallel()
	p := start(t, "--first-message-timeout=4s")
	var streams []kvoraclev1.RouteService_ReportProgressClient
	for range 16 {
		conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		s, err := kvoraclev1.NewRouteServiceClient(conn).ReportProgress(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kvoraclev1.NewFleetServiceClient(conn).ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{}); err != nil {
			t.Fatal(err) // what is answered came behind the stream's headers
		}
		streams = append(streams, s)
	}
	p.signal(syscall.SIGSTOP)
	for i, s := range streams {
		if err := s.Send(&kvoraclev1.ReportProgressRequest{Message: &kvoraclev1.ReportProgressRequest_Hello{
			Hello: &kvoraclev1.ProgressHello{GatewayId: string(rune('a' + i)), Incarnation: 1},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(4800 * time.Millisecond)
	p.signal(syscall.SIGCONT)
	for i, s := range streams {
		if _, err := s.Recv(); err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
	}
}
