package storm

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"
)

const (
	grace  = 10 * time.Second
	lease  = time.Minute
	forget = 15 * time.Minute
)

// world is one run: everything that happens in it comes out of one seed.
type world struct {
	dice    *rand.Rand
	trees   [2]*tree // of blocks of one unit and of two
	seed    maphash.Seed
	now     time.Time
	oracle  *oracle.Oracle
	workers []*worker
	ranks   []*rank
	conns   []*conn // until both sides are done with them
	born    int     // conns so far
	limit   int     // of the index, in blocks; 0: more than there are
	weather [numFaults]bool
	err     error // the first property that failed
	count   tally

	log func(format string, args ...any) // nil: nobody reads it
}

// tally is what happened, so that a test which no longer tests anything is noticed.
type tally struct {
	faults             [numFaults]int // that struck
	routes             int            // dry runs
	fresh, stale       int            // rows judged
	resyncs, snapshots int            // asked for in a stream, and swapped in
	found              int            // losses that only a digest could find
	copies             int            // of them, those of copies alone
	late               int            // lost batches that a digest has told of
	voided             int            // snapshots that a batch came into
	unbegun            int            // ends of snapshots without a beginning
	repeats            int            // batches recognised as repeats on one stream, at most
	hashed, grouped    int            // rows judged of targets with blocks by engine hashes, and with several groups
	waiting, sized     int            // rows judged while some names have no id; of larger blocks
	partial            int            // rows judged of targets that had to give up blocks
	evicted            int            // blocks given up
	restored           int            // snapshots asked for because there was room again
	doubted            int            // snapshots asked for because a digest differed while blocks had been given up
	again              int            // snapshots asked for a second time, since none had come
}

func newWorld(seed uint64, log func(string, ...any)) *world {
	w := &world{
		dice:  rand.New(rand.NewPCG(seed, 0x570_12_3)),
		trees: [2]*tree{newTree(unit), newTree(2 * unit)},
		seed:  maphash.MakeSeed(), // of fingerprints, which are compared and nothing else
		now:   time.Unix(1_800_000_000, 0),
		log:   log,
	}
	w.oracle = w.newOracle()
	for i := range 1 + w.dice.IntN(3) {
		x := &worker{name: fmt.Sprint("w", i), incarnation: 1}
		for n := range 1 + w.dice.IntN(2) {
			r := &rank{w: x, n: n}
			x.ranks = append(x.ranks, r)
			w.ranks = append(w.ranks, r)
		}
		w.beget(x)
		for _, r := range x.ranks {
			w.start(r, "first")
		}
		w.workers = append(w.workers, x)
		w.say("%s has %d ranks, counted %v, %v", x.name, len(x.ranks), x.isCounted, x.ranks[0].naming)
	}
	every := 1 + w.dice.IntN(5) // one run in five has every kind of fault
	for f := range w.weather {
		w.weather[f] = w.dice.IntN(every) == 0
	}
	return w
}

func (w *world) newOracle() *oracle.Oracle {
	return oracle.New(oracle.Config{
		Index:       index.Config{MaxBlocks: w.limit},
		StreamGrace: grace, WorkerLease: lease, ForgetAfter: forget,
		Sessions: 16, HistoryDecisions: 16, HistoryRows: 16, GuessBlocks: 16,
	}, nil)
}

// beget says what an engine's new life is like.
func (w *world) beget(x *worker) {
	x.isCounted = w.dice.IntN(2) == 0
	like := naming{isHashed: w.dice.IntN(3) == 0}
	if like.isHashed {
		like.isWired, like.isBytes = true, w.dice.IntN(3) == 0
	}
	if w.dice.IntN(4) == 0 {
		like.isWired, like.group, like.others = true, 1, []uint32{0, 2, 5}[:1+w.dice.IntN(3)]
	}
	tree := w.trees[w.dice.IntN(5)/4]
	for _, r := range x.ranks {
		r.naming = newNaming(tree, &like, w.dice)
	}
}

// start gives a rank an engine that holds nothing and a reporter that has said nothing.
func (w *world) start(r *rank, name string) {
	r.truth, r.unsaid = contents{isCounted: r.w.isCounted, by: r.naming}, nameSet{}
	r.reporter = &reporter{
		r: r, name: name, incarnation: r.w.incarnation, naming: r.naming, isCounted: r.w.isCounted,
		ownNumbers: w.dice.IntN(2) == 0, keep: 2 + w.dice.IntN(14), next: 1,
	}
}

// say writes a line of the transcript.
func (w *world) say(format string, args ...any) {
	if w.log != nil {
		w.log(format, args...)
	}
}

// fail notes that a property does not hold; the run ends.
func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
		w.say("FAILED: %v", w.err)
	}
}

// open begins a stream.
func (w *world) open(p *reporter) {
	w.born++
	c := &conn{id: w.born, by: p}
	w.conns = append(w.conns, c)
	p.connect(c)
	w.say("%v opens stream %d", p, c.id)
}

