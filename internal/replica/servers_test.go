package replica_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	nats "github.com/nats-io/nats-server/v2/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/server"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// The components of a server's health.
const (
	healthReadiness   = "readiness"
	healthReplication = "replication"
)

// broker is a real NATS server with JetStream; it ends with the test.
func broker(t testing.TB) (url string) {
	t.Helper()
	s, err := nats.NewServer(&nats.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("NATS does not start")
	}
	return s.ClientURL()
}

// waitFor waits for something that must come, however slow the machine.
func waitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	end := time.NewTimer(2 * time.Minute)
	defer end.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !is() {
		select {
		case <-end.C:
			t.Fatalf("never: %s", what)
		case <-look.C:
		}
	}
}

// rig is a server with a connection to it.
type rig struct {
	t     testing.TB
	conn  *grpc.ClientConn
	route kvoraclev1.RouteServiceClient
	fleet kvoraclev1.FleetServiceClient
}

// up starts a server on a port of its own; it ends with the test.
func up(t testing.TB, cfg server.Config) *rig {
	t.Helper()
	s, err := server.New(cfg, server.WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil)).With("replica", cfg.ReplicaID)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := s.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	conn, err := grpc.NewClient(s.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return &rig{t, conn, kvoraclev1.NewRouteServiceClient(conn), kvoraclev1.NewFleetServiceClient(conn)}
}

// replicas are servers that have joined each other.
func replicas(t testing.TB, url string, names ...string) []*rig {
	t.Helper()
	var all []*rig
	for _, name := range names {
		r := up(t, server.Config{Listen: "127.0.0.1:0", NATSURL: url, ReplicaID: name, Lease: time.Hour})
		waitFor(t, name+" is ready", func() bool { return r.is(healthReadiness) && r.is(healthReplication) })
		all = append(all, r)
	}
	return all
}

// is says whether a component is well.
func (r *rig) is(component string) bool {
	r.t.Helper()
	a, err := grpc_health_v1.NewHealthClient(r.conn).Check(r.t.Context(), &grpc_health_v1.HealthCheckRequest{Service: component})
	return err == nil && a.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}

// rank is what a server says of a worker's only rank; nil: it does not know it.
func (r *rig) rank(worker string) *kvoraclev1.RankStatus {
	r.t.Helper()
	w, err := r.fleet.GetWorker(r.t.Context(), &kvoraclev1.GetWorkerRequest{WorkerId: worker})
	if err != nil {
		return nil
	}
	return w.GetWorker().GetRanks()[0]
}

// A worker reports to one replica; the other knows it, says so, and takes it over where it stands.
func TestReplicasAreOneService(t *testing.T) {
	both := replicas(t, broker(t), "a", "b")
	hello := func(next uint64) *kvoraclev1.ReportBlocksRequest {
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
			Worker:      &kvoraclev1.WorkerSpec{WorkerId: "w", Address: "w:8000", Model: "demo", BlockSize: 16},
			Incarnation: 1, NextSequence: next, HashScheme: "xxh3-64/1337", Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
		}}}
	}
	seq, held := uint64(0), uint64(0)
	for move := range 4 {
		here, there := both[move%2], both[1-move%2]
		stream, err := here.route.ReportBlocks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(hello(seq + 1)); err != nil {
			t.Fatal(err)
		}
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if a := m.GetAccepted(); a.GetResumeFrom() != seq+1 || a.GetSnapshotRequired() {
			t.Fatalf("move %d: accepted %v, want to go on with %d", move, a, seq+1)
		}
		for range 100 { // more than may be on their way, and no ack is read meanwhile
			seq++
			held += 2
			if err := stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{
				Sequence: seq, Ops: []*kvoraclev1.BlockOp{{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
					Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
					Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: []uint64{held, held + 1}}},
				}}}},
			}}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		acked := uint64(0)
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			acked = max(acked, m.GetAck().GetAppliedSequence())
		}
		if acked != seq {
			t.Errorf("move %d: acknowledged up to %d, want %d though the reporter said that it has no more", move, acked, seq)
		}
		waitFor(t, "the other knows it", func() bool {
			r := there.rank("w")
			return r.GetAppliedSequence() == seq && r.GetDeviceBlocks() == held
		})
	}
}

