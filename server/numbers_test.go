package server_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/kvoracle/kvoracle/client/clienttest"
	"github.com/kvoracle/kvoracle/internal/script"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// play runs commands whose answers do not matter.
func play(t *testing.T, o *clienttest.Oracle, commands ...string) {
	t.Helper()
	r := script.New(o.Conn())
	t.Cleanup(r.Close)
	for _, c := range commands {
		if answer, err := r.Step(t.Context(), c); err != nil {
			t.Fatalf("%s: %v", c, err)
		} else if len(answer) > 6 && answer[:6] == "error " {
			t.Fatalf("%s: %s", c, answer)
		}
	}
}

func ask(tokens int, change func(*kvoraclev1.RouteRequest)) *kvoraclev1.RouteRequest {
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(i)
	}
	m := &kvoraclev1.RouteRequest{
		Model: "m", Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: ids}}, Explain: true,
	}
	if change != nil {
		change(m)
	}
	return m
}

// TestNoNumberIsWild is case B94: zero totals, equal loads and extremes give no NaN and no infinity in any field.
func TestNoNumberIsWild(t *testing.T) {
	o := clienttest.Start(t)
	play(t, o,
		"RB w1 e1 s1 +[A AB]", "RB w2 e1 s1 +[A]", "RB w3 e1 s1 clear",
		"RL w1 run=0 wait=0 tokens=0 used=0 total=0",
		"RL w2 run=4294967295 wait=4294967295 tokens=18446744073709551615 used=18446744073709551615 total=1",
	)
	route := kvoraclev1.NewRouteServiceClient(o.Conn())
	for _, tokens := range []int{1, 3, 4, 100_000} {
		for _, output := range []uint32{0, 1, 1 << 24} {
			m, err := route.Route(t.Context(), ask(tokens, func(m *kvoraclev1.RouteRequest) { m.ExpectedOutputTokens = output }))
			if err != nil {
				t.Fatal(err)
			}
			if len(m.GetCandidates()) != 3 {
				t.Fatalf("%d candidates, want 3", len(m.GetCandidates()))
			}
			tame(t, fmt.Sprintf("%d tokens, %d output", tokens, output), m.ProtoReflect())
		}
	}
	list, err := kvoraclev1.NewFleetServiceClient(o.Conn()).ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	tame(t, "list", list.ProtoReflect())
}

// tame walks a message and fails on floats that are no numbers.
func tame(t *testing.T, path string, m protoreflect.Message) {
	t.Helper()
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + string(f.Name())
		switch {
		case f.IsMap():
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				tame(t, fmt.Sprintf("%s[%d]", at, i), v.List().Get(i).Message())
			}
		case f.IsList():
		case f.Message() != nil:
			tame(t, at, v.Message())
		case f.Kind() == protoreflect.DoubleKind:
			if x := v.Float(); math.IsNaN(x) || math.IsInf(x, 0) {
				t.Errorf("%s is %v", at, x)
			}
		}
		return true
	})
}

// TestEqualCachesSayNothing is case B102: where nobody holds anything the prompt's cost is the same everywhere, and what
// differs is the load.
func TestEqualCachesSayNothing(t *testing.T) {
	o := clienttest.Start(t)
	play(t, o, "RB w1 e1 s1 +[X]", "RB w2 e1 s1 +[Y]", "RL w1 run=0 wait=4 tokens=40000", "RL w2 run=0 wait=0 tokens=0")
	m, err := kvoraclev1.NewRouteServiceClient(o.Conn()).Route(t.Context(), ask(16, nil))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.GetTarget().GetWorkerId(); got != "w2" {
		t.Errorf("chose %s, want w2, which is idle", got)
	}
	terms := map[string][]float64{}
	for _, c := range m.GetCandidates() {
		if c.GetUncachedTokens() != 16 || c.GetMatched().GetDevice() != 0 {
			t.Errorf("%s: %d to compute, %d matched", c.GetTarget().GetWorkerId(), c.GetUncachedTokens(), c.GetMatched().GetDevice())
		}
		sum := 0.0
		for _, x := range c.GetTerms() {
			terms[x.GetName()] = append(terms[x.GetName()], x.GetSeconds())
			sum += x.GetSeconds()
		}
		if math.Abs(sum-c.GetTotalCostSeconds()) > 1e-9 {
			t.Errorf("%s: terms add up to %v, the cost is %v", c.GetTarget().GetWorkerId(), sum, c.GetTotalCostSeconds())
		}
	}
	// Best first: w2, then w1.
	if f := terms["fleet"]; len(f) != 2 || f[0] != f[1] {
		t.Errorf("what the prompt takes from the fleet differs: %v", f)
	}
	if q := terms["queue"]; len(q) != 2 || q[0] != 0 || q[1] <= 0 {
		t.Errorf("queues are %v, want none and some", q)
	}
}

// TestUnknownNamesAllocateNothing is case B10: messages about workers nobody has heard of leave nothing behind.
func TestUnknownNamesAllocateNothing(t *testing.T) {
	if isRace {
		t.Skip("counts bytes")
	}
	o := clienttest.Start(t)
	fleet := kvoraclev1.NewFleetServiceClient(o.Conn())
	route := kvoraclev1.NewRouteServiceClient(o.Conn())
	flood := func(from, to int) {
		for i := from; i < to; i++ {
			name := fmt.Sprintf("ghost-%d", i)
			if _, err := fleet.RemoveWorker(t.Context(), &kvoraclev1.RemoveWorkerRequest{WorkerId: name}); status.Code(err) != codes.NotFound {
				t.Fatalf("remove: %v", err)
			}
			if _, err := fleet.DrainWorker(t.Context(), &kvoraclev1.DrainWorkerRequest{WorkerId: name}); status.Code(err) != codes.NotFound {
				t.Fatalf("drain: %v", err)
			}
			m, err := route.RecordProgress(t.Context(), &kvoraclev1.RecordProgressRequest{Events: []*kvoraclev1.ProgressEvent{
				{DecisionId: name, Step: &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}}},
			}})
			if err != nil || m.GetUnknownDecisions() != 1 {
				t.Fatalf("progress: %v, %v", m, err)
			}
		}
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	flood(0, 500) // what grows once may grow
	before := heap()
	flood(500, 5500)
	// 15,000 names of which each had left only its own bytes would show as 200 kB and more.
	if after := heap(); after > before+150_000 {
		t.Errorf("the heap grew by %d bytes", after-before)
	}
	list, err := fleet.ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
	if err != nil || len(list.GetWorkers()) != 0 {
		t.Errorf("workers: %v, %v", list.GetWorkers(), err)
	}
}
