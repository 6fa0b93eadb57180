package index

import (
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Run is a piece of a chain, each block of which is held alike.
type Run struct {
	// Parent is what the first block follows; each other follows the one before it.
	Parent Parent
	// IDs are at least one.
	IDs []block.ID
	// Copies is how many of each block a tier has; one at most where they are not counted.
	Copies [fleet.NumTiers]uint16
}

// Contents is all that a ledger holds at one moment, copied. The zero value is empty; one that is used again keeps its
// memory: 8 bytes a block, and 40 for each run of some hundreds. Not for concurrent use.
type Contents struct {
	// Digests sum up the blocks by tier, Lost those that were told and given up for want of room; see Ledger.Told.
	Digests, Lost [fleet.NumTiers]Digest

	ids  []block.ID
	runs []runAt
	todo []uint32 // parts to go to
	done []uint64 // a bit for each part
}

// runAt is a Run whose ids are in Contents.ids up to end, from where the one before it ends.
type runAt struct {
	parent Parent
	end    int
	copies [fleet.NumTiers]uint16
}

// Each calls yield for each run, parents before what follows them but for circles of parents, until it returns false. IDs
// are valid until the next Export into c.
func (c *Contents) Each(yield func(r Run) bool) {
	from := 0
	for i := range c.runs {
		r := &c.runs[i]
		if !yield(Run{Parent: r.parent, IDs: c.ids[from:r.end], Copies: r.copies}) {
			return
		}
		from = r.end
	}
}

// Blocks is how many blocks there are, each once in whatever tiers it lies.
func (c *Contents) Blocks() int { return len(c.ids) }

// Reset empties c and keeps its memory.
func (c *Contents) Reset() {
	c.Digests, c.Lost = [fleet.NumTiers]Digest{}, [fleet.NumTiers]Digest{}
	c.ids, c.runs = c.ids[:0], c.runs[:0]
}

// Export copies everything into c, in place of what that had. A ledger filled with the same by StoreRun and Owe answers
// alike. Only the ledger's own operations wait meanwhile, for some 3 ns a block.
func (l *Ledger) Export(c *Contents) {
	c.Reset()
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.ix.enter()
	defer l.ix.leave(q)
	c.Digests, c.Lost = l.digests, l.lost
	words := (len(l.parts) + 63) / 64
	if cap(c.done) < words {
		c.done = make([]uint64, words)
	}
	c.done = c.done[:words]
	clear(c.done)
	for i := range l.parts {
		if p := &l.parts[i]; p.flags&inUse != 0 && p.up == 0 {
			l.exportFrom(uint32(i), c)
		}
	}
	// A reporter that names a block's parent in two ways can make circles, which nothing leads into.
	for i := range l.parts {
		if l.parts[i].flags&inUse != 0 {
			l.exportFrom(uint32(i), c)
		}
	}
}

// exportFrom copies a part, then what hangs on it.
func (l *Ledger) exportFrom(i uint32, c *Contents) {
	c.todo = append(c.todo[:0], i)
	for len(c.todo) > 0 {
		i = c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		if c.done[i/64]>>(i%64)&1 != 0 {
			continue
		}
		c.done[i/64] |= 1 << (i % 64)
		w := l.ix.blocks(l.parts[i].segment)
		for _, s := range l.all(i) {
			from, ids := len(c.ids), w[s.from:s.to]
			c.ids = slices.Grow(c.ids, len(ids))[:from+len(ids)]
			for k, id := range ids {
				c.ids[from+k] = block.ID(id)
			}
			c.runs = append(c.runs, runAt{l.parent(place{i, int(s.from)}), len(c.ids), s.copies})
		}
		for k := l.parts[i].kid; k != 0; k = l.parts[k].next {
			c.todo = append(c.todo, k)
		}
	}
}

// StoreRun stores a run with all its copies, of which a ledger that does not count them takes one. It is for ledgers that
// are filled aside: what is refused in one tier may be there in another already.
func (l *Ledger) StoreRun(r Run) Refusal {
	for t, n := range r.Copies {
		for range min(n, l.mostCopies()) {
			if got := l.Store(r.Parent, r.IDs, fleet.Tier(t)); got.Refused != None {
				return got.Refused
			}
		}
	}
	return None
}

func (l *Ledger) mostCopies() uint16 {
	if l.isCounted {
		return 1<<16 - 1
	}
	return 1
}

// Owe notes that blocks had been told and given up before what is held now was exported; see Contents.Lost. They count as
// evicted again, since nobody is taken for partial before that has happened to somebody.
func (l *Ledger) Owe(lost [fleet.NumTiers]Digest) {
	if lost == ([fleet.NumTiers]Digest{}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isDead {
		return
	}
	for t := range lost {
		d, more := &l.lost[t], &lost[t]
		*d = Digest{
			Count: d.Count + more.Count, XOR: d.XOR ^ more.XOR, Sum: d.Sum + more.Sum,
			Copies: d.Copies + more.Copies, CopySum: d.CopySum + more.CopySum,
		}
		l.ix.evicted.Add(more.Count)
	}
	l.isPartial.Store(true)
}

// addRun takes in the blocks of a run.
func (d *Digest) addRun(ids []block.ID, copies uint16) {
	if copies == 0 {
		return
	}
	for _, id := range ids {
		d.Count++
		d.XOR ^= uint64(id)
		d.Sum += uint64(id)
		d.CopySum += uint64(copies) * uint64(id)
	}
	d.Copies += uint64(copies) * uint64(len(ids))
}

// SumUp adds a run to digests by tier: of all runs of a ledger they come to Contents.Digests.
func SumUp(d *[fleet.NumTiers]Digest, r Run) {
	for t, n := range r.Copies {
		d[t].addRun(r.IDs, n)
	}
}
