package storm

import (
	"context"
	"fmt"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// afterBatch does to the twin what the protocol says the batch does.
func (w *world) afterBatch(c *conn, m *message, ack *oracle.Ack) {
	r, seen := c.by.r, &c.by.r.seen
	w.count.repeats = max(w.count.repeats, int(ack.Counters.DuplicateBatches))
	if c.building != nil && m.seq > c.buildingSeq {
		c.building, c.isVoid = nil, true // by this batch
		w.count.voided++
		if ack.Resync == nil || ack.Resync.Reason != oracle.ResyncBadSnapshot {
			w.fail("%v: batch %d came into a snapshot of %d and nothing is asked for", r, m.seq, c.buildingSeq)
		}
		return
	}
	if seen.isOwed && c.building == nil {
		w.whileOwed(c, ack)
	}
	if seen.isOwed || c.building != nil || m.seq != seen.applied+1 {
		return // the ack must say that nothing was applied
	}
	for i := range m.ops {
		seen.told.apply(&m.ops[i])
	}
	seen.applied = m.seq
	seen.isSuspect = seen.isSuspect || m.isLame
	isTrue := seen.told.state() == m.state
	if !isTrue && !seen.isSuspect {
		w.fail("%v: after batch %d the oracle was told something else than the engine held", r, m.seq)
	}
	seen.isSuspect = !isTrue
}

// whileOwed holds it against the protocol whether a message that is of no snapshot, while one is owed, makes the oracle ask
// again: a minute after the first such message.
func (w *world) whileOwed(c *conn, ack *oracle.Ack) {
	r, seen := c.by.r, &c.by.r.seen
	want := !seen.ignored.IsZero() && w.now.Sub(seen.ignored) >= time.Minute
	if got := ack.Resync != nil; got != want || got && ack.Resync.Reason != oracle.ResyncBadSnapshot {
		w.fail("%v: asked again: %v, want %v, %v after the first message since", r, got, want, w.now.Sub(seen.ignored))
	}
	switch {
	case want:
		r.causes++ // it may be on its way, but not for so long
		w.count.again++
	case seen.ignored.IsZero():
		seen.ignored = w.now
	}
}

// afterSnapshot puts the new view in the place of the old one, whole or not at all.
func (w *world) afterSnapshot(c *conn, m *message, ack *oracle.Ack) {
	r, seen := c.by.r, &c.by.r.seen
	if c.building == nil {
		if asks := ack.Resync != nil && ack.Resync.Reason == oracle.ResyncBadSnapshot; asks == c.isVoid {
			w.fail("%v: the end of a snapshot without its beginning, void %v: asks %v", r, c.isVoid, asks)
		}
		if !c.isVoid {
			w.count.unbegun++
		}
		c.isVoid = false
		return
	}
	built := *c.building
	c.building = nil
	// Copies of what had to be given up are counted twice, and make up for what is missing.
	mayBeShort := w.limit > 0 && (built.isCounted || built.by.isHashed)
	if got := ack.Counters.Snapshots > c.snapshots; got != (m.count == 0 || uint64(built.sets.total()) == m.count) && !(got && mayBeShort) {
		w.fail("%v: snapshot with %d of %d blocks: swapped in %v", r, built.sets.total(), m.count, got)
	}
	if ack.Counters.Snapshots == c.snapshots {
		c.isVoid = true // what has come may not have been its own end
		return
	}
	c.snapshots++
	w.count.snapshots++
	seen.told, seen.applied = built, m.seq
	seen.isShown, seen.isOwed = true, false
	seen.isSuspect = m.isLame
	if built.sets != m.state.sets || !m.isLame && built.state() != m.state {
		if mayBeShort {
			seen.isSuspect = true
			return
		}
		w.fail("%v: a snapshot was accepted that is not what the engine held", r)
	}
}

// afterDigest holds the verdict against the twin's.
func (w *world) afterDigest(c *conn, m *message, ack *oracle.Ack) {
	seen := &c.by.r.seen
	if seen.isOwed && c.building == nil {
		w.whileOwed(c, ack)
		return
	}
	want := oracle.ResyncNone
	if told := seen.told.state(); !seen.isOwed && c.building == nil {
		switch {
		case m.seq > seen.applied:
			want = oracle.ResyncGap // and a batch was lost
			w.count.late++
		case m.seq == seen.applied && !told.isLike(&m.state, m.tier):
			want = oracle.ResyncDigestMismatch
		}
	}
	got := oracle.ResyncNone
	if ack.Resync != nil {
		got = ack.Resync.Reason
	}
	if w.limit > 0 && (want == oracle.ResyncDigestMismatch || want == oracle.ResyncNone) {
		// It cannot be told from what had to be given up, and costs a snapshot now and then.
		isRecent := !seen.doubtedAt.IsZero() && w.now.Sub(seen.doubtedAt) < time.Hour
		switch {
		case got == oracle.ResyncCapacity && !isRecent:
			seen.doubtedAt = w.now
			c.by.r.causes++
			w.count.doubted++
			return
		case c.by.naming.isHashed: // names are kept whatever there is room for
		case got == oracle.ResyncNone && ack.Confidence == oracle.Partial && (isRecent || want == oracle.ResyncNone):
			return
		}
	}
	if got != want {
		w.fail("%v: digest at %d of %v: resync %v, want %v", c.by, m.seq, m.tier, got, want)
	}
	if want == oracle.ResyncDigestMismatch {
		w.count.found++
		if told := seen.told; told.sets[m.tier] == m.state.sets[m.tier] {
			w.count.copies++
		}
		if !seen.isSuspect {
			w.fail("%v: a digest differs and nothing was wrong", c.by)
		}
	}
}

// observe checks what Route says of every target for some prompts. This is the window:
//
//	a target that is FRESH or STALE is credited with exactly what it held when the last message that the oracle has
//	acknowledged was made
//
// so what is in flight, or not sent yet, is all that can separate the credit from the engine; except that a suspect
// target, whose reports were falsified on the way, has what it was told, and is not FRESH after the next digest.
// Anybody else gets nothing. FRESH is only who has a stream, or had one within the grace, and owes no snapshot.
func (w *world) observe(prompts []int) {
	got := make(map[string]oracle.Row)
	for _, leaf := range prompts {
		a, err := w.oracle.Route(context.Background(), &oracle.RouteRequest{
			Model: model, DryRun: true, Explain: true, Prompt: oracle.Prompt{Tokens: promptOf(leaf), Length: forks * unit},
		}, w.now)
		w.count.routes++
		clear(got)
		if err == nil { // else nobody is there
			for _, row := range a.Rows {
				if row.Excluded == oracle.NotExcluded {
					got[fmt.Sprintf("%s/%d", row.Target.Worker, row.Target.Rank)] = row
				}
			}
		}
		for _, r := range w.ranks {
			row, ok := got[r.String()]
			if want := r.w.known != 0 && !r.w.isLost; ok != want {
				w.fail("%v is a candidate: %v, want %v", r, ok, want)
			}
			if ok {
				w.judge(r, &row, leaf)
			}
		}
	}
}

func (w *world) judge(r *rank, row *oracle.Row, leaf int) {
	seen := &r.seen
	want := oracle.Fresh
	switch {
	case !seen.isKnown:
		want = oracle.Silent
	case seen.isOwed && !seen.isShown:
		want = oracle.Warming
	case seen.isOwed, !seen.isOpen && w.now.Sub(seen.cutAt) > grace:
		want = oracle.Stale
	}
	isPartial := w.limit > 0 && (row.Blocks == oracle.Partial || want == oracle.Stale)
	if isPartial && want == oracle.Fresh {
		want = oracle.Partial
		w.count.partial++
	}
	if row.Blocks != want {
		w.fail("%v is %v, want %v", r, row.Blocks, want)
	}
	if want == oracle.Fresh {
		w.count.fresh++
	} else if want == oracle.Stale {
		w.count.stale++
	}
	if !seen.isShown {
		if row.Matched != [fleet.NumTiers]int{} {
			w.fail("%v (%v) is credited with %v tokens and has shown nothing", r, row.Blocks, row.Matched)
		}
		return
	}
	w.count.kinds(&seen.told)
	held, tree := seen.told.credit(), seen.told.by.tree
	p := tree.path(leaf)
	credit, blockSize := held.match(p), tree.size
	if isPartial {
		// Less than was told, or farther away, is all that is promised.
		got, most := 0, 0
		for t := range credit {
			got, most = got+row.Matched[t], most+credit[t]*blockSize
			if got > most {
				w.fail("%v (%v) is credited with %v tokens of %v, want %v blocks of %d at most", r, row.Blocks, row.Matched, p, credit, blockSize)
			}
		}
		return
	}
	for t := range credit {
		if row.Matched[t] != credit[t]*blockSize {
			w.fail("%v (%v) is credited with %v tokens of %v, want %v blocks of %d", r, row.Blocks, row.Matched, p, credit, blockSize)
			return
		}
	}
}
