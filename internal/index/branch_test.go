package index

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// bytes is the memory that an index has taken for what it holds.
func (ix *Index) bytes() int {
	n := int(ix.space.end) * 8
	for _, c := range ix.space.segments {
		n += cap(c) * int(unsafe.Sizeof(segment{}))
	}
	for _, l := range ix.living {
		n += cap(l.parts) * int(unsafe.Sizeof(part{}))
	}
	return n
}

// A reporter whose every block is a branch of its own takes many times the memory of one with ordinary chains. That is
// bounded, too, and costs nobody else a block.
func TestBranchesAreBounded(t *testing.T) {
	const limit, ordinary, writers = 1 << 16, 20_000, 2
	branches := 16_000
	if isRace {
		branches = 6000
	}
	ix := New(Config{MaxBlocks: limit})
	chain := numbered(ordinary)
	publish(ix, 0, chain, ordinary)
	before := ix.bytes()
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			l := publish(ix, fleet.TargetID(w+1), []block.ID{7}, 1)
			for n := range branches {
				ix.SetClock(uint32(n))
				// The start has few branches, one block has the others; each is told once.
				id := block.ID(w+1)<<40 | block.ID(n+1)
				r := l.Store(Parent{ID: 7}, []block.ID{id}, fleet.Device)
				if r.Stored != 1 || r.Refused != None {
					t.Errorf("branch %d: %+v", n, r)
					return
				}
				if got := ix.parts.Load(); got > ix.maxParts+writers {
					t.Errorf("%d parts, limit %d", got, ix.maxParts)
					return
				}
			}
		})
	}
	writing.Wait()
	if got := ix.Match(chain, nil); len(got) != 1 || got[0].Total() != ordinary {
		t.Errorf("of an ordinary chain of %d blocks %v is left", ordinary, got)
	}
	if ix.Evicted() == 0 || ix.Visible(0).Evicted() != 0 || !ix.Visible(1).IsPartial() {
		t.Errorf("%d blocks were driven out, of the ordinary chain %d", ix.Evicted(), ix.Visible(0).Evicted())
	}
	// Each shard takes its memory in steps.
	if got, want := ix.bytes()-before, 40*limit+numShards*gridLeast*8; got > want {
		t.Errorf("%d bytes, want at most %d", got, want)
	}
	for w := range fleet.TargetID(writers + 1) {
		checkLedger(t, ix.Visible(w))
		ix.Drop(w)
	}
	for ix.Reclaim(1<<20) > 0 {
	}
	checkMemory(t, ix)
	if got := ix.parts.Load(); got != 0 {
		t.Errorf("%d parts are left", got)
	}
}

// What is only kept for a parent that may come does not drive out what is credited, and is not taken when parts are short.
func TestOrphanBranchesAreRefused(t *testing.T) {
	ix := New(Config{MaxBlocks: 1 << 14, MaxOrphans: 1 << 14})
	l := publish(ix, 1, nil)
	refused := 0
	for n := range block.ID(leastParts + 100) {
		if r := l.Store(Parent{ID: 1<<50 + n}, []block.ID{1 + n}, fleet.Device); r.Refused == Capacity && r.Stored == 0 {
			refused++
		}
	}
	if refused != 100 || !l.IsPartial() || ix.parts.Load() != leastParts {
		t.Errorf("%d were refused, %d parts", refused, ix.parts.Load())
	}
	// A chain of what is credited drives them out.
	if r := l.Store(Parent{IsRoot: true}, numbered(100), fleet.Device); r.Stored != 100 {
		t.Errorf("%+v", r)
	}
}
