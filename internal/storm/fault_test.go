package storm

import (
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

type fault uint8

const (
	crash      fault = iota // the engine starts again with a higher incarnation
	renumber                // ... with the same one
	relay                   // ... with the same one, and its stream goes on as if nothing had happened
	newOracle               // the oracle starts again and knows nothing
	cutStream               // a stream breaks; what is on its way is lost from some message on
	duplicate               // a message arrives twice
	reorder                 // two neighbours arrive in the wrong order
	loseOp                  // an operation is lost before its batch is sent: only a digest can tell
	loseBatch               // a batch disappears
	loseDigest              // a digest disappears
	losePart                // a part of a snapshot disappears, its beginning or its end too
	stall                   // a stream stands still for a while
	rival                   // another process begins to report the same rank, or stops
	remove                  // an operator removes a worker
	invalidate              // an operator wants to have it all told again
	pastGrace               // time jumps
	pastLease
	pastForget

	numFaults
)

var faultNames = [numFaults]string{
	"crash", "renumber", "relay", "new oracle", "cut stream", "duplicate", "reorder", "lose op", "lose batch", "lose digest",
	"lose part", "stall", "rival", "remove", "invalidate", "past grace", "past lease", "past forget",
}

func (f fault) String() string { return faultNames[f] }

// strike lets a fault happen, if there is something for it to happen to.
func (w *world) strike(f fault) {
	r := w.ranks[w.dice.IntN(len(w.ranks))]
	done := true
	switch f {
	case crash:
		w.restart(r.w, "reborn", r.w.incarnation+1)
	case renumber:
		w.restart(r.w, "renumbered", r.w.incarnation)
	case relay:
		// Only in a lull: with two numberings on the way nobody could say what an ack speaks of.
		done = r.reporter.isIdle() && r.second == nil && len(r.reporter.conn.up)+len(r.reporter.conn.down) == 0
		if done {
			w.say("%v restarts, numbered from 1 in the middle of its stream", r)
			r.truth = contents{isCounted: r.truth.isCounted, by: r.naming}
			r.reporter.restart()
			r.causes++
			r.seen.isSuspect = true // batches that look like the former ones are taken for repeats
		}
	case newOracle:
		w.restartOracle()
	case cutStream:
		done = r.reporter.conn != nil
		w.cut(r.reporter)
	case duplicate, reorder, loseBatch, loseDigest, losePart:
		done = w.tamper(f)
	case loseOp:
		done = w.lame(r.reporter)
	case stall:
		done = len(w.conns) > 0
		if done {
			c := w.conns[w.dice.IntN(len(w.conns))]
			c.stalled = 10 + w.dice.IntN(40)
			w.say("stream %d stands still for %d steps", c.id, c.stalled)
		}
	case rival:
		w.rival(r)
	case remove:
		done = r.w.known != 0
		if done {
			w.remove(r.w)
		}
	case invalidate:
		done = r.w.known != 0
		if done {
			w.invalidate(r.w)
		}
	case pastGrace:
		w.jump(grace + time.Second)
	case pastLease:
		w.jump(lease + time.Second)
	case pastForget:
		w.jump(lease + forget + time.Second)
	case numFaults:
	}
	if done {
		w.count.faults[f]++
	}
}

func (w *world) jump(d time.Duration) {
	w.say("%v pass", d)
	w.tick(d)
}

// restart ends an engine process with its reporters and begins another.
func (w *world) restart(x *worker, how string, incarnation uint64) {
	if x.incarnation != incarnation {
		x.incarnation = incarnation
		w.beget(x)
	}
	w.say("%s restarts, %s, counted %v, %v", x.name, how, x.isCounted, x.ranks[0].naming)
	for _, r := range x.ranks {
		for _, p := range r.publishers() {
			w.cut(p)
		}
		r.second = nil
		w.start(r, how)
	}
}

func (w *world) restartOracle() {
	w.say("the oracle restarts")
	w.oracle = w.newOracle()
	for _, c := range w.conns {
		if !c.isOver {
			w.hangUp(c, errGone)
		}
	}
	for _, x := range w.workers {
		w.unknow(x)
	}
}

// rival lets a second process report the rank. It does not know what was said before it, and must say everything. The
// two throw each other out again and again, until one of them goes.
func (w *world) rival(r *rank) {
	if p := r.second; p != nil {
		w.say("%v goes", p)
		w.cut(p)
		r.second = nil
		return
	}
	r.second = &reporter{r: r, name: "rival", incarnation: r.w.incarnation, naming: r.naming, isCounted: r.w.isCounted, keep: 14, next: 1, owes: true}
	w.say("%v comes", r.second)
}

func (w *world) remove(x *worker) {
	w.say("operator removes %s", x.name)
	if _, _, err := w.oracle.Remove(x.name); err != nil {
		w.fail("remove %s: %v", x.name, err)
	}
	w.unknow(x)
	w.kicked()
}

func (w *world) invalidate(x *worker) {
	w.say("operator invalidates %s", x.name)
	if _, err := w.oracle.Invalidate(x.name); err != nil {
		w.fail("invalidate %s: %v", x.name, err)
	}
	for _, r := range x.ranks {
		if seen := &r.seen; seen.isKnown {
			seen.told, seen.isShown, seen.isOwed = contents{isCounted: seen.told.isCounted, by: seen.told.by}, false, true
			seen.ignored = time.Time{}
			r.causes++
			r.asked++
		}
	}
	for _, c := range w.conns {
		if c.by.r.w != x || c.session == nil || c.isOver {
			continue
		}
		c.isVoid = c.isVoid || c.building != nil
		c.building = nil
		select {
		case q := <-c.session.Resyncs():
			w.say("  oracle asks %v for a snapshot: %v", c.by.r, q.Reason)
			c.down = append(c.down, answer{resync: q})
		default:
		}
	}
}

// tamper changes what is on its way.
func (w *world) tamper(f fault) bool {
	want := map[fault][]kind{
		duplicate:  {changes, begin, chunk, end, digest},
		reorder:    {changes, end},
		loseBatch:  {changes},
		loseDigest: {digest},
		losePart:   {begin, chunk, end},
	}[f]
	type place struct {
		c *conn
		i int
	}
	var places []place
	for _, c := range w.conns {
		for i := range c.up {
			if slices.Contains(want, c.up[i].kind) {
				places = append(places, place{c, i})
			}
		}
	}
	if len(places) == 0 {
		return false
	}
	at := places[w.dice.IntN(len(places))]
	if f == reorder && w.dice.IntN(2) == 0 { // the rare neighbour
		for _, p := range places {
			if p.i+1 < len(p.c.up) && p.c.up[p.i+1].kind == begin {
				at = p
			}
		}
	}
	c, i, r := at.c, at.i, at.c.by.r
	m := c.up[i]
	switch {
	case f == duplicate:
		to := i + 1
		for to < len(c.up) && c.up[to].kind != eof && w.dice.IntN(8) > 0 {
			if c.up[to].kind == end {
				r.causes++ // nobody remembers what was before a snapshot: a repeat from there looks like another numbering
			}
			to++
		}
		c.up = slices.Insert(slices.Clone(c.up), to, m)
		switch m.kind {
		case begin, chunk:
			r.causes++ // a count that does not match, or copies that no count tells; or a snapshot that no end follows
			lameEnd(c, to)
		case end:
			r.causes++ // one without a beginning
		case hello, changes, digest, eof:
		}
	case f == reorder:
		if i+1 == len(c.up) {
			return false
		}
		switch next := c.up[i+1].kind; {
		case m.kind == end && next == changes:
			r.causes++ // the snapshot is void
		case m.kind == end:
			return false
		case next == changes, next == digest:
			r.causes++ // a gap
		case next == begin: // it shows the batch
		default:
			return false
		}
		c.up = slices.Clone(c.up)
		c.up[i], c.up[i+1] = c.up[i+1], c.up[i]
	default:
		c.up = slices.Delete(slices.Clone(c.up), i, i+1)
		if f == loseBatch {
			r.causes++ // a gap
		}
		if f == losePart {
			r.causes++ // a count that does not match, or copies that no count tells; or no beginning, or no end
			if m.kind != end {
				lameEnd(c, i)
			}
		}
	}
	w.say("on stream %d, %v: %s", c.id, f, m.words(c.by.naming))
	return true
}

// lameEnd marks the end of a snapshot that is not what the engine held.
func lameEnd(c *conn, from int) {
	for i := from; i < len(c.up); i++ {
		if c.up[i].kind == end {
			c.up[i].isLame = true
			return
		}
	}
}

// lame loses an operation of the next batch.
func (w *world) lame(p *reporter) bool {
	if !p.isReady || p.owes || len(p.pending) == 0 {
		return false
	}
	b := p.seal()
	i := w.dice.IntN(len(b.ops))
	lost := b.ops[i : i+1]
	b.ops = slices.Delete(slices.Clone(b.ops), i, i+1)
	b.isLame = true
	p.r.causes++
	if lost[0].Kind == oracle.OpStore && p.naming.isHashed {
		for _, n := range p.naming.read(&lost[0]) {
			p.r.unsaid.add(n)
		}
	}
	w.say("%v loses an operation of batch %d: %s", p, b.seq, words(p.naming, lost))
	return true
}

// act lets the engine do something and its reporters see it.
func (w *world) act(r *rank) {
	ops := r.change(w.dice)
	w.say("%v does: %s", r, words(r.naming, ops))
	for _, p := range r.publishers() {
		if p.changed(ops) {
			w.say("%v cannot keep it all and owes a snapshot", p)
		}
	}
}

// report lets a reporter do its next duty. One that is eager leaves nothing for later.
func (w *world) report(p *reporter, isEager bool) {
	if p.conn == nil {
		w.open(p)
		return
	}
	if !p.isReady || p.conn.isOver {
		return
	}
	send := func(ms []message) { p.conn.up = append(p.conn.up, ms...) }
	switch {
	case p.owes:
		w.say("%v sends a snapshot", p)
		send(p.snapshot(w.dice))
	case p.sent < len(p.kept):
		send(p.flush())
	case len(p.pending) > 0 || isEager || w.dice.IntN(3) == 0: // an empty batch is a sign of life
		p.seal()
		send(p.flush())
	}
	if len(p.pending) == 0 && !p.owes && p.sent == len(p.kept) && p.next > 1 && (isEager || w.dice.IntN(3) == 0) {
		send(p.digests())
	}
}
