package enginetest

import (
	"fmt"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
)

// slot is one physical block.
type slot struct {
	hash   block.ID // the engine's own name for what lies here
	id     block.ID // the oracle's
	isFull bool
}

// cache is one rank's blocks.
type cache struct {
	slots []slot
	free  []int               // least recently used first; every slot while no request runs
	at    map[block.ID][]int  // copies of a hash
	size  int                 // tokens per block
	own   block.Keyspace      // of the engine's hashes in this life
	seen  map[Variant]keyPair // keyspaces of variants
	model Model
}

type keyPair struct{ own, oracle block.Keyspace }

// Variant is what besides its tokens makes a prompt's blocks what they are.
type Variant struct{ LoRA, Salt string }

// event is a change to be published.
type event struct {
	stored  []block.ID // hashes; with tokens
	parent  block.ID
	isRoot  bool
	tokens  []uint32
	variant Variant
	removed []block.ID
	cleared bool
}

func newCache(m Model, life uint64) *cache {
	c := &cache{size: m.BlockSize, model: m, at: make(map[block.ID][]int), seen: make(map[Variant]keyPair)}
	c.slots = make([]slot, m.Blocks)
	for i := range c.slots {
		c.free = append(c.free, i)
	}
	c.own = block.Keyspace(life)
	return c
}

// serve computes prompts that run at the same time, each from what was cached before: what they have in common beyond that
// gets copies. A prompt that does not fit is cut. It returns how many tokens of each were taken from the cache.
func (c *cache) serve(v Variant, prompts ...[]uint32) (cached []int, events []event) {
	keys := c.keys(v)
	var held [][]int
	var jobs []job
	for _, tokens := range prompts {
		full := min(len(tokens)/c.size, len(c.slots)/len(prompts))
		j := job{tokens: tokens[:full*c.size]}
		j.hashes = block.AppendTokenChain(nil, keys.own, j.tokens, c.size)
		j.ids = block.AppendTokenChain(nil, keys.oracle, j.tokens, c.size)
		most := max(len(tokens)-1, 0) / c.size // the last token is always computed
		if c.model.KeepsLast {
			most = full
		}
		for j.hit < min(full, most) && len(c.at[j.hashes[j.hit]]) > 0 {
			j.slots = append(j.slots, c.at[j.hashes[j.hit]][0])
			j.hit++
		}
		cached = append(cached, j.hit*c.size)
		jobs = append(jobs, j)
		held = append(held, j.slots)
	}
	for _, slots := range held { // in use, so not to be evicted
		c.free = slices.DeleteFunc(c.free, func(s int) bool { return slices.Contains(slots, s) })
	}
	for i := range jobs {
		events = append(events, c.fill(&jobs[i], v)...)
	}
	for _, j := range jobs { // the tail is free first, so that it is evicted first
		slices.Reverse(j.slots)
		for _, s := range j.slots {
			if !slices.Contains(c.free, s) {
				c.free = append(c.free, s)
			}
		}
	}
	return cached, events
}

type job struct {
	tokens      []uint32
	hashes, ids []block.ID
	hit         int
	slots       []int
}

// fill gives a job the slots it lacks.
func (c *cache) fill(j *job, v Variant) []event {
	var events []event
	first := j.hit // of those that are to be told
	for i := j.hit; i < len(j.hashes); i++ {
		if at := c.at[j.hashes[i]]; c.model.KeepsLast && len(at) > 0 { // behind one that has gone; no copies here
			events = c.tell(events, j, v, first, i)
			first = i + 1
			c.free = slices.DeleteFunc(c.free, func(s int) bool { return s == at[0] })
			j.slots = append(j.slots, at[0])
			continue
		}
		if len(c.free) == 0 {
			j.hashes = j.hashes[:i]
			break
		}
		s := c.free[0]
		c.free = c.free[1:]
		if old := c.slots[s]; old.isFull {
			c.drop(old.hash, s)
			events = append(events, event{removed: []block.ID{old.hash}})
		}
		c.slots[s] = slot{hash: j.hashes[i], id: j.ids[i], isFull: true}
		c.at[j.hashes[i]] = append(c.at[j.hashes[i]], s)
		j.slots = append(j.slots, s)
	}
	return c.tell(events, j, v, first, len(j.hashes))
}

// tell adds that blocks from first to end were stored, if there are any.
func (c *cache) tell(events []event, j *job, v Variant, first, end int) []event {
	if first >= end {
		return events
	}
	e := event{stored: j.hashes[first:end], tokens: j.tokens[first*c.size : end*c.size], isRoot: first == 0, variant: v}
	if !e.isRoot {
		e.parent = j.hashes[first-1]
	}
	return append(events, e)
}

func (c *cache) drop(hash block.ID, s int) {
	left := slices.DeleteFunc(c.at[hash], func(o int) bool { return o == s })
	if c.at[hash] = left; len(left) == 0 {
		delete(c.at, hash)
	}
}

func (c *cache) reset() {
	clear(c.at)
	clear(c.slots)
}

// held is the oracle's ids of what lies in the cache, with copies.
func (c *cache) held() map[block.ID]int {
	out := make(map[block.ID]int)
	for _, s := range c.slots {
		if s.isFull {
			out[s.id]++
		}
	}
	return out
}

func (c *cache) keys(v Variant) keyPair {
	k, ok := c.seen[v]
	if !ok {
		id := block.Identity{Model: c.model.Name, BlockSize: c.size, LoRAName: v.LoRA, CacheSalt: v.Salt}
		k.oracle = id.Keyspace()
		id.Secret = fmt.Sprint(c.own) // unlike any other life's, and unlike the oracle's
		k.own = id.Keyspace()
		c.seen[v] = k
	}
	return k
}
