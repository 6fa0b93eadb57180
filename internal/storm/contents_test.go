package storm

import (
	"math/bits"
	"math/rand/v2"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

const (
	model     = "m"
	unit      = 4 // tokens between two forks of the tree of prompts
	forks     = 7
	numLeaves = 1 << forks

	numNodes = 1<<(forks+1) - 2 // of the largest tree, that of the smallest blocks
	another  = 256              // what is added to a node for its second name
	numNames = 2 * another
)

// node is a block by its number in a tree, or, where a stream names blocks by engine hashes, one of a block's two names:
// engines tell apart what we cannot. The children of n are an+a to an+2a-1, where a is how many children there are; the
// first blocks are 0 to a-1.
type node int

// tree is every block of one size that there can be. All trees are of the same prompts, which fork every unit tokens.
type tree struct {
	size, arity, depth int
	nodes              node // how many; the last ones are the ends of prompts
	ids                [numNodes]block.ID
	byID               map[block.ID]node
	tokens             [][]uint32 // contents of each of a block's children
	local              []block.Local
}

// newTree makes the blocks of size tokens, one unit or two.
func newTree(size int) *tree {
	levels := size / unit
	t := &tree{size: size, arity: 1 << levels, depth: forks / levels, byID: make(map[block.ID]node, numNodes)}
	for k := range uint32(1) << levels {
		var tokens []uint32
		for l := levels - 1; l >= 0; l-- {
			tokens = append(tokens, slices.Repeat([]uint32{k >> l & 1}, unit)...)
		}
		t.tokens, t.local = append(t.tokens, tokens), append(t.local, block.LocalHash(tokens))
	}
	for d, width := 0, t.arity; d < t.depth; d, width = d+1, width*t.arity {
		t.nodes += node(width)
	}
	keyspace := block.Identity{Model: model, BlockSize: size}.Keyspace()
	for n := range t.nodes {
		if p := t.parent(n); p < 0 {
			t.ids[n] = keyspace.Root(t.local[t.child(n)])
		} else {
			t.ids[n] = t.ids[p].Child(t.local[t.child(n)])
		}
		t.byID[t.ids[n]] = n
	}
	return t
}

// parent is the block before, of the same kind of names; -1: the prompt's start.
func (t *tree) parent(n node) node {
	p := n%another/node(t.arity) - 1
	if p < 0 {
		return -1
	}
	return p + n/another*another
}

// child is a block's place among its parent's children.
func (t *tree) child(n node) int { return int(n%another) % t.arity }

// path lists the blocks from the prompt's start to a leaf, as far as they are whole.
func (t *tree) path(leaf int) []node {
	p := make([]node, t.depth)
	ends := 1 << (t.depth * t.size / unit)
	n := t.nodes - node(ends) + node(leaf*ends/numLeaves)
	for i := t.depth - 1; i >= 0; i-- {
		p[i] = n
		n = t.parent(n)
	}
	return p
}

// promptOf is a leaf's tokens.
func promptOf(leaf int) []uint32 {
	var out []uint32
	for l := forks - 1; l >= 0; l-- {
		out = append(out, slices.Repeat([]uint32{uint32(leaf >> l & 1)}, unit)...)
	}
	return out
}

func (t *tree) locals(nodes []node) []block.Local {
	out := make([]block.Local, len(nodes))
	for i, n := range nodes {
		out[i] = t.local[t.child(n)]
	}
	return out
}

// sets says which names there are in each tier. It is a value: copies are moments.
type sets [fleet.NumTiers]nameSet

type nameSet [numNames / 64]uint64

func (s *nameSet) has(n node) bool { return s[n/64]>>(n%64)&1 != 0 }
func (s *nameSet) add(n node)      { s[n/64] |= 1 << (n % 64) }
func (s *nameSet) drop(n node)     { s[n/64] &^= 1 << (n % 64) }

func (s *nameSet) count() int {
	c := 0
	for _, w := range s {
		c += bits.OnesCount64(w)
	}
	return c
}

// all goes through the names in order.
func (s *nameSet) all(yield func(node) bool) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			if !yield(node(64*i + bits.TrailingZeros64(w))) {
				return
			}
		}
	}
}

func (s *sets) has(t fleet.Tier, n node) bool { return s[t].has(n) }
func (s *sets) count(t fleet.Tier) int        { return s[t].count() }

func (s *sets) total() int {
	c := 0
	for t := range fleet.Tier(fleet.NumTiers) {
		c += s.count(t)
	}
	return c
}

