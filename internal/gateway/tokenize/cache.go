package tokenize

import (
	"container/list"
	"sync"
)

// cache remembers answers, up to a number of tokens. All methods may be called concurrently.
type cache struct {
	mu    sync.Mutex
	most  int
	held  int       // tokens
	order list.List // of *entry, newest first
	byKey map[uint64]*list.Element
}

type entry struct {
	key uint64
	ids []uint32
}

func newCache(most int) *cache { return &cache{most: most, byKey: make(map[uint64]*list.Element)} }

// get gives what is remembered, or nil.
func (c *cache) get(key uint64) []uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[key]
	if at == nil {
		return nil
	}
	c.order.MoveToFront(at)
	e, ok := at.Value.(*entry)
	if !ok {
		return nil
	}
	return e.ids
}

// put remembers an answer and forgets the oldest beyond the bound. One that is longer than all of it is not remembered.
func (c *cache) put(key uint64, ids []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[key] != nil || len(ids) > c.most {
		return
	}
	c.byKey[key] = c.order.PushFront(&entry{key, ids})
	c.held += len(ids)
	for c.held > c.most {
		at := c.order.Back()
		if e, ok := c.order.Remove(at).(*entry); ok {
			delete(c.byKey, e.key)
			c.held -= len(e.ids)
		}
	}
}
