package replica

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/oracle"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
)

// heard is what other replicas have told of load. mu comes after Node.mu and before the oracle's locks.
type heard struct {
	mu       sync.Mutex
	lives    map[string]life    // of replicas
	deciders map[uint32]decider // by the space of their ids
	early    []early            // steps of bookings that are not heard of yet, oldest first
	gateways map[away]*visit

	booked []oracle.Booked // memory
	errs   []error
}

// life is how far one life of a replica was heard.
type life struct{ boot, last uint64 }

// decider is the replica that a space of decisions is of, and how far its bookings were heard.
type decider struct {
	origin string
	boot   uint64
	last   oracle.DecisionID
}

// early is a step that came before its booking: they were told by two replicas, or the caller was quicker than NATS.
type early struct {
	event oracle.Event
	at    time.Time
}

const (
	maxEarly  = 4096
	earlyMost = 5 * time.Second // no two ways differ by more
	maxVisits = 65_536          // gateways at other replicas
)

// away is a gateway with progress streams at another replica, and visit what the oracle knows of it for that.
type (
	away  struct{ origin, gateway string }
	visit struct {
		boot, life uint64
		session    *oracle.GatewaySession
		at         time.Time // when it was last told of
	}
)

func newHeard() heard {
	return heard{lives: make(map[string]life), deciders: make(map[uint32]decider), gateways: make(map[away]*visit)}
}

// listen subscribes to what others tell.
func (n *Node) listen() error {
	sub, err := n.nc.Subscribe(n.cfg.Prefix+".load.*", func(m *nats.Msg) { n.onNotices(m, time.Now()) })
	if err != nil {
		return err
	}
	return sub.SetPendingLimits(8192, 16<<20) // what is more comes too late to be of use
}

// Holds implements oracle.Teller.
func (n *Node) Holds(e *oracle.Event) (isHeld, isTheirs bool) {
	h := &n.heard
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hold(n, e, time.Now())
}

// hold keeps a step of a decision that its replica has not told of yet. mu is held.
func (h *heard) hold(n *Node, e *oracle.Event, now time.Time) (isHeld, isTheirs bool) {
	d, ok := h.deciders[oracle.SpaceOf(e.Decision)]
	if !ok || e.Decision <= d.last {
		return false, ok
	}
	if len(h.early) >= maxEarly {
		h.forget(n, 1+maxEarly/8)
	}
	h.early = append(h.early, early{*e, now})
	n.count.held.Add(1)
	return true, true
}

func (h *heard) forget(n *Node, steps int) {
	h.early = slices.Delete(h.early, 0, steps)
	n.count.unheld.Add(uint64(steps))
}

// release applies what was kept for a booking. mu is held.
func (h *heard) release(n *Node, id oracle.DecisionID, now time.Time) {
	if len(h.early) == 0 {
		return
	}
	h.early = slices.DeleteFunc(h.early, func(x early) bool {
		if x.event.Decision != id {
			return false
		}
		n.o.StepElsewhere(&x.event, now)
		return true
	})
}

// onNotices takes in what one replica tells.
func (n *Node) onNotices(msg *nats.Msg, now time.Time) {
	origin := msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:]
	if origin == n.cfg.Name {
		return // our own come back too
	}
	m := &replicav1.Notices{}
	if proto.Unmarshal(msg.Data, m) != nil || m.GetOrigin() != origin || len(origin) > maxName || m.GetBoot() == 0 || len(m.GetNotices()) > maxNotices {
		n.count.malformedNotices.Add(1)
		return
	}
	h := &n.heard
	h.mu.Lock()
	defer h.mu.Unlock()
	l, known := h.lives[origin]
	if !known && len(h.lives) >= maxOrigins || m.GetBoot() < l.boot {
		n.count.refusedNotices.Add(uint64(len(m.GetNotices())))
		return
	}
	if m.GetBoot() != l.boot {
		h.leave(origin, m.GetBoot(), now)
		l = life{boot: m.GetBoot(), last: m.GetNumber() - 1} // what it told before was not for us
	}
	if m.GetNumber() > l.last+1 {
		n.count.missed.Add(m.GetNumber() - l.last - 1)
	}
	l.last = max(l.last, m.GetNumber())
	h.lives[origin] = l
	h.booked = h.booked[:0]
	for _, x := range m.GetNotices() {
		if b := x.GetBooked(); b != nil {
			d, ok := decodeBooked(b)
			if !ok {
				n.count.malformedNotices.Add(1)
				continue
			}
			h.booked = append(h.booked, d)
			if len(h.booked) >= mostAtOnce {
				h.book(n, origin, l.boot, now)
			}
			continue
		}
		h.book(n, origin, l.boot, now) // what follows may be of them
		h.take(n, origin, l.boot, x, now)
	}
	h.book(n, origin, l.boot, now)
}

// mostAtOnce is how many bookings a decision may have to wait for.
const mostAtOnce = 32

