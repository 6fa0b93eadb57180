package replica

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
)

// What is told of load goes by core NATS: it must be there soon or is worth nothing, and what is lost ends by itself, a
// booking by its lease, a sample by its age.

const (
	maxTold    = 16_384 // what waits to be sent; 8 s of 2,000 requests a second while NATS stands still
	maxNotices = 4096   // in one message
	maxMarks   = 4096   // of one booking: those of a prompt of two million tokens
	tellEvery  = 2 * time.Millisecond
	tellBytes  = 256 << 10 // of one message; NATS may allow less
)

// told is what waits to be sent. It is filled under the lock of the decisions, so whoever fills it copies a few words and
// never waits. Its mutex is a leaf.
type told struct {
	mu    sync.Mutex
	items []item
	marks []uint64 // of all bookings among the items
	wake  chan struct{}
}

// item is one notice, in the form that is cheapest to take.
type item struct {
	booked    oracle.Booked // its marks are told.marks[from:to]
	from, to  int
	event     oracle.Event
	sampled   oracle.Sampled
	gateway   string
	life      uint64
	isGateway bool
	isClosed  bool
}

var _ oracle.Teller = (*Node)(nil)

// Book implements oracle.Teller.
func (n *Node) Book(b *oracle.Booked) {
	n.told.add(n, func(x *item) {
		x.booked, x.booked.Marks = *b, nil
		if len(b.Marks) > maxMarks { // no prompt is so long
			x.booked.Covered = 0
			return
		}
		x.from = len(n.told.marks)
		n.told.marks = append(n.told.marks, b.Marks...)
		x.to = len(n.told.marks)
	}, false)
}

// Step implements oracle.Teller.
func (n *Node) Step(e *oracle.Event) {
	n.told.add(n, func(x *item) { x.event = *e }, e.Step == oracle.Generating)
}

// Sample implements oracle.Teller.
func (n *Node) Sample(s *oracle.Sampled) {
	n.told.add(n, func(x *item) { x.sampled = *s }, true)
}

// add takes one more. What is fleeting makes way for what is not: it may have half of the room.
func (q *told) add(n *Node, fill func(*item), isFleeting bool) {
	most := maxTold
	if isFleeting {
		most /= 2
	}
	q.mu.Lock()
	if len(q.items) >= most || !n.isNear.Load() {
		q.mu.Unlock()
		n.count.untold.Add(1)
		return
	}
	q.items = append(q.items, item{})
	fill(&q.items[len(q.items)-1])
	q.mu.Unlock()
	wake(q.wake)
}

// take empties the queue into the memory of another.
func (q *told) take(items []item, marks []uint64) (newItems []item, newMarks []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(items) // let go of names
	items, q.items = q.items, items[:0]
	marks, q.marks = q.marks, marks[:0]
	return items, marks
}

// tell sends what is told until ctx is done: at once, and what comes within tellEvery of that together.
func (n *Node) tell(ctx context.Context) {
	var items []item
	var marks []uint64
	number := uint64(0)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.told.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		items, marks = n.told.take(items, marks)
		pause.Reset(tellEvery)
		most := min(tellBytes, int(n.nc.MaxPayload())-1<<10)
		for rest := items; len(rest) > 0; {
			m := &replicav1.Notices{Origin: n.cfg.Name, Boot: n.boot}
			size := 0
			for len(rest) > 0 && len(m.Notices) < maxNotices {
				if size += rest[0].size(); size > most && len(m.Notices) > 0 {
					break
				}
				m.Notices, rest = append(m.Notices, rest[0].encode(marks)), rest[1:]
			}
			number++
			m.Number = number
			if err := n.nc.Publish(n.cfg.Prefix+".load."+n.cfg.Name, marshal(m)); err != nil {
				n.count.untold.Add(uint64(len(m.GetNotices())))
				n.log.LogAttrs(ctx, slog.LevelDebug, "load not told", slog.Any("error", err))
				continue
			}
			n.count.told.Add(uint64(len(m.GetNotices())))
		}
	}
}

// here is a gateway with progress streams at this replica. Node.mu guards it.
type here struct {
	life    uint64
	streams int
}

// Gateway says that a gateway has opened a progress stream here, until left is called.
func (n *Node) Gateway(name string, incarnation uint64) (left func()) {
	if n == nil {
		return func() {}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.gateways[name]
	if g == nil {
		g = &here{}
		n.gateways[name] = g
	}
	g.streams++
	g.life = max(g.life, incarnation)
	n.tellGateway(name, g.life, false, false)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if g.streams--; g.streams == 0 && n.gateways[name] == g {
			delete(n.gateways, name)
			n.tellGateway(name, g.life, true, false)
		}
	}
}

func (n *Node) tellGateway(name string, life uint64, isClosed, isFleeting bool) {
	if n.isAlone() {
		return
	}
	n.told.add(n, func(x *item) { x.gateway, x.life, x.isGateway, x.isClosed = name, life, true, isClosed }, isFleeting)
}

// tellGateways says again which there are, for who has missed it.
func (n *Node) tellGateways() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, g := range n.gateways {
		n.tellGateway(name, g.life, false, true)
	}
}
