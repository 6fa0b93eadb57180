package policy

import (
	"cmp"
	"slices"
)

// TieBand is how far from the least cost a candidate still counts as equal, in seconds. A prediction is not better than
// that, and rounding must not decide.
const TieBand = 1e-6

// key is what the ranking compares, kept together so that sorting does not chase indices.
type key struct {
	cost float64
	id   uint32
	at   int32
}

// rank orders the candidates by their costs, at least the first places of them (0: all), and settles the decision. See
// the package comment for the rule.
func rank(cands []Candidate, d *Decision, places int) {
	if len(cands) == 0 {
		d.Best, d.Reason = -1, 0
		return
	}
	keys := slices.Grow(d.keys[:0], len(cands))
	least := d.Scores[0].Cost
	for i := range cands {
		cost := d.Scores[i].Cost
		least = min(least, cost)
		keys = append(keys, key{cost, uint32(cands[i].Target), int32(i)})
	}
	d.keys = keys
	tied := 0
	for i := range keys {
		if keys[i].cost-least <= TieBand {
			keys[i], keys[tied] = keys[tied], keys[i]
			tied++
		}
	}
	if places <= 0 {
		places = len(keys)
	}
	places = max(places, 2) // the reason compares the first two
	smallestFirst(keys[:tied], places, func(a, b key) int {
		order, _ := tieBreak(cands, d.Scores, int(a.at), int(b.at))
		return order
	})
	smallestFirst(keys[tied:], places-tied, byCost)
	for i, k := range keys {
		d.Order[i] = int(k.at)
	}

	reason := LeastCost
	if tied > 1 {
		_, reason = tieBreak(cands, d.Scores, d.Order[0], d.Order[1])
	}
	d.settle(reason)
}

// smallestFirst puts the n smallest to the front in order. A few of many are kept by insertion, one pass over the rest.
func smallestFirst(s []key, n int, compare func(a, b key) int) {
	if n <= 0 {
		return
	}
	if n > len(s)/4 {
		slices.SortFunc(s, compare)
		return
	}
	slices.SortFunc(s[:n], compare)
	for i := n; i < len(s); i++ {
		v := s[i]
		if compare(v, s[n-1]) >= 0 {
			continue
		}
		s[i] = s[n-1]
		j := n - 1
		for ; j > 0 && compare(v, s[j-1]) < 0; j-- {
			s[j] = s[j-1]
		}
		s[j] = v
	}
}

func byCost(a, b key) int {
	switch {
	case a.cost < b.cost:
		return -1
	case a.cost > b.cost:
		return 1
	default:
		return cmp.Compare(a.id, b.id)
	}
}

// tieBreak orders candidates i and j of equal cost and says what decided. What is expected counts as held, but of two
// equal sums the one with more reported tokens is deeper: facts before guesses, and what can be reused before what is
// only held.
func tieBreak(cands []Candidate, scores []Score, i, j int) (int, Reason) {
	a, b := &cands[i], &cands[j]
	if o := cmp.Compare(scores[i].Uncached, scores[j].Uncached); o != 0 {
		return o, TieDeeperMatch
	}
	if o := cmp.Compare(scores[j].Cached, scores[i].Cached); o != 0 {
		return o, TieDeeperMatch
	}
	if o := cmp.Compare(max(b.Held, 0), max(a.Held, 0)); o != 0 {
		return o, TieDeeperMatch
	}
	if o := cmp.Compare(b.Preferred, a.Preferred); o != 0 {
		return o, TiePreferred
	}
	if a.SameSession != b.SameSession {
		if a.SameSession {
			return -1, TieSession
		}
		return 1, TieSession
	}
	if o := cmp.Compare(max(a.InFlight, 0), max(b.InFlight, 0)); o != 0 {
		return o, TieFewestInFlight
	}
	if o := cmp.Compare(a.LastChosen, b.LastChosen); o != 0 {
		return o, TieLeastRecent
	}
	return cmp.Compare(a.Target, b.Target), TieLeastRecent
}
