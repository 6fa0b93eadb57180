package policy

import "math/bits"

// Random takes any candidate with equal probability.
type Random struct{}

// Name is "random".
func (Random) Name() string { return "random" }

// Choose shuffles the candidates by req.Seed.
func (Random) Choose(req *Request, cands []Candidate, d *Decision) {
	DefaultLeastTime().score(req, cands, d)
	r := splitMix(req.Seed)
	for i := range d.Order {
		// Inside-out Fisher-Yates: place i swaps with one at or before it.
		j := r.below(i + 1)
		d.Order[i] = d.Order[j]
		d.Order[j] = i
	}
	settleByPlace(d)
}

// splitMix is Steele, Lea and Flood's generator: a counter by the golden ratio and a finalizer. Enough to pick a
// worker, and any seed (0 too) is a good one.
type splitMix uint64

func (s *splitMix) next() uint64 {
	*s += 0x9E3779B97F4A7C15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// below draws from [0, n) by the high half of a product; the bias is n/2^64.
func (s *splitMix) below(n int) int {
	hi, _ := bits.Mul64(s.next(), uint64(n))
	return int(hi)
}
