package replica

import (
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/wire"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// does is an operator's action at one replica.
func (p *peer) does(a Action, worker string) {
	p.t.Helper()
	var err error
	p.n.Do(a, worker, nil, func() {
		switch a {
		case Remove:
			_, _, err = p.o.Remove(worker)
		case Invalidate:
			_, err = p.o.Invalidate(worker)
		case Drain, Undrain:
			_, err = p.o.Drain(worker, a == Drain)
		case Register, replicav1.Action_ACTION_UNSPECIFIED:
			p.t.Errorf("%v is no action of this kind", a)
		}
	})
	if err != nil {
		p.t.Fatalf("%v at %s: %v", a, p.n.cfg.Name, err)
	}
}

// registers is a worker that is registered by hand at one replica.
func (p *peer) registers(worker string) {
	p.t.Helper()
	m := &kvoraclev1.WorkerSpec{WorkerId: worker, Address: worker + ":8000", Model: "m", BlockSize: 16}
	spec, err := wire.DecodeSpec(m, "spec")
	if err != nil {
		p.t.Fatal(err)
	}
	p.n.Do(Register, worker, m, func() { _, err = p.o.Register(spec, time.Now()) })
	if err != nil {
		p.t.Fatal(err)
	}
}

// state is how a replica takes a worker to be; below 0: not known.
func (p *peer) state(worker string) fleet.State {
	w, err := p.o.Worker(worker, time.Now())
	if err != nil {
		return 255
	}
	return w.State()
}

func (p *peer) becomes(worker string, want fleet.State) {
	p.t.Helper()
	eventually(p.t, worker+" becomes "+want.String()+" at "+p.n.cfg.Name, func() bool { return p.state(worker) == want })
}

// What operators do at any replica is done at all, and known to who joins later.
func TestOperatorsActEverywhere(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 2)
	e := engines[0]
	e.work()
	agree(t, peers, engines)
	everywhere := func(worker string, want fleet.State) {
		t.Helper()
		for _, p := range peers {
			p.becomes(worker, want)
		}
	}
	peers[1].does(Drain, e.worker)
	if got := peers[1].state(e.worker); got != fleet.Draining {
		t.Errorf("it is %v when the call returns", got)
	}
	everywhere(e.worker, fleet.Draining)
	peers[2].does(Undrain, e.worker)
	everywhere(e.worker, fleet.Ready)
	peers[2].does(Invalidate, e.worker)
	agree(t, peers, engines) // the reporter is asked for all of it
	peers[0].registers("by hand")
	everywhere("by hand", fleet.Ready)
	peers[1].does(Drain, "by hand")
	peers[2].does(Drain, e.worker)
	everywhere("by hand", fleet.Draining)

	d := joinedPeer(t, b, quick("d"))
	for _, worker := range []string{e.worker, "by hand"} {
		if got := d.state(worker); got != fleet.Draining {
			t.Errorf("a replica that has joined takes %s to be %v, want draining", worker, got)
		}
	}
	peers = append(peers, d)
	d.does(Undrain, e.worker)
	d.does(Remove, "by hand")
	everywhere("by hand", 255)
	everywhere(e.worker, fleet.Ready)
	peers[1].does(Remove, e.worker)
	everywhere(e.worker, 255)
	e.again()
	agree(t, peers, engines)
}

// What an operator does while NATS is away is done there at once, and elsewhere when NATS is back; the last of it counts.
func TestOperatorActsAlone(t *testing.T) {
	b := newBroker(t)
	peers := []*peer{joinedPeer(t, b, quick("a")), joinedPeer(t, b, quick("b"))}
	peers[0].registers("v")
	peers[0].registers("w")
	for _, worker := range []string{"v", "w"} {
		peers[1].becomes(worker, fleet.Ready)
	}
	peers[0].cable.cut()
	eventually(t, "cut off", func() bool { return !peers[0].n.Stats().IsConnected })
	peers[0].does(Drain, "v")
	peers[0].does(Drain, "w")
	peers[0].does(Undrain, "w")
	if v, w := peers[0].state("v"), peers[0].state("w"); v != fleet.Draining || w != fleet.Ready {
		t.Errorf("they are %v and %v when the calls return", v, w)
	}
	if got := peers[1].state("v"); got != fleet.Ready {
		t.Errorf("the other takes v to be %v without having heard", got)
	}
	peers[0].cable.mend()
	peers[1].becomes("v", fleet.Draining)
	eventually(t, "nothing is owed", func() bool {
		peers[0].n.mu.Lock()
		defer peers[0].n.mu.Unlock()
		return len(peers[0].n.acts.owed) == 0
	})
	if got := peers[1].state("w"); got != fleet.Ready {
		t.Errorf("w is %v at the other, want ready: that was the last word", got)
	}
}
