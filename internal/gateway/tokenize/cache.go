package tokenize

import (
	"container/list"
	"sync"

	"github.com/kvoracle/kvoracle/internal/block"
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
	answer
}

// answer is a prompt as its engine computes it.
type answer struct {
	ids   []uint32     // nil: not known
	items []block.Item // what lies under placeholders among them
}

// itemTokens is what an item is held to take of the cache, in tokens.
const itemTokens = 8

func (a *answer) size() int { return len(a.ids) + itemTokens*len(a.items) }

func newCache(most int) *cache { return &cache{most: most, byKey: make(map[uint64]*list.Element)} }

// get gives what is remembered, or nothing.
func (c *cache) get(key uint64) answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[key]
	if at == nil {
		return answer{}
	}
	c.order.MoveToFront(at)
	e, ok := at.Value.(*entry)
	if !ok {
		return answer{}
	}
	return e.answer
}

// put remembers an answer and forgets the oldest beyond the bound. One that is longer than all of it is not remembered.
func (c *cache) put(key uint64, a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[key] != nil || a.size() > c.most {
		return
	}
	c.byKey[key] = c.order.PushFront(&entry{key, a})
	c.held += a.size()
	for c.held > c.most {
		at := c.order.Back()
		if e, ok := c.order.Remove(at).(*entry); ok {
			delete(c.byKey, e.key)
			c.held -= e.size()
		}
	}
}