// cut ends a stream on the reporter's side: what was said to it is lost, and of what it said only the first messages
// still come, before the end does.
func (w *world) cut(p *reporter) {
	c := p.conn
	if c == nil {
		return
	}
	p.conn, p.isReady = nil, false
	c.isLeft, c.down = true, nil
	if !c.isOver {
		c.up = append(c.up[:w.dice.IntN(len(c.up)+1):len(c.up)], message{kind: eof})
	}
	w.say("%v loses stream %d; %d messages of it still arrive", p, c.id, max(0, len(c.up)-1))
}

// deliver lets the oracle read the next message of a stream, then checks what it made of it.
func (w *world) deliver(c *conn) {
	m := c.up[0]
	c.up = c.up[1:]
	r := c.by.r
	w.say("stream %d (%v): oracle gets %s", c.id, c.by, m.words(c.by.naming))
	switch m.kind {
	case hello:
		w.hello(c, &m)
		return
	case eof:
		if c.session != nil {
			r.seen.isOpen, r.seen.cutAt = false, w.now
		}
		w.hangUp(c, errCut)
		return
	case changes, begin, chunk, end, digest:
	}
	ack, err := w.tell(c, &m)
	if err != nil {
		w.fail("stream %d of %v: %v", c.id, c.by, err)
		return
	}
	switch m.kind {
	case changes:
		w.afterBatch(c, &m, &ack)
	case begin:
		c.building, c.buildingSeq, c.isVoid = &contents{isCounted: c.by.isCounted, by: c.by.naming}, m.seq, false
	case chunk:
		for i := range m.ops {
			if c.building != nil {
				c.building.apply(&m.ops[i])
			}
		}
	case end:
		w.afterSnapshot(c, &m, &ack)
	case digest:
		w.afterDigest(c, &m, &ack)
	case hello, eof:
	}
	if len(ack.Refusals) > 0 {
		w.say("  refused: %+v", ack.Refusals)
	}
	c.down = append(c.down, answer{ack: &ack})
	w.asked(c, ack.Resync)
	if ack.Awaiting != r.seen.isOwed {
		w.fail("%v: ack says awaiting %v, want %v", r, ack.Awaiting, r.seen.isOwed)
	}
	if ack.Applied != r.seen.applied {
		w.fail("%v: ack says %d is applied, want %d", r, ack.Applied, r.seen.applied)
	}
}

// asked takes note of a request for a snapshot.
func (w *world) asked(c *conn, q *oracle.Resync) {
	if q == nil {
		return
	}
	r := c.by.r
	w.say("  oracle asks %v for a snapshot: %v, wanted %d, got %d", r, q.Reason, q.Expected, q.Received)
	c.down = append(c.down, answer{resync: q})
	r.asked++
	w.count.resyncs++
	if r.seen.isOwed && q.Reason != oracle.ResyncBadSnapshot {
		w.fail("%v: asked for a snapshot (%v) while one was owed", r, q.Reason)
	}
	r.seen.isOwed, r.seen.ignored = true, time.Time{}
}

// hello opens the session at the oracle.
func (w *world) hello(c *conn, m *message) {
	p, r := c.by, c.by.r
	h, err := p.naming.hello(r, p, m.seq)
	if err != nil {
		w.fail("%v: its hello: %v", p, err)
		return
	}
	s, acc, err := w.oracle.OpenBlocks(h, w.now)
	if isOld := p.incarnation < r.w.known; isOld != (err != nil) {
		w.fail("%v: hello of incarnation %d, known %d: %v", p, p.incarnation, r.w.known, err)
		return
	}
	if err != nil {
		w.say("  refused: %v", err)
		w.hangUp(c, err)
		return
	}
	c.session = s
	if p.naming.isWired {
		c.applier = wire.NewApplier(h, s, w.seed)
	}
	if p.incarnation > r.w.known {
		// A new life for all ranks: nothing of the former one may be seen from here on.
		for _, other := range r.w.ranks {
			other.seen = shadow{}
		}
		r.w.known = p.incarnation
	}
	r.w.isLost = false
	seen := &r.seen
	seen.isOpen = true
	switch {
	case !seen.isKnown:
		*seen = shadow{isKnown: true, publisher: p, applied: m.seq - 1, isOpen: true, told: contents{isCounted: p.isCounted, by: p.naming}}
		seen.isShown, seen.isOwed = m.seq == 1, m.seq != 1
		if seen.isOwed {
			r.causes++ // the oracle knows nothing of what was said before
			r.asked++
		}
	default:
		isBack := m.seq <= seen.applied // the numbering went back
		if seen.publisher != p {
			// Two numberings can meet by chance. Only a digest can tell.
			seen.publisher, seen.isSuspect = p, true
			r.causes++
		} else if isBack {
			r.causes++ // an earlier attempt's hello was held up on its way
		}
		if isBack && !seen.isOwed {
			seen.isOwed = true
			r.asked++
		}
		seen.ignored = time.Time{}
	}
	w.say("  accepted: %+v", acc)
	if acc.SnapshotRequired != seen.isOwed || acc.ResumeFrom != seen.applied+1 {
		w.fail("%v: accepted %+v, want snapshot %v, resume from %d", p, acc, seen.isOwed, seen.applied+1)
	}
	c.down = append(c.down, answer{accepted: &acc})
	w.kicked()
}

