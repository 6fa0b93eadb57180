package sim

import (
	"math"
	"sort"

	"github.com/kvoracle/kvoracle/internal/block"
)

// engine is one continuous-batching engine. Between two calls it is either idle or in a step: one iteration with
// prefill in it, or a run of equal decode iterations up to the next finish.
type engine struct {
	model     Model // of the step under way
	next      Model // from the next step on
	blockSize int
	capacity  int // blocks
	sink      Sink
	fleet     *Fleet
	standing  standing
	isGone    bool // it has vanished

	waiting  []*Job
	prefill  []*Job // admitted, prompt not done
	decode   []*Job
	cache    cache
	private  int // blocks reserved by running jobs and not in the cache
	decodeKV int // tokens that decoding jobs attend to
	pending  int // prompt tokens to be prefilled, queue and batch
	evicted  []block.ID

	isRunning  bool
	begin, end float64 // of the step
	iterations int     // of the step; above 1 only without prefill
	chunks     []chunkOf
	work       float64 // prefill compute of the step, seconds

	nextLoad float64 // when a sample is due; +Inf: never
	busy     float64 // measured: seconds in steps that have ended
	prefills float64 // measured: prefill compute, seconds
}

// chunkOf is a part of a prompt in a step.
type chunkOf struct {
	job *Job
	n   int
}

// wakes is when something happens by itself; +Inf: never.
func (e *engine) wakes() float64 {
	if e.isRunning {
		return min(e.end, e.nextLoad)
	}
	return e.nextLoad
}

// enqueue takes a job at time t. It joins at the start of the next iteration.
func (e *engine) enqueue(j *Job, t float64) {
	e.waiting = append(e.waiting, j)
	if !j.arrives() {
		e.pending += j.Request.Input
	}
	if !e.isRunning {
		e.start(t)
		return
	}
	e.cutShort(t) // it was planned for an empty queue
}

// cutShort ends a run of iterations with the one that is going on.
func (e *engine) cutShort(t float64) {
	if e.isRunning && e.iterations > 1 {
		k := 1 + sort.Search(e.iterations-1, func(i int) bool { return e.begin+e.decodeTime(i+1) >= t })
		if k < e.iterations {
			e.iterations, e.end = k, e.begin+e.decodeTime(k)
		}
	}
}

// decodeTime is the time of the next k iterations without prefill. Each adds a token of context per sequence.
func (e *engine) decodeTime(k int) float64 {
	n, f := float64(len(e.decode)), float64(k)
	return f*e.model.linear(len(e.decode)) + e.model.DecodePerKVToken*(f*float64(e.decodeKV)+n*f*(f-1)/2)
}

// iterationsBy is how many iterations of the step are over at t.
func (e *engine) iterationsBy(t float64) int {
	if !e.isRunning || e.iterations == 1 {
		return 0 // the step's end counts it
	}
	return sort.Search(e.iterations, func(i int) bool { return e.begin+e.decodeTime(i+1) > t })
}

// start plans the step that begins at t, if there is anything to do.
func (e *engine) start(t float64) {
	e.model = e.next
	budget := e.model.ChunkTokens - len(e.decode)
	e.chunks = e.chunks[:0]
	tokens, pairs := 0, 0.0
	plan := func(j *Job) {
		n := min(budget, j.Request.Input-j.computed)
		e.chunks = append(e.chunks, chunkOf{j, n})
		pairs += attended(n, j.computed)
		tokens += n
		budget -= n
	}
	for _, j := range e.prefill {
		// There is budget: k prompts that ended with the last step while this one did not took more than k tokens of
		// it, and now decode k.
		plan(j)
	}
	for budget > 0 && len(e.waiting) > 0 && len(e.prefill)+len(e.decode) < e.model.MaxBatch {
		j := e.waiting[0]
		if !e.admit(j, t) {
			break // nobody overtakes: the head would starve
		}
		e.waiting[0] = nil
		e.waiting = e.waiting[1:]
		if j.arrives() {
			e.complete(j, t)
			e.firstToken(j, t)
			continue
		}
		e.prefill = append(e.prefill, j)
		plan(j)
	}
	e.isRunning = tokens > 0 || len(e.decode) > 0
	if !e.isRunning {
		return
	}
	e.begin, e.iterations, e.work = t, 1, 0
	if tokens > 0 {
		attention := e.model.PrefillPerTokenContext * pairs
		e.work = e.model.PrefillPerToken*float64(tokens) + attention
		e.end = t + e.model.linear(tokens+len(e.decode)) + attention + e.model.DecodePerKVToken*float64(e.decodeKV)
		return
	}
	e.iterations = math.MaxInt
	for _, j := range e.decode {
		e.iterations = min(e.iterations, j.Request.Output-j.generated)
	}
	e.end = t + e.decodeTime(e.iterations)
}

// finish applies the step, which ends now, and plans the next.
func (e *engine) finish() {
	t := e.end
	e.busy += t - max(e.begin, e.fleet.measuredFrom)
	e.prefills += e.work

	running := e.decode[:0]
	for _, j := range e.decode {
		j.generated += e.iterations
		if j.generated < j.Request.Output {
			e.decodeKV += e.iterations
			running = append(running, j)
			continue
		}
		e.decodeKV -= j.Request.Input + j.generated - e.iterations
		e.release(j)
		e.fleet.finished(j, t)
	}
	clear(e.decode[len(running):])
	e.decode = running

	for _, c := range e.chunks {
		c.job.computed += c.n
		e.pending -= c.n
		e.complete(c.job, t)
	}
	prefilling := e.prefill[:0]
	for _, j := range e.prefill {
		if j.computed < j.Request.Input {
			prefilling = append(prefilling, j)
			continue
		}
		if j.leaves() {
			e.release(j)
			e.fleet.handOver(j, t)
			continue
		}
		e.firstToken(j, t)
	}
	clear(e.prefill[len(prefilling):])
	e.prefill = prefilling
	e.start(t)
}

// firstToken begins to decode a job whose prompt is there.
func (e *engine) firstToken(j *Job, t float64) {
	j.generated = 1
	e.fleet.firstToken(j, t)
	if j.Request.Output == 1 {
		e.release(j)
		e.fleet.finished(j, t)
		return
	}
	e.decode = append(e.decode, j)
	e.decodeKV += j.Request.Input + 1
}

// sample tells the load at t and sets the next moment.
func (e *engine) sample(t, every float64) {
	used, done, pending := e.cache.referenced, e.iterationsBy(t), e.pending
	for _, j := range e.waiting {
		if !j.arrives() {
			held, _ := e.cache.match(j.chain[:min(len(j.chain), block.Usable(j.Request.Input, e.blockSize))])
			pending -= held * e.blockSize
		}
	}
	for _, j := range e.prefill {
		used += j.written(0, e.blockSize) - len(j.held)
	}
	for _, j := range e.decode {
		used += j.written(j.generated+done, e.blockSize) - len(j.held)
	}
	e.nextLoad = t + every
	e.sink.Load(t, LoadSample{
		Running: len(e.prefill) + len(e.decode), Waiting: len(e.waiting), WaitingPrefillTokens: pending,
		UsedBlocks: used, TotalBlocks: e.capacity,
	})
}
