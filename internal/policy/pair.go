package policy

import (
	"math"
	"slices"
)

// Place says where a worker stands, as small numbers that its labels were given. 0: not said.
type Place struct {
	// Domain is shared memory between accelerators (an NVLink domain), Rack and Zone what their names say.
	Domain, Rack, Zone uint64
}

// Distance is how far KV cache has to travel.
type Distance uint8

// The distances, nearest first.
const (
	SameWorker Distance = iota
	SameDomain
	SameRack
	SameZone // or nothing is known
	OtherZone

	numDistances
)

// To is how far q is, for two different workers. What is not said is equal to nothing, and a zone that is not said is
// taken to be the same.
func (p Place) To(q Place) Distance {
	switch {
	case p.Domain != 0 && p.Domain == q.Domain:
		return SameDomain
	case p.Rack != 0 && p.Rack == q.Rack:
		return SameRack
	case p.Zone != 0 && q.Zone != 0 && p.Zone != q.Zone:
		return OtherZone
	default:
		return SameZone
	}
}

// Links are what moving KV cache from a prefill to a decode worker costs.
type Links struct {
	// PerToken is the time of one token in seconds, by distance; nearer is not slower.
	PerToken [numDistances]float64
	// Setup is what each transfer takes whatever its size, in seconds.
	Setup float64
}

// DefaultLinks is a prior for 131,072 bytes of KV a token: NVLink at 200, one rail of RDMA within the rack and the zone at
// 40 and 25, between zones 5 GB/s. Plausible, not measured.
func DefaultLinks() Links {
	return Links{PerToken: [numDistances]float64{0, 0.66e-6, 3.3e-6, 5.2e-6, 26e-6}, Setup: 1e-3}
}

// time is how long so many tokens take.
func (l *Links) time(d Distance, tokens int) float64 {
	if d == SameWorker || tokens <= 0 {
		return 0
	}
	return within(l.Setup, MaxTerm) + min(within(l.PerToken[d], maxRate)*float64(tokens), MaxTerm)
}

// What a second of slower output counts where a choice is between one worker and two: that prefill does not stall
// sequences under way is what two workers are for, so here it has a price. A stalled sequence ends a second later; what
// company slows down is taken to matter less than the first token.
const (
	pairStallPrice  = 1.0
	pairDecodePrice = 0.2
)

// End is a target that can decode the request, whether it prefills it as well or not.
type End struct {
	Candidate
	// Place is where it stands.
	Place Place
	// Whole says that it may prefill the request it decodes, Takes that it may go on with what a start has prefilled.
	Whole, Takes bool
	// AlsoStart is its place among the starts, or below 0: it is none of them. A request that starts there is whole.
	AlsoStart int
}

// Start is a target that can prefill for another.
type Start struct {
	Candidate
	// Place is where it stands.
	Place Place
}

// PairDecision is a ranked choice of ends, each with its best start. The caller owns it and may reuse it.
type PairDecision struct {
	// Decision ranks the ends: Best, Order and Scores are theirs. A score's terms are those of both workers, and moving the
	// cache is in Transfer; Uncached is what the one that prefills has to compute, Cached what the end holds.
	Decision
	// Starts is the best start of each end, or -1: it serves the request alone.
	Starts []int
	// Links is the time of moving the cache that each score contains.
	Links []float64

	starts Decision
	ends   []Candidate
	first  nearest
}

// nearest is the best start of all and in each place.
type nearest struct {
	any                int
	domain, rack, zone map[uint64]int
}

// ChoosePair chooses where to prefill and where to decode. A pair of start p and end e costs
//
//	the terms of LeastTime on p, with one token of output
//	+ Transfer: moving what e does not hold of the prompt, by the distance of p to e
//	+ Decode, Memory and Batch on e
//
// and an end that may serve the request alone costs the terms of LeastTime there, if that is less. Both count slower output:
// see pairStallPrice. The best pair is found exactly in one pass over each side: of the starts that are equally far from an
// end only the cheapest can be in it (up to TieBand). Without ends, Best is -1. An end that nothing
// can serve (not Whole, and no start for it) is not to be given.
func ChoosePair(req *Request, starts []Start, ends []End, links *Links, d *PairDecision) {
	p := *req
	p.Prices.Stall, p.Prices.Decode = max(p.Prices.Stall, pairStallPrice), max(p.Prices.Decode, pairDecodePrice)
	d.rankStarts(&p, starts)

	d.Decision.reset(len(ends))
	d.Starts = slices.Grow(d.Starts[:0], len(ends))[:len(ends)]
	d.Links = slices.Grow(d.Links[:0], len(ends))[:len(ends)]
	d.ends = d.ends[:0]
	for i := range ends {
		e := &ends[i]
		d.ends = append(d.ends, e.Candidate)
		d.pair(&p, starts, e, links, i)
	}
	rank(d.ends, &d.Decision, req.Places)
}

