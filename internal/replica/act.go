package replica

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/wire"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// What operators do goes by the log: it must not be lost, nobody repeats it, and it has its place among the reports that it
// is about. It is done everywhere when it has come back through the log, here as well. Without NATS it is done here at once,
// and elsewhere when NATS is there again.

// Action is what an operator does to a worker.
type Action = replicav1.Action

// The actions.
const (
	Drain      = replicav1.Action_ACTION_DRAIN
	Undrain    = replicav1.Action_ACTION_UNDRAIN
	Remove     = replicav1.Action_ACTION_REMOVE
	Invalidate = replicav1.Action_ACTION_INVALIDATE
	Register   = replicav1.Action_ACTION_REGISTER
)

const (
	maxOwed  = 1024    // actions that are not in the log yet
	actsRank = 1 << 31 // of their entries: no target has it, so that who does not know actions refuses them
)

// acts are what operators did. Node.mu guards them.
type acts struct {
	running map[uint64]*act    // on their way through the log and back, by token
	wishes  map[string]wish    // by worker
	owed    []*replicav1.Entry // done here, and not in the log yet; oldest first
}

// act is one action under way.
type act struct {
	apply func()
	done  chan struct{}
}

// wish is how operators want a worker to be, and since which position of the log.
type wish struct {
	position   uint64
	isDraining bool
	spec       []byte // it was registered by hand so; nil: it was not
}

// newAct is an action's entry in the log, under a token of its own.
func (n *Node) newAct(a Action, worker string) *replicav1.Entry {
	return &replicav1.Entry{
		Origin: n.cfg.Name, Boot: n.boot, Session: rand.Uint64() | 1, Number: 1, Worker: worker, DpRank: actsRank, Action: a,
	}
}