// blocks is what is held under the names that are among some.
func (s *sets) blocks(some *nameSet) (out sets) {
	const half = another / 64
	for t := range s {
		for i := range half {
			out[t][i] = s[t][i]&some[i] | s[t][i+half]&some[i+half]
		}
	}
	return out
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

// state is contents at one moment, as far as digests tell them apart. It is a value.
type state struct {
	sets
	by        *naming
	isCounted bool
	copies    [fleet.NumTiers]struct{ count, sum uint64 } // of all names, and of their keys, each as often as it has copies
}

func (s *state) digest(t fleet.Tier) index.Digest {
	var d index.Digest
	for n := range s.sets[t].all {
		k := s.by.key(n)
		d.Count++
		d.XOR ^= k
		d.Sum += k
	}
	if s.isCounted {
		d.Copies, d.CopySum = s.copies[t].count, s.copies[t].sum
	}
	return d
}

func (s *state) isLike(o *state, t fleet.Tier) bool {
	return s.sets[t] == o.sets[t] && s.copies[t] == o.copies[t]
}

// contents is a cache: an engine's own, or what messages have told of it.
//
// Of a stream of engine hashes it also has what may be known of them: a name has an id once its content was told and its
// parent has one, and keeps it until its last copy goes.
type contents struct {
	by        *naming
	isCounted bool
	copies    [fleet.NumTiers][numNames]uint16
	sets      sets
	known     nameSet // names that have an id
	told      nameSet // names whose content was told and whose parent is not known
}

// credit is what is known to be held, block by block.
func (c *contents) credit() sets {
	if !c.by.isHashed {
		return c.sets
	}
	return c.sets.blocks(&c.known)
}

// held is what is held under whatever name.
func (c *contents) held() sets {
	all := nameSet{}
	for i := range all {
		all[i] = ^uint64(0)
	}
	return c.sets.blocks(&all)
}

// ofOne is what is held under names of one kind, 0 or 1: what a chain of one kind leads to.
func (c *contents) ofOne(kind int) sets {
	some := nameSet{}
	for i := range another / 64 {
		some[kind*another/64+i] = ^uint64(0)
	}
	return c.sets.blocks(&some)
}

func (c *contents) state() state {
	s := state{sets: c.sets, by: c.by, isCounted: c.isCounted}
	for t := range c.sets {
		for n := range c.sets[t].all {
			k := uint64(c.copies[t][n])
			s.copies[t].count += k
			s.copies[t].sum += k * c.by.key(n)
		}
	}
	return s
}

func (c *contents) store(n node, t fleet.Tier) {
	if c.copies[t][n] == 0 || c.isCounted {
		c.copies[t][n]++
	}
	c.sets[t].add(n)
}

// explain takes what a name stands for.
func (c *contents) explain(n node) {
	if c.known.has(n) || c.told.has(n) {
		return
	}
	if p := c.by.tree.parent(n); p >= 0 && !c.known.has(p) {
		c.told.add(n)
		return
	}
	c.know(n)
}

// know gives a name its id, and thereby those that have waited for it.
func (c *contents) know(n node) {
	c.known.add(n)
	c.told.drop(n)
	if c.told == (nameSet{}) {
		return
	}
	first, kind := (n%another+1)*node(c.by.tree.arity), n/another*another
	for kid := first; kid < min(first+node(c.by.tree.arity), c.by.tree.nodes); kid++ {
		if c.told.has(kid + kind) {
			c.know(kid + kind)
		}
	}
}

// tell says all that is held under a name. One operation at least says what it is, not always the first.
func (c *contents) tell(dice *rand.Rand, n node) (stores []oracle.Op) {
	for t := range c.sets {
		for range c.copies[t][n] {
			stores = append(stores, c.by.store([]node{n}, fleet.Tier(t), c.by.plain()))
		}
	}
	if k := len(stores); k > 1 && c.by.isHashed && dice.IntN(2) == 0 {
		for i, which := 0, dice.IntN(k); i < k; i++ {
			if i != which {
				stores[i].Content, stores[i].Locals = oracle.ContentNone, nil
			}
		}
	}
	return stores
}

func (c *contents) remove(n node, t fleet.Tier) {
	if c.copies[t][n] == 0 {
		return
	}
	if c.copies[t][n]--; c.copies[t][n] > 0 {
		return
	}
	c.sets[t].drop(n)
	c.forget(n)
}

// forget drops what is known of a name that nothing is held under.
func (c *contents) forget(n node) {
	for t := range c.sets {
		if c.sets[t].has(n) {
			return
		}
	}
	c.known.drop(n)
	c.told.drop(n)
}

func (c *contents) clear(t fleet.Tier) {
	was := c.sets[t]
	c.copies[t] = [numNames]uint16{}
	c.sets[t] = nameSet{}
	for n := range was.all {
		c.forget(n)
	}
}

// apply does what an operation says.
func (c *contents) apply(op *oracle.Op) {
	switch op.Kind {
	case oracle.OpStore:
		for _, n := range c.by.read(op) {
			c.store(n, op.Tier)
			if c.by.isHashed && op.Content != oracle.ContentNone {
				c.explain(n)
			}
		}
	case oracle.OpRemove:
		for _, n := range c.by.read(op) {
			c.remove(n, op.Tier)
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
