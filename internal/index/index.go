package index

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

const (
	defaultMaxBlocks  = 64 << 20
	defaultMaxOrphans = 4096
	mostBlocks        = 1 << 29 // what the positions of 32 bits are enough for
	blocksForPart     = 8       // of MaxBlocks, for each part that there may be
	leastParts        = 4096    // there may be so many in any case
)

// Config bounds an index. The zero value runs.
type Config struct {
	// MaxBlocks bounds the entries of all ledgers together: visible ones, ones built aside, and dropped ones that
	// Reclaim has not reached. An entry is a block that one target holds, in whatever tiers, or a parent that was named
	// but is not held. About 10 to 16 bytes each in long chains; see doc.go. Beyond it the largest ledgers give up
	// blocks; see evict.go. 0: 64 Mi; at most 2^29.
	//
	// Where chains part ways all the time each piece of one costs about 180 bytes besides. Of those there are at most an
	// eighth of MaxBlocks (or 4,096 if that is more), so that all together take no more than about 40 bytes times MaxBlocks.
	MaxBlocks int
	// MaxOrphans bounds, for each visible ledger, the blocks that were stored under a parent which was not there and
	// still is not. 0: 4,096.
	MaxOrphans int
	// Key says where in memory a block is kept, and nothing else. A random one, told to nobody, keeps whoever chooses block ids
	// from choosing many that are kept in one place. Its lowest bit does not count. 0: a constant, so that all is where it was
	// in another run.
	Key uint64
}

// OrphanLimit is MaxOrphans with its default.
func (c Config) OrphanLimit() int {
	if c.MaxOrphans <= 0 {
		return defaultMaxOrphans
	}
	return c.MaxOrphans
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
	evenLeast  int // see layers.go
	budget     budget
	parts      atomic.Int64 // in use in all ledgers, dropped ones that Reclaim has not reached included
	maxParts   int64
	epochs     epochs
	pool       *sync.Pool   // *query
	twins      atomic.Int64 // blocks at more than one place, which honest reporters do not have
	garbage    garbage
	view       atomic.Pointer[view]

	clock   atomic.Uint32 // see SetClock
	evicted atomic.Uint64 // see Evicted

	mu      sync.Mutex // for what follows, and for replacing view
	slots   int        // slots ever in use at once
	free    []slot     // unused ones
	visible map[fleet.TargetID]*Ledger
	living  []*Ledger // visible or aside
	born    uint64    // ledgers ever made

	_      [64]byte
	key    uint64 // odd; see hash
	space  space
	shards [numShards]shard
	// Where each shard's heads are, apart from its lock, which is written all the time; 0: there are none.
	headsAt [numShards]atomic.Uint64
	tables  [numTables]table
}

// New makes an empty index.
func New(c Config) *Index {
	if c.MaxBlocks <= 0 {
		c.MaxBlocks = defaultMaxBlocks
	}
	c.MaxBlocks = min(c.MaxBlocks, mostBlocks)
	ix := &Index{maxOrphans: c.OrphanLimit(), evenLeast: evenLeast, visible: make(map[fleet.TargetID]*Ledger), key: golden}
	if c.Key != 0 {
		ix.key = c.Key | 1
	}
	ix.budget.max = int64(c.MaxBlocks)
	ix.maxParts = max(ix.budget.max/blocksForPart, leastParts)
	ix.space.mem = new(memory)
	runtime.AddCleanup(ix, (*memory).free, ix.space.mem)
	ix.epochs.init()
	ix.pool = newPool(&ix.epochs)
	ix.view.Store(new(view))
	for i := range ix.shards {
		ix.shards[i].init(&ix.space)
	}
	return ix
}

// enter makes the caller a reader; what it finds stays as it is, if perhaps out of date, until leave.
func (ix *Index) enter() *query {
	q := ix.pool.Get().(*query)
	q.reader.enter(&ix.epochs)
	return q
}

