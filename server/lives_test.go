package server_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvoracle/kvoracle/client/clienttest"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/script"
	"github.com/kvoracle/kvoracle/server"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// The cases of testdata/cases that need time, many rounds or two sides at once. Time is a bubble's.

// stage is an oracle with a script runner.
type stage struct {
	t      *testing.T
	oracle *clienttest.Oracle
	runner *script.Runner
}

func setStage(t *testing.T, opts ...clienttest.Option) *stage {
	t.Helper()
	s := &stage{t: t, oracle: clienttest.Start(t, opts...)}
	s.runner = script.New(s.oracle.Conn())
	t.Cleanup(s.runner.Close)
	return s
}

func (s *stage) step(command string) string {
	s.t.Helper()
	answer, err := s.runner.Step(s.t.Context(), command)
	if err != nil {
		s.t.Fatalf("%s: %v", command, err)
	}
	return strings.TrimSuffix(answer, "\n")
}

// pass lets the bubble's time pass.
func (s *stage) pass(d time.Duration) { <-time.After(d) }

// says runs a command and compares its answer.
func (s *stage) says(command, want string) {
	s.t.Helper()
	if got := s.step(command); got != want {
		s.t.Errorf("%s: got %q, want %q", command, got, want)
	}
}

// TestRestartedOracleAsksAtOnce is case B21: an oracle that was restarted asks a worker in the middle of its life for a
// snapshot in its first answer, and believes it in the next.
func TestRestartedOracleAsksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setStage(t)
		s.says("RB w1 e1 s1 +[A]", "ack s1 fresh held=1 stored=1")
		s.says("RB w1 s2 +[AB]", "ack s2 fresh held=2 stored=1")
		if err := s.oracle.Restart(); err != nil {
			t.Fatal(err)
		}
		s.runner.Close()
		s.runner = script.New(s.oracle.Conn())
		start := time.Now()
		stream, err := kvoraclev1.NewRouteServiceClient(s.oracle.Conn()).ReportBlocks(t.Context(), grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
			Worker: &kvoraclev1.WorkerSpec{WorkerId: "w1", Model: "m", BlockSize: 4}, Incarnation: 1, NextSequence: 3,
			HashScheme: block.Scheme, Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
		}}}); err != nil {
			t.Fatal(err)
		}
		m, err := stream.Recv()
		if a := m.GetAccepted(); err != nil || !a.GetSnapshotRequired() || a.GetConfidence() != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_WARMING {
			t.Fatalf("first answer: %v, %v", m, err)
		}
		s.says("ov AB", "w1=0:warming")
		s.says("RB w1 e1 s2 snap[A AB] next=3", "ack s2 fresh held=2 stored=2 snapshots=1")
		s.says("ov AB", "w1=2")
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
	})
}

// TestReadinessCountsExpectedWorkers is case B116: with four workers expected and two seen the oracle answers, but does
// not call itself ready.
func TestReadinessCountsExpectedWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setStage(t, clienttest.WithConfig(func(c *server.Config) { c.ExpectedWorkers = 4 }))
		expect := func(when string, want map[string]healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			s.pass(time.Second) // the count is taken a few times a second
			for component, want := range want {
				m, err := healthpb.NewHealthClient(s.oracle.Conn()).Check(t.Context(), &healthpb.HealthCheckRequest{Service: component})
				if err != nil || m.GetStatus() != want {
					t.Errorf("%s: %q is %v, %v; want %v", when, component, m.GetStatus(), err, want)
				}
			}
		}
		const up, down = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING
		service := kvoraclev1.RouteService_ServiceDesc.ServiceName
		unready := map[string]healthpb.HealthCheckResponse_ServingStatus{"liveness": up, service: up, "fleet": down, "readiness": down, "": down}
		expect("nobody", unready)
		s.step("RB w1 e1 s1 +[A]")
		s.step("RB w2 e1 s1 +[A]")
		expect("two of four", unready)
		s.says("RT AB", "-> w1(1) tie_least_recent")
		s.step("RB w3 e1 s7 +[A]") // warming is not fresh
		s.step("RB w4 e1 s1 +[A]")
		expect("one of them warming", unready)
		s.step("RB w3 s7 snap[A]")
		ready := map[string]healthpb.HealthCheckResponse_ServingStatus{"liveness": up, service: up, "fleet": up, "readiness": up, "": up}
		expect("four of four", ready)
		s.step("cut w1")
		s.pass(time.Minute)
		expect("warm stays warm", ready)
	})
}

// TestFullIndexIsReady: a worker that has told more than there is room for is PARTIAL, and as good a reason to be ready as one
// that is FRESH: it will not get better by waiting. One whose blocks are guessed has told nothing.
func TestFullIndexIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setStage(t, clienttest.WithConfig(func(c *server.Config) { c.ExpectedWorkers, c.MaxBlocks = 1, 3 }))
		fleetIs := func(want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			s.pass(time.Second) // the count is taken a few times a second
			m, err := healthpb.NewHealthClient(s.oracle.Conn()).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "fleet"})
			if err != nil || m.GetStatus() != want {
				t.Errorf("fleet is %v, %v; want %v", m.GetStatus(), err, want)
			}
		}
		s.says("register w2", "ok")
		s.step("RT ABC as=r1")
		s.step("first r1")
		s.step("free r1")
		s.says("list", "w2 e0 ready r0:approximate,s0,held=3,in_flight=0")
		fleetIs(healthpb.HealthCheckResponse_NOT_SERVING)
		s.says("RB w1 e1 s1 +[A AB ABC ABCD]", "ack s1 partial held=3 stored=3 refused=1 evicted=1\nrefused op 3: capacity")
		fleetIs(healthpb.HealthCheckResponse_SERVING)
	})
}

