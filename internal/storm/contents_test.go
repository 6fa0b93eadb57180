package storm

import (
	"math/bits"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

const (
	model     = "m"
	blockSize = 4
	depth     = 7
	numNodes  = 1<<(depth+1) - 2 // a binary tree without its root: every prompt is a path in it
	numLeaves = 1 << depth
)

// node is a block by its number: the children of n are 2n+2 and 2n+3, the first blocks are 0 and 1.
type node int

func (n node) parent() node { return n/2 - 1 } // -1: the prompt's start

// tree is every block there can be.
type tree struct {
	ids   [numNodes]block.ID
	byID  map[block.ID]node
	local [2]block.Local // a block's contents: left or right
}

func newTree() *tree {
	t := &tree{byID: make(map[block.ID]node, numNodes)}
	t.local = [2]block.Local{block.LocalHash([]uint32{0, 0, 0, 0}), block.LocalHash([]uint32{1, 1, 1, 1})}
	keyspace := block.Identity{Model: model, BlockSize: blockSize}.Keyspace()
	for n := range node(numNodes) {
		if p := n.parent(); p < 0 {
			t.ids[n] = keyspace.Root(t.local[n%2])
		} else {
			t.ids[n] = t.ids[p].Child(t.local[n%2])
		}
		t.byID[t.ids[n]] = n
	}
	return t
}

// path lists the blocks from the prompt's start to a leaf.
func path(leaf int) [depth]node {
	var p [depth]node
	n := node(numNodes - numLeaves + leaf)
	for i := depth - 1; i >= 0; i-- {
		p[i] = n
		n = n.parent()
	}
	return p
}

func (t *tree) locals(nodes []node) []block.Local {
	out := make([]block.Local, len(nodes))
	for i, n := range nodes {
		out[i] = t.local[n%2]
	}
	return out
}

func (t *tree) idsOf(nodes []node) []block.ID {
	out := make([]block.ID, len(nodes))
	for i, n := range nodes {
		out[i] = t.ids[n]
	}
	return out
}

// sets says which blocks each tier holds. It is a value: copies are moments.
type sets [fleet.NumTiers][numNodes/64 + 1]uint64

func (s *sets) has(t fleet.Tier, n node) bool { return s[t][n/64]>>(n%64)&1 != 0 }

func (s *sets) count(t fleet.Tier) int {
	c := 0
	for _, w := range s[t] {
		c += bits.OnesCount64(w)
	}
	return c
}

func (s *sets) total() int {
	c := 0
	for t := range fleet.Tier(fleet.NumTiers) {
		c += s.count(t)
	}
	return c
}

// match walks a prompt tier by tier: as long as a tier holds the next block it goes on there, never back.
func (s *sets) match(chain []node) [fleet.NumTiers]int {
	var out [fleet.NumTiers]int
	at := 0
	for t := range fleet.Tier(fleet.NumTiers) {
		for at < len(chain) && s.has(t, chain[at]) {
			out[t]++
			at++
		}
	}
	return out
}

func (s *sets) digest(tr *tree, t fleet.Tier) index.Digest {
	var d index.Digest
	for n := range node(numNodes) {
		if s.has(t, n) {
			d.Count++
			d.XOR ^= uint64(tr.ids[n])
			d.Sum += uint64(tr.ids[n])
		}
	}
	return d
}

// state is contents at one moment, as far as digests tell them apart. It is a value.
type state struct {
	sets
	isCounted bool
	copies    [fleet.NumTiers]struct{ count, sum uint64 } // of all blocks, and of their ids, each as often as it has copies
}

func (s *state) digest(tr *tree, t fleet.Tier) index.Digest {
	d := s.sets.digest(tr, t)
	if s.isCounted {
		d.Copies, d.CopySum = s.copies[t].count, s.copies[t].sum
	}
	return d
}

func (s *state) isLike(o *state, t fleet.Tier) bool {
	return s.sets[t] == o.sets[t] && s.copies[t] == o.copies[t]
}

// contents is a cache: an engine's own, or what messages have told of it.
type contents struct {
	isCounted bool
	copies    [fleet.NumTiers][numNodes]uint16
	sets      sets
}

func (c *contents) state(tr *tree) state {
	s := state{sets: c.sets, isCounted: c.isCounted}
	for t := range c.copies {
		for n, k := range c.copies[t] {
			s.copies[t].count += uint64(k)
			s.copies[t].sum += uint64(k) * uint64(tr.ids[n])
		}
	}
	return s
}

func (c *contents) store(n node, t fleet.Tier) {
	if c.copies[t][n] == 0 || c.isCounted {
		c.copies[t][n]++
	}
	c.sets[t][n/64] |= 1 << (n % 64)
}

func (c *contents) remove(n node, t fleet.Tier) {
	if c.copies[t][n] == 0 {
		return
	}
	c.copies[t][n]--
	if c.copies[t][n] == 0 {
		c.sets[t][n/64] &^= 1 << (n % 64)
	}
}

func (c *contents) clear(t fleet.Tier) {
	c.copies[t] = [numNodes]uint16{}
	c.sets[t] = [len(c.sets[t])]uint64{}
}

// apply does what an operation says.
func (c *contents) apply(tr *tree, op *oracle.Op) {
	switch op.Kind {
	case oracle.OpStore:
		if op.Content == oracle.ContentIDs {
			for _, id := range op.IDs {
				c.store(tr.byID[id], op.Tier)
			}
			return
		}
		n := node(-1)
		if !op.IsRoot {
			n = tr.byID[op.Parent]
		}
		for _, l := range op.Locals {
			n = 2*n + 2
			if l == tr.local[1] {
				n++
			}
			c.store(n, op.Tier)
		}
	case oracle.OpRemove:
		for _, id := range op.IDs {
			c.remove(tr.byID[id], op.Tier)
		}
	case oracle.OpClear:
		for t := range fleet.Tier(fleet.NumTiers) {
			if op.AllTier || t == op.Tier {
				c.clear(t)
			}
		}
	case oracle.OpRefused, oracle.OpOther:
	}
}
