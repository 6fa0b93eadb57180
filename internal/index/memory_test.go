package index

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// B07: what dropped targets held comes back, in steps of the size asked for.
func TestReclaimReturnsMemoryInSteps(t *testing.T) {
	const targets, blocks, step = 10, 3000, 700
	ix := New(Config{})
	for target := range fleet.TargetID(targets) {
		chain := numbered(blocks)
		for i := range chain {
			if i >= blocks/2 {
				chain[i] += block.ID(target) << 20 // a tail of its own
			}
		}
		publish(ix, target, chain, blocks)
	}
	chain := numbered(blocks)
	for target := range fleet.TargetID(targets - 1) {
		if n := ix.Drop(target); n != blocks {
			t.Errorf("Drop = %d", n)
		}
	}
	if got := ix.Match(chain[:blocks/2], nil); len(got) != 1 || got[0].Target != targets-1 || got[0].Total() != blocks/2 {
		t.Errorf("Match before Reclaim = %v", got)
	}
	left := ix.Stats().Reclaimable
	if left != (targets-1)*blocks {
		t.Fatalf("%d to reclaim, want %d", left, (targets-1)*blocks)
	}
	if got := ix.Reclaim(0); got != left {
		t.Errorf("Reclaim(0) left %d of %d", got, left)
	}
	for left > 0 {
		got := ix.Reclaim(step)
		if got >= left || left-got > step {
			t.Fatalf("a step of %d took %d to %d", step, left, got)
		}
		left = got
	}
	if got, want := ix.Stats(), (Stats{Ledgers: 1, HolderBlocks: blocks, DistinctBlocks: blocks, Entries: blocks, Slots: targets}); got != want {
		t.Errorf("Stats = %+v, want %+v", got, want)
	}
	if got := len(ix.free); got != targets-1 {
		t.Errorf("%d slots came back, want %d", got, targets-1)
	}
	lists := 0
	for i := range ix.shards {
		s := &ix.shards[i]
		lists += len(s.lists) - len(s.spare)
		for _, l := range s.lists {
			if cap(l) > keptCap {
				t.Errorf("a list of %d keeps room for %d", len(l), cap(l))
			}
		}
	}
	if lists != 0 {
		t.Errorf("%d lists for one ledger", lists)
	}
}

// A ledger's memory follows what it holds, and moving entries together changes nothing that can be seen.
func TestLedgerShrinks(t *testing.T) {
	const blocks = 20 * chunkLen
	ix := New(Config{})
	chain := numbered(blocks)
	l := publish(ix, 1, chain, blocks)
	// A side branch every hundred blocks, and a hole above the last ones.
	for i := 99; i < blocks; i += 100 {
		l.Store(Parent{ID: chain[i]}, []block.ID{block.ID(i), block.ID(i + 1)}, fleet.Host)
	}
	before := len(l.slab.chunks)
	l.Remove(chain[3000:], fleet.Device)
	if got := len(l.slab.chunks); got > before/4 {
		t.Errorf("%d of %d chunks are left for a seventh of the blocks", got, before)
	}
	checkSlab(t, l)
	if n := countMembers(t, ix); n != 3000+60 {
		t.Errorf("%d members, want %d", n, 3000+60)
	}
	if got := ix.Match(chain, nil); len(got) != 1 || got[0].Total() != 3000 {
		t.Errorf("Match = %v", got)
	}
	side := append(append([]block.ID{}, chain[:200]...), 199, 200)
	if got := ix.Match(side, nil); len(got) != 1 || got[0].Blocks != [fleet.NumTiers]uint32{200, 2} {
		t.Errorf("Match of a side branch = %v", got)
	}
	if got := l.Store(Parent{ID: chain[2999]}, chain[3000:], fleet.Device); got.Stored != blocks-3000 || got.Orphans != 0 {
		t.Errorf("Store = %+v", got)
	}
	if l.ClearAll(); len(l.slab.chunks) != 0 || ix.Stats().Entries != 0 {
		t.Errorf("after ClearAll: %d chunks, %d entries", len(l.slab.chunks), ix.Stats().Entries)
	}
}

// The maps of the shared table shrink, too; what remains is still found.
func TestShardShrinks(t *testing.T) {
	const places, kept = 20_000, 10
	var s shard
	s.init()
	for p := range place(places) {
		s.put(p, newMember(slot(p), 0))
		s.put(p, newMember(slot(p)+1, 1))
	}
	for p := range place(places) {
		if p >= kept {
			s.remove(p, slot(p))
			s.remove(p, slot(p)+1)
		}
	}
	if s.peak >= 1024 || len(s.refs) != kept {
		t.Errorf("memory for %d places, %d in use, want %d", s.peak, len(s.refs), kept)
	}
	var one [1]member
	for p := range place(kept) {
		want := []member{newMember(slot(p), 0), newMember(slot(p)+1, 1)}
		if d := cmp.Diff(want, s.members(p, &one)); d != "" {
			t.Errorf("place %d (-want +got):\n%s", p, d)
		}
	}
}