// TestSizesDoNotDrift is case B52: stores, removals and stores again of the blocks of one chain, against a plain set.
func TestSizesDoNotDrift(t *testing.T) {
	const chain = "ABCDEFGH"
	s := setStage(t)
	s.step("RB w1 e1 s1 clear")
	rnd := rand.New(rand.NewPCG(52, 1))
	held := make(map[int]bool)
	for seq := 2; seq <= 1000; seq++ {
		n := 1 + rnd.IntN(len(chain))
		op := fmt.Sprintf("-[%s]", chain[:n])
		if rnd.IntN(2) == 0 {
			op = fmt.Sprintf("+[%s]", chain[:n])
		}
		held[n] = op[0] == '+'
		size, lead := 0, 0
		for _, is := range held {
			if is {
				size++
			}
		}
		for held[lead+1] {
			lead++
		}
		if got, want := s.step(fmt.Sprintf("RB w1 s%d %s", seq, op)), fmt.Sprintf("ack s%d fresh held=%d", seq, size); !strings.HasPrefix(got+" ", want+" ") {
			t.Fatalf("%s: got %q, want %q", op, got, want)
		}
		if got, want := s.step("ov "+chain), fmt.Sprintf("w1=%d", lead); got != want {
			t.Fatalf("after %s: got %q, want %q", op, got, want)
		}
	}
}

func hello(name string, incarnation uint64) *oracle.Hello {
	return &oracle.Hello{
		Spec: fleet.Spec{Worker: name, Model: "m", BlockSize: 4, DPSize: 1}, Incarnation: incarnation, NextSequence: 1,
	}
}

func storeOp(ids ...block.ID) []oracle.Op {
	return []oracle.Op{{Kind: oracle.OpStore, IsRoot: true, IDs: ids}}
}

// TestChurnUsesNothingUp is case B09: five thousand workers come, hold something and go, one at a time.
func TestChurnUsesNothingUp(t *testing.T) {
	o := oracle.New(oracle.Config{MaxWorkers: 2, Index: index.Config{MaxBlocks: 1000}}, nil)
	now := time.Unix(1_800_000_000, 0)
	ask := &oracle.RouteRequest{Model: "m", Prompt: oracle.Prompt{Locals: []block.Local{1}, LocalsSize: 4, Length: 5}}
	for i := range 5000 {
		name := fmt.Sprint("w", i)
		s, _, err := o.OpenBlocks(hello(name, 1), now)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		op := []oracle.Op{{Kind: oracle.OpStore, IsRoot: true, Content: oracle.ContentLocals, Locals: []block.Local{1}}}
		if ack, err := s.Batch(1, 1, op, now); err != nil || ack.Held != 1 {
			t.Fatalf("%s: %+v, %v", name, ack, err)
		}
		a, err := o.Route(t.Context(), ask, now)
		if err != nil || a.Target.Worker != name || a.Matched.Total() != 4 {
			t.Fatalf("%s: %+v, %v", name, a, err)
		}
		if a.Target.ID > 1 {
			t.Fatalf("%s has target id %d: ids are not used again", name, a.Target.ID)
		}
		if blocks, bookings, err := o.Remove(name); err != nil || blocks != 1 || bookings != 1 {
			t.Fatalf("%s: dropped %d, released %d, %v", name, blocks, bookings, err)
		}
		o.Tick(now)
	}
	if st := o.Stats(now); st.Index != (index.Stats{Slots: st.Index.Slots}) || st.Index.Slots > 2 || st.Load.Bookings != 0 || st.Guesses != 0 {
		t.Errorf("left behind: %+v", st)
	}
}

// TestReportsAgainstRemoval is case B16: batches of a worker race its removal; whichever comes first, nothing is left of
// a worker that is gone, and no batch applies after it.
func TestReportsAgainstRemoval(t *testing.T) {
	o := oracle.New(oracle.Config{}, nil)
	now := time.Unix(1_800_000_000, 0)
	rounds := 10_000
	if isRace {
		rounds = 4000 // each meets the race detector's own switching as well
	}
	for i := range rounds {
		s, _, err := o.OpenBlocks(hello("w1", uint64(i+1)), now)
		if err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		both.Go(func() {
			for seq := uint64(1); seq <= 3; seq++ {
				_, err := s.Batch(seq, seq, storeOp(block.ID(seq), block.ID(seq+10)), now)
				var e *oracle.Error
				if errors.As(err, &e) && e.Reason == oracle.ReasonWorkerGone {
					return
				}
				if err != nil {
					t.Errorf("round %d: %v", i, err)
				}
			}
		})
		both.Go(func() {
			if _, _, err := o.Remove("w1"); err != nil {
				t.Errorf("round %d: %v", i, err)
			}
		})
		both.Wait()
		if _, err := s.Batch(4, 4, storeOp(1), now); err == nil {
			t.Fatalf("round %d: a batch of a removed worker was applied", i)
		}
		s.Close(now)
		if i%100 == 0 {
			o.Tick(now)
		}
	}
	o.Tick(now)
	if st := o.Stats(now); st.Index != (index.Stats{Slots: st.Index.Slots}) || st.Workers != [3]int{} {
		t.Errorf("left behind: %+v", st)
	}
	ask := &oracle.RouteRequest{Model: "m", Prompt: oracle.Prompt{Tokens: []uint32{1}, Length: 1}}
	var e *oracle.Error
	if _, err := o.Route(context.Background(), ask, now); !errors.As(err, &e) || e.Reason != oracle.ReasonModelUnknown {
		t.Errorf("Route: %v, want model unknown", err)
	}
}