// kicked ends the streams that the oracle has thrown out.
func (w *world) kicked() {
	for _, c := range w.conns {
		if c.session == nil || c.isOver {
			continue
		}
		select {
		case <-c.session.Kicked():
			w.tooLate(c)
			w.hangUp(c, c.session.Cause())
		default:
		}
	}
}

// tooLate lets a session that has lost its feed get one more message: it must be refused. Whether it left a trace is
// seen by everything that is checked afterwards.
func (w *world) tooLate(c *conn) {
	if len(c.up) == 0 || c.up[0].kind == eof {
		return
	}
	m := &c.up[0]
	w.say("stream %d (%v): too late, oracle gets %s", c.id, c.by, m.words(c.by.naming))
	if _, err := w.tell(c, m); err == nil {
		w.fail("%v: a session that was thrown out took a message", c.by)
	}
}

// tell hands a message to its session.
func (w *world) tell(c *conn, m *message) (oracle.Ack, error) {
	if c.applier != nil {
		return c.applier.Apply(c.by.naming.request(m), w.now)
	}
	switch m.kind {
	case changes:
		return c.session.Batch(m.seq, m.print(), m.ops, w.now)
	case begin:
		return c.session.SnapshotBegin(m.seq, w.now)
	case chunk:
		return c.session.SnapshotChunk(m.ops, w.now)
	case end:
		return c.session.SnapshotEnd(m.count, w.now)
	case digest:
		return c.session.Digest(m.seq, m.tier, m.state.digest(m.tier), w.now)
	case hello, eof:
	}
	return oracle.Ack{}, fmt.Errorf("not for a session: %s", m.words(c.by.naming))
}

// hangUp ends a stream on the oracle's side. What it has still to read is never read.
func (w *world) hangUp(c *conn, why error) {
	w.say("  oracle ends stream %d: %v", c.id, why)
	if c.session != nil {
		c.session.Close(w.now) // also one that was thrown out: then nothing may come of it
	}
	c.isOver, c.up = true, nil
	if !c.isLeft {
		c.down = append(c.down, answer{over: why})
	}
}

// hear lets a reporter read the next answer of its stream.
func (w *world) hear(c *conn) {
	a := c.down[0]
	c.down = c.down[1:]
	switch p := c.by; {
	case a.accepted != nil:
		p.accepted(a.accepted)
		w.say("stream %d (%v): hears that it is accepted, resume from %d; owes a snapshot: %v", c.id, p, a.accepted.ResumeFrom, p.owes)
	case a.ack != nil:
		p.acknowledged(a.ack)
		w.say("stream %d (%v): hears ack of %d", c.id, p, a.ack.Applied)
	case a.resync != nil:
		p.resync(a.resync)
		w.say("stream %d (%v): hears that a snapshot is wanted (%v); owes one: %v", c.id, p, a.resync.Reason, p.owes)
	default:
		w.say("stream %d (%v): hears that it is over", c.id, p)
		p.conn, p.isReady, c.isLeft = nil, false, true
	}
}

// tick lets time pass and the oracle notice.
func (w *world) tick(d time.Duration) {
	w.now = w.now.Add(d)
	w.oracle.Tick(w.now)
	w.askedBack()
	for _, x := range w.workers {
		if x.known == 0 {
			continue
		}
		if _, err := w.oracle.Worker(x.name, w.now); err == nil {
			x.isLost = x.isSilentFor(w.now, lease)
			if x.isSilentFor(w.now, lease+forget) {
				w.fail("%s is remembered too long", x.name)
			}
			continue
		}
		if !x.isSilentFor(w.now, lease+forget) {
			w.fail("%s was forgotten too early", x.name)
		}
		w.say("oracle has forgotten %s", x.name)
		w.unknow(x)
	}
	w.kicked()
}

// unknow notes that the oracle no longer knows a worker.
func (w *world) unknow(x *worker) {
	x.known, x.isLost = 0, false
	for _, r := range x.ranks {
		r.seen = shadow{}
	}
}

// sweep forgets streams that are over for both.
func (w *world) sweep() {
	w.conns = slices.DeleteFunc(w.conns, func(c *conn) bool { return c.isOver && c.isLeft })
}

// askedBack takes note of snapshots asked for because there is room again. Only partial targets are asked, and only while
// they owe none.
func (w *world) askedBack() {
	for _, c := range w.conns {
		if c.session == nil || c.isOver {
			continue
		}
		select {
		case q := <-c.session.Resyncs():
			r := c.by.r
			w.say("  oracle asks %v for a snapshot: %v", r, q.Reason)
			c.down = append(c.down, answer{resync: q})
			if q.Reason != oracle.ResyncCapacity || w.limit == 0 || r.seen.isOwed || c.building != nil {
				w.fail("%v: asked for a snapshot (%v) out of nowhere", r, q.Reason)
			}
			r.seen.isOwed, r.seen.ignored = true, time.Time{}
			r.causes++
			r.asked++
			w.count.restored++
		default:
		}
	}
}