// book takes in the bookings that have gathered. mu is held.
func (h *heard) book(n *Node, origin string, boot uint64, now time.Time) {
	if len(h.booked) == 0 {
		return
	}
	h.errs = slices.Grow(h.errs[:0], len(h.booked))[:len(h.booked)]
	n.o.BookElsewhere(h.booked, now, h.errs)
	for i := range h.booked {
		id := h.booked[i].Decision
		h.knows(oracle.SpaceOf(id), origin, boot)
		if d := h.deciders[oracle.SpaceOf(id)]; d.origin == origin && id > d.last {
			d.last = id
			h.deciders[oracle.SpaceOf(id)] = d
		}
		if h.errs[i] != nil {
			n.count.refusedNotices.Add(1)
			continue
		}
		n.count.heard.Add(1)
		h.release(n, id, now)
	}
	clear(h.booked) // let go of names
	h.booked = h.booked[:0]
}

// knows notes whose a space is. mu is held.
func (h *heard) knows(space uint32, origin string, boot uint64) {
	d, known := h.deciders[space]
	if d.origin == origin && d.boot == boot || boot < d.boot || !known && len(h.deciders) >= 4*maxOrigins {
		return
	}
	h.deciders[space] = decider{origin: origin, boot: boot, last: oracle.FirstOf(space)}
}

// take takes in one notice that is no booking. mu is held.
func (h *heard) take(n *Node, origin string, boot uint64, x *replicav1.Notice, now time.Time) {
	switch x := x.GetWhat().(type) {
	case *replicav1.Notice_Stepped:
		e, ok := decodeStepped(x.Stepped)
		if !ok {
			n.count.malformedNotices.Add(1)
			return
		}
		if n.o.StepElsewhere(e, now) == oracle.UnknownDecision {
			if isHeld, _ := h.hold(n, e, now); !isHeld {
				n.count.refusedNotices.Add(1)
				return
			}
		}
	case *replicav1.Notice_Sampled:
		s, ok := decodeSampled(x.Sampled)
		if !ok {
			n.count.malformedNotices.Add(1)
			return
		}
		if !n.o.SampleElsewhere(&s, now) {
			n.count.refusedNotices.Add(1)
			return
		}
	case *replicav1.Notice_Gateway:
		h.visit(n, origin, boot, x.Gateway, now)
	default: // of a newer version
		n.count.malformedNotices.Add(1)
		return
	}
	n.count.heard.Add(1)
}

// visit notes that a gateway has streams at another replica, or has none any more. mu is held.
func (h *heard) visit(n *Node, origin string, boot uint64, g *replicav1.Gateway, now time.Time) {
	k := away{origin, g.GetGateway()}
	v := h.gateways[k]
	if v != nil && (g.GetClosed() || g.GetIncarnation() != v.life) {
		v.session.Close(now)
		delete(h.gateways, k)
		v = nil
	}
	switch {
	case g.GetClosed():
		return
	case v != nil:
		v.at = now
		return
	case len(g.GetGateway()) < 1 || len(g.GetGateway()) > maxWorker || len(h.gateways) >= maxVisits:
		n.count.refusedNotices.Add(1)
		return
	}
	s, err := n.o.OpenGateway(g.GetGateway(), g.GetIncarnation())
	if err != nil {
		n.count.refusedNotices.Add(1) // a former life of it
		return
	}
	h.gateways[k] = &visit{boot: boot, life: g.GetIncarnation(), session: s, at: now}
}

// leave ends what is known of a replica's former lives: the grace of its gateways begins. mu is held.
func (h *heard) leave(origin string, boot uint64, now time.Time) {
	for k, v := range h.gateways {
		if k.origin == origin && v.boot < boot {
			v.session.Close(now)
			delete(h.gateways, k)
		}
	}
	for space, d := range h.deciders {
		if d.origin == origin && d.boot < boot {
			delete(h.deciders, space)
		}
	}
}

// gone is leave for a replica that is not heard any more. It may be heard again.
func (h *heard) gone(origin string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leave(origin, h.lives[origin].boot+1, now)
	delete(h.lives, origin)
}

// reborn is leave for a replica that begins a new life.
func (h *heard) reborn(origin string, boot uint64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leave(origin, boot, now)
}

// space notes whose decisions have which ids, before the first is told.
func (h *heard) space(space uint32, origin string, boot uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.knows(space, origin, boot)
}

// look does what time asks for. isHeard: NATS was there all the time.
func (h *heard) look(n *Node, isHeard bool, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := 0
	for old < len(h.early) && now.Sub(h.early[old].at) > earlyMost {
		old++
	}
	h.forget(n, old)
	for k, v := range h.gateways {
		if isHeard && now.Sub(v.at) > visitMost*n.cfg.BeatEvery {
			v.session.Close(now) // that it left was missed
			delete(h.gateways, k)
		}
	}
}

// Gateways are told of again every visitBeats beats; who was not for visitMost beats has left.
const (
	visitBeats = 4
	visitMost  = 10 * visitBeats
)
