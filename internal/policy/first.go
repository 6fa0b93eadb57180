package policy

import (
	"cmp"
	"math"
	"slices"
)

// rank puts in order those that tie with the first of Top, which has the smallest costs.
func (d *Pick) rank(t *Table, least float64) {
	tied := 1
	for tied < len(d.Top) && d.Top[tied].Cost-least <= TieBand {
		tied++
	}
	switch {
	case tied < len(d.Top) || tied == len(d.costs): // all that tie are there
		for i := range d.Top[:tied] { // of the others nobody asks
			d.Top[i].holder = d.holderAt(d.Top[i].Member)
		}
		if tied > 1 {
			slices.SortFunc(d.Top[:tied], func(a, b Picked) int {
				order, _ := t.tieBreak(d, &a, &b)
				return order
			})
		}
	case len(d.pos) == 0 && len(d.sizes) == 1:
		d.spread(t, least)
	default:
		d.rankTied(t, least)
	}
}

// smallest fills Top with the keep members of the least cost, of equal ones the first. With a slack it fills d.near, too, with
// all that are no more than that above the last of them, and some others.
func (d *Pick) smallest(keep int, slack float64) {
	top, costs := d.Top[:0], d.costs
	for i := range costs[:keep] {
		top = append(top, Picked{Member: i, Cost: costs[i]})
		sift(top)
	}
	last, near := &top[keep-1], slack > 0
	if near {
		d.near = slices.Grow(d.near[:0], len(costs))
		for i := range keep {
			d.near = append(d.near, int32(i))
		}
	}
	limit := last.Cost + slack
	for i := keep; i < len(costs); i++ {
		cost := costs[i]
		if cost >= limit {
			continue
		}
		if near {
			d.near = append(d.near, int32(i))
			if cost >= last.Cost {
				continue
			}
		}
		*last = Picked{Member: i, Cost: cost}
		sift(top)
		limit = last.Cost + slack
	}
	d.Top = top
}

// sift brings the last of a list that is ordered otherwise to its place behind its equals.
func sift(top []Picked) {
	j := len(top) - 1
	v := top[j]
	for ; j > 0 && v.Cost < top[j-1].Cost; j-- {
		top[j] = top[j-1]
	}
	top[j] = v
}

// spread is rankTied where all hold alike: the session's own is first, then who has the fewest in flight, then who was
// chosen least recently.
func (d *Pick) spread(t *Table, least float64) {
	keep, session := len(d.Top), -1
	if t.HasSession {
		if i, ok := slices.BinarySearch(t.Members, t.Session); ok && d.costs[i]-least <= TieBand {
			session = i
			keep--
		}
	}
	d.ties = slices.Grow(d.ties[:0], keep+1)
	first, last := d.ties, tie{inFlight: math.MaxInt64, chosen: math.MaxUint64}
	members, rows := t.Members, t.Rows
	costs := d.costs[:len(members)]
	for i, id := range members {
		chosen := t.Chosen[id]
		if last.inFlight == 0 && chosen >= last.chosen || costs[i]-least > TieBand {
			continue // in an idle fleet most end here, without a look at their rows
		}
		v := tie{rows[id].InFlight, chosen, i}
		if !v.isBefore(&last) || i == session {
			continue
		}
		first = append(first[:min(len(first), keep-1)], v)
		j := len(first) - 1
		for ; j > 0 && v.isBefore(&first[j-1]); j-- {
			first[j] = first[j-1]
		}
		first[j] = v
		if len(first) == keep {
			last = first[keep-1]
		}
	}
	d.Top = d.Top[:0]
	if session >= 0 {
		d.Top = append(d.Top, Picked{Member: session, Cost: costs[session], holder: -1})
	}
	for _, v := range first {
		d.Top = append(d.Top, Picked{Member: v.member, Cost: costs[v.member], holder: -1})
	}
}

// tie is what sets apart members that cost the same and hold alike.
type tie struct {
	inFlight int64
	chosen   uint64
	member   int
}

// isBefore says that a tie comes before another one, which is of a member before it.
func (v *tie) isBefore(w *tie) bool {
	return v.inFlight < w.inFlight || v.inFlight == w.inFlight && v.chosen < w.chosen
}

// rankTied fills Top where more tie than there are places.
func (d *Pick) rankTied(t *Table, least float64) {
	keep := len(d.Top)
	d.Top = d.Top[:0]
	for i, cost := range d.costs {
		if cost-least <= TieBand {
			d.keep(t, i, keep)
		}
	}
}

// keep inserts member i, which ties, among the kept, if it is one of them.
func (d *Pick) keep(t *Table, i, keep int) {
	v := Picked{Member: i, Cost: d.costs[i], holder: d.holderAt(i)}
	if len(d.Top) == keep {
		if order, _ := t.tieBreak(d, &v, &d.Top[keep-1]); order >= 0 {
			return
		}
		d.Top = d.Top[:keep-1]
	}
	j := len(d.Top)
	d.Top = append(d.Top, v)
	for ; j > 0; j-- {
		if order, _ := t.tieBreak(d, &v, &d.Top[j-1]); order >= 0 {
			break
		}
		d.Top[j] = d.Top[j-1]
	}
	d.Top[j] = v
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
