package policy

import (
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
	// Usual is the kind that most members have, as far as it is known; only the time of a choice depends on it.
	Usual uint8
	// Least says what no row of some members goes below: Least[i] of the LeastRows from LeastRows*i on. With it most are
	// not looked at. nil: it is not known.
	Least []Least
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

	kinds []Holder  // of members that are no holders; while Pick runs
	none  [1]Holder // them, where nobody holds anything
	sizes []size    // of the kinds
	costs []float64 // of the members
	pos   []int32   // places of the holders among the members
	ties  []tie     // the first of those that tie and hold alike
	near  []int32   // members that may be among the first when what is paid is taken off
	same  []uint8   // zeros, for members of one kind
	lows  []low     // of the groups of Table.Least
	usual uint8     // Table.Usual
	alike [3]uint8  // kinds that cost no less at the least

	numAlike int                // of alike
	passed   [LeastRows]float64 // infinitely much
	floor    bound              // where somebody holds something
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
	if d.kinds = t.Kinds; len(d.kinds) == 0 {
		d.none[0] = Holder{Uncached: narrow(req.PromptTokens)}
		d.kinds = d.none[:]
	}
	places := req.Places
	if places <= 0 {
		places = len(t.Members)
	}
	keep := min(max(places, 2), len(t.Members)) // the reason compares the first two

	q := asked(req)
	if t.Least == nil || !d.sieve(&q, t, keep) {
		d.price(&q, t)
		slack := q.slack()
		d.smallest(keep, slack)
		if slack > 0 {
			d.discount(&q, t, keep)
		}
	}
	least := d.Top[0].Cost
	d.rank(t, least)
	switch {
	case len(d.Top) == 1:
		d.Reason = OnlyCandidate
	case d.Top[1].Cost-least > TieBand:
		d.Reason = LeastCost
	default:
		_, d.Reason = t.tieBreak(d, &d.Top[0], &d.Top[1])
	}
	d.owe(&q, t, least)
	d.Top, d.kinds = d.Top[:min(places, len(d.Top))], nil
}

// question is a Request in range, as the costs read it.
type question struct {
	prompt, out, price float64 // tokens, tokens, Prices.Prefill
	isHeld             bool    // somebody holds something
	deepest, pairs     float64 // what the deepest holder has to compute
	debt               float64 // 0 where nobody holds anything
}

func asked(req *Request) question {
	q := question{
		prompt: float64(narrow(req.PromptTokens)), out: within(req.ExpectedOutput, maxTokens), price: within(req.Prices.Prefill, maxRate),
		isHeld: req.Deepest > 0,
	}
	if q.isHeld {
		q.deepest, q.debt = req.deepest(), req.debt()
		q.pairs = pairsOf(q.deepest, q.prompt-q.deepest)
	}
	return q
}

// slack is how far above another a cost may be that can tie with it when what is paid of a copy is taken off. The band
// is in it twice: rounding must not leave one out.
func (q *question) slack() float64 {
	if q.debt <= 0 {
		return 0
	}
	return q.debt + 2*TieBand
}

// sizeOf is what the cost of what is left of a prompt depends on.
func (q *question) sizeOf(h *Holder) size {
	n := float64(h.Uncached)
	return size{n, pairsOf(n, q.prompt-n), q.prompt - float64(h.Shared) + q.out}
}

// price fills d.costs, without what is paid of copies, and d.pos. Where somebody holds something it finds d.floor, too.
func (d *Pick) price(q *question, t *Table) {
	d.measure(q)
	d.costs = slices.Grow(d.costs[:0], len(t.Members))[:len(t.Members)]
	first, last := int(t.Members[0]), int(t.Members[len(t.Members)-1])
	if !q.isHeld && len(d.sizes) == 1 && last-first == len(t.Members)-1 {
		d.priceAlike(q, t.Rows[first:last+1])
	} else {
		d.floor = bound{cost: math.Inf(1)}
		d.priceEach(q, t.Rows, t.Members, d.kindOf(t), d.costs, 0)
	}

	d.pos = d.pos[:0]
	from := 0
	for k := range t.Holders {
		h := &t.Holders[k]
		at := t.find(h.Target, from)
		d.pos = append(d.pos, int32(at))
		from = at + 1
		s := q.sizeOf(h)
		d.costs[at] = t.Rows[h.Target].cost(q.out, q.price, s.own, s.pairs, s.need) + h.Transfer
	}
}

// measure fills d.sizes.
func (d *Pick) measure(q *question) {
	d.sizes = slices.Grow(d.sizes[:0], 256)
	for i := range d.kinds {
		d.sizes = append(d.sizes, q.sizeOf(&d.kinds[i]))
	}
}

// kindOf is Table.Kind, or one that is all zeros.
func (d *Pick) kindOf(t *Table) []uint8 {
	if len(d.sizes) > 1 {
		return t.Kind
	}
	if n := len(t.Members) - len(d.same); n > 0 {
		d.same = append(d.same, make([]uint8, n)...)
	}
	return d.same
}