// Do does an action here, by apply, and at all other replicas. It returns when apply has run; spec is Register's only.
func (n *Node) Do(a Action, worker string, spec *kvoraclev1.WorkerSpec, apply func()) {
	if n == nil {
		apply()
		return
	}
	x := &act{apply: apply, done: make(chan struct{})}
	e := n.newAct(a, worker)
	if spec != nil {
		e.Request = marshal(spec)
	}
	n.mu.Lock()
	n.acts.owed = slices.DeleteFunc(n.acts.owed, func(was *replicav1.Entry) bool { // what is overruled
		return was.GetWorker() == worker && a != Invalidate
	})
	n.acts.running[e.GetSession()] = x
	n.mu.Unlock()
	if _, ok := n.publishAct(e); ok {
		wait := time.NewTimer(n.cfg.AckWait)
		defer wait.Stop()
		select {
		case <-x.done:
			return
		case <-wait.C:
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.acts.running[e.GetSession()] == nil {
		return // it has come after all
	}
	delete(n.acts.running, e.GetSession())
	apply()
	n.wish(e, n.acts.wishes[worker].position)
	if len(n.acts.owed) >= maxOwed {
		n.count.forgotten.Add(1)
		return
	}
	n.acts.owed = append(n.acts.owed, e)
}

// publishAct puts an action into the log, and says where it is.
func (n *Node) publishAct(e *replicav1.Entry) (position uint64, ok bool) {
	if !n.isConnected() || !n.following.Load() {
		return 0, false
	}
	subject := subjectOf(n.cfg.Prefix, e.GetWorker(), "act")
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.AckWait)
	defer cancel()
	b := marshal(e)
	ack, err := n.js.Publish(ctx, subject, b)
	if err != nil {
		n.count.publishFailures.Add(1)
		n.log.LogAttrs(ctx, slog.LevelWarn, "an operator's action is not in the log", slog.String("worker", e.GetWorker()), slog.Any("error", err))
		return 0, false
	}
	n.count.published.Add(1)
	n.count.publishedBytes.Add(uint64(len(b)))
	return ack.Sequence, true
}

// pay puts what is owed into the log, and for who asked for everything what operators have wished, up to position.
func (n *Node) pay(isAsked bool) (position uint64, ok bool) {
	n.mu.Lock()
	due := slices.Clone(n.acts.owed)
	if isAsked {
		for worker, w := range n.acts.wishes {
			due = append(due, n.restated(worker, &w)...)
		}
	}
	n.mu.Unlock()
	for _, e := range due {
		if position, ok = n.publishAct(e); !ok {
			return 0, false
		}
		n.mu.Lock()
		n.acts.owed = slices.DeleteFunc(n.acts.owed, func(x *replicav1.Entry) bool { return x == e })
		n.mu.Unlock()
	}
	return position, true
}

// restated says a wish again, as of when it was made.
func (n *Node) restated(worker string, w *wish) []*replicav1.Entry {
	var out []*replicav1.Entry
	say := func(a Action, spec []byte) {
		e := n.newAct(a, worker)
		e.Request, e.Announced, e.Claim = spec, true, w.position
		if w.position != 0 {
			e.Log = uint64(n.logID)
		}
		out = append(out, e)
	}
	if w.spec != nil {
		say(Register, w.spec)
	}
	if w.isDraining {
		say(Drain, nil)
	} else {
		say(Undrain, nil)
	}
	return out
}

// act does what the log says that an operator did. Node.mu is held.
func (n *Node) act(e *replicav1.Entry, at uint64) {
	if e.GetOrigin() == n.cfg.Name && e.GetBoot() == n.boot {
		n.count.own.Add(1)
		if x := n.acts.running[e.GetSession()]; x != nil {
			delete(n.acts.running, e.GetSession())
			x.apply()
			n.wish(e, at)
			close(x.done)
		} else if w, known := n.acts.wishes[e.GetWorker()]; known && !e.GetAnnounced() {
			w.position = max(w.position, at)
			n.acts.wishes[e.GetWorker()] = w
		}
		return
	}
	n.count.followed.Add(1)
	if e.GetAnnounced() {
		if e.GetClaim() != 0 {
			at = e.GetClaim()
		}
		if w, known := n.acts.wishes[e.GetWorker()]; known && w.position > at || known && w.position == at && e.GetAction() != Drain && e.GetAction() != Undrain {
			n.count.skippedEntries.Add(1)
			return
		}
	}
	switch e.GetAction() {
	case Drain, Undrain:
		_, _ = n.o.Drain(e.GetWorker(), e.GetAction() == Drain) // who is not known here is drained when it comes
	case Remove:
		_, _, _ = n.o.Remove(e.GetWorker())
	case Invalidate:
		_, _ = n.o.Invalidate(e.GetWorker())
	case Register:
		if err := n.register(e); err != nil {
			n.count.refused.Add(1)
			n.log.LogAttrs(context.Background(), slog.LevelWarn, "another replica's worker refused", slog.String("worker", e.GetWorker()),
				slog.String("origin", e.GetOrigin()), slog.String("error", err.Error()))
			return
		}
	case replicav1.Action_ACTION_UNSPECIFIED:
		return
	default: // of a newer version
		n.count.malformed.Add(1)
		return
	}
	n.wish(e, at)
}

func (n *Node) register(e *replicav1.Entry) error {
	m, err := decodeWorker(e.GetRequest())
	if err != nil {
		return err
	}
	spec, err := wire.DecodeSpec(m, "spec")
	if err != nil {
		return err
	}
	_, err = n.o.Register(spec, time.Now())
	return err
}

// wish remembers an action for who comes later. Node.mu is held.
func (n *Node) wish(e *replicav1.Entry, at uint64) {
	w, known := n.acts.wishes[e.GetWorker()]
	if !known && len(n.acts.wishes) >= n.cfg.MaxTargets {
		n.count.refused.Add(1)
		return
	}
	w.position = at
	switch e.GetAction() {
	case Drain, Undrain:
		w.isDraining = e.GetAction() == Drain
	case Register:
		w.spec = e.GetRequest()
	case Remove:
		delete(n.acts.wishes, e.GetWorker())
		return
	case Invalidate, replicav1.Action_ACTION_UNSPECIFIED:
		return
	default:
		return
	}
	n.acts.wishes[e.GetWorker()] = w
}

// wanted makes a worker that has come what operators want it to be. Node.mu is held.
func (n *Node) wanted(worker string) {
	if n.acts.wishes[worker].isDraining {
		_, _ = n.o.Drain(worker, true)
	}
}