// rankStarts scores the starts and notes the best of each place.
func (d *PairDecision) rankStarts(p *Request, starts []Start) {
	first := *p
	first.ExpectedOutput = min(p.ExpectedOutput, 1)
	first.Places = 0
	cands := d.ends[:0] // scratch; the ends come later
	for i := range starts {
		cands = append(cands, starts[i].Candidate)
	}
	DefaultLeastTime().Choose(&first, cands, &d.starts)
	d.ends = cands

	n := &d.first
	if n.zone == nil {
		n.domain, n.rack, n.zone = map[uint64]int{}, map[uint64]int{}, map[uint64]int{}
	}
	clear(n.domain)
	clear(n.rack)
	clear(n.zone)
	n.any = -1
	if len(starts) > 0 {
		n.any = d.starts.Best
	}
	for _, i := range slices.Backward(d.starts.Order) { // the best is noted last
		at := starts[i].Place
		n.domain[at.Domain], n.rack[at.Rack], n.zone[at.Zone] = i, i, i
	}
}

// pair finds the best start of one end and scores both.
func (d *PairDecision) pair(p *Request, starts []Start, e *End, links *Links, i int) {
	s := &d.Scores[i]
	*s, d.Starts[i], d.Links[i] = Score{Cost: math.Inf(1)}, -1, 0
	m := e.model()
	h := newHolder(int(narrow(p.PromptTokens)), &e.Candidate, &m)
	if e.Whole {
		one(p, p.Prices.clamped(), &e.Candidate, &m, s)
	}
	var decode Terms
	decodeTerms(p, &e.Candidate, &m, &decode)
	rest := decode.Sum()
	moved := int(narrow(p.PromptTokens)) - int(h.Cached)

	try := func(k int, far Distance) {
		link := links.time(far, moved)
		bring := h.Transfer // what the end holds in farther tiers
		if far == SameWorker {
			bring = 0 // counted there
		}
		if cost := d.starts.Scores[k].Cost + link + bring + rest; cost < s.Cost {
			*s = join(&d.starts.Scores[k], &decode, link+bring, int(h.Cached))
			s.Cost, d.Starts[i], d.Links[i] = cost, k, link
		}
	}
	if e.AlsoStart >= 0 {
		try(e.AlsoStart, SameWorker)
		d.Starts[i] = -1
	}
	for _, k := range d.candidatesFor(e) {
		if e.Takes && k >= 0 && k != e.AlsoStart {
			try(k, starts[k].Place.To(e.Place))
		}
	}
}

// candidatesFor are the starts that can be the best of an end: the best of all, and of each place it shares.
func (d *PairDecision) candidatesFor(e *End) [5]int {
	n := &d.first
	out := [5]int{n.any, -1, -1, -1, -1}
	find := func(m map[uint64]int, key uint64, at int) {
		if k, ok := m[key]; ok {
			out[at] = k
		}
	}
	if e.Place.Domain != 0 {
		find(n.domain, e.Place.Domain, 1)
	}
	if e.Place.Rack != 0 {
		find(n.rack, e.Place.Rack, 2)
	}
	if e.Place.Zone != 0 {
		find(n.zone, e.Place.Zone, 3)
		find(n.zone, 0, 4) // a zone that is not said may be this one
	}
	return out
}

// decodeTerms are what decoding alone costs on a target.
func decodeTerms(p *Request, c *Candidate, m *CostModel, t *Terms) {
	var s Score
	held := *c
	// With all of the prompt there and nothing waiting, what remains of LeastTime is decoding.
	held.PendingPrefill, held.Expected = 0, p.PromptTokens
	one(p, p.Prices.clamped(), &held, m, &s)
	t.Decode, t.Memory, t.Batch = s.Terms.Decode, s.Terms.Memory, s.Terms.Batch
}

// join adds what the end and the way there cost to the score of a start.
func join(start *Score, decode *Terms, moving float64, held int) Score {
	s := *start
	s.Terms.Transfer = min(s.Terms.Transfer+moving, MaxTerm)
	s.Terms.Decode = min(s.Terms.Decode+decode.Decode, MaxTerm)
	s.Terms.Memory = min(s.Terms.Memory+decode.Memory, MaxTerm)
	s.Terms.Batch = min(s.Terms.Batch+decode.Batch, MaxTerm)
	s.TTFT, s.Cached = s.Terms.ttft(), held
	return s
}
