package index

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

const (
	defaultMaxBlocks  = 64 << 20
	defaultMaxOrphans = 4096
)

// Config bounds an index. The zero value runs.
type Config struct {
	// MaxBlocks bounds the entries of all ledgers together: visible ones, ones built aside, and dropped ones that
	// Reclaim has not reached. An entry is a block that one target holds, in whatever tiers, or a parent that was named
	// but is not held. 80 to 130 bytes each. 0: 64 Mi; at most 2^31-1.
	MaxBlocks int
	// MaxOrphans bounds, for each visible ledger, the blocks that were stored under a parent which was not there and
	// still is not. 0: 4,096.
	MaxOrphans int
}

// Match is what one target holds of a chain.
type Match struct {
	// Target is whose it is.
	Target fleet.TargetID
	// Blocks counts leading blocks by the tier they would be taken from: first the run in device memory, then its
	// continuation in host memory, then on disk, then in a shared store.
	Blocks [fleet.NumTiers]uint32
}

// Total is the number of leading blocks in all tiers.
func (m *Match) Total() int {
	var n int
	for _, b := range m.Blocks {
		n += int(b)
	}
	return n
}

// Index answers which targets hold how much of a chain. All methods may be called from any number of goroutines.
type Index struct {
	maxOrphans int
	budget     budget
	shards     [numShards]shard
	queries    sync.Pool // *query
	plans      sync.Pool // *plan
	garbage    garbage

	// mu guards the owner table. Match holds it for reading from its first look at the table to its last, so that for
	// one Match every change of visibility happened either before or after it.
	mu      sync.RWMutex
	owners  []owner // by slot
	free    []slot  // unused ones
	visible map[fleet.TargetID]*Ledger
}

// owner says whose blocks a slot's members are.
type owner struct {
	target    fleet.TargetID
	isVisible bool
}

// New makes an empty index.
func New(c Config) *Index {
	if c.MaxBlocks <= 0 {
		c.MaxBlocks = defaultMaxBlocks
	}
	c.MaxBlocks = min(c.MaxBlocks, math.MaxInt32) // a slab's positions have 32 bits
	if c.MaxOrphans <= 0 {
		c.MaxOrphans = defaultMaxOrphans
	}
	ix := &Index{maxOrphans: c.MaxOrphans, visible: make(map[fleet.TargetID]*Ledger)}
	ix.budget.max = int64(c.MaxBlocks)
	ix.queries.New = func() any { return new(query) }
	ix.plans.New = func() any { return new(plan) }
	for i := range ix.shards {
		ix.shards[i].init()
	}
	return ix
}

// NewLedger makes an empty ledger for a target, to be filled aside. No Match sees it before Publish. With counted,
// each store of a block adds a copy and each removal takes one; without, a repeated store changes nothing.
// Give it to Publish or to Discard in the end.
func (ix *Index) NewLedger(t fleet.TargetID, counted bool) *Ledger {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	l := &Ledger{ix: ix, target: t, isCounted: counted}
	l.reset()
	if n := len(ix.free); n > 0 {
		l.slot = ix.free[n-1]
		ix.free = ix.free[:n-1]
	} else {
		l.slot = slot(len(ix.owners))
		ix.owners = append(ix.owners, owner{})
	}
	return l
}

// Publish makes a ledger its target's visible one. Every Match sees either the former ledger whole or this one whole.
// The former one is dropped: it ignores whatever is still written to it. A ledger that is visible already, or was
// dropped or discarded, is left as it is.
//
// The index does not know which targets exist: publishing after Drop brings the target back.
func (ix *Index) Publish(l *Ledger) {
	// The orphan limit begins before the ledger can be seen, so that no visible ledger is ever without it.
	l.mu.Lock()
	l.isLimited = true
	l.mu.Unlock()

	ix.mu.Lock()
	if l.state != aside {
		ix.mu.Unlock()
		return
	}
	old := ix.visible[l.target]
	if old != nil {
		old.state = dropped
		ix.owners[old.slot].isVisible = false
	}
	l.state = published
	ix.visible[l.target] = l
	ix.owners[l.slot] = owner{target: l.target, isVisible: true}
	ix.mu.Unlock()

	if old != nil {
		ix.retire(old)
	}
}

// Visible is the ledger that Match reads for a target, or nil.
func (ix *Index) Visible(t fleet.TargetID) *Ledger {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	return ix.visible[t]
}

// Drop forgets a target's visible ledger and returns how many blocks it held. No Match that begins after it names the
// target. The memory comes back with Reclaim. Dropping a target that has no ledger does nothing.
func (ix *Index) Drop(t fleet.TargetID) int {
	ix.mu.Lock()
	l := ix.visible[t]
	if l == nil {
		ix.mu.Unlock()
		return 0
	}
	delete(ix.visible, t)
	l.state = dropped
	ix.owners[l.slot].isVisible = false
	ix.mu.Unlock()
	return ix.retire(l)
}

// Discard gives up a ledger that was never published. Any other is left as it is.
func (ix *Index) Discard(l *Ledger) {
	ix.mu.Lock()
	if l.state != aside {
		ix.mu.Unlock()
		return
	}
	l.state = dropped
	ix.mu.Unlock()
	ix.retire(l)
}

// release gives a slot back. No member of any list may name it any more.
//
// The next ledger with this slot cannot be mistaken for the former one by a Match that is under way: a Match that
// believes in the slot's former owner holds mu since before the owner was made invisible, which nobody could do then.
func (ix *Index) release(s slot) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.owners[s] = owner{}
	ix.free = append(ix.free, s)
}

// place names a block by its way from the root as a ledger's parent links tell it, so that a block counts only where
// its holder said it stands. An honest reporter's ids say the same; a dishonest one's links need not.
type place uint64

// rootPlace is where first blocks hang. It is not zero so that a block with id 0 leaves a trace.
const rootPlace place = 0x9e3779b97f4a7c15

// child is the place of a block below p. Ids are hashes already; an odd factor keeps order and depth apart.
func (p place) child(id block.ID) place { return p*0xd6e8feb86659fd93 + place(id) }

// budget counts entries against a limit.
type budget struct {
	max  int64
	used atomic.Int64
}

// take grants as many of n as there is room for.
func (b *budget) take(n int) int {
	for {
		used := b.used.Load()
		got := min(int64(n), b.max-used)
		if got <= 0 {
			return 0
		}
		if b.used.CompareAndSwap(used, used+got) {
			return int(got)
		}
	}
}

// give returns n granted ones.
func (b *budget) give(n int) { b.used.Add(int64(-n)) }
