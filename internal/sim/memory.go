package sim

import "github.com/kvoracle/kvoracle/internal/block"

// need is how many blocks a request fills in all.
func (e *engine) need(r *Request) int { return ceilDiv(r.Input+r.Output, e.blockSize) }

// needs is need of what the engine has to do of a job: one that goes on elsewhere leaves with its first token.
func (e *engine) needs(j *Job) int {
	if j.leaves() {
		return ceilDiv(j.Request.Input+1, e.blockSize)
	}
	return e.need(j.Request)
}

// admit gives the job memory if there is any: the cached blocks it can use, and private ones for the rest of its prompt
// and for its output. It changes nothing if there is not enough.
func (e *engine) admit(j *Job, t float64) bool {
	usable := j.chain[:min(len(j.chain), block.Usable(j.Request.Input, e.blockSize))]
	held, unreferenced := e.cache.match(usable)
	private := e.needs(j) - held
	if e.cache.referenced+unreferenced+e.private+private > e.capacity {
		return false
	}
	// Reference before evicting, or the blocks to be used could be the ones that go.
	j.held = make([]int32, 0, len(j.chain))
	for _, id := range usable[:held] {
		s, _ := e.cache.acquire(id)
		j.held = append(j.held, s)
	}
	e.evicted = e.evicted[:0]
	for e.cache.blocks()+e.private+private > e.capacity {
		e.evicted = append(e.evicted, e.cache.evict())
	}
	if len(e.evicted) > 0 {
		e.sink.Removed(t, e.evicted)
	}
	e.private += private
	j.private = private
	if j.arrives() {
		j.computed = j.Request.Input
		return true
	}
	j.Cached = held * e.blockSize
	j.computed = j.Cached
	e.pending -= j.Cached
	return true
}

// complete moves the prompt blocks that have become full into the cache and tells the new ones.
func (e *engine) complete(j *Job, t float64) {
	full := min(j.computed/e.blockSize, len(j.chain))
	first := full // the first block that was not cached; the rest is not either, for a cache has no holes
	for i := len(j.held); i < full; i++ {
		j.private--
		e.private--
		s, ok := e.cache.acquire(j.chain[i])
		if !ok {
			s = e.cache.insert(j.chain[i])
			first = min(first, i)
		}
		j.held = append(j.held, s)
	}
	switch {
	case first == full:
	case first == 0:
		e.sink.Stored(t, 0, true, j.chain[:full])
	default:
		e.sink.Stored(t, j.chain[first-1], false, j.chain[first:full])
	}
}

// release gives all memory of a finished job back, last block first.
func (e *engine) release(j *Job) {
	for i := len(j.held) - 1; i >= 0; i-- {
		e.cache.release(j.held[i])
	}
	e.private -= j.private
	j.held, j.private = nil, 0
}
