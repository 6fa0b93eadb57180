package learn

import (
	"math"
	"slices"
)

// pace is a target's speed as its shorter and its longer prefills tell it. It counts only as far as it stands out of its own
// error: most workers of a class are alike, and where each believed its own luck, a router would call a worker slow, send it
// nothing, and never find out. And it counts only as far as both tell it, for what is slow is so in both: what the model of a
// class gets wrong shows in one of them, or to opposite sides, and a worker that is sent more of these would look slow for it,
// be sent others for that, and grow apart from its like.
type pace struct {
	short, long speed
	at          float64 // of the last sample, in seconds
}

func newPace() pace { return pace{short: newSpeed(), long: newSpeed()} }

func (p *pace) observe(now float64, isLong bool, seconds, predicted, spread, usual float64) {
	if f := p.faded(now); f < 1 && p.samples() > 0 {
		p.short.fade(f)
		p.long.fade(f)
	}
	p.at = now
	s, other := &p.short, &p.long
	if isLong {
		s, other = other, s
	}
	if s.observe(seconds, predicted, spread, usual) {
		// It is another one in all that it does. What the others of its prefills said is out of date, and of those there may be
		// none for long.
		other.become(s.mean, 1/(phase*phase))
	}
}

// faded is what is left of a belief in a worker from which nothing was heard for long, as a share. It may be well again, and
// who is believed slow is not asked where others are idle: nobody would find out.
func (p *pace) faded(now float64) float64 { return math.Exp(-max(now-p.at-patience, 0) / fading) }

func (p *pace) samples() uint64 { return p.short.samples + p.long.samples }

// factor is by how much the target is slower: what both say, or the lesser of it. Of what stands out of the error of both
// together nearly all counts, of what hardly does hardly anything, so that a speed does not jump when it is first believed.
func (p *pace) factor(now float64) float64 {
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
	a *= (1 - standsOut*standsOut*e/d) * p.faded(now)
	if math.Abs(a) < forgotten {
		return 1 // alike to the last digit, or it is still the last to be asked
	}
	return 1 + a
}

// speed is how much slower one target is than its class in some of its prefills, relative to the prediction, as the fit of the
// class counts errors: the mean of what they say, each weighed by how well it is known. 0: alike.
type speed struct {
	mean    float64
	weight  float64 // 1 / variance of the mean, but for the usual error's square
	usual   float64 // error of a sample in units of its spread, of the class
	samples uint64
	since   uint64 // samples since it has become what it is
	newest  [few]recent
}

// recent is what one sample said.
type recent struct{ off, spread float64 }

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
	// few is how many of the newest samples tell that a worker has become another one: all but one of them.
	few = 5
	// change is the relative difference by which they must be off. What is less is followed in time.
	change = 0.3
	// patience is for how many seconds nothing has to be heard of a worker before its speed is believed less, fading how long
	// that takes then.
	patience = 30
	fading   = 20
	// forgotten is a difference in speed that is not kept up.
	forgotten = 0.01
)

// spreadOf is the relative deviation of the time of a prefill of so many iterations.
func spreadOf(iterations float64) float64 { return math.Hypot(phase/max(iterations, 1), unmodelled) }

func newSpeed() speed { return speed{usual: 1} }

// observe takes in a sample, which must be like its prediction. It says whether the worker has become another one: then
// the older samples are given up, or it would take as many new ones until it is believed.
func (s *speed) observe(seconds, predicted, spread, usual float64) (isAnother bool) {
	off := seconds/predicted - 1
	s.newest[s.samples%few] = recent{off, spread}
	s.samples++
	s.since++
	s.usual = usual
	now := 1 + s.mean
	if l, ok := s.lately(); ok {
		least, most := max(l.low-s.mean, s.mean-l.high), math.Abs(l.middle-s.mean)
		if least > change*now && most > standsOut*usual*l.spread*now {
			s.become(l.middle, 1/(l.spread*l.spread))
			return true
		}
	}
	off -= s.mean
	w := 1 / (spread * spread)
	if s.samples > settled && s.weight > w { // or the older samples are next to forgotten
		limit := max(cut*usual*spread, leastCut)
		if s.since <= settled {
			limit = max(limit, now/2) // the median was of a few
		}
		off = max(-limit, min(off, limit))
	}
	s.weight = (1-forget)*s.weight + w
	s.mean += off * w / s.weight
	return false
}

// lately is what the newest samples say together: their median with its deviation, and between what all but two of them are.
type lately struct{ low, middle, high, spread float64 }

// lately sums the newest samples up, if there are as many since it has become what it is.
func (s *speed) lately() (l lately, ok bool) {
	if s.since < few || s.samples <= settled {
		return l, false
	}
	var offs [few]float64
	for i, r := range s.newest {
		offs[i] = r.off
		l.spread += r.spread / few * math.Sqrt(math.Pi/2/few)
	}
	slices.Sort(offs[:])
	l.low, l.middle, l.high = offs[1], offs[few/2], offs[few-2]
	return l, true
}

// fade takes weight from all that was seen so far.
func (s *speed) fade(to float64) {
	s.weight *= to
	if to < 0.5 {
		s.since = 0
	}
}

// become forgets all but that.
func (s *speed) become(mean, weight float64) { s.mean, s.weight, s.since = mean, weight, 0 }
