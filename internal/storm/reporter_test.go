package storm

import (
	"fmt"
	"math/rand/v2"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// reporter does the duties of report_blocks.proto for one rank, in as few words as possible. It is a second reading of
// the protocol beside client.Reporter, and shares no code with it. Its mirror is the engine's truth itself.
type reporter struct {
	r           *rank
	name        string
	incarnation uint64
	naming      *naming
	isCounted   bool
	ownNumbers  bool // a snapshot always takes a sequence of its own, never the last batch's

	keep int // batches remembered; beyond, it gives up and owes a snapshot

	conn    *conn // nil: no stream
	isReady bool  // the hello was accepted
	next    uint64
	pending []oracle.Op // changes since the last batch
	kept    []batch     // sealed and not acknowledged
	sent    int         // how many of kept went out on this stream
	owes    bool        // a snapshot must be next
	isTorn  bool        // changes were given up that no batch has
	shown   uint64      // all batches below it on this stream went out before a snapshot did
	taken   uint64      // snapshots of this stream that the oracle has said it took
	isShown bool        // so it took the newest
}

type batch struct {
	seq    uint64
	ops    []oracle.Op
	state  state // the engine's, when it was sealed
	isLame bool  // an operation got lost before it was sent: the injected bug
}

// connect says hello. Nothing else is sent before the answer, and nothing is sealed before the first one: a numbering
// that has begun again must be seen to begin at 1.
func (p *reporter) connect(c *conn) {
	p.conn, p.isReady, p.sent = c, false, 0
	p.shown, p.taken, p.isShown = 0, 0, false
	c.up = append(c.up, message{kind: hello, seq: p.next})
}

// accepted goes on where the oracle wants it.
func (p *reporter) accepted(a *oracle.Accepted) {
	p.isReady = true
	p.forget(a.ResumeFrom - 1)
	canResume := a.ResumeFrom == p.next || len(p.kept) > 0 && p.kept[0].seq == a.ResumeFrom
	p.owes = p.owes || a.SnapshotRequired || !canResume
}

func (p *reporter) forget(acked uint64) {
	for len(p.kept) > 0 && p.kept[0].seq <= acked {
		p.kept = p.kept[1:]
		p.sent = max(0, p.sent-1)
	}
}

// acknowledged takes an ack. One for what was not sent yet speaks of a numbering before this one.
func (p *reporter) acknowledged(a *oracle.Ack) {
	if a.Counters.Snapshots > p.taken {
		p.taken, p.isShown = a.Counters.Snapshots, true
	}
	if a.Applied < p.next {
		p.forget(a.Applied)
	}
}

// restart is what the reporter of an engine's own event stream does when the engine starts again and the stream does
// not break: it goes on with what it gets, and that is numbered from 1.
func (p *reporter) restart() {
	p.next, p.shown, p.isShown = 1, 0, false // what it owes, it still owes
	p.pending, p.kept, p.sent = nil, nil, 0
}

// resync takes a request. A snapshot that went out behind the cause answers it, unless it was taken before the request
// was made; but an operator's wish, or new room, has no cause to compare with, and a snapshot that was refused is no answer.
func (p *reporter) resync(q *oracle.Resync) {
	if q.Reason == oracle.ResyncOperator || q.Reason == oracle.ResyncCapacity || q.Reason == oracle.ResyncBadSnapshot || q.Received >= p.shown || p.isShown {
		p.owes = true
	}
}

// changed takes what the engine did.
func (p *reporter) changed(ops []oracle.Op) (gaveUp bool) {
	p.pending = append(p.pending, ops...)
	if len(p.pending) > 4*p.keep || len(p.kept) > p.keep {
		p.pending, p.kept, p.sent = nil, nil, 0
		gaveUp, p.owes, p.isTorn = !p.owes, true, true
	}
	return gaveUp
}

// seal makes a batch of what is pending.
func (p *reporter) seal() *batch {
	p.kept = append(p.kept, batch{seq: p.next, ops: p.pending, state: p.r.truth.state()})
	p.pending = nil
	p.next++
	return &p.kept[len(p.kept)-1]
}

// flush sends what was sealed, as it was sealed.
func (p *reporter) flush() (sent []message) {
	for ; p.sent < len(p.kept); p.sent++ {
		b := &p.kept[p.sent]
		sent = append(sent, message{kind: changes, seq: b.seq, ops: b.ops, state: b.state, isLame: b.isLame})
	}
	return sent
}

// digests states the mirror, which shows the last batch when nothing is pending.
func (p *reporter) digests() (sent []message) {
	now := p.r.truth.state()
	for t := range fleet.Tier(fleet.NumTiers) {
		sent = append(sent, message{kind: digest, seq: p.next - 1, tier: t, state: now})
	}
	return sent
}

// snapshot states everything. What was pending or kept is in it. It may bear the last batch's number only if it shows
// just what that batch left: if the stream breaks before it arrives, the numbers that the oracle then has must not say
// more than it was told. And the first number is never left to be used again: a hello that names 1 promises an empty
// cache.
func (p *reporter) snapshot(dice *rand.Rand) (sent []message) {
	seq := p.next - 1
	p.shown, p.isShown = p.next, false
	if p.ownNumbers || p.isTorn || len(p.pending) > 0 || seq == 0 {
		seq = p.next
		p.next++
	}
	p.owes, p.isTorn, p.pending, p.kept, p.sent = false, false, nil, nil, 0
	var stores []oracle.Op
	for _, n := range dice.Perm(p.naming.names()) { // children may come before parents
		stores = append(stores, p.r.truth.tell(dice, node(n))...)
	}
	state := p.r.truth.state()
	sent = append(sent, message{kind: begin, seq: seq})
	for len(stores) > 0 {
		n := min(len(stores), 1+dice.IntN(60))
		sent = append(sent, message{kind: chunk, ops: stores[:n]})
		stores = stores[n:]
	}
	return append(sent, message{kind: end, seq: seq, count: uint64(state.total()), state: state})
}

// isIdle reports whether everything was said and heard.
func (p *reporter) isIdle() bool {
	return p.isReady && !p.owes && len(p.pending)+len(p.kept) == 0
}

func (p *reporter) String() string { return fmt.Sprintf("%v by %s", p.r, p.name) }
