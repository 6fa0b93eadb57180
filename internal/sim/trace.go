package sim

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Trace is a list of requests in order of arrival. It does not change once read.
type Trace struct {
	Requests  []*Request
	BlockSize int // tokens per hash id of the trace; engines may use blocks of any other size
}

// Request is one request of a trace. Its exported fields must not be changed. Only ReadTrace makes valid ones; a Fleet
// refuses the zero value.
type Request struct {
	Index   int     // place in the trace, from 0
	Arrival float64 // seconds after the trace's first request
	Input   int     // prompt tokens, at least 1
	Output  int     // tokens to generate, at least 1
	Session string  // conversation it belongs to; empty: unknown
	Delay   float64 // seconds of thinking after the session's former request; 0 if the trace says nothing

	hashes    []uint32 // the trace's ids, renamed 0, 1, 2, ... in order of first appearance
	blockSize int      // tokens per hash
	chain     atomic.Pointer[chain]
	twin      *Request // has the same prompt; its chain is worth keeping
}

// chain is the last chain computed for a request, and for what.
type chain struct {
	keyspace block.Keyspace
	size     int
	locals   []block.Local
	ids      []block.ID
}

// AppendTokens appends the prompt's token ids. Traces have no text, so tokens are invented: token j of the trace's hash
// h is a number that stands at no other (h, j) of the whole trace. Two prompts of one trace therefore agree in exactly
// the tokens their common hash ids cover, down to the last, unfinished block:
//
//	common tokens == min(Input of either, common leading hash ids * Trace.BlockSize)
//
// Hashes are renamed in order of appearance, so the first requests of a trace have the same tokens whether the rest is
// read or not. Ids use the whole uint32 range, not a model's vocabulary.
func (r *Request) AppendTokens(dst []uint32) []uint32 {
	dst = slices.Grow(dst, r.Input)
	left := r.Input
	for _, h := range r.hashes {
		base := h * uint32(r.blockSize) // below 2^32 for all: ReadTrace saw to it
		n := min(left, r.blockSize)
		for j := range uint32(n) {
			dst = append(dst, scramble(base+j))
		}
		left -= n
	}
	return dst
}

// scramble is a permutation of uint32: nearby numbers become unlike, different ones stay different.
func scramble(x uint32) uint32 {
	x ^= x >> 16
	x *= 0x7feb352d
	x ^= x >> 15
	x *= 0x846ca68b
	x ^= x >> 16
	return x
}

// Chain gives the ids of the prompt's full blocks of size tokens (all of them: block.Usable says how many can be served
// from a cache). It is computed at the first call and kept until another keyspace or size is asked for. The slice is
// shared and must not be changed.
func (r *Request) Chain(k block.Keyspace, size int) []block.ID { return r.hashed(k, size).ids }

// Locals gives the local hashes behind Chain. The slice is shared, too.
func (r *Request) Locals(k block.Keyspace, size int) []block.Local { return r.hashed(k, size).locals }

func (r *Request) hashed(k block.Keyspace, size int) *chain {
	if c := r.chain.Load(); c != nil && c.keyspace == k && c.size == size {
		return c
	}
	if r.twin != nil {
		return r.twin.hashed(k, size)
	}
	c := &chain{keyspace: k, size: size, locals: block.AppendLocals(nil, r.AppendTokens(nil), size)}
	c.ids = block.AppendChain(nil, k, c.locals)
	r.chain.Store(c)
	return c
}

// spread moves requests with equal arrival apart, to moments drawn from the window that follows and from nothing but
// their order in the trace. Order is kept: a window ends where the next arrival begins.
func spread(rs []*Request, window float64) {
	if window <= 0 {
		return
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for len(rs) > 0 {
		at, n := rs[0].Arrival, 1
		for n < len(rs) && rs[n].Arrival == at {
			n++
		}
		w := window
		if n < len(rs) {
			w = min(w, rs[n].Arrival-at)
		}
		moments := make([]float64, n)
		for i := range moments {
			moments[i] = rnd.Float64() * w
		}
		slices.Sort(moments)
		for i, m := range moments {
			rs[i].Arrival = at + m
		}
		rs = rs[n:]
	}
}
