package policy

import "math"

// ConsistentHash sends prompts with the same head to the same target as long as that is not loaded beyond a bound:
// consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016), as SMG's prefix_hash does it. Every
// target has a pseudo-random weight for every head (rendezvous hashing: the placement of a ring, and as stable, without
// one). Of the targets with
//
//	requests in flight + 1 <= ceil(Bound * (requests in flight everywhere + 1) / targets)
//
// the one of the greatest weight wins. The others follow by their load.
//
// Cost is 0 to 1e6 by falling weight, and 1e6 plus requests in flight beyond the bound. A prompt without a head is
// ranked as LeastLoaded would.
type ConsistentHash struct {
	// Bound is the load that a target may have, as a multiple of the mean; below 1 it is read as 1.
	Bound float64
}

// DefaultConsistentHash has SMG's load factor.
func DefaultConsistentHash() ConsistentHash { return ConsistentHash{Bound: 1.25} }

// Name is "consistent_hash".
func (ConsistentHash) Name() string { return "consistent_hash" }

// Choose ranks by weight below the bound.
func (p ConsistentHash) Choose(req *Request, cands []Candidate, d *Decision) {
	scoreByLoad(req, cands, d)
	if req.Head != 0 && len(cands) > 0 {
		total := 1.0
		for i := range cands {
			total += float64(max(cands[i].InFlight, 0))
		}
		limit := math.Ceil(max(within(p.Bound, maxRate), 1) * total / float64(len(cands)))
		const furthest = 1e6
		for i := range cands {
			load := float64(max(cands[i].InFlight, 0))
			if load+1 > limit {
				d.Scores[i].Cost = furthest + load
				continue
			}
			weight := splitMix(req.Head + uint64(cands[i].Target)*0xD1B54A32D192ED03)
			d.Scores[i].Cost = furthest * float64(weight.next()>>11) / (1 << 53)
		}
	}
	rank(cands, d, req.Places)
}
