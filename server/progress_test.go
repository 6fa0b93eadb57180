package server

import (
	"math"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestRecordProgressIsAllOrNothing: one event that is refused refuses the call and says which it was, wherever it stands, and
// nothing of the others has happened. Those that are late or about decisions that nobody knows refuse nothing.
func TestRecordProgressIsAllOrNothing(t *testing.T) {
	r := onSocket(t, Config{})
	r.dial(r.s.Addr().String())
	defer r.conn.Close()
	r.worker("w1")
	r.worker("w2")
	ask := prompt(1, 2, 3)
	ask.AllowedWorkers = []string{"w1"}
	a, b := r.booked(ask).GetDecisionId(), r.booked(ask).GetDecisionId()

	first := &kvoraclev1.ProgressEvent{DecisionId: a, Step: &kvoraclev1.ProgressEvent_FirstToken{FirstToken: &kvoraclev1.FirstToken{}}}
	moved := &kvoraclev1.ProgressEvent{DecisionId: b, Step: dispatchedTo("w2", 0)}
	ended := &kvoraclev1.ProgressEvent{DecisionId: a, Step: &kvoraclev1.ProgressEvent_Finished{Finished: &kvoraclev1.Finished{OutputTokens: 1}}}
	unknown := &kvoraclev1.ProgressEvent{DecisionId: "00000000000000ff", Step: &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}}}
	good := []*kvoraclev1.ProgressEvent{first, unknown, moved, ended, first}
	record := func(events []*kvoraclev1.ProgressEvent) (*kvoraclev1.RecordProgressResponse, error) {
		return r.route.RecordProgress(t.Context(), &kvoraclev1.RecordProgressRequest{Events: events})
	}
	untouched := func(after string) {
		t.Helper()
		if one, other := r.bookedOn("w1"), r.bookedOn("w2"); one != 2 || other != 0 {
			t.Fatalf("after %s: %d requests on w1 and %d on w2, want 2 and 0", after, one, other)
		}
		if n := r.counted("kvoracle.progress.events"); n != 0 {
			t.Fatalf("after %s: %d events were counted as heard", after, n)
		}
	}

	for name, tt := range map[string]struct {
		bad   *kvoraclev1.ProgressEvent
		field string
		code  codes.Code
	}{
		"no decision":      {&kvoraclev1.ProgressEvent{Step: first.GetStep()}, ".decision_id", codes.InvalidArgument},
		"no step":          {&kvoraclev1.ProgressEvent{DecisionId: a}, ".step", codes.InvalidArgument},
		"no time":          {&kvoraclev1.ProgressEvent{DecisionId: a, Step: &kvoraclev1.ProgressEvent_FirstToken{FirstToken: &kvoraclev1.FirstToken{TtftSeconds: math.NaN()}}}, ".first_token.ttft_seconds", codes.InvalidArgument},
		"nameless worker":  {&kvoraclev1.ProgressEvent{DecisionId: a, Step: dispatchedTo("", 0)}, ".dispatched.target.worker_id", codes.InvalidArgument},
		"no such worker":   {&kvoraclev1.ProgressEvent{DecisionId: a, Step: dispatchedTo("w3", 0)}, ".dispatched.target.worker_id", codes.NotFound},
		"no such rank":     {&kvoraclev1.ProgressEvent{DecisionId: a, Step: dispatchedTo("w2", 1)}, ".dispatched.target.dp_rank", codes.InvalidArgument},
		"of what is over":  {&kvoraclev1.ProgressEvent{DecisionId: unknown.GetDecisionId(), Step: dispatchedTo("w3", 0)}, ".dispatched.target.worker_id", codes.NotFound},
		"a reason too big": {&kvoraclev1.ProgressEvent{DecisionId: a, Step: &kvoraclev1.ProgressEvent_Failed{Failed: &kvoraclev1.Failed{Reason: string(make([]byte, 257))}}}, ".failed.reason", codes.InvalidArgument},
	} {
		for at, index := range []string{"events[0]", "events[1]", "events[2]", "events[3]", "events[4]", "events[5]"} {
			field := index + tt.field
			_, err := record(slices.Insert(slices.Clone(good), at, tt.bad))
			st := status.Convert(err)
			if got := errorInfo(st).GetMetadata()["field"]; st.Code() != tt.code || got != field {
				t.Errorf("%s at %d: %v about %q, want %v about %q", name, at, err, got, tt.code, field)
			}
			untouched(name)
		}
	}
	for _, n := range []int{0, 1025} {
		if _, err := record(slices.Repeat([]*kvoraclev1.ProgressEvent{ended}, n)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d events: %v", n, err)
		}
		untouched("a wrong number of events")
	}

	m, err := record(good)
	if err != nil || m.GetApplied() != 3 || m.GetUnknownDecisions() != 2 || m.GetLateEvents() != 0 {
		t.Errorf("the good ones: %v, %v, want 3 applied and 2 unknown", m, err)
	}
	if one, other := r.bookedOn("w1"), r.bookedOn("w2"); one != 0 || other != 1 {
		t.Errorf("then %d requests on w1 and %d on w2, want 0 and 1", one, other)
	}
}

func dispatchedTo(worker string, rank uint32) *kvoraclev1.ProgressEvent_Dispatched {
	return &kvoraclev1.ProgressEvent_Dispatched{Dispatched: &kvoraclev1.Dispatched{Target: &kvoraclev1.Target{WorkerId: worker, DpRank: rank}}}
}
