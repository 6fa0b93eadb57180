package server

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// limitedWorker registers a worker that accepts so many requests.
func (r *rig) limitedWorker(name, model string, most uint32) {
	r.t.Helper()
	if _, err := r.fleet.RegisterWorker(r.t.Context(), &kvoraclev1.RegisterWorkerRequest{
		Spec: &kvoraclev1.WorkerSpec{WorkerId: name, Model: model, BlockSize: 16, MaxRequests: most},
	}); err != nil {
		r.t.Fatal(err)
	}
}

func patient(seconds float64) *kvoraclev1.RouteRequest {
	m := prompt(1, 2, 3)
	m.MaxQueueSeconds = seconds
	return m
}

// queued waits until so many questions wait.
func (r *rig) queued(want int) {
	r.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx := r.t.Context(); r.s.oracle.Stats(time.Now()).Waiting != want; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.t.Fatalf("%d questions wait, want %d", r.s.oracle.Stats(time.Now()).Waiting, want)
		}
	}
}

func (r *rig) booked(m *kvoraclev1.RouteRequest) *kvoraclev1.RouteResponse {
	r.t.Helper()
	a, err := r.route.Route(r.t.Context(), m)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func (r *rig) finish(decision string) {
	r.t.Helper()
	if _, err := r.route.RecordProgress(r.t.Context(), &kvoraclev1.RecordProgressRequest{Events: []*kvoraclev1.ProgressEvent{
		{DecisionId: decision, Step: &kvoraclev1.ProgressEvent_Finished{Finished: &kvoraclev1.Finished{OutputTokens: 1}}},
	}}); err != nil {
		r.t.Fatal(err)
	}
}

// wantShed fails unless an error says that all are full, why the question does not wait, and when to ask again.
func wantShed(t *testing.T, err error, reason string) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != codes.ResourceExhausted || errorInfo(st).GetReason() != reason || errorInfo(st).GetMetadata()["field"] != "max_queue_seconds" {
		t.Fatalf("got %v with %v, want RESOURCE_EXHAUSTED, %s", err, st.Details(), reason)
	}
	for _, d := range st.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok && retry.GetRetryDelay().AsDuration() > 0 {
			return
		}
	}
	t.Fatalf("%v has no RetryInfo: %v", err, st.Details())
}

type outcome struct {
	answer *kvoraclev1.RouteResponse
	err    error
}

func (r *rig) routeAside(ctx context.Context, m *kvoraclev1.RouteRequest) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		a, err := r.route.Route(ctx, m)
		out <- outcome{a, err}
	}()
	return out
}

func TestFullFleetQueuesAndSheds(t *testing.T) {
	r := up(t, Config{MaxQueued: 1})
	r.limitedWorker("w1", "demo", 1)
	a := r.booked(patient(60))
	if a.GetQueuedSeconds() != 0 || a.GetQueuePosition() != 0 {
		t.Errorf("it did not wait, and is told %v", a)
	}
	if _, err := r.route.Route(t.Context(), prompt(1)); status.Code(err) != codes.Unavailable {
		t.Errorf("who does not ask to wait is told %v, want UNAVAILABLE", err)
	}
	_, err := r.route.Route(t.Context(), patient(0.02))
	wantShed(t, err, "QUEUE_TIMEOUT")

	waiting := r.routeAside(t.Context(), patient(60))
	r.queued(1)
	_, err = r.route.Route(t.Context(), patient(60))
	wantShed(t, err, "QUEUE_FULL")
	urgent := patient(60)
	urgent.Priority = 1
	first := r.routeAside(t.Context(), urgent)
	displaced := <-waiting
	wantShed(t, displaced.err, "QUEUE_FULL")

	r.finish(a.GetDecisionId())
	got := <-first
	if got.err != nil || got.answer.GetQueuedSeconds() <= 0 || got.answer.GetQueuePosition() != 1 || got.answer.GetTarget().GetWorkerId() != "w1" {
		t.Errorf("it has waited and is told %v, %v", got.answer, got.err)
	}
	gone, cancel := context.WithCancel(t.Context())
	left := r.routeAside(gone, patient(60))
	r.queued(1)
	cancel()
	if got := <-left; status.Code(got.err) != codes.Canceled {
		t.Errorf("who left is told %v", got.err)
	}
	r.queued(0)
	for _, x := range []struct {
		name string
		want int64
		with []string
	}{
		{"kvoracle.queue.shed", 1, []string{"reason=timeout"}},
		{"kvoracle.queue.shed", 1, []string{"reason=full"}},
		{"kvoracle.queue.shed", 1, []string{"reason=displaced"}},
		{"kvoracle.queue.wait", 1, []string{"outcome=served"}},
		{"kvoracle.queue.wait", 1, []string{"outcome=abandoned"}},
		{"kvoracle.queue.depth", 0, nil},
	} {
		if n := r.counted(x.name, x.with...); n != x.want {
			t.Errorf("%s%v is %d, want %d", x.name, x.with, n, x.want)
		}
	}
}

