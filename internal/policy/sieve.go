package policy

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Of a thousand members a few can be among the first, and the loads say of most of the others that they cannot: what is least
// in the rows of sixteen gives a cost that none of them goes below. Where that is above the last place no row is read.

// LeastRows is how many members one Least is of.
const LeastRows = 16

// Least is what no row of some goes below.
type Least struct {
	Base, Stretch, PerToken, PerPair, PerOut float64
}

// NewLeast finds it for the rows of some members.
func NewLeast(rows []Row, members []fleet.TargetID) Least {
	inf := math.Inf(1)
	l := Least{inf, inf, inf, inf, inf}
	for _, id := range members {
		r := &rows[id]
		l.Base, l.Stretch, l.PerOut = min(l.Base, r.Base), min(l.Stretch, r.Stretch), min(l.PerOut, r.PerOut)
		l.PerToken, l.PerPair = min(l.PerToken, r.PerToken), min(l.PerPair, r.PerPair)
	}
	return l
}

// low is what a group of members does not go below: who holds the least, who is of the kind that most are of, and with what
// the deepest holder has.
type low struct{ any, cost, floor float64 }

// above is by how much a bound must exceed the last place to say that the members are beyond it where all places tie, or
// something is taken off: ties, and what rounding does.
const above = 2 * TieBand

// sieve fills Top with the keep members of the least cost, of equal ones the first, what is paid of copies taken off. It also
// fills pos, floor, and costs, where those that were not looked at cost infinitely much: none of them is among the first or
// ties with them. False: too few could be passed over for that to be worth while, as in a fleet that is idle, and nothing is
// filled in.
func (d *Pick) sieve(q *question, t *Table, keep int) bool {
	d.measure(q)
	d.Top, d.floor = d.Top[:0], bound{cost: math.Inf(1)}
	d.costs = slices.Grow(d.costs[:0], len(t.Members))[:len(t.Members)]
	d.findHolders(t)

	d.usual = t.Usual
	d.findAlike(t.Usual)
	if d.passed[0] == 0 {
		for i := range d.passed {
			d.passed[i] = math.Inf(1)
		}
	}
	if n := LeastRows - len(d.same); n > 0 {
		d.same = append(d.same, make([]uint8, n)...)
	}
	usual, least := &d.sizes[t.Usual], d.leastSize(q, t)
	d.lows = d.lows[:0]
	best := 0
	for i := range t.Least {
		l := &t.Least[i]
		base, stretch := l.Base+q.out*l.PerOut, l.Stretch+q.price
		v := low{
			any:  base + stretch*(l.PerToken*least.own+l.PerPair*least.pairs),
			cost: base + stretch*(l.PerToken*usual.own+l.PerPair*usual.pairs),
		}
		if q.isHeld {
			v.floor = base + stretch*(l.PerToken*q.deepest+l.PerPair*q.pairs)
			if usual.own > q.deepest {
				v.cost = max(v.cost-q.debt, v.floor)
			}
			if least.own > q.deepest {
				v.any = max(v.any-q.debt, v.floor)
			}
		}
		d.lows = append(d.lows, v)
		if v.cost < d.lows[best].cost {
			best = i
		}
	}
	// The group that promises most first: what it comes to spares others.
	next, _ := slices.BinarySearch(d.pos, int32(best*LeastRows))
	d.sieveGroup(q, t, best, next, keep)
	if len(d.sizes) == 1 && len(d.pos) == 0 {
		passed := 0
		for limit, i := d.Top[len(d.Top)-1].Cost+above, 0; i < len(d.lows); i++ {
			if d.lows[i].cost > limit {
				passed++
			}
		}
		if 2*passed < len(d.lows) {
			return false
		}
	}
	next = 0
	for i := range d.lows {
		if i != best {
			next = d.sieveGroup(q, t, i, next, keep)
			continue
		}
		for next < len(d.pos) && int(d.pos[next]) < (i+1)*LeastRows {
			next++
		}
	}
	return true
}

// findHolders fills d.pos.
func (d *Pick) findHolders(t *Table) {
	d.pos = d.pos[:0]
	from := 0
	for k := range t.Holders {
		at := t.find(t.Holders[k].Target, from)
		d.pos = append(d.pos, int32(at))
		from = at + 1
	}
}

