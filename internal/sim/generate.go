package sim

import (
	"math"
	"math/rand/v2"
)

// Generated workloads, for what no public trace shows. One seed always gives the same requests; arrivals are Poisson.
// Lengths are log-normal, cut at a quarter of a 400,000-token memory. Blocks are of 64 tokens.

const generatedBlock = 64

// Unshared is n requests that have nothing in common, 2,000 prompt and 200 output tokens in the mean: a cache is worth
// nothing and only load counts. It is what vLLM's router published as the worst case of cache-aware routing.
func Unshared(n int, seed uint64) *Trace {
	g := newGenerator(seed)
	for range n {
		g.add(g.length(2000, 1.0), g.length(200, 0.8), nil)
	}
	return g.trace()
}

// HotHead is n requests of which nine in ten begin with one and the same 4,096 tokens; the others with none. Tails are
// 500 tokens in the mean.
func HotHead(n int, seed uint64) *Trace {
	g := newGenerator(seed)
	head := g.blocks(4096 / generatedBlock)
	for range n {
		h := head
		if g.rnd.IntN(10) == 0 {
			h = nil
		}
		g.add(g.length(500, 0.8), g.length(150, 0.8), h)
	}
	return g.trace()
}

// MultiTenant is n requests of 200 tenants, some of whom (Zipf, 1.1) send nearly everything. A tenant has a system prompt
// of 512 to 8,192 tokens; two in three requests go on with one of its 20 newest conversations, the others begin one. In
// one second of thirty arrivals come five times as fast, and then all from one tenant.
func MultiTenant(n int, seed uint64) *Trace {
	const tenants, newest = 200, 20
	g := newGenerator(seed)
	zipf := rand.NewZipf(g.rnd, 1.1, 1, tenants-1)
	heads, talks := make([][]uint32, tenants), make([][][]uint32, tenants)
	for t := range heads {
		heads[t] = g.blocks(512 << g.rnd.IntN(5) / generatedBlock)
	}
	bursting := -1
	for len(g.requests) < n {
		switch inBurst := math.Mod(g.now, 30) < 1; {
		case !inBurst:
			bursting = -1
		case bursting < 0:
			bursting = int(zipf.Uint64())
		}
		t, hurry := int(zipf.Uint64()), 1.0
		if bursting >= 0 {
			t, hurry = bursting, 5
		}
		before, at := heads[t], len(talks[t])
		if at > 0 && g.rnd.IntN(3) > 0 {
			at = g.rnd.IntN(at)
			before = talks[t][at]
		}
		all := g.add(g.length(300, 0.8), g.length(200, 0.8), before)
		g.now -= g.gap * (1 - 1/hurry)
		full := all[: len(all)-1 : len(all)-1] // the last block is rarely full, and will be another one next time
		if len(full)*generatedBlock > 30_000 {
			full = heads[t] // a conversation that begins anew
		}
		if at == len(talks[t]) {
			talks[t] = append(talks[t], full)
		} else {
			talks[t][at] = full
		}
		talks[t] = talks[t][max(0, len(talks[t])-newest):]
	}
	return g.trace()
}

// generator makes requests one after the other.
type generator struct {
	rnd      *rand.Rand
	requests []*Request
	next     uint32 // hash
	now, gap float64
}

func newGenerator(seed uint64) *generator {
	return &generator{rnd: rand.New(rand.NewPCG(seed, 4))}
}

// blocks makes new hashes.
func (g *generator) blocks(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = g.next
		g.next++
	}
	return out
}

// length draws from a log-normal distribution with this mean.
func (g *generator) length(mean, sigma float64) int {
	x := mean * math.Exp(sigma*g.rnd.NormFloat64()-sigma*sigma/2)
	return int(min(max(x, 1), 100_000))
}

// add makes a request of the blocks before and so many tokens after them, a mean gap of 1 s after the last. It returns
// all its hashes.
func (g *generator) add(tokens, output int, before []uint32) []uint32 {
	hashes := append(append([]uint32(nil), before...), g.blocks(ceilDiv(tokens, generatedBlock))...)
	g.gap = g.rnd.ExpFloat64()
	g.requests = append(g.requests, &Request{
		Index: len(g.requests), Arrival: g.now, Input: len(before)*generatedBlock + tokens, Output: output,
		hashes: hashes, blockSize: generatedBlock,
	})
	g.now += g.gap
	return hashes
}

func (g *generator) trace() *Trace { return &Trace{Requests: g.requests, BlockSize: generatedBlock} }
