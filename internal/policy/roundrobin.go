package policy

// RoundRobin takes the candidates one after the other, in the order in which they are given. Its state is the caller's
// count of decisions, Request.Turn.
type RoundRobin struct{}

// Name is "round_robin".
func (RoundRobin) Name() string { return "round_robin" }

// Choose takes candidate Turn mod n; the rest follows in turn.
func (RoundRobin) Choose(req *Request, cands []Candidate, d *Decision) {
	DefaultLeastTime().score(req, cands, d)
	n := uint64(len(cands))
	for i := range d.Order {
		d.Order[i] = int((req.Turn%n + uint64(i)) % n)
	}
	settleByPlace(d)
}

// settleByPlace makes the place in the order the cost.
func settleByPlace(d *Decision) {
	if len(d.Order) == 0 {
		d.Best, d.Reason = -1, 0
		return
	}
	for place, i := range d.Order {
		d.Scores[i].Cost = float64(place)
	}
	d.settle(PolicyOrder)
}
