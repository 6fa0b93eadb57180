package load

import (
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Peers follows targets that stand in for each other, as those of one model do: what one did not say lately is taken from
// the others. It knows whose state has changed, so that who keeps copies of them need not read everybody each time.
//
//	what Changes has given, newest of each = StatesAmong(all, all), but for the age of reports
//
// Of most targets that wait only the clock has moved, in each of its steps of all of them at once: of those no more is said
// than what that changes.
//
// What is done to a target notes it at once. What time alone does is looked for when Changes is called: a report that has
// become too old to be believed, prefills that are worked off by the clock (presume.go), and with the reports that are
// believed what is imputed to the others.
type Peers struct {
	t       *Tracker
	ids     []fleet.TargetID
	changed []fleet.TargetID // each once, unless it was dropped and is another's now
	waiting []fleet.TargetID // those with a request without a first token or with one that will be presumed over, in no order
	moved   []fleet.TargetID // scratch: of those, whose prefill was worked off
	worked  int64            // the clock's step to which they were worked off
	flips   uint64           // the tracker's at that time

	all, fresh, work, kv int // how many there are, and of those how many said what; see said

	asked   bool // reports have changed since what follows was found
	missing gap
	anyTold bool // someone has a fresh report
}

// said is what a target's report is good for now.
type said struct{ fresh, work, kv bool }

// link is a target's place among its peers.
type link struct {
	peers   *Peers // nil: none
	noted   bool   // among the changed
	waiting int    // its place among the waiting, counted from 1; 0: none
	said    said   // as counted
}

// Peers begins to follow targets; those it does not know are left out. All count as changed. A target has one Peers: the
// one that it had before forgets it and must not be asked any more.
func (t *Tracker) Peers(ids []fleet.TargetID) *Peers {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &Peers{t: t, ids: slices.Clone(ids), asked: true, missing: gap{kvUsed: unknownKV}}
	for _, id := range p.ids {
		g := t.target(id)
		if g == nil {
			continue
		}
		g.link = link{peers: p}
		p.all++
		p.tally(g)
		p.note(g)
	}
	return p
}

// Touch notes a target as changed that has changed in what the tracker does not know, such as its costs.
func (t *Tracker) Touch(id fleet.TargetID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.target(id); g != nil && g.peers != nil {
		g.peers.note(g)
	}
}

// News is what Changes gives. The caller owns it and may use it again.
type News struct {
	// IDs are the targets whose state is not what it was when it was last given, States their states now: States[i] of IDs[i].
	IDs    []fleet.TargetID
	States []State
	// Moved are those of which nothing changed but what is pending, since it was worked off by the clock. They are not in IDs.
	Moved []Moved
}

// Moved is a target with its State.PendingPrefillSeconds now.
type Moved struct {
	ID                    fleet.TargetID
	PendingPrefillSeconds float64
}

// Changes gives the targets whose state is not what it was when it was last given. It overwrites all of n and allocates only
// when that lacks capacity.
func (p *Peers) Changes(now time.Time, n *News) {
	t := p.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tick(now)
	p.workOff()
	t.age()
	p.impute()

	n.IDs, n.States, n.Moved = n.IDs[:0], n.States[:0], n.Moved[:0]
	for _, id := range p.moved {
		if g := t.target(id); !g.noted {
			n.Moved = append(n.Moved, Moved{id, t.pendingSeconds(g, t.external(g, &p.missing))})
		}
	}
	for _, id := range p.changed {
		g := t.target(id)
		if g == nil || g.peers != p || !g.noted {
			continue
		}
		t.presume(g)
		g.noted = false
		n.IDs, n.States = append(n.IDs, id), append(n.States, State{})
		t.read(g, p.anyTold, &p.missing, &n.States[len(n.States)-1])
	}
	p.changed = p.changed[:0]
}

// note says that it has changed to whoever follows it.
func (g *target) note() {
	if g.peers != nil {
		g.peers.note(g)
	}
}

// note says that a target has changed.
func (p *Peers) note(g *target) {
	if !g.noted {
		g.noted = true
		p.changed = append(p.changed, g.id)
	}
	if waits := g.prefilling > 0 || len(g.ends) > 0; waits != (g.link.waiting > 0) {
		p.wait(g, waits)
	}
}

// wait puts a target among the waiting, or takes it out.
func (p *Peers) wait(g *target, waits bool) {
	if waits {
		p.waiting = append(p.waiting, g.id)
		g.link.waiting = len(p.waiting)
		return
	}
	at, last := g.link.waiting, len(p.waiting)
	g.link.waiting = 0
	if at != last {
		moved := p.waiting[last-1]
		p.waiting[at-1] = moved
		if m := p.t.target(moved); m != nil && m.peers == p {
			m.link.waiting = at
		}
	}
	p.waiting = p.waiting[:last-1]
}

// report takes in that a target has a new report, or none any more that is believed.
func (p *Peers) report(g *target) {
	p.asked = true
	p.tally(g)
	p.note(g)
}

// leave forgets a target that is dropped and has no bookings any more.
func (p *Peers) leave(g *target) {
	p.all--
	p.count(g.said, -1)
	p.asked = true
	g.link = link{}
}

// tally counts what a target's report is good for.
func (p *Peers) tally(g *target) {
	r, now := &g.report, said{}
	if p.t.isFresh(r) {
		now = said{fresh: true, work: r.counted, kv: r.kvUsed >= 0}
	}
	p.count(g.said, -1)
	p.count(now, 1)
	g.said = now
}

func (p *Peers) count(s said, n int) {
	if s.fresh {
		p.fresh += n
	}
	if s.work {
		p.work += n
	}
	if s.kv {
		p.kv += n
	}
}

// workOff moves the prefills that are worked off by the clock, once in each of its steps.
func (p *Peers) workOff() {
	t := p.t
	p.moved = p.moved[:0]
	moved, flipped := t.step() != p.worked, t.flips != p.flips
	if p.worked, p.flips = t.step(), t.flips; !moved && !flipped {
		return
	}
	for i := len(p.waiting) - 1; i >= 0; i-- { // backwards: who leaves is replaced by one that was looked at
		g := t.target(p.waiting[i])
		if g == nil || g.peers != p {
			continue
		}
		t.presume(g)
		if moved && !g.noted && g.prefills.first != nil {
			p.moved = append(p.moved, g.id)
		}
	}
}

// impute finds what to assume of those that did not say. It looks at everybody only where some said and some did not.
func (p *Peers) impute() {
	if !p.asked {
		return
	}
	p.asked = false
	missing, anyTold := gap{kvUsed: unknownKV}, p.fresh > 0
	if (p.work > 0 && p.work < p.all) || (p.kv > 0 && p.kv < p.all) {
		missing = p.t.medians(p.ids)
	}
	if missing == p.missing && anyTold == p.anyTold {
		return
	}
	p.missing, p.anyTold = missing, anyTold
	for _, id := range p.ids {
		if g := p.t.target(id); g != nil && g.peers == p && !(g.said.work && g.said.kv) {
			p.note(g)
		}
	}
}
