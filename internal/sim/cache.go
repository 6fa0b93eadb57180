package sim

import "github.com/kvoracle/kvoracle/internal/block"

// cache is an engine's prefix cache: blocks with reference counts, and a ring of those nobody references, in order of
// their last release. It knows nothing of parents: that a sequence references a chain from its start, and releases it
// from its end, is what keeps tails older than heads.
type cache struct {
	at         map[block.ID]int32
	slots      []slot // slots[0] is the ring's head, never a block
	free       int32  // unused slots, linked by next; 0: none
	referenced int    // blocks with references
}

// slot is one block. prev and next are used only while nobody references it.
type slot struct {
	id         block.ID
	references int32
	prev, next int32
}

func newCache() cache { return cache{at: map[block.ID]int32{}, slots: make([]slot, 1)} }

// blocks is how many blocks are cached.
func (c *cache) blocks() int { return len(c.at) }

// match counts the leading blocks of chain that are cached, and those among them without references.
func (c *cache) match(chain []block.ID) (held, unreferenced int) {
	for _, id := range chain {
		s, ok := c.at[id]
		if !ok {
			break
		}
		held++
		if c.slots[s].references == 0 {
			unreferenced++
		}
	}
	return held, unreferenced
}

// acquire references a block if it is cached.
func (c *cache) acquire(id block.ID) (slot int32, ok bool) {
	i, ok := c.at[id]
	if !ok {
		return 0, false
	}
	s := &c.slots[i]
	if s.references == 0 {
		c.slots[s.prev].next, c.slots[s.next].prev = s.next, s.prev
		c.referenced++
	}
	s.references++
	return i, true
}

// insert adds a block that is not cached, with one reference.
func (c *cache) insert(id block.ID) int32 {
	i := c.free
	if i == 0 {
		i = int32(len(c.slots))
		c.slots = append(c.slots, slot{})
	} else {
		c.free = c.slots[i].next
	}
	c.slots[i] = slot{id: id, references: 1}
	c.at[id] = i
	c.referenced++
	return i
}

// release takes one reference back. A block without references becomes the last to be evicted.
func (c *cache) release(i int32) {
	s := &c.slots[i]
	if s.references--; s.references > 0 {
		return
	}
	c.referenced--
	newest := c.slots[0].prev
	s.prev, s.next = newest, 0
	c.slots[newest].next, c.slots[0].prev = i, i
}

// evict drops the block whose last release is longest ago. There must be one: blocks() > referenced.
func (c *cache) evict() block.ID {
	i := c.slots[0].next
	s := &c.slots[i]
	c.slots[s.prev].next, c.slots[s.next].prev = s.next, s.prev
	id := s.id
	delete(c.at, id)
	*s = slot{next: c.free}
	c.free = i
	return id
}