// TestWaitingHoldsUpNobodyOnAStream: questions behind one that waits are answered, and it is answered in the end, even when
// the peer has no more questions.
func TestWaitingHoldsUpNobodyOnAStream(t *testing.T) {
	r := up(t, Config{})
	r.limitedWorker("w1", "demo", 1)
	r.limitedWorker("w2", "other", 0)
	stream, err := r.route.RouteStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(tag uint64, m *kvoraclev1.RouteRequest, timeout uint32) {
		t.Helper()
		if err := stream.Send(&kvoraclev1.RouteStreamRequest{Tag: tag, Request: m, TimeoutMs: timeout}); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(tag uint64) *kvoraclev1.RouteStreamResponse {
		t.Helper()
		m, err := stream.Recv()
		if err != nil || m.GetTag() != tag {
			t.Fatalf("heard %v, %v; want tag %d", m, err, tag)
		}
		return m
	}
	ask(1, prompt(1), 0)
	a := hear(1).GetResponse()
	ask(2, patient(60), 0)
	elsewhere := prompt(4)
	elsewhere.Model = "other"
	for tag := uint64(3); tag < 20; tag++ {
		ask(tag, elsewhere, 0)
		if hear(tag).GetResponse().GetTarget().GetWorkerId() != "w2" {
			t.Fatal("it went elsewhere")
		}
	}
	ask(20, patient(60), 30)
	if st := hear(20).GetStatus(); codes.Code(st.GetCode()) != codes.DeadlineExceeded {
		t.Errorf("beyond its timeout_ms it is told %v", st)
	}
	ask(21, patient(0.02), 0)
	st := hear(21).GetStatus()
	full := status.New(codes.Code(st.GetCode()), st.GetMessage()).Proto()
	full.Details = st.GetDetails()
	wantShed(t, status.FromProto(full).Err(), "QUEUE_TIMEOUT")

	explained := patient(60)
	explained.Explain = true
	ask(22, explained, 0)
	r.queued(2)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	r.finish(a.GetDecisionId())
	b := hear(2).GetResponse()
	if b.GetQueuePosition() != 1 || b.GetQueuedSeconds() <= 0 {
		t.Errorf("it has waited and is told %v", b)
	}
	r.finish(b.GetDecisionId())
	if c := hear(22).GetResponse(); len(c.GetCandidates()) != 1 || c.GetQueuePosition() != 2 {
		t.Errorf("it wanted reasons and is told %v", c)
	}
	if m, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after all answers: %v, %v; want the end", m, err)
	}
}

// TestStreamThatEndsLeavesNobodyWaiting: with the stream its questions are gone, and nothing is booked for them.
func TestStreamThatEndsLeavesNobodyWaiting(t *testing.T) {
	r := up(t, Config{})
	r.limitedWorker("w1", "demo", 1)
	a := r.booked(prompt(1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := r.route.RouteStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for tag := range uint64(5) {
		if err := stream.Send(&kvoraclev1.RouteStreamRequest{Tag: tag, Request: patient(60)}); err != nil {
			t.Fatal(err)
		}
	}
	r.queued(5)
	cancel()
	r.queued(0)
	r.finish(a.GetDecisionId())
	if got := r.booked(prompt(1)).GetTarget().GetWorkerId(); got != "w1" {
		t.Errorf("the free place went to %q", got)
	}
}

// TestDrainLetsThoseWhoWaitGo: they are told to ask another server, and do not hold up the end.
func TestDrainLetsThoseWhoWaitGo(t *testing.T) {
	r := up(t, Config{DrainTimeout: time.Minute})
	r.limitedWorker("w1", "demo", 1)
	r.booked(prompt(1))
	waiting := r.routeAside(t.Context(), patient(300))
	r.queued(1)
	if took := r.stop(); took > 30*time.Second {
		t.Errorf("the end took %v", took)
	}
	got := <-waiting
	if st := status.Convert(got.err); st.Code() != codes.Unavailable || errorInfo(st).GetReason() != "DRAINING" {
		t.Errorf("who waited is told %v", got.err)
	}
}
