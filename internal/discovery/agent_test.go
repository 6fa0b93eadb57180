package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/client/clienttest"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// scripted is a source that a test writes.
type scripted struct {
	list []Endpoint
	err  error
}

func (s *scripted) Look(context.Context) ([]Endpoint, error) { return s.list, s.err }

func (s *scripted) Wait(ctx context.Context, most time.Duration) { pause(ctx, most) }

// rig is an agent of a real oracle.
type rig struct {
	*Agent
	*scripted

	t     *testing.T
	fleet kvoraclev1.FleetServiceClient
	now   time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	o := clienttest.Start(t)
	r := &rig{t: t, scripted: &scripted{}, fleet: kvoraclev1.NewFleetServiceClient(o.Conn()), now: time.Unix(1000, 0)}
	r.Agent = New(Config{Fleet: r.fleet, Source: r.scripted, Name: "test", Timeout: time.Minute})
	return r
}

func worker(name string) Endpoint {
	return Endpoint{Spec: &kvoraclev1.WorkerSpec{WorkerId: name, Address: name + ":80", Model: "m", BlockSize: 16}}
}

func out(e Endpoint) Endpoint {
	e.Out = true
	return e
}

// step looks after some time, at a list.
func (r *rig) step(after time.Duration, list ...Endpoint) {
	r.t.Helper()
	r.now, r.list = r.now.Add(after), list
	r.Step(r.t.Context(), r.now)
}

// is compares the fleet: "name" for a worker that is ready, "-name" for one that drains, "!" after those that are not ours.
func (r *rig) is(want ...string) {
	r.t.Helper()
	if d := cmp.Diff(want, r.workers()); d != "" {
		r.t.Errorf("fleet (-want +got):\n%s", d)
	}
}

