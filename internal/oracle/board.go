package oracle

import (
	"math/bits"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// board is the load of all targets as policy.LeastTime reads it, by TargetID. Before a decision what has changed since the
// last one is brought up to date: targets that were booked, of which something was reported or learned, or whose load
// moves with the clock. The deciding lock guards it. For the targets of a roster that is current,
//
//	rows[id] = policy.NewRow(what Route's long way would say of id now)
type board struct {
	rows   []policy.Row
	chosen []uint64
	posts  []post
	asked  []uint32 // see unmatched

	ids  []fleet.TargetID // scratch
	news load.News
}

// post is what a target's row was made of.
type post struct {
	state  load.State
	cost   *policy.CostModel
	flow   policy.Flow
	isFull bool // it has as many requests as its worker takes
	isBusy bool // it has prefill pending
}

// cover makes room for an id.
func (b *board) cover(id fleet.TargetID) {
	if n := int(id) + 1 - len(b.posts); n > 0 {
		b.rows = append(b.rows, make([]policy.Row, n)...)
		b.chosen = append(b.chosen, make([]uint64, n)...)
		b.posts = append(b.posts, make([]post, n)...)
		b.asked = append(b.asked, make([]uint32, n)...)
	}
}

// follow brings the rows of a roster up to date. The caller holds deciding, and the roster is current.
func (o *Oracle) follow(ro *roster, now time.Time) {
	b := &o.board
	if ro.peers == nil {
		b.ids = b.ids[:0]
		for i := range ro.seats {
			id := ro.seats[i].id
			b.cover(id)
			b.posts[id] = post{}
			b.ids = append(b.ids, id)
		}
		ro.peers = o.load.Peers(b.ids)
	}
	ro.peers.Changes(now, &b.news)
	for i, id := range b.news.IDs {
		if s := ro.at(id); s != nil {
			b.update(ro, s, &b.news.States[i])
		}
	}
	for _, m := range b.news.Moved {
		if s := ro.at(m.ID); s != nil {
			b.move(ro, s, m.PendingPrefillSeconds)
		}
	}
	b.settle(ro)
}

// settle finds anew what the rows of a roster do not go below, where they have changed.
func (b *board) settle(ro *roster) {
	for i, groups := range ro.stale {
		ro.stale[i] = 0
		for ; groups != 0; groups &= groups - 1 {
			k := i*64 + bits.TrailingZeros64(groups)
			from := k * policy.LeastRows
			ro.least[k] = policy.NewLeast(b.rows, ro.plain.ids[from:min(from+policy.LeastRows, len(ro.plain.ids))])
		}
	}
}

// move is update where only what is pending has changed, as it does of everybody that waits when the clock has moved: it
// looks at neither feed nor worker.
func (b *board) move(ro *roster, s *seat, pending float64) {
	p := &b.posts[s.id]
	if isBusy := pending > 0; isBusy != p.isBusy {
		ro.count(s, p, -1)
		p.isBusy = isBusy
		ro.count(s, p, 1)
	}
	p.state.PendingPrefillSeconds = pending
	base := p.flow.Base(pending)
	b.rows[s.id].Base = base
	if s.isPlain && ro.least != nil { // what is pending gets less, and nobody need look at the others
		l := &ro.least[s.place/policy.LeastRows]
		l.Base = min(l.Base, base)
	}
}

// update makes a target's row anew.
func (b *board) update(ro *roster, s *seat, st *load.State) {
	p := &b.posts[s.id]
	ro.count(s, p, -1)
	p.state, p.cost = *st, &s.feed.pricing.Load().cost
	p.isBusy = st.PendingPrefillSeconds > 0
	p.isFull = s.most > 0 && st.InFlight >= s.most
	ro.count(s, p, 1)

	c := policy.Candidate{Target: s.id, Cost: p.cost, IsClamped: true}
	loadOf(&c, st)
	b.rows[s.id], p.flow = policy.NewFlowingRow(&c, policy.Prices{}) // what the market prices beyond prefill would be in it
	b.chosen[s.id] = st.LastChosen
	if s.isPlain && ro.least != nil {
		group := s.place / policy.LeastRows
		ro.stale[group/64] |= 1 << (group % 64)
	}
}

// count counts a target with its roster, or takes it out.
func (ro *roster) count(s *seat, p *post, n int) {
	switch {
	case p.isFull:
		ro.full += n
	case p.isBusy && s.isPlain:
		ro.busy += n
	}
}

// loadOf fills in what a policy knows of a target's load.
func loadOf(c *policy.Candidate, s *load.State) {
	c.InFlight, c.Prefilling, c.Decoding = s.InFlight, s.Prefilling, s.Decoding
	c.PendingPrefill, c.PendingTokens = s.PendingPrefillSeconds, s.PendingPrefillTokens
	c.Waiting = s.Prefilling
	c.ActiveTokens, c.HeldTokens, c.OutputToCome = s.ActiveTokens, s.HeldTokens, s.OutputToCome
	c.KVUsed, c.UnreportedTokens = s.KVUsed, s.UnreportedTokens
	c.LastChosen = s.LastChosen
}