// priceAlike is the loop of price for members whose ids have no gaps and who hold alike. Row.cost is written
// out here and in priceEach: it is too large to be inlined.
func (d *Pick) priceAlike(q *question, rows []Row) {
	costs, k, out, price := d.costs[:len(rows)], d.sizes[0], q.out, q.price
	for i := range rows {
		r := &rows[i]
		cost := r.Base + out*r.PerOut + (r.Stretch+price)*(r.PerToken*k.own+r.PerPair*k.pairs)
		if over := k.need - r.Room; over > 0 {
			cost += out * r.PerOver * over
		}
		costs[i] = cost
	}
}

// priceEach is the loop of price for members from a place on, of kinds that are theirs, and fills costs. It notes on the way
// what all would cost at the least with what the deepest holder has: without transfers, and as if memory were not short.
func (d *Pick) priceEach(q *question, rows []Row, members []fleet.TargetID, kinds []uint8, costs []float64, from int) {
	sizes := (*[256]size)(d.sizes[:256])
	out, price, deepest, deepPairs := q.out, q.price, q.deepest, q.pairs
	costs, kinds = costs[:len(members)], kinds[:len(members)]
	floor := d.floor
	for i, id := range members {
		k, r := &sizes[kinds[i]], &rows[id]
		base, stretch := r.Base+out*r.PerOut, r.Stretch+price
		cost := base + stretch*(r.PerToken*k.own+r.PerPair*k.pairs)
		if over := k.need - r.Room; over > 0 {
			cost += out * r.PerOver * over
		}
		costs[i] = cost
		if c := base + stretch*(r.PerToken*deepest+r.PerPair*deepPairs); c < floor.cost {
			floor = bound{c, int32(from + i)}
		}
	}
	d.floor = floor
}

// bound is a cost that no member goes below, and the member that comes nearest to it.
type bound struct {
	cost   float64
	member int32
}

// discount takes from the cost of copies what is paid of them, where that can bring one of them among the first keep:
// what is more than the debt above the last of these cannot become one, and keeps its cost. Top has the smallest costs, before
// as after; who may be among them is in d.near.
func (d *Pick) discount(q *question, t *Table, keep int) {
	limit := d.Top[len(d.Top)-1].Cost + q.slack()
	d.Top = d.Top[:0]
	next := 0
	for _, i := range d.near {
		cost := d.costs[i]
		if cost > limit {
			continue
		}
		for next < len(d.pos) && d.pos[next] < i {
			next++
		}
		var s size
		switch {
		case next < len(d.pos) && d.pos[next] == i:
			s = q.sizeOf(&t.Holders[next])
		case len(d.sizes) > 1:
			s = d.sizes[t.Kind[i]]
		default:
			s = d.sizes[0]
		}
		if s.own > q.deepest {
			c := t.Rows[t.Members[i]].copyOf(q.price, s.own, s.pairs, q.deepest, q.pairs)
			cost = max(cost-min(q.debt, c), 0)
			d.costs[i] = cost
		}
		if len(d.Top) < keep {
			d.Top = append(d.Top, Picked{Member: int(i), Cost: cost})
		} else if last := &d.Top[keep-1]; cost < last.Cost {
			*last = Picked{Member: int(i), Cost: cost}
		} else {
			continue
		}
		sift(d.Top)
	}
}

// owe finds what the choice changes of the debt. least is the least cost.
func (d *Pick) owe(q *question, t *Table, least float64) {
	if !q.isHeld {
		return
	}
	best := &d.Top[0]
	s := q.sizeOf(t.holder(d, best))
	if s.own > q.deepest {
		if c := t.Rows[t.Members[best.Member]].copyOf(q.price, s.own, s.pairs, q.deepest, q.pairs); c > 0 {
			d.Owed = -min(q.debt, c)
			return
		}
	}
	if best.Cost > min(d.floor.cost, least) {
		d.Owed = best.Cost - min(d.elsewhere(q, t), least)
	}
}

// elsewhere is the least cost that a member would have which has less than the deepest holder, had it as much.
func (d *Pick) elsewhere(q *question, t *Table) float64 {
	at := int(d.floor.member)
	cost, ok := d.supposed(q, t, at)
	if ok && cost <= d.floor.cost {
		return cost // nobody goes below it
	}
	least := math.Inf(1)
	for i := range t.Members {
		if cost, ok := d.supposed(q, t, i); ok {
			least = min(least, cost)
		}
	}
	return least
}

// supposed is what a member would cost with all that the deepest holder has; false: it has as much.
func (d *Pick) supposed(q *question, t *Table, i int) (cost float64, ok bool) {
	h := d.memberHolds(t, i)
	s := q.sizeOf(h)
	if s.own <= q.deepest {
		return 0, false
	}
	return t.Rows[t.Members[i]].cost(q.out, q.price, q.deepest, q.pairs, s.need) + h.Transfer, true
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

// holderAt is the place of a member among the holders, or -1.
func (d *Pick) holderAt(member int) int32 {
	if k, ok := slices.BinarySearch(d.pos, int32(member)); ok {
		return int32(k)
	}
	return -1
}

// memberHolds is what a member holds.
func (d *Pick) memberHolds(t *Table, i int) *Holder {
	return t.holder(d, &Picked{Member: i, holder: d.holderAt(i)})
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
