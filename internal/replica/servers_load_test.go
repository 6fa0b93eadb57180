package replica_test

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// finish tells a replica that requests are over, whoever decided them.
func (r *rig) finish(ids ...string) {
	r.t.Helper()
	m := &kvoraclev1.RecordProgressRequest{}
	for _, id := range ids {
		m.Events = append(m.Events, &kvoraclev1.ProgressEvent{DecisionId: id, Step: &kvoraclev1.ProgressEvent_Finished{Finished: &kvoraclev1.Finished{}}})
	}
	a, err := r.route.RecordProgress(r.t.Context(), m)
	if err != nil || int(a.GetApplied()) != len(ids) {
		r.t.Fatalf("of %d ends %v are taken in: %v", len(ids), a, err)
	}
}

// B111: what one replica has decided the other knows of and decides by; either is told of the ends.
func TestReplicasShareBookings(t *testing.T) {
	both := replicas(t, broker(t), "a", "b")
	for _, r := range both {
		r.register("w1", 0)
		r.register("w2", 0)
	}
	var ids []string
	given := map[string]uint32{}
	decide := func(r *rig) {
		t.Helper()
		a, err := r.ask(len(ids))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, a.GetDecisionId())
		given[a.GetTarget().GetWorkerId()]++
	}
	known := func(r *rig) bool { return r.booked("w1") == given["w1"] && r.booked("w2") == given["w2"] }
	for range 20 {
		decide(both[0])
	}
	waitFor(t, "the other knows the bookings", func() bool { return known(both[1]) })
	// Equal prompts on equal workers: who knows what is booked gives each its half.
	for range 21 {
		decide(both[1])
		if a, b := given["w1"], given["w2"]; max(a, b)-min(a, b) > 1 {
			t.Fatalf("after %d decisions w1 has %d and w2 has %d", len(ids), a, b)
		}
	}
	waitFor(t, "the first knows the other's", func() bool { return known(both[0]) })
	both[1].finish(ids[:20]...) // the first's
	both[0].finish(ids[20:]...) // the other's
	clear(given)
	for _, r := range both {
		waitFor(t, "nothing is left", func() bool { return known(r) })
	}
	a, err := both[0].ask(0)
	if err != nil {
		t.Fatal(err)
	}
	both[1].finish(a.GetDecisionId()) // at once, whether the booking has come there or not
	for _, r := range both {
		waitFor(t, "nothing is left", func() bool { return known(r) })
	}
}

// B112: room that both replicas see is never given twice; in a race each may give what is left of it, and no more.
func TestChooseThenBookAcrossReplicas(t *testing.T) {
	const room = 10
	both := replicas(t, broker(t), "a", "b")
	for _, r := range both {
		r.register("w1", room)
	}
	all := func(n uint32) {
		t.Helper()
		for _, r := range both {
			waitFor(t, fmt.Sprint(n, " bookings are known"), func() bool { return r.booked("w1") == n })
		}
	}
	full := func() {
		t.Helper()
		for _, r := range both {
			if _, err := r.ask(0); status.Code(err) != codes.ResourceExhausted && status.Code(err) != codes.Unavailable {
				t.Errorf("a worker that all know to be full: %v", err)
			}
		}
	}
	var ids []string
	for i := range room {
		a, err := both[i%2].ask(i)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, a.GetDecisionId())
		all(uint32(i + 1))
	}
	full()
	both[0].finish(ids...)
	all(0)

	var mu sync.Mutex
	given := [2]uint32{}
	var wg sync.WaitGroup
	for i := range 4 * room {
		wg.Go(func() {
			if _, err := both[i%2].ask(i); err == nil {
				mu.Lock()
				defer mu.Unlock()
				given[i%2]++
			}
		})
	}
	wg.Wait()
	if sum := given[0] + given[1]; given[0] > room || given[1] > room || sum < room {
		t.Errorf("in a race the replicas gave %d, want no more than %d each and %d together", given, room, room)
	}
	all(given[0] + given[1])
	full()
}
