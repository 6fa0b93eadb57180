package policy

// PowerOfTwo draws two different targets and takes the one with fewer requests in flight, by the common tie rules when
// they have the same number. The loser is second; the others follow as LeastLoaded would rank them.
type PowerOfTwo struct{}

// Name is "power_of_two".
func (PowerOfTwo) Name() string { return "power_of_two" }

// Choose draws from req.Seed.
func (PowerOfTwo) Choose(req *Request, cands []Candidate, d *Decision) {
	scoreByLoad(req, cands, d)
	rank(cands, d, 0)
	n := len(d.Order)
	if n < 2 {
		return
	}
	r := splitMix(req.Seed)
	i, j := r.below(n), r.below(n-1)
	if j >= i {
		j++
	}
	// The places are those of the full ranking, so the lower of the two is the better.
	moveToFront(d.Order, max(i, j))
	moveToFront(d.Order, min(i, j)+1)

	a, b := d.Order[0], d.Order[1]
	reason := LeastCost
	if d.Scores[b].Cost-d.Scores[a].Cost <= TieBand {
		_, reason = tieBreak(cands, d.Scores, a, b)
	}
	d.settle(reason)
}

// moveToFront brings s[i] to the front and keeps the order of the rest.
func moveToFront(s []int, i int) {
	v := s[i]
	copy(s[1:i+1], s[:i])
	s[0] = v
}