func (r *rig) workers() []string {
	r.t.Helper()
	m, err := r.fleet.ListWorkers(r.t.Context(), &kvoraclev1.ListWorkersRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	var got []string
	for _, w := range m.GetWorkers() {
		s := w.GetSpec().GetWorkerId()
		if w.GetState() == kvoraclev1.WorkerState_WORKER_STATE_DRAINING {
			s = "-" + s
		}
		if w.GetSpec().GetLabels()[Label] != "test" {
			s += "!"
		}
		got = append(got, s)
	}
	return got
}

// others registers a worker as somebody else does.
func (r *rig) others(e Endpoint) {
	r.t.Helper()
	if _, err := r.fleet.RegisterWorker(r.t.Context(), &kvoraclev1.RegisterWorkerRequest{Spec: e.Spec}); err != nil {
		r.t.Fatal(err)
	}
}

func TestComeAndGo(t *testing.T) {
	r := newRig(t)
	a, b, c := worker("a"), worker("b"), worker("c")
	r.step(0, a, b, out(c))
	r.is("a", "b") // c is not ready yet
	r.step(time.Second, a, b, c)
	r.is("a", "b", "c")
	r.step(time.Second, a, out(b), c)
	r.is("a", "-b", "c")
	r.step(time.Second, a, b, c)
	r.is("a", "b", "c")

	r.step(time.Second, a, c) // b is gone
	r.is("a", "-b", "c")
	r.step(59*time.Second, a, c)
	r.is("a", "-b", "c")
	r.step(time.Second, a, c)
	r.is("a", "c")
	r.step(time.Second, a, b) // and comes back, when c goes for a moment
	r.is("a", "b", "-c")
	r.step(59*time.Second, a, b, c)
	r.is("a", "b", "c")
	r.step(time.Second, a, b)
	r.step(59*time.Second, a, b)
	r.is("a", "b", "-c") // the time counts anew

	want := Stats{Looks: 11, Registered: 4, Drained: 4, LetIn: 2, Removed: 1, Listed: 2}
	if d := cmp.Diff(want, r.Stats()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestWhatOthersDoStays(t *testing.T) {
	r := newRig(t)
	drain := func(name string, undo bool) {
		t.Helper()
		if _, err := r.fleet.DrainWorker(t.Context(), &kvoraclev1.DrainWorkerRequest{WorkerId: name, Undo: undo}); err != nil {
			t.Fatal(err)
		}
	}
	a, b := worker("a"), worker("b")
	r.others(worker("own")) // reports by itself, and is in no list
	r.others(b)             // reports by itself, under the name it is listed by
	r.step(0, a, b)
	r.is("a", "b!", "own!")
	drain("a", false)
	r.step(time.Second, a, b)
	r.is("-a", "b!", "own!") // an operator's wish
	drain("a", true)
	r.step(time.Second, a, out(b))
	r.is("a", "-b!", "own!") // what is about to end is sent nothing, whoever it belongs to
	r.step(time.Second, a, b)
	r.is("a", "b!", "own!")
	r.step(time.Second, a)
	r.step(2*time.Minute, a)
	r.is("a", "b!", "own!") // its reports end with it

	// The same place under another name: its own reports are better.
	same := worker("pod-7")
	same.Spec.Address = "http://a:80/v1"
	r.others(same)
	r.step(time.Second, a)
	r.is("b!", "own!", "pod-7!")
	r.step(time.Second, out(a))
	r.is("b!", "own!", "-pod-7!")
}

// TestForgetsWhatIsGone: what was done to a worker that the oracle has forgotten says nothing about the next one of that name.
func TestForgetsWhatIsGone(t *testing.T) {
	r := newRig(t)
	a := worker("a")
	forget := func() {
		t.Helper()
		if _, err := r.fleet.RemoveWorker(t.Context(), &kvoraclev1.RemoveWorkerRequest{WorkerId: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	r.step(0, a)
	r.step(time.Second, out(a))
	r.is("-a")
	forget()
	r.step(time.Second, out(a))
	r.others(a)
	if _, err := r.fleet.DrainWorker(t.Context(), &kvoraclev1.DrainWorkerRequest{WorkerId: "a"}); err != nil {
		t.Fatal(err)
	}
	r.step(time.Second, a)
	r.is("-a!") // an operator's wish
	forget()

	r.step(time.Second, a)
	r.step(time.Second) // missing
	r.is("-a")
	forget()
	r.step(time.Minute)
	r.step(time.Second, a)
	r.step(time.Second)
	r.is("-a") // not since a minute ago
}

func TestMoved(t *testing.T) {
	r := newRig(t)
	a := worker("a")
	r.step(0, a)
	moved := worker("a")
	moved.Spec.Address = "elsewhere:80"
	for range 2 {
		r.step(time.Second, moved, a) // with a second address, as pods have
	}
	m, err := r.fleet.GetWorker(t.Context(), &kvoraclev1.GetWorkerRequest{WorkerId: "a"})
	if err != nil || m.GetWorker().GetSpec().GetAddress() != "elsewhere:80" {
		t.Errorf("%v, %v", m, err)
	}
	if s := r.Stats(); s.Registered != 2 || s.Removed != 1 {
		t.Errorf("a new process at a new place is another one: %+v", s)
	}
}

func TestFailuresChangeNothing(t *testing.T) {
	r := newRig(t)
	r.step(0, worker("a"), worker("b"))
	r.err = errors.New("the directory is away")
	for range 3 {
		r.step(time.Hour)
	}
	r.is("a", "b")
	r.err = nil
	bad := worker("c")
	bad.Spec.BlockSize = 0
	r.step(time.Second, bad, worker("a"), worker("d"))
	r.is("a", "-b", "d") // the oracle has refused one, and the others are seen to
	if s := r.Stats(); s.FailedLooks != 3 || s.FailedCalls != 1 {
		t.Errorf("%+v", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.Step(ctx, r.now.Add(time.Hour))
	r.is("a", "-b", "d")
	if s := r.Stats(); s.FailedCalls != 2 {
		t.Errorf("an oracle that cannot be asked: %+v", s)
	}
	r.Run(ctx) // returns
}

// TestAgreesInTheEnd drives a fleet through random lists, failures and interference; whatever happened, one look at a list and
// another one after Forget leave of ours exactly what is listed.
func TestAgreesInTheEnd(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	r := newRig(t)
	names := strings.Split("abcdefgh", "")
	random := func() []Endpoint {
		var list []Endpoint
		for _, n := range names {
			switch rng.IntN(3) {
			case 0:
				list = append(list, worker(n))
			case 1:
				list = append(list, out(worker(n)))
			}
		}
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		return list
	}
	for round := range 25 {
		for range rng.IntN(4) {
			r.err = nil
			if rng.IntN(4) == 0 {
				r.err = errors.New("away")
			}
			r.step(time.Duration(rng.IntN(50))*time.Second, random()...)
			if rng.IntN(3) == 0 { // an oracle that has forgotten one
				_, _ = r.fleet.RemoveWorker(t.Context(), &kvoraclev1.RemoveWorkerRequest{WorkerId: names[rng.IntN(len(names))]})
			}
		}
		r.err = nil
		list := random()
		before := r.workers()
		r.step(time.Second, list...)
		r.step(time.Minute, list...)
		r.step(time.Minute, list...)
		want := make(map[string]bool)
		for _, e := range list {
			n := e.Spec.GetWorkerId()
			switch {
			case !e.Out:
				want[n] = true
			case slices.Contains(before, n) || slices.Contains(before, "-"+n):
				want["-"+n] = true
			}
		}
		byName := func(a, b string) int { return strings.Compare(strings.TrimPrefix(a, "-"), strings.TrimPrefix(b, "-")) }
		if d := cmp.Diff(fmt.Sprint(slices.SortedFunc(maps.Keys(want), byName)), fmt.Sprint(r.workers())); d != "" {
			t.Fatalf("round %d (-want +got):\n%s", round, d)
		}
	}
}
