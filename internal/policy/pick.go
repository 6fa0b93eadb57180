package policy

import (
	"cmp"
	"math"
	"slices"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Table is what Pick chooses from. It only borrows the slices.
type Table struct {
	// Rows and Chosen are indexed by TargetID: the load, and the number of the decision that chose the target last (0:
	// never chosen).
	Rows   []Row
	Chosen []uint64
	// Members are the candidates in ascending order.
	Members []fleet.TargetID
	// Holders say who of the members holds something of the prompt that no other holds alike, in ascending order.
	Holders []Holder
	// Kinds are what the others hold, but for their Target: member i holds Kinds[Kind[i]], and all hold Kinds[0] where Kind
	// is nil. Nothing of it needs a transfer. Without Kinds they hold nothing. A member that is a holder has a Kind, too,
	// which is not read for what it holds.
	Kinds []Holder
	Kind  []uint8
	// Session is the target that served the request's session last, if HasSession.
	Session    fleet.TargetID
	HasSession bool
}

// Pick is what LeastTime chose from a Table. The caller owns it and may reuse it.
type Pick struct {
	// Top are the best candidates, best first, Request.Places of them or all.
	Top []Picked
	// Reason says what set the first apart from the second.
	Reason Reason
	// Owed is as of a Decision.
	Owed float64

	kinds []Holder  // of members that are no holders
	sizes []size    // of the kinds
	costs []float64 // of the members
	pos   []int32   // places of the holders among the members
}

// size is what the cost of a prompt depends on beside the load.
type size struct{ own, pairs, need float64 }

// Picked is one candidate of a Pick.
type Picked struct {
	// Member is its place in Table.Members.
	Member int
	// Cost is the sum of its terms in seconds.
	Cost float64

	holder int32 // its place in Table.Holders, or -1
}

// Pick chooses as Choose does, but reads rows: first the cost of every member, one line of memory and a few products
// each, then the few that can be among the first. It allocates only when a slice of d lacks capacity. Request.Places 0
// ranks all. Without members Top is empty.
func (LeastTime) Pick(req *Request, t *Table, d *Pick) {
	d.Top, d.Reason, d.Owed = d.Top[:0], 0, 0
	if len(t.Members) == 0 {
		return
	}
	if d.kinds = append(d.kinds[:0], t.Kinds...); len(d.kinds) == 0 {
		d.kinds = append(d.kinds, Holder{Uncached: narrow(req.PromptTokens)})
	}
	least, elsewhere := d.price(req, t)

	places := req.Places
	if places <= 0 {
		places = len(t.Members)
	}
	keep := min(max(places, 2), len(t.Members)) // the reason compares the first two
	costs := d.costs
	for i := range costs[:keep] {
		d.keep(t, least, i, keep)
	}
	limit, last := d.last(least), t.lastOf(d, least) // what costs more cannot be among them
	for i := keep; i < len(costs); i++ {
		if costs[i] > limit || last.isTied && t.yields(i, &last) {
			continue
		}
		d.keep(t, least, i, keep)
		limit, last = d.last(least), t.lastOf(d, least)
	}

	switch {
	case len(d.Top) == 1:
		d.Reason = OnlyCandidate
	case d.Top[1].Cost-least > TieBand:
		d.Reason = LeastCost
	default:
		_, d.Reason = t.tieBreak(d, &d.Top[0], &d.Top[1])
	}
	d.owe(req, t, min(elsewhere, least))
	d.Top = d.Top[:min(places, len(d.Top))]
}

// owe finds what the choice changes of the debt, when everybody with all that the deepest holder has would have cost this
// much at the least.
func (d *Pick) owe(req *Request, t *Table, elsewhere float64) {
	if req.Deepest <= 0 {
		return
	}
	best, prompt := &d.Top[0], float64(narrow(req.PromptTokens))
	n, deepest := float64(t.holder(d, best).Uncached), req.deepest()
	if n > deepest {
		r := &t.Rows[t.Members[best.Member]]
		c := r.copyOf(within(req.Prices.Prefill, maxRate), n, pairsOf(n, prompt-n), deepest, pairsOf(deepest, prompt-deepest))
		if c > 0 {
			d.Owed = -min(req.debt(), c)
			return
		}
	}
	d.Owed = max(best.Cost-elsewhere, 0)
}

// last is the greatest cost that can still be among the kept.
func (d *Pick) last(least float64) float64 {
	return max(d.Top[len(d.Top)-1].Cost, math.Nextafter(least+TieBand, math.Inf(1)))
}

// lastKept is what decides whether a member that ties with the last one kept ranks behind it.
type lastKept struct {
	isTied   bool // with the first; false also where ties are decided by more than what follows
	kind     uint8
	session  fleet.TargetID // the one for which more decides
	inFlight int64
	chosen   uint64
}

// lastOf is the last one kept of a table without holders, where ties are between those who hold alike.
func (t *Table) lastOf(d *Pick, least float64) (l lastKept) {
	v := &d.Top[len(d.Top)-1]
	id := t.Members[v.Member]
	if len(d.pos) > 0 || v.Cost-least > TieBand || t.HasSession && id == t.Session {
		return lastKept{}
	}
	l = lastKept{isTied: true, session: math.MaxUint32, inFlight: t.Rows[id].InFlight, chosen: t.Chosen[id]}
	if t.HasSession {
		l.session = t.Session
	}
	if len(t.Kind) > 0 {
		l.kind = t.Kind[v.Member]
	}
	return l
}

// yields reports that member i ranks behind an earlier one that it ties with. False: perhaps not.
func (t *Table) yields(i int, l *lastKept) bool {
	if len(t.Kind) > 0 && t.Kind[i] != l.kind {
		return false
	}
	id := t.Members[i]
	x := t.Rows[id].InFlight
	return id != l.session && (x > l.inFlight || x == l.inFlight && t.Chosen[id] >= l.chosen)
}

// keep inserts member i among the kept, if it is one of them.
func (d *Pick) keep(t *Table, least float64, i, keep int) {
	v := Picked{Member: i, Cost: d.costs[i], holder: -1}
	if len(d.pos) > 0 {
		if k, ok := slices.BinarySearch(d.pos, int32(i)); ok {
			v.holder = int32(k)
		}
	}
	if len(d.Top) == keep {
		if !t.before(d, least, &v, &d.Top[keep-1]) {
			return
		}
		d.Top = d.Top[:keep-1]
	}
	j := len(d.Top)
	d.Top = append(d.Top, v)
	for ; j > 0 && t.before(d, least, &v, &d.Top[j-1]); j-- {
		d.Top[j] = d.Top[j-1]
	}
	d.Top[j] = v
}

// price fills d.costs and d.pos and returns the least cost, and the least there would be if those who have less had all
// that the deepest holder has.
func (d *Pick) price(req *Request, t *Table) (least, elsewhere float64) {
	prompt := float64(narrow(req.PromptTokens))
	out := within(req.ExpectedOutput, maxTokens)
	g := within(req.Prices.Prefill, maxRate)
	d.sizes = d.sizes[:0]
	for i := range d.kinds {
		k := &d.kinds[i]
		own := float64(k.Uncached)
		d.sizes = append(d.sizes, size{own, pairsOf(own, prompt-own), prompt - float64(k.Shared) + out})
	}

	d.costs = slices.Grow(d.costs[:0], len(t.Members))[:len(t.Members)]
	costs, rows, kind := d.costs, t.Rows, t.Kind
	if len(d.sizes) == 1 {
		kind = nil
	}
	k := &d.sizes[0]
	for i, id := range t.Members {
		if kind != nil {
			k = &d.sizes[kind[i]]
		}
		r := &rows[id]
		// Row.cost, written out: it is too large to be inlined.
		cost := r.Base + out*r.PerOut + (r.Stretch+g)*(r.PerToken*k.own+r.PerPair*k.pairs)
		if over := k.need - r.Room; over > 0 {
			cost += out * r.PerOver * over
		}
		costs[i] = cost
	}

	d.pos = d.pos[:0]
	from := 0
	for k := range t.Holders {
		h := &t.Holders[k]
		at := t.find(h.Target, from)
		d.pos = append(d.pos, int32(at))
		from = at + 1
		n := float64(h.Uncached)
		costs[at] = rows[h.Target].cost(out, g, n, pairsOf(n, prompt-n), prompt-float64(h.Shared)+out) + h.Transfer
	}
	elsewhere = math.Inf(1)
	if req.Deepest > 0 {
		elsewhere = d.discount(req, t, g)
	}

	least = costs[0]
	for _, c := range costs[1:] {
		if c < least {
			least = c
		}
	}
	return least, elsewhere
}

// discount takes from the cost of copies what is paid of them, and returns the least cost that a member would have which
// has less than the deepest holder, had it as much.
func (d *Pick) discount(req *Request, t *Table, g float64) float64 {
	prompt, debt, deepest := float64(narrow(req.PromptTokens)), req.debt(), req.deepest()
	deepPairs := pairsOf(deepest, prompt-deepest)
	kind := t.Kind
	if len(d.sizes) == 1 {
		kind = nil
	}
	elsewhere, next, at := math.Inf(1), 0, -1 // at is the place of the next holder
	if len(d.pos) > 0 {
		at = int(d.pos[0])
	}
	s := &d.sizes[0]
	for i, id := range t.Members {
		if kind != nil {
			s = &d.sizes[kind[i]]
		}
		n, p := s.own, s.pairs
		if i == at {
			n = float64(t.Holders[next].Uncached)
			p = pairsOf(n, prompt-n)
			if next++; next < len(d.pos) {
				at = int(d.pos[next])
			}
		}
		if n <= deepest {
			continue
		}
		c := t.Rows[id].copyOf(g, n, p, deepest, deepPairs)
		if hypothetical := d.costs[i] - c; hypothetical < elsewhere {
			elsewhere = hypothetical
		}
		if debt < c {
			c = debt
		}
		if d.costs[i] -= c; d.costs[i] < 0 {
			d.costs[i] = 0
		}
	}
	return elsewhere
}

// find is the place of a member at or after from. It is looked for at double the distance each time, which is quick both
// when everybody holds something and when few do.
func (t *Table) find(id fleet.TargetID, from int) int {
	if at := from + int(id) - int(t.Members[from]); at < len(t.Members) && t.Members[at] == id {
		return at // ids without gaps
	}
	step, lo, hi := 1, from, from
	for hi < len(t.Members) && t.Members[hi] < id {
		lo, hi = hi+1, hi+step
		step *= 2
	}
	i, _ := slices.BinarySearch(t.Members[lo:min(hi, len(t.Members)-1)+1], id)
	return lo + i
}

// before is the ranking of the package comment for a and b, with the least cost of all.
func (t *Table) before(d *Pick, least float64, a, b *Picked) bool {
	tiedA, tiedB := a.Cost-least <= TieBand, b.Cost-least <= TieBand
	switch {
	case tiedA && tiedB:
		order, _ := t.tieBreak(d, a, b)
		return order < 0
	case tiedA != tiedB:
		return tiedA
	case a.Cost != b.Cost:
		return a.Cost < b.Cost
	default:
		return a.Member < b.Member
	}
}

// tieBreak is tieBreak of the candidates, from rows and holders.
func (t *Table) tieBreak(d *Pick, a, b *Picked) (int, Reason) {
	if ha, hb := t.holder(d, a), t.holder(d, b); ha != hb {
		if o := cmp.Compare(ha.Uncached, hb.Uncached); o != 0 {
			return o, TieDeeperMatch
		}
		if o := cmp.Compare(hb.Cached, ha.Cached); o != 0 {
			return o, TieDeeperMatch
		}
		if o := cmp.Compare(hb.Held, ha.Held); o != 0 {
			return o, TieDeeperMatch
		}
	}
	ia, ib := t.Members[a.Member], t.Members[b.Member]
	if t.HasSession {
		if ia == t.Session {
			return -1, TieSession
		}
		if ib == t.Session {
			return 1, TieSession
		}
	}
	if x, y := t.Rows[ia].InFlight, t.Rows[ib].InFlight; x != y {
		return cmp.Compare(x, y), TieFewestInFlight
	}
	if x, y := t.Chosen[ia], t.Chosen[ib]; x != y {
		return cmp.Compare(x, y), TieLeastRecent
	}
	return cmp.Compare(a.Member, b.Member), TieLeastRecent
}

// holder is what a candidate holds, be it nothing.
func (t *Table) holder(d *Pick, p *Picked) *Holder {
	if p.holder >= 0 {
		return &t.Holders[p.holder]
	}
	if len(t.Kind) > 0 {
		return &d.kinds[t.Kind[p.Member]]
	}
	return &d.kinds[0]
}
