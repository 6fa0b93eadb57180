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

// low is what a group of members does not go below: with the kind that most have, and with what the deepest holder has.
type low struct{ cost, floor float64 }

// above is by how much a bound must exceed a cost to say that the members are beyond it: ties, and what rounding does.
const above = 2 * TieBand

// sieve fills Top with the keep members of the least cost, of equal ones the first, what is paid of copies taken off. It also
// fills pos, floor, and costs, where those that were not looked at cost infinitely much: none of them is among the first or
// ties with them.
func (d *Pick) sieve(q *question, t *Table, keep int) {
	d.measure(q)
	d.Top, d.floor = d.Top[:0], bound{cost: math.Inf(1)}
	d.costs = slices.Grow(d.costs[:0], len(t.Members))[:len(t.Members)]
	d.findHolders(t)

	d.usual = t.Usual
	d.findAlike(t.Usual)
	if n := LeastRows - len(d.same); n > 0 {
		d.same = append(d.same, make([]uint8, n)...)
	}
	usual := &d.sizes[t.Usual]
	d.lows = d.lows[:0]
	best := 0
	for i := range t.Least {
		l := &t.Least[i]
		base, stretch := l.Base+q.out*l.PerOut, l.Stretch+q.price
		v := low{cost: base + stretch*(l.PerToken*usual.own+l.PerPair*usual.pairs)}
		if q.isHeld {
			v.floor = base + stretch*(l.PerToken*q.deepest+l.PerPair*q.pairs)
			if usual.own > q.deepest {
				v.cost = max(v.cost-q.debt, v.floor)
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
}

// sieveGroup takes in a group of members, of whom the first holder is the one at next, and returns the first of the group
// behind it.
func (d *Pick) sieveGroup(q *question, t *Table, group, next, keep int) int {
	from := group * LeastRows
	members := t.Members[from:min(from+LeastRows, len(t.Members))]
	costs, kinds := d.costs[from:from+len(members)], d.same
	if len(d.sizes) > 1 {
		kinds = t.Kind[from : from+len(members)]
	}
	limit := math.Inf(1)
	if len(d.Top) == keep {
		limit = d.Top[keep-1].Cost
	}
	own := next
	for next < len(d.pos) && int(d.pos[next]) < from+len(members) {
		next++
	}
	rest := uint32(1)<<len(members) - 1 // whom to look at
	if v := &d.lows[group]; v.cost > limit+above && (!q.isHeld || v.floor > d.floor.cost) {
		if rest = 0; len(d.sizes) > 1 {
			rest = d.unlike(kinds)
		}
		for _, at := range d.pos[own:next] {
			rest |= 1 << (int(at) - from)
		}
		for i := range costs {
			costs[i] = math.Inf(1)
		}
	}
	var single size
	for ; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros32(rest)
		r, s, transfer := &t.Rows[members[i]], &d.sizes[kinds[i]], 0.0
		if own < next && int(d.pos[own]) == from+i {
			h := &t.Holders[own]
			single, transfer = q.sizeOf(h), h.Transfer
			s = &single
			own++
		}
		base, stretch := r.Base+q.out*r.PerOut, r.Stretch+q.price
		cost := base + stretch*(r.PerToken*s.own+r.PerPair*s.pairs)
		if over := s.need - r.Room; over > 0 {
			cost += q.out * r.PerOver * over
		}
		cost += transfer
		if q.isHeld {
			if c := base + stretch*(r.PerToken*q.deepest+r.PerPair*q.pairs); c < d.floor.cost {
				d.floor = bound{c, int32(from + i)}
			}
			if q.debt > 0 && s.own > q.deepest {
				cost = max(cost-min(q.debt, r.copyOf(q.price, s.own, s.pairs, q.deepest, q.pairs)), 0)
			}
		}
		costs[i] = cost
		if cost <= limit {
			limit = d.enter(Picked{Member: from + i, Cost: cost}, keep)
		}
	}
	return next
}

// enter puts a member into Top if it belongs there, and returns what the last place costs.
func (d *Pick) enter(v Picked, keep int) (limit float64) {
	switch {
	case len(d.Top) < keep:
		d.Top = append(d.Top, v)
	case v.isBefore(&d.Top[keep-1]):
	default:
		return d.Top[keep-1].Cost
	}
	j := len(d.Top) - 1
	for ; j > 0 && v.isBefore(&d.Top[j-1]); j-- {
		d.Top[j] = d.Top[j-1]
	}
	if d.Top[j] = v; len(d.Top) < keep {
		return math.Inf(1)
	}
	return d.Top[keep-1].Cost
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
}

// unlike has a bit for each of up to 16 kinds that is neither the usual one nor like it.
func (d *Pick) unlike(kinds []uint8) uint32 {
	if len(kinds) == LeastRows {
		low, high := binary.LittleEndian.Uint64(kinds), binary.LittleEndian.Uint64(kinds[8:])
		a, b := differ(low, d.usual), differ(high, d.usual)
		for _, k := range d.alike {
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