// sieveGroup takes in a group of members, of whom the first holder is the one at next, and returns the first of the group
// behind it.
func (d *Pick) sieveGroup(q *question, t *Table, group, next, keep int) int {
	from := group * LeastRows
	members := t.Members[from:min(from+LeastRows, len(t.Members))]
	costs, kinds := d.costs[from:from+len(members)], d.same[:len(members)]
	if len(d.sizes) > 1 {
		kinds = t.Kind[from : from+len(members)]
	}
	own := next
	for next < len(d.pos) && int(d.pos[next]) < from+len(members) {
		next++
	}
	v, limit, last := &d.lows[group], math.Inf(1), 0
	beyond := limit // who costs more is neither among the first nor ties with them
	if len(d.Top) == keep {
		limit, last = d.Top[keep-1].Cost, d.Top[keep-1].Member
		switch isApart := q.debt <= 0 && limit-d.Top[0].Cost > TieBand; {
		case isApart && from > last: // nor who costs as much
			beyond = math.Nextafter(limit, 0)
		case isApart:
			beyond = limit
		default:
			beyond = limit + above
		}
	}
	canPass := !q.isHeld || v.floor >= d.floor.cost
	if canPass && v.any > beyond {
		copy(costs, d.passed[:])
		return next
	}
	rest := uint32(1)<<len(members) - 1 // whom to look at
	if canPass && v.cost > beyond {
		if rest = 0; len(d.sizes) > 1 {
			rest = d.unlike(kinds)
		}
		copy(costs, d.passed[:])
		for some := rest; some != 0; some &= some - 1 {
			i := bits.TrailingZeros32(some)
			costs[i] = d.priceOne(q, &t.Rows[members[i]], &d.sizes[kinds[i]], from+i)
		}
	} else {
		d.priceEach(q, t.Rows, members, kinds, costs, from)
	}
	for k, at := range d.pos[own:next] {
		h, i := &t.Holders[own+k], int(at)-from
		s := q.sizeOf(h)
		costs[i] = d.priceOne(q, &t.Rows[members[i]], &s, from+i) + h.Transfer
		rest |= 1 << i
	}
	if q.debt <= 0 {
		for ; rest != 0; rest &= rest - 1 {
			i := bits.TrailingZeros32(rest)
			if cost := costs[i]; cost < limit || cost == limit && from+i < last {
				limit, last = d.enter(Picked{Member: from + i, Cost: cost}, keep)
			}
		}
		return next
	}
	slack := q.slack()
	for ; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros32(rest)
		cost := costs[i]
		if cost > limit+slack {
			continue
		}
		s := d.sizes[kinds[i]]
		if k := d.holderIn(from+i, own, next); k >= 0 {
			s = q.sizeOf(&t.Holders[k])
		}
		if s.own > q.deepest {
			c := t.Rows[members[i]].copyOf(q.price, s.own, s.pairs, q.deepest, q.pairs)
			cost = max(cost-min(q.debt, c), 0)
			costs[i] = cost
		}
		if cost < limit || cost == limit && from+i < last {
			limit, last = d.enter(Picked{Member: from + i, Cost: cost}, keep)
		}
	}
	return next
}

// holderIn is the place of a member among the holders from own to next, or -1.
func (d *Pick) holderIn(member, own, next int) int {
	for k := own; k < next; k++ {
		if int(d.pos[k]) == member {
			return k
		}
	}
	return -1
}

// priceOne is what a member costs, but for a transfer and what is paid of a copy. It takes part in the floor.
func (d *Pick) priceOne(q *question, r *Row, s *size, member int) float64 {
	base, stretch := r.Base+q.out*r.PerOut, r.Stretch+q.price
	cost := base + stretch*(r.PerToken*s.own+r.PerPair*s.pairs)
	if over := s.need - r.Room; over > 0 {
		cost += q.out * r.PerOver * over
	}
	if q.isHeld {
		if c := base + stretch*(r.PerToken*q.deepest+r.PerPair*q.pairs); c < d.floor.cost {
			d.floor = bound{c, int32(member)}
		}
	}
	return cost
}

// leastSize is what who holds most of a prompt has to compute of it, or less.
func (d *Pick) leastSize(q *question, t *Table) size {
	least := d.sizes[0]
	for _, s := range d.sizes[1:] {
		least.own, least.pairs = min(least.own, s.own), min(least.pairs, s.pairs)
	}
	for i := range t.Holders {
		s := q.sizeOf(&t.Holders[i])
		least.own, least.pairs = min(least.own, s.own), min(least.pairs, s.pairs)
	}
	return least
}

// enter puts a member into Top, where it belongs, and returns what the last place costs, and whose it is.
func (d *Pick) enter(v Picked, keep int) (limit float64, last int) {
	if len(d.Top) < keep {
		d.Top = append(d.Top, v)
	}
	j := len(d.Top) - 1
	for ; j > 0 && v.isBefore(&d.Top[j-1]); j-- {
		d.Top[j] = d.Top[j-1]
	}
	if d.Top[j] = v; len(d.Top) < keep {
		return math.Inf(1), 0
	}
	return d.Top[keep-1].Cost, d.Top[keep-1].Member
}

// isBefore says that a member costs less than another, or as much and stands before it.
func (p *Picked) isBefore(o *Picked) bool {
	return p.Cost < o.Cost || p.Cost == o.Cost && p.Member < o.Member
}

// findAlike notes a few kinds that cost no less than the usual one does at the least.
func (d *Pick) findAlike(usual uint8) {
	u, n := d.sizes[usual], 0
	for i := range d.alike {
		d.alike[i] = usual
	}
	for k, s := range d.sizes {
		if n < len(d.alike) && uint8(k) != usual && s.own >= u.own && s.pairs >= u.pairs {
			d.alike[n] = uint8(k)
			n++
		}
	}
	d.numAlike = n
}

// unlike has a bit for each of up to 16 kinds that is neither the usual one nor like it.
func (d *Pick) unlike(kinds []uint8) uint32 {
	if len(kinds) == LeastRows {
		low, high := binary.LittleEndian.Uint64(kinds), binary.LittleEndian.Uint64(kinds[8:])
		a, b := differ(low, d.usual), differ(high, d.usual)
		for _, k := range d.alike[:d.numAlike] {
			a &= differ(low, k)
			b &= differ(high, k)
		}
		return gather(a) | gather(b)<<8
	}
	out := uint32(0)
	for i, k := range kinds {
		if k != d.usual && k != d.alike[0] && k != d.alike[1] && k != d.alike[2] {
			out |= 1 << i
		}
	}
	return out
}

// differ has the highest bit of each byte that is not k.
func differ(bytes uint64, k uint8) uint64 {
	const ones, low = 0x0101010101010101, 0x7f7f7f7f7f7f7f7f
	x := bytes ^ uint64(k)*ones
	return ((x & low) + low | x) &^ low
}

// gather puts the highest bits of the bytes side by side.
func gather(x uint64) uint32 { return uint32(x >> 7 * 0x0102040810204080 >> 56) }
