package policy

// LeastLoaded takes the target with the fewest requests in flight, whatever their size and whatever is cached. Ties go
// by the common tie rules.
type LeastLoaded struct{}

// Name is "least_loaded".
func (LeastLoaded) Name() string { return "least_loaded" }

// Choose ranks by requests in flight.
func (LeastLoaded) Choose(req *Request, cands []Candidate, d *Decision) {
	scoreByLoad(req, cands, d)
	rank(cands, d, req.Places)
}

// scoreByLoad makes requests in flight the cost.
func scoreByLoad(req *Request, cands []Candidate, d *Decision) {
	DefaultLeastTime().score(req, cands, d)
	for i := range cands {
		d.Scores[i].Cost = float64(max(cands[i].InFlight, 0))
	}
}
