package sim

import (
	"math"
	"slices"
)

// Informed chooses by what no router can know: the engines' exact state, output lengths included. It predicts when the
// first token of a request would come from each engine,
//
//	rest of the iteration under way
//	+ prefill of everything admitted and queued there, and its own of what is neither cached nor about to be
//	+ what every iteration until then costs for the sequences that decode
//	+ the wait until so many of those have finished that there is memory
//
// and takes the earliest. It is greedy: what the choice costs later requests does not count. So it is a reference, not a
// bound: a rule that does count that can beat it.
type Informed struct {
	// NoPhase keeps from it how far the iteration under way is: half of it is taken to be left.
	NoPhase bool

	books
	cached, ahead []int
	ends          []end
}

// end is a decoding sequence: iterations until it ends, and the tokens it then frees.
type end struct{ left, tokens int }

var (
	_ Attached  = (*Informed)(nil)
	_ Observer  = (*Informed)(nil)
	_ submitted = (*Informed)(nil)
)

// NewInformed makes one for one run.
func NewInformed() *Informed { return &Informed{} }

// Attach implements Attached.
func (a *Informed) Attach(o *Options) error {
	a.books = newBooks(o)
	a.cached, a.ahead = make([]int, o.Engines), make([]int, o.Engines)
	o.Observer, o.Watcher = a, a
	o.Sinks = make([]Sink, o.Engines)
	for i := range o.Sinks {
		o.Sinks[i] = &listener{books: &a.books, engine: i}
	}
	return nil
}

// Choose implements Chooser. Of equal predictions it takes the engine chosen least recently.
func (a *Informed) Choose(t float64, r *Request, f *Fleet) int {
	chain := r.Chain(f.options.Keyspace, a.blockSize)
	a.find(chain)
	a.leading(a.ahead, held, soon)
	best, least := -1, math.Inf(1)
	for _, i := range f.taking() {
		if f.engines[i].isGone {
			continue // it sees that
		}
		c := a.cost(f.engines[i], r, min(a.ahead[i]*a.blockSize, r.Input-1), t)
		if best < 0 || c < least || c == least && a.desk[i].lastChosen < a.desk[best].lastChosen {
			best, least = i, c
		}
	}
	if best < 0 {
		return -1
	}
	a.send(r, chain, &life{engine: best, uncached: r.Input - min(a.ahead[best]*a.blockSize, r.Input-1)}, 0, false)
	return best
}

// submitted implements the interface of that name: the engine's queue shall know what each job has to compute.
func (a *Informed) submitted(j *Job) { j.estimate = a.lives[j.Request].uncached }

// cost is the predicted time to first token.
func (a *Informed) cost(e *engine, r *Request, cached int, now float64) float64 {
	m := &e.model
	n := r.Input - cached
	tokens, pairs, need := n, attended(n, cached), 0
	for _, j := range e.prefill {
		k := j.Request.Input - j.computed
		tokens, pairs = tokens+k, pairs+attended(k, j.computed)
	}
	for _, c := range e.chunks { // the iteration under way does this part
		tokens, pairs = tokens-c.n, pairs-attended(c.n, c.job.computed)
	}
	for _, j := range e.waiting {
		tokens, pairs = tokens+j.estimate, pairs+attended(j.estimate, j.Request.Input-j.estimate)
		need += j.estimate + j.Request.Output
	}
	decoding := float64(len(e.decode))
	iterations := math.Ceil(float64(tokens) / max(float64(m.ChunkTokens)-decoding, 1))
	t := max(iterations*m.IterationBase, iterations*(m.IterationFixed+m.PrefillPerToken*decoding)+m.PrefillPerToken*float64(tokens)) +
		m.PrefillPerTokenContext*pairs + iterations*m.DecodePerKVToken*float64(e.decodeKV)
	t += a.rest(e, now)
	over := (e.cache.referenced+e.private)*e.blockSize + need + n + r.Output - e.capacity*e.blockSize
	if over <= 0 {
		return t
	}
	step := max(m.IterationFixed+m.PrefillPerToken*decoding+m.DecodePerKVToken*float64(e.decodeKV), m.IterationBase)
	return t + step*a.wait(e, over, now)
}

// rest is what is left of the iteration under way.
func (a *Informed) rest(e *engine, now float64) float64 {
	switch {
	case !e.isRunning:
		return 0
	case e.iterations == 1 && a.NoPhase:
		return (e.end - e.begin) / 2
	case a.NoPhase:
		return e.decodeTime(1) / 2
	case e.iterations == 1:
		return max(e.end-now, 0)
	default:
		k := e.iterationsBy(now)
		return max(e.begin+e.decodeTime(k+1)-now, 0)
	}
}

// wait is how many iterations pass until so many tokens of memory are free.
func (a *Informed) wait(e *engine, over int, now float64) float64 {
	done := e.iterationsBy(now)
	a.ends = a.ends[:0]
	for _, j := range e.decode {
		a.ends = append(a.ends, end{j.Request.Output - j.generated - done, j.Request.Input + j.Request.Output})
	}
	slices.SortFunc(a.ends, func(x, y end) int { return x.left - y.left })
	left := 0
	for _, x := range a.ends {
		if over <= 0 {
			return float64(left)
		}
		left = x.left
		over -= x.tokens
	}
	if over > 0 {
		// What is decoding now is not enough: what waits will have to come and go, too.
		return float64(left) + a.out*float64(over)/float64(e.model.KVTokens)
	}
	return float64(left)
}

// Changed implements Watcher.
func (a *Informed) Changed(_ float64, c Change, lost []*Job) {
	if c.Kind == Kill {
		a.bury(c.Engine, lost)
	}
}

// Failed implements Watcher.
func (a *Informed) Failed(_ float64, j *Job) { a.failed(j.Request) }

// FirstToken implements Observer.
func (a *Informed) FirstToken(_ float64, j *Job) { a.firstToken(j.Request) }

// Finished implements Observer.
func (a *Informed) Finished(_ float64, j *Job) { a.finished(j.Request) }
