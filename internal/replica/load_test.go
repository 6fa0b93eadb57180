package replica

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// crew gives replicas workers that are registered by hand.
func crew(t *testing.T, peers []*peer, workers int) {
	t.Helper()
	for _, p := range peers {
		for i := range workers {
			spec := fleet.Spec{Worker: fmt.Sprintf("w%d", i), Address: fmt.Sprintf("w%d:8000", i), Model: "m", BlockSize: 16, DPSize: 1}
			if _, err := p.o.Register(spec, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// ask is one decision.
func (p *peer) ask(r *oracle.RouteRequest) *oracle.Answer {
	p.t.Helper()
	r.Model, r.ExpectedOutput = "m", 65_536 // or it would be taken to be over while the test is slow
	a, err := p.o.Route(p.t.Context(), r, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

// loads is how busy a replica takes each worker to be, but for what the clock works off, each replica's by itself.
func (p *peer) loads() map[string][3]float64 {
	out := make(map[string][3]float64)
	for _, w := range p.o.Workers("m", time.Now()) {
		l := &w.Ranks[0].Load
		out[w.Worker.Worker] = [3]float64{float64(l.Booked), l.ActiveTokens, l.HeldTokens}
	}
	return out
}

// alike waits until replicas know of the same load.
func alike(t *testing.T, peers []*peer) {
	t.Helper()
	want := peers[0].loads()
	for _, p := range peers[1:] {
		eventually(t, "the same load", func() bool {
			want = peers[0].loads()
			return cmp.Equal(want, p.loads())
		})
	}
}

// Whichever replica decides and whichever hears of the progress, all come to know of the same load, and of none at the end.
func TestLoadTravels(t *testing.T) {
	b := newBroker(t)
	var peers []*peer
	for _, name := range []string{"a", "b", "c"} {
		peers = append(peers, joinedPeer(t, b, quick(name)))
	}
	crew(t, peers, 3)
	rng := rand.New(rand.NewPCG(3, 4))
	type request struct {
		id   oracle.DecisionID
		at   *peer // who hears of its progress
		next oracle.Step
	}
	var living []*request
	tell := func(r *request, step oracle.Step) {
		e := &oracle.Event{Decision: r.id, Step: step, Gateway: "g", Cached: -1, OutputTokens: 7}
		if step == oracle.Dispatched && rng.IntN(3) == 0 {
			e.Worker = fmt.Sprintf("w%d", rng.IntN(3))
		}
		if out, err := r.at.o.Progress(e, time.Now()); err != nil || out != oracle.Applied {
			t.Fatalf("%v at %s: %v, %v", step, r.at.n.cfg.Name, out, err)
		}
	}
	for range 400 {
		if len(living) < 20 || rng.IntN(3) == 0 {
			tokens := make([]uint32, 16*(1+rng.IntN(100)))
			for i := range tokens {
				tokens[i] = uint32(rng.IntN(2))
			}
			p := peers[rng.IntN(len(peers))]
			a := p.ask(&oracle.RouteRequest{Prompt: oracle.Prompt{Tokens: tokens, Length: len(tokens)}})
			living = append(living, &request{id: a.Decision, at: peers[rng.IntN(len(peers))]})
			continue
		}
		i := rng.IntN(len(living))
		r := living[i]
		tell(r, r.next)
		if r.next >= oracle.Finished {
			living = append(living[:i], living[i+1:]...)
			continue
		}
		if r.next++; r.next == oracle.Finished {
			r.next += oracle.Step(rng.IntN(3))
		}
	}
	alike(t, peers)
	for _, r := range living {
		tell(r, oracle.Finished)
	}
	alike(t, peers)
	for _, p := range peers {
		if s := p.o.Stats(time.Now()).Load; s.Bookings != 0 || s.Expired != 0 {
			t.Errorf("%s: %+v, want nothing left, and nothing left to its lease", p.n.cfg.Name, s)
		}
		if s := p.n.Stats(); s.Untold+s.Missed+s.MalformedNotices+s.Unheld != 0 || s.Told == 0 || s.Heard == 0 {
			t.Errorf("%s: %+v", p.n.cfg.Name, s)
		}
	}
}

// What an engine shows to one replica all know.
func TestSamplesTravel(t *testing.T) {
	b := newBroker(t)
	peers := []*peer{joinedPeer(t, b, quick("a")), joinedPeer(t, b, quick("b"))}
	crew(t, peers, 1)
	s, err := peers[0].o.OpenLoad("w0", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sample(oracle.Sample{
		SampledAt: 1, Running: oracle.Known(5), Waiting: oracle.Known(2), WaitingPrefillTokens: oracle.Known(300),
		UsedBlocks: oracle.Known(25), TotalBlocks: oracle.Known(100),
	}, time.Now()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the sample", func() bool {
		w, err := peers[1].o.Worker("w0", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		l := &w.Ranks[0].Load
		return l.InFlight == 7 && l.Prefilling == 2 && l.PendingPrefillTokens == 300 && l.KVUsed == 0.25 && l.Confidence == oracle.Reported
	})
}

// The request that is asked for again at another replica has one booking, and that is the later.
func TestRepeatedElsewhere(t *testing.T) {
	b := newBroker(t)
	peers := []*peer{joinedPeer(t, b, quick("a")), joinedPeer(t, b, quick("b"))}
	crew(t, peers, 2)
	for i := range 6 {
		peers[i%2].ask(&oracle.RouteRequest{RequestID: "r", Prompt: oracle.Prompt{Tokens: make([]uint32, 64), Length: 64}})
		alike(t, peers)
		if n := peers[0].o.Stats(time.Now()).Load.Bookings; n != 1 {
			t.Fatalf("%d bookings after ask %d, want 1", n, i)
		}
	}
}

// A gateway that reports to a replica which dies is given its grace by the others, and then what it had is free.
func TestGatewayOfTheDead(t *testing.T) {
	a, other := mortals(t)
	crew(t, []*peer{a, other}, 1)
	ask := func(p *peer) oracle.DecisionID {
		return p.ask(&oracle.RouteRequest{Prompt: oracle.Prompt{Tokens: make([]uint32, 64), Length: 64}}).Decision
	}
	open := func(p *peer, name string) {
		s, err := p.o.OpenGateway(name, 1)
		if err != nil {
			t.Fatal(err)
		}
		left := p.n.Gateway(name, 1)
		t.Cleanup(func() { left(); s.Close(time.Now()) })
	}
	open(a, "gone")
	open(a, "both")
	open(other, "both")
	for _, name := range []string{"gone", "gone", "both"} {
		id := ask(a)
		if out, err := a.o.Progress(&oracle.Event{Decision: id, Gateway: name, Cached: -1}, time.Now()); err != nil || out != oracle.Applied {
			t.Fatal(out, err)
		}
	}
	alike(t, []*peer{a, other})
	eventually(t, "all dispatched", func() bool { return other.o.Stats(time.Now()).Load.Gateways == 2 })
	a.cable.cut()
	eventually(t, "the dead is missed", func() bool { return other.n.Stats().Replicas == 0 })
	if n := other.o.Stats(time.Now()).Load.Bookings; n != 3 {
		t.Fatalf("%d bookings within the grace, want 3", n)
	}
	other.o.Tick(time.Now().Add(20 * time.Second)) // more than the grace, less than the lease
	if n := other.o.Stats(time.Now()).Load.Bookings; n != 1 {
		t.Errorf("%d bookings after the grace, want that of the gateway which is here too", n)
	}
}
