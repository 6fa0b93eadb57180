package storm

import (
	"context"
	"fmt"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// afterBatch does to the twin what the protocol says the batch does.
func (w *world) afterBatch(c *conn, m *message, ack *oracle.Ack) {
	r, seen := c.by.r, &c.by.r.seen
	w.count.repeats = max(w.count.repeats, int(ack.Counters.DuplicateBatches))
	if seen.isOwed || c.building != nil || m.seq != seen.applied+1 {
		return // the ack must say that nothing was applied
	}
	for i := range m.ops {
		seen.told.apply(w.tree, &m.ops[i])
	}
	seen.applied = m.seq
	seen.isSuspect = seen.isSuspect || m.isLame
	switch isTrue := seen.told.sets == m.state; {
	case !isTrue && !seen.isSuspect:
		w.fail("%v: after batch %d the oracle was told something else than the engine held", r, m.seq)
	case isTrue && !seen.told.isCounted:
		seen.isSuspect = false
	}
}

// afterSnapshot puts the new view in the place of the old one, whole or not at all.
func (w *world) afterSnapshot(c *conn, m *message, ack *oracle.Ack) {
	r, seen := c.by.r, &c.by.r.seen
	if c.building == nil {
		return // an operator has dropped it
	}
	built := *c.building
	c.building = nil
	if got := ack.Counters.Snapshots > c.snapshots; got != (m.count == 0 || uint64(built.sets.total()) == m.count) {
		w.fail("%v: snapshot with %d of %d blocks: swapped in %v", r, built.sets.total(), m.count, got)
	}
	if ack.Counters.Snapshots == c.snapshots {
		return
	}
	c.snapshots++
	w.count.snapshots++
	seen.told, seen.applied = built, m.seq
	seen.isShown, seen.isOwed = true, false
	seen.isSuspect = m.isLame
	if built.sets != m.state {
		w.fail("%v: a snapshot was accepted that is not what the engine held", r)
	}
}

// afterDigest holds the verdict against the twin's.
func (w *world) afterDigest(c *conn, m *message, ack *oracle.Ack) {
	seen := &c.by.r.seen
	isCompared := !seen.isOwed && c.building == nil && m.seq == seen.applied
	isWrong := isCompared && seen.told.sets[m.tier] != m.state[m.tier]
	if isWrong != (ack.Resync != nil) {
		w.fail("%v: digest at %d of %v: resync %+v, want one: %v", c.by, m.seq, m.tier, ack.Resync, isWrong)
	}
	if isWrong {
		w.count.found++
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
		p := path(leaf)
		a, err := w.oracle.Route(context.Background(), &oracle.RouteRequest{
			Model: model, DryRun: true, Explain: true,
			Prompt: oracle.Prompt{Locals: w.tree.locals(p[:]), LocalsSize: blockSize, Length: depth * blockSize},
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
				w.judge(r, &row, p[:])
			}
		}
	}
}

func (w *world) judge(r *rank, row *oracle.Row, p []node) {
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
	if row.Blocks != want {
		w.fail("%v is %v, want %v", r, row.Blocks, want)
	}
	if want == oracle.Fresh {
		w.count.fresh++
	} else if want == oracle.Stale {
		w.count.stale++
	}
	credit := seen.told.sets.match(p)
	for t := range credit {
		if !seen.isShown {
			credit[t] = 0
		}
		if row.Matched[t] != credit[t]*blockSize {
			w.fail("%v (%v) is credited with %v tokens of %v, want %v blocks of %d", r, row.Blocks, row.Matched, p, credit, blockSize)
			return
		}
	}
}
