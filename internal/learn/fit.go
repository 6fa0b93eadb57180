package learn

import "math"

// Part is one part of the time of a prefill.
type Part uint8

// The parts.
const (
	Linear    Part = iota // a token through the linear layers, prefill's and decode's
	Attention             // prefill attention
	Iteration             // what an iteration costs whatever is in it
	Floor                 // the shortest iteration, in the place of Linear and Iteration where they are less
	Decode                // KV that decoding sequences read meanwhile
	Transfer              // blocks from farther tiers

	NumParts = 6
)

// String gives the lower-case name.
func (p Part) String() string {
	switch p {
	case Linear:
		return "linear"
	case Attention:
		return "attention"
	case Iteration:
		return "iteration"
	case Floor:
		return "floor"
	case Decode:
		return "decode"
	case Transfer:
		return "transfer"
	default:
		return "unknown"
	}
}

// Parts is one number for each part.
type Parts [NumParts]float64

// MinFactor and MaxFactor bound what is believed of a prior.
const (
	MinFactor = 1.0 / 64
	MaxFactor = 64
)

// What the fit believes of itself. Errors are relative to the prediction, variances are squares of that.
const (
	commonVariance = 2.0   // of a prior, common to all parts
	ownVariance    = 0.05  // of a prior, of each part alone
	drift          = 2e-5  // added with each sample: memory of some 50
	settled        = 16    // samples before errors are cut
	cut            = 4     // times the usual error
	leastCut       = 0.10  // an error below it is not cut
	errorWeight    = 0.05  // of the newest in the usual error
	shareWeight    = 0.01  // of the newest in the shares
	wayBack        = 0.001 // of the way back to the common factor, with each sample
	gross          = 0.7   // of a whole time, in logarithms: twice as much or half
	absurd         = 64    // times more or less than predicted is no sample of ours
)

// fit is one set of factors with what is known of them.
type fit struct {
	factor  Parts
	cov     [NumParts]Parts // of the factors, relative to them
	shares  Parts           // of the parts in the usual prefill
	usual   float64         // error in units of what is expected of a sample, at least 1
	shown   float64         // relative error
	samples uint64
}

func newFit() fit {
	var f fit
	for i := range f.factor {
		f.factor[i] = 1
	}
	f.doubt()
	f.usual, f.shown = 1, 1
	return f
}

// doubt sets the uncertainty of a prior.
func (f *fit) doubt() {
	for i := range f.cov {
		for j := range f.cov[i] {
			f.cov[i][j] = commonVariance
		}
		f.cov[i][i] += ownVariance
	}
}

// choose leaves of the linear layers' two descriptions the one that is more.
func (f *fit) choose(parts *Parts) {
	if f.factor[Linear]*parts[Linear]+f.factor[Iteration]*parts[Iteration] >= f.factor[Floor]*parts[Floor] {
		parts[Floor] = 0
	} else {
		parts[Linear], parts[Iteration] = 0, 0
	}
}

// predict is the time of a prefill with these parts under the prior.
func (f *fit) predict(parts *Parts) float64 {
	sum := 0.0
	for i, p := range parts {
		sum += f.factor[i] * p
	}
	return sum
}

// isLike reports whether a time can be one of a prefill that was predicted to take so long.
func isLike(seconds, predicted float64) bool {
	return predicted > 0 && !math.IsInf(predicted, 0) && seconds >= 0 && seconds <= absurd*predicted && seconds*absurd >= predicted
}

// observe learns from one sample, of which so much is the relative deviation if all is right. It tells the relative
// deviation that the prediction had for what was not known of the factors, and false for a sample that cannot be.
func (f *fit) observe(parts *Parts, seconds, spread float64) (doubt float64, ok bool) {
	predicted := f.predict(parts)
	if !isLike(seconds, predicted) {
		return 0, false
	}
	// Everything is relative: x sums to 1, and a factor's step is a share of it.
	var x, gain Parts
	for i, p := range parts {
		x[i] = f.factor[i] * p / predicted
	}
	e := seconds/predicted - 1
	magnitude, limit := math.Abs(e), math.Inf(1)
	if f.samples >= settled {
		limit = max(cut*f.usual*spread, leastCut)
		e = max(-limit, min(e, limit))
	}
	magnitude = min(magnitude, 2*limit)
	f.shown += errorWeight * (magnitude - f.shown)
	f.usual = max(1, f.usual+errorWeight*(magnitude/spread-f.usual))
	f.samples++

	variance := f.usual * spread * f.usual * spread
	for i := range gain {
		for j := range x {
			gain[i] += f.cov[i][j] * x[j]
		}
		doubt += x[i] * gain[i]
	}
	variance += doubt
	for i := range gain {
		step := gain[i] / variance * e
		f.factor[i] = within(f.factor[i] * max(1+step, 0.2))
	}
	for i := range f.cov {
		for j := range f.cov[i] {
			f.cov[i][j] -= gain[i] * gain[j] / variance
		}
		f.cov[i][i] = min(f.cov[i][i]+drift, commonVariance+ownVariance)
	}
	f.reconcile(&x)
	return math.Sqrt(max(doubt, 0)), true
}

// reconcile draws the factors a little towards their common one, the mean weighted by the parts' shares. What samples
// tell apart stays apart; what they do not, and what no part of the model describes, does not drive the parts against
// one another.
func (f *fit) reconcile(x *Parts) {
	mean, weight := 0.0, 0.0
	for i := range f.factor {
		f.shares[i] += shareWeight * (x[i] - f.shares[i])
		mean += f.shares[i] * math.Log(f.factor[i])
		weight += f.shares[i]
	}
	if !(weight > 0) {
		return
	}
	mean /= weight
	for i := range f.factor {
		f.factor[i] = within(f.factor[i] * math.Exp(wayBack*(mean-math.Log(f.factor[i]))))
	}
}

// scale moves all factors alike by a share of a relative error, where it is gross: a whole request's time has much in it
// that is not prefill, and says little of what is nearly right.
func (f *fit) scale(ratio, weight float64) {
	e := math.Log(ratio)
	switch {
	case e > gross:
		e -= gross
	case e < -gross:
		e += gross
	default:
		return
	}
	move := math.Exp(weight * max(-0.5, min(e, 0.5)))
	for i := range f.factor {
		f.factor[i] = within(f.factor[i] * move)
	}
}

func within(v float64) float64 { return min(max(v, MinFactor), MaxFactor) }
