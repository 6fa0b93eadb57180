package learn

import "math"

// speed is how much slower one target is than its class, as a logarithm: the mean of what its samples say, each weighed
// by how well it is known. It counts only as far as it stands out of its own error: most workers of a class are alike,
// and where each believed its own luck, a router would call a worker slow, send it nothing, and never find out.
type speed struct {
	mean    float64
	weight  float64 // 1 / variance of the mean, but for the usual error's square
	usual   float64 // error of a sample in units of its spread, of the class
	samples uint64
}

const (
	// phase is the deviation of where in an iteration a request comes, in iterations: evenly anywhere.
	phase = 0.29
	// unmodelled is the relative error of a prediction that has nothing to do with the phase.
	unmodelled = 0.02
	// standsOut is how many deviations a worker's speed has to be off before any of it is believed.
	standsOut = 3
	// forget is the share of the older samples that each new one replaces: memory of some 100.
	forget = 0.01
	// alike is a relative difference in speed that is none.
	alike = 0.01
)

// spreadOf is the relative deviation of the time of a prefill of so many iterations.
func spreadOf(iterations float64) float64 { return math.Hypot(phase/max(iterations, 1), unmodelled) }

func newSpeed() speed { return speed{usual: 1} }

// observe takes in a sample, which must be like its prediction.
func (s *speed) observe(seconds, predicted, spread, usual float64) {
	s.samples++
	s.usual = usual
	off := math.Log(seconds/predicted) - s.mean
	if s.samples > settled {
		limit := max(cut*usual*spread, leastCut)
		off = max(-limit, min(off, limit))
	}
	w := 1 / (spread * spread)
	s.weight = (1-forget)*s.weight + w
	s.mean += off * w / s.weight
}

// factor is by how much the target is slower. Of what stands out of its error nearly all counts, of what hardly does
// hardly anything, so that a speed does not jump when it is first believed.
func (s *speed) factor() float64 {
	if s.weight == 0 {
		return 1
	}
	e := s.usual*s.usual/s.weight + alike*alike
	d := s.mean * s.mean
	if d <= standsOut*standsOut*e {
		return 1
	}
	return math.Exp(s.mean * (1 - standsOut*standsOut*e/d))
}