// A process that is one of several and has no NATS is not ready before it has waited for it; one that is alone is at once.
func TestNotReadyBeforeJoined(t *testing.T) {
	alone := up(t, server.Config{Listen: "127.0.0.1:0"})
	waitFor(t, "alone", func() bool { return alone.is(healthReadiness) })
	if alone.is(healthReplication) {
		t.Error("a service of one replicates")
	}
	r := up(t, server.Config{Listen: "127.0.0.1:0", NATSURL: "nats://127.0.0.1:1", ReplicaID: "a"})
	waitFor(t, "it serves", func() bool { return r.is(kvoraclev1.RouteService_ServiceDesc.ServiceName) })
	if r.is(healthReadiness) || r.is(healthReplication) {
		t.Error("it is ready without having heard the others")
	}
}

// register makes a worker known by hand.
func (r *rig) register(worker string, room uint32) {
	r.t.Helper()
	if _, err := r.fleet.RegisterWorker(r.t.Context(), &kvoraclev1.RegisterWorkerRequest{Spec: &kvoraclev1.WorkerSpec{
		WorkerId: worker, Address: worker + ":8000", Model: "demo", BlockSize: 16, MaxRequests: room,
	}}); err != nil {
		r.t.Fatal(err)
	}
}

// ask is one decision on a prompt that no other begins like.
func (r *rig) ask(prompt int) (*kvoraclev1.RouteResponse, error) {
	tokens := make([]uint32, 640)
	for i := range tokens {
		tokens[i] = uint32(prompt)
	}
	return r.route.Route(r.t.Context(), &kvoraclev1.RouteRequest{
		Model: "demo", Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: tokens}},
		ExpectedOutputTokens: 65_536, // or it would be taken to be over while the test is slow, since nobody tells of it
	})
}

// booked is how many requests a replica knows a worker to have.
func (r *rig) booked(worker string) uint32 {
	r.t.Helper()
	return r.rank(worker).GetBookedRequests()
}

// A hello that is refused says nothing to anybody: the stream that it contradicts goes on to be heard by all.
func TestARefusedHelloSilencesNobody(t *testing.T) {
	both := replicas(t, broker(t), "a", "b")
	open := func(r *rig, repeats kvoraclev1.RepeatMeaning) (kvoraclev1.RouteService_ReportBlocksClient, error) {
		stream, err := r.route.ReportBlocks(t.Context())
		if err == nil {
			err = stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
				Worker:      &kvoraclev1.WorkerSpec{WorkerId: "w", Model: "demo", BlockSize: 16},
				Incarnation: 1, NextSequence: 1, HashScheme: "xxh3-64/1337", Repeats: repeats,
			}}})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		return stream, err
	}
	stream, err := open(both[0], kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= 3; seq++ {
		if err := stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{Sequence: seq}}}); err != nil {
			t.Fatal(err)
		}
		for _, r := range both {
			waitFor(t, "both know it", func() bool { return r.rank("w").GetAppliedSequence() == seq })
		}
		if _, err := open(both[seq%2], kvoraclev1.RepeatMeaning_REPEAT_MEANING_COUNTED); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("a hello that contradicts the one before: %v", err)
		}
	}
}

// Nor does a worker for which there is no room.
func TestARefusedWorkerIsNotToldOf(t *testing.T) {
	url := broker(t)
	small := up(t, server.Config{Listen: "127.0.0.1:0", NATSURL: url, ReplicaID: "a", MaxWorkers: 1})
	large := up(t, server.Config{Listen: "127.0.0.1:0", NATSURL: url, ReplicaID: "b"})
	for _, r := range []*rig{small, large} {
		waitFor(t, "it is ready", func() bool { return r.is(healthReadiness) && r.is(healthReplication) })
	}
	small.register("w1", 0)
	_, err := small.fleet.RegisterWorker(t.Context(), &kvoraclev1.RegisterWorkerRequest{
		Spec: &kvoraclev1.WorkerSpec{WorkerId: "w2", Model: "demo", BlockSize: 16},
	})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a worker too many: %v", err)
	}
	if _, err := small.fleet.DrainWorker(t.Context(), &kvoraclev1.DrainWorkerRequest{WorkerId: "w1"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "what came later is known", func() bool {
		w, err := large.fleet.GetWorker(t.Context(), &kvoraclev1.GetWorkerRequest{WorkerId: "w1"})
		return err == nil && w.GetWorker().GetState() == kvoraclev1.WorkerState_WORKER_STATE_DRAINING
	})
	if large.rank("w2") != nil {
		t.Error("a worker that was refused is known to the other replica")
	}
}
