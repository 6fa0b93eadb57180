package sim

import (
	"math"
	"math/rand/v2"
	"slices"
)

// More generated workloads, unlike the traces: long answers in bursts, documents in any order, and agents with very long
// contexts. See generate.go.

// LongChat is n requests of conversations with short prompts and long answers (120 and 700 tokens in the mean), which come
// four times as fast for ten seconds of each minute. Two in three go on with one of the 300 newest conversations; what was
// answered is part of the prompt then, up to 16,000 tokens.
func LongChat(n int, seed uint64) *Trace {
	const newest = 300
	g := newGenerator(seed)
	var talks [][]uint32
	for len(g.requests) < n {
		var before []uint32
		at := len(talks)
		if at > 0 && g.rnd.IntN(3) > 0 {
			at = g.rnd.IntN(at)
			before = talks[at]
		}
		answer := g.length(700, 0.7)
		all := g.add(g.length(120, 0.8), answer, before)
		if math.Mod(g.now, 60) < 10 {
			g.now -= g.gap * 3 / 4
		}
		full := slices.Concat(all[:len(all)-1], g.blocks(answer/generatedBlock))
		if len(full)*generatedBlock > 16_000 {
			full = nil
		}
		if at == len(talks) {
			talks = append(talks, full)
		} else {
			talks[at] = full
		}
		talks = talks[max(0, len(talks)-newest):]
	}
	return g.trace()
}

// Retrieval is n questions of 100 tokens about three to five of 30 documents (Zipf, 1.3) of 1,000 to 4,000 tokens, in any
// order, after 256 tokens that all have. A document is in a cache only behind what it follows.
func Retrieval(n int, seed uint64) *Trace {
	const documents = 30
	g := newGenerator(seed)
	head := g.blocks(256 / generatedBlock)
	sizes := make([]int, documents)
	for i := range sizes {
		sizes[i] = (1000 + g.rnd.IntN(3000)) / generatedBlock
	}
	zipf := rand.NewZipf(g.rnd, 1.3, 2, documents-1)
	type place struct {
		after    uint32
		document int
	}
	known := map[place][]uint32{}
	for range n {
		before := head
		var used [documents]bool
		for range 3 + g.rnd.IntN(3) {
			d := int(zipf.Uint64())
			for used[d] {
				d = int(zipf.Uint64())
			}
			used[d] = true
			at := place{before[len(before)-1], d}
			if known[at] == nil {
				known[at] = g.blocks(sizes[d])
			}
			before = append(before[:len(before):len(before)], known[at]...)
		}
		g.add(g.length(100, 0.6), g.length(250, 0.6), before)
	}
	return g.trace()
}

// LongAgents is n turns of 48 agents, at random one after the other. A context begins with 4,000 tokens that all have and
// 6,000 to 26,000 of its own, and grows by 1,500 a turn in the mean; beyond 90,000 the agent begins anew.
func LongAgents(n int, seed uint64) *Trace {
	g := newGenerator(seed)
	head := g.blocks(4000 / generatedBlock)
	contexts := make([][]uint32, 48)
	for len(g.requests) < n {
		a, tokens := g.rnd.IntN(len(contexts)), g.length(1500, 1.0)
		if contexts[a] == nil {
			contexts[a] = head
			tokens = 6000 + g.rnd.IntN(20_000)
		}
		all := g.add(tokens, g.length(180, 0.8), contexts[a])
		contexts[a] = all[: len(all)-1 : len(all)-1]
		if len(contexts[a])*generatedBlock > 90_000 {
			contexts[a] = nil
		}
	}
	return g.trace()
}