func (ix *Index) leave(q *query) {
	q.reader.exit()
	ix.pool.Put(q)
}

// NewLedger makes an empty ledger for a target, to be filled aside. No Match sees it before Publish. With counted,
// each store of a block adds a copy and each removal takes one; without, a repeated store changes nothing.
// Give it to Publish or to Discard in the end.
func (ix *Index) NewLedger(t fleet.TargetID, counted bool) *Ledger {
	ix.gather()
	ix.mu.Lock()
	defer ix.mu.Unlock()
	l := &Ledger{ix: ix, target: t, isCounted: counted}
	if n := len(ix.free); n > 0 {
		l.slot = ix.free[n-1]
		ix.free = ix.free[:n-1]
	} else if ix.slots < maxSlots {
		l.slot = slot(ix.slots)
		ix.slots++
	} else {
		// A million ledgers at once: this one takes nothing.
		l.isDead, l.phase = true, dropped
	}
	ix.born++
	l.serial, l.livingAt = ix.born, len(ix.living)
	ix.living = append(ix.living, l)
	l.key = newMember(t, l.slot, 0, 0)
	l.reset()
	return l
}

// gather tries to have a slot back before another one is opened, when most of them are with dropped ledgers. Each Match
// under way may be in the way of that, but not for long.
func (ix *Index) gather() {
	for range 200 {
		ix.mu.Lock()
		isPlenty := len(ix.free) > 0 || ix.slots < 64+2*len(ix.visible)
		ix.mu.Unlock()
		if isPlenty {
			return
		}
		if ix.reclaim(4096) == 0 {
			runtime.Gosched()
		}
	}
}

// view says which slots' ledgers are visible. It is never changed, only replaced.
type view struct {
	all  slot     // all below are visible
	bits []uint64 // one for each slot
}

// has reports whether a slot's ledger is visible.
func (v *view) has(s slot) bool {
	return s < v.all || uint(s>>6) < uint(len(v.bits)) && v.bits[s>>6]>>(s&63)&1 != 0
}

// show replaces the view: one slot's bit is set, another's taken away. The caller holds mu.
func (ix *Index) show(on, off *Ledger) {
	next := make([]uint64, (ix.slots+63)/64)
	copy(next, ix.view.Load().bits)
	if off != nil {
		next[off.slot/64] &^= 1 << (off.slot % 64)
	}
	if on != nil {
		next[on.slot/64] |= 1 << (on.slot % 64)
	}
	v := &view{bits: next}
	for v.all < slot(ix.slots) && next[v.all/64]>>(v.all%64)&1 != 0 {
		v.all++
	}
	ix.view.Store(v)
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
	if l.phase != aside {
		ix.mu.Unlock()
		return
	}
	old := ix.visible[l.target]
	if old != nil {
		old.phase = dropped
	}
	l.phase = published
	ix.visible[l.target] = l
	ix.show(l, old)
	ix.mu.Unlock()

	if old != nil {
		ix.retire(old)
	}
}

// Visible is the ledger that Match reads for a target, or nil.
func (ix *Index) Visible(t fleet.TargetID) *Ledger {
	ix.mu.Lock()
	defer ix.mu.Unlock()
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
	l.phase = dropped
	ix.show(nil, l)
	ix.mu.Unlock()
	return ix.retire(l)
}

// Discard gives up a ledger that was never published. Any other is left as it is.
func (ix *Index) Discard(l *Ledger) {
	ix.mu.Lock()
	if l.phase != aside {
		ix.mu.Unlock()
		return
	}
	l.phase = dropped
	ix.mu.Unlock()
	ix.retire(l)
}

// release gives a slot back. No list names it any more, and no reader is left who takes it for its former ledger's.
func (ix *Index) release(s slot) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.free = append(ix.free, s)
}

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
func (b *budget) give(n int) {
	if n != 0 {
		b.used.Add(int64(-n))
	}
}
