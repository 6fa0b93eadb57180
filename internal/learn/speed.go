package learn

import "math"

// pace is a target's speed as its shorter and its longer prefills tell it. It counts only as far as it stands out of its own
// error: most workers of a class are alike, and where each believed its own luck, a router would call a worker slow, send it
// nothing, and never find out. And it counts only as far as both tell it, for what is slow is so in both: what the model of a
// class gets wrong shows in one of them, or to opposite sides, and a worker that is sent more of these would look slow for it,
// be sent others for that, and grow apart from its like.
type pace struct{ short, long speed }

func newPace() pace { return pace{newSpeed(), newSpeed()} }

func (p *pace) observe(isLong bool, seconds, predicted, spread, usual float64) {
	s := &p.short
	if isLong {
		s = &p.long
	}
	s.observe(seconds, predicted, spread, usual)
}

func (p *pace) samples() uint64 { return p.short.samples + p.long.samples }

// factor is by how much the target is slower: what both say, or the lesser of it. Of what stands out of the error of both
// together nearly all counts, of what hardly does hardly anything, so that a speed does not jump when it is first believed.
func (p *pace) factor() float64 {
	a, b := p.short.mean, p.long.mean
	if a*b <= 0 {
		return 1
	}
	if math.Abs(b) < math.Abs(a) {
		a = b
	}
	usual := max(p.short.usual, p.long.usual)
	e := usual*usual/(p.short.weight+p.long.weight) + alike*alike
	d := a * a
	if d <= standsOut*standsOut*e {
		return 1
	}
	return 1 + a*(1-standsOut*standsOut*e/d)
}

// speed is how much slower one target is than its class in some of its prefills, relative to the prediction, as the fit of the
// class counts errors: the mean of what they say, each weighed by how well it is known. 0: alike.
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
	off := seconds/predicted - 1 - s.mean
	if s.samples > settled {
		limit := max(cut*usual*spread, leastCut)
		off = max(-limit, min(off, limit))
	}
	w := 1 / (spread * spread)
	s.weight = (1-forget)*s.weight + w
	s.mean += off * w / s.weight
}
