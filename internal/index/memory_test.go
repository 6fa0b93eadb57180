package index

import (
	"testing"

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
	if got := checkMemory(t, ix); got != len(ix.Visible(targets-1).parts)-1 {
		t.Errorf("%d members for one ledger", got)
	}
}

// footprint is the memory that segments, lists and tables use, in words.
func footprint(ix *Index) int {
	n := int(ix.space.end)
	for i := range ix.shards {
		n += int(ix.shards[i].end) * 8
	}
	return n
}

// A side branch, a hole and a cut leave exactly what is held.
func TestSegmentsShrink(t *testing.T) {
	const blocks = 20_000
	ix := New(Config{})
	chain := numbered(blocks)
	l := publish(ix, 1, chain, blocks)
	// A side branch every hundred blocks, and a hole above the last ones.
	for i := 99; i < blocks-100; i += 100 {
		l.Store(Parent{ID: chain[i]}, []block.ID{block.ID(i), block.ID(i + 1)}, fleet.Host)
	}
	l.Remove(chain[3000:], fleet.Device)
	checkLedger(t, l)
	checkMemory(t, ix)
	if got := ix.Stats().DistinctBlocks; got != 3000+2*199 {
		t.Errorf("%d blocks in memory, want %d", got, 3000+2*199)
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
	if l.ClearAll(); len(l.parts) != 0 || ix.Stats() != (Stats{Ledgers: 1, Slots: 1}) {
		t.Errorf("after ClearAll: %d parts, %+v", len(l.parts), ix.Stats())
	}
}

// Tables shrink, too; what remains is still found.
func TestTablesShrink(t *testing.T) {
	blocks, kept := 400_000, 10
	if isRace {
		blocks = 150_000
	}
	ix := New(Config{})
	chain := numbered(blocks)
	l := publish(ix, 1, chain, blocks)
	lines := func() (n int) {
		for i := range ix.tables {
			s := ix.load(&ix.tables[i])
			n += s.lines()
		}
		return n
	}
	full := lines()
	l.Remove(chain[kept:], fleet.Device)
	if got := lines(); got > full/3 {
		t.Errorf("%d of %d lines are left for %d blocks", got, full, kept)
	}
	checkMemory(t, ix)
	if got := ix.Match(chain, nil); len(got) != 1 || got[0].Total() != kept {
		t.Errorf("Match = %v", got)
	}
}

// After each step a table has room: a step whose next one is due at once would be work for nothing.
func TestTablesStepFarEnough(t *testing.T) {
	ix := New(Config{})
	chain := numbered(100_000)
	l := ix.NewLedger(1, false)
	var before [numTables]store
	grown, shrunk := 0, 0
	look := func() {
		for i := range ix.tables {
			now, count := ix.load(&ix.tables[i]), ix.tables[i].count
			places := now.lines() * lineLocations
			switch was := before[i].lines(); {
			case now.lines() > was || now.log > before[i].log:
				grown++
				if count*100 >= places*fullAt {
					t.Errorf("a table of %d has grown to %d places", count, places)
				}
			case now.lines() < was:
				shrunk++
				if count*100 > places*60 {
					t.Errorf("a table of %d has shrunk to %d places", count, places)
				}
			}
			before[i] = now
		}
	}
	p := Parent{IsRoot: true}
	for i := 0; i < len(chain); i += 50 {
		l.Store(p, chain[i:i+50], fleet.Device)
		p = Parent{ID: chain[i+49]}
		look()
	}
	for i := len(chain); i > 0; i -= 50 {
		l.Remove(chain[i-50:i], fleet.Device)
		look()
	}
	if grown < 8*numTables || shrunk < numTables {
		t.Errorf("%d steps up and %d down in %d tables", grown, shrunk, numTables)
	}
}

// A chain told piece by piece has room to grow, and none that it does not need once its reporter goes on elsewhere.
func TestNoRoomIsLeftBehind(t *testing.T) {
	const blocks, batch = 150, 8
	room := func(ix *Index, id block.ID) int { return int(ix.segment(ix.head(Parent{IsRoot: true}, id)).room) }
	_, exact := classOf(blocks)
	for _, tt := range []struct {
		name string
		next func(ix *Index, l *Ledger)
	}{
		{"another chain", func(_ *Index, l *Ledger) { l.Store(Parent{IsRoot: true}, []block.ID{1 << 40}, fleet.Device) }},
		{"a drop", func(ix *Index, _ *Ledger) { ix.Drop(1) }},
		{"a clear", func(_ *Index, l *Ledger) { l.ClearAll() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ix := New(Config{})
			chain := numbered(blocks)
			publish(ix, 2, chain, batch)
			l := publish(ix, 1, nil)
			moves, last := 0, uint32(0)
			for i := 0; i < blocks; i += batch {
				end := min(i+batch, blocks)
				l.Store(parentOf(chain, i), chain[i:end], fleet.Device)
				ix.Visible(2).Store(parentOf(chain, i), chain[i:end], fleet.Device)
				if pos, _ := splitBody(ix.segment(ix.head(Parent{IsRoot: true}, chain[0])).body.Load()); pos != last {
					moves, last = moves+1, pos
				}
			}
			if moves > 6 || room(ix, chain[0]) <= exact {
				t.Errorf("growing to %d blocks it moved %d times and has room for %d", blocks, moves, room(ix, chain[0]))
			}
			tt.next(ix, l)
			if got := room(ix, chain[0]); got != exact {
				t.Errorf("%d blocks have room for %d, want %d", blocks, got, exact)
			}
			checkMemory(t, ix)
			if got := ix.Match(chain, nil); len(got) == 0 || got[len(got)-1].Total() != blocks {
				t.Errorf("Match = %v", got)
			}
		})
	}
}
