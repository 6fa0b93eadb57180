package index

import (
	"math"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

func TestCopiesSaturateAndAreNeverInvented(t *testing.T) {
	ix := New(Config{})
	l := ix.NewLedger(1, true)
	ix.Publish(l)
	id := []block.ID{5}
	for range math.MaxUint16 + 10 {
		l.Store(Parent{IsRoot: true}, id, fleet.Device)
	}
	for n := range math.MaxUint16 - 1 {
		if removed, unknown := l.Remove(id, fleet.Device); removed+unknown != 0 {
			t.Fatalf("removal %d gave %d, %d", n, removed, unknown)
		}
	}
	if removed, _ := l.Remove(id, fleet.Device); removed != 1 || l.Held(fleet.Device) != 0 {
		t.Errorf("the last copy counted was not the last one held: removed %d, held %d", removed, l.Held(fleet.Device))
	}
}

func TestCapacityStopsInTheMiddle(t *testing.T) {
	ix := New(Config{MaxBlocks: 10})
	chain := numbered(12)
	l := publish(ix, 1, chain, 6)
	got := l.Store(Parent{ID: chain[3]}, chain[4:], fleet.Host)
	if want := (StoreResult{Stored: 6, Refused: Capacity}); got != want {
		t.Errorf("Store = %+v, want %+v", got, want)
	}
	// What is held may be stored again; what is unknown may be removed.
	if got := l.Store(Parent{IsRoot: true}, chain[:10], fleet.Disk); got != (StoreResult{Stored: 10}) {
		t.Errorf("Store of held blocks = %+v", got)
	}
	// A parent that is not held costs an entry, too.
	l.Remove(chain[9:10], fleet.Disk)
	l.Remove(chain[9:10], fleet.Host)
	if got := l.Store(Parent{ID: 77}, []block.ID{78}, fleet.Device); got != (StoreResult{Refused: Capacity}) {
		t.Errorf("Store of an orphan = %+v", got)
	}
	if got := ix.Stats().Entries; got != 9 {
		t.Errorf("%d entries, want 9", got)
	}
	if got := ix.Match(chain, nil); len(got) != 1 || got[0].Total() != 9 {
		t.Errorf("Match = %+v", got)
	}
}

func TestGarbageDoesNotRefuseStores(t *testing.T) {
	ix := New(Config{MaxBlocks: 3000})
	chain := numbered(3000)
	for life := range 20 {
		l := ix.NewLedger(1, false)
		if got := l.Store(Parent{IsRoot: true}, chain, fleet.Device); got != (StoreResult{Stored: 3000}) {
			t.Fatalf("life %d: Store = %+v", life, got)
		}
		ix.Publish(l)
		ix.Drop(1)
	}
}

func TestOrphanLimit(t *testing.T) {
	ix := New(Config{MaxOrphans: 3})
	chain := numbered(20)
	l := ix.NewLedger(1, false)
	// A snapshot may tell children first.
	if got := l.Store(Parent{ID: chain[9]}, chain[10:], fleet.Device); got != (StoreResult{Stored: 10, Orphans: 10}) {
		t.Fatalf("Store before Publish = %+v", got)
	}
	ix.Publish(l)
	// What the snapshot left does not use up the limit, or each snapshot would ask for the next one.
	if got := l.Store(Parent{ID: 700}, []block.ID{701, 702, 703}, fleet.Device); got != (StoreResult{Stored: 3, Orphans: 3}) {
		t.Errorf("Store at the limit = %+v", got)
	}
	if got := l.Store(Parent{ID: 703}, []block.ID{704}, fleet.Device); got != (StoreResult{Refused: OrphansFull}) {
		t.Errorf("Store beyond the limit = %+v", got)
	}
	// Another tier of the same orphan is no new one, and what is connected is none.
	if got := l.Store(Parent{ID: 700}, []block.ID{701}, fleet.Host); got != (StoreResult{Stored: 1}) {
		t.Errorf("Store of a waiting block in the host = %+v", got)
	}
	if got := l.Store(Parent{IsRoot: true}, chain[:10], fleet.Device); got != (StoreResult{Stored: 10}) {
		t.Errorf("Store of the trunk = %+v", got)
	}
	// A hole cuts off any number without using up the limit.
	l.Remove(chain[:1], fleet.Device)
	if got := l.Orphans(); got != 22 {
		t.Errorf("%d orphans, want 22", got)
	}
	l.Store(Parent{IsRoot: true}, []block.ID{700}, fleet.Device)
	if got := l.Store(Parent{ID: 800}, []block.ID{801, 802, 803}, fleet.Device); got != (StoreResult{Stored: 3, Orphans: 3}) {
		t.Errorf("Store after the parent came = %+v", got)
	}
	l.Remove([]block.ID{801}, fleet.Device)
	if got := l.Store(Parent{ID: 803}, []block.ID{804}, fleet.Device); got != (StoreResult{Stored: 1, Orphans: 1}) {
		t.Errorf("Store after a waiting block left = %+v", got)
	}
}

func TestRefusedStoresChangeNothing(t *testing.T) {
	for _, c := range []struct {
		name   string
		parent Parent
		ids    []block.ID
		want   Refusal
	}{
		{"own parent", Parent{ID: 50}, []block.ID{50, 51}, SelfParent},
		{"held elsewhere, at the end", Parent{IsRoot: true}, []block.ID{50, 51, 3}, ParentConflict},
		{"twice with two parents", Parent{IsRoot: true}, []block.ID{50, 51, 50}, ParentConflict},
		{"back to a held one", Parent{ID: 3}, []block.ID{50, 51, 3}, ParentConflict},
		{"through a ghost and its child", Parent{ID: 60}, []block.ID{40, 41, 1}, ParentConflict},
		{"too many orphans", Parent{ID: 60}, []block.ID{50, 51, 52}, OrphansFull},
		{"too many orphans, a ghost among them", Parent{ID: 60}, []block.ID{40, 41, 50, 51}, OrphansFull},
	} {
		t.Run(c.name, func(t *testing.T) {
			ix := New(Config{MaxOrphans: 2})
			l := ix.NewLedger(1, false)
			l.Store(Parent{IsRoot: true}, []block.ID{1, 2, 3}, fleet.Device)
			l.Store(Parent{ID: 40}, []block.ID{41}, fleet.Host)
			ix.Publish(l)
			before, digest := ix.Stats(), l.Digest(fleet.Device)
			if got := l.Store(c.parent, c.ids, fleet.Device); got != (StoreResult{Refused: c.want}) {
				t.Errorf("Store = %+v, want %v", got, c.want)
			}
			if d := cmp.Diff(before, ix.Stats()); d != "" {
				t.Errorf("Stats (-before +after):\n%s", d)
			}
			if l.Digest(fleet.Device) != digest {
				t.Error("the digest changed")
			}
			checkLedger(t, l)
			checkMemory(t, ix)
		})
	}
}

func TestTiersThatDoNotExist(t *testing.T) {
	ix := New(Config{})
	l := publish(ix, 1, numbered(3), 3)
	const none = fleet.Tier(fleet.NumTiers)
	if got := l.Store(Parent{IsRoot: true}, []block.ID{9}, none); got != (StoreResult{}) {
		t.Errorf("Store = %+v", got)
	}
	if removed, unknown := l.Remove(numbered(3), none); removed != 0 || unknown != 3 {
		t.Errorf("Remove = %d, %d", removed, unknown)
	}
	if n := l.Clear(none) + l.Held(none); n != 0 || l.Digest(none) != (Digest{}) {
		t.Error("it holds something")
	}
	if l.Held(fleet.Device) != 3 {
		t.Error("it took something")
	}
}

func TestEachStopsAndNamesTiersAndCopies(t *testing.T) {
	type row struct {
		ID     block.ID
		Tier   fleet.Tier
		Copies int
	}
	ix := New(Config{})
	l := ix.NewLedger(1, true)
	l.Store(Parent{ID: 1}, []block.ID{2}, fleet.Host)
	l.Store(Parent{ID: 1}, []block.ID{2}, fleet.Host)
	l.Store(Parent{ID: 1}, []block.ID{2}, fleet.Shared)
	l.Store(Parent{ID: 1}, []block.ID{3}, fleet.Device)
	var rows []row
	each := func(most int) {
		rows = nil
		l.Each(func(id block.ID, tier fleet.Tier, copies int) bool {
			rows = append(rows, row{id, tier, copies})
			return len(rows) < most
		})
	}
	each(100)
	if d := cmp.Diff([]row{{2, fleet.Host, 2}, {2, fleet.Shared, 1}, {3, fleet.Device, 1}}, rows); d != "" {
		t.Errorf("Each (-want +got):\n%s", d)
	}
	if each(2); len(rows) != 2 {
		t.Errorf("Each went on after false: %v", rows)
	}
}

func TestRefusalsHaveNames(t *testing.T) {
	seen := make(map[string]bool)
	for r := None; r <= Dropped; r++ {
		seen[r.String()] = true
	}
	if len(seen) != int(Dropped)+1 || seen["unknown"] {
		t.Errorf("names: %v", seen)
	}
	if (Dropped + 1).String() != "unknown" {
		t.Error("a refusal that does not exist has a name")
	}
}

// A hole at the head of something large and its repair go through all of it, in both directions, without recursion.
func TestDeepHole(t *testing.T) {
	depth := 200_000
	if isRace {
		depth = 40_000 // of one thread
	}
	ix := New(Config{})
	chain := numbered(depth)
	l := publish(ix, 1, chain, depth)
	l.Remove(chain[:1], fleet.Device)
	if got := ix.Match(chain, nil); len(got) != 0 || l.Orphans() != depth-1 {
		t.Errorf("with a hole: %v, %d orphans", got, l.Orphans())
	}
	l.Store(Parent{IsRoot: true}, chain[:1], fleet.Device)
	if got := ix.Match(chain, nil); len(got) != 1 || got[0].Total() != depth || l.Orphans() != 0 {
		t.Errorf("repaired: %v, %d orphans", got, l.Orphans())
	}
}

func TestSizes(t *testing.T) {
	if got := unsafe.Sizeof(segment{}); got != 64 {
		t.Errorf("a segment has %d bytes, want 64: one cache line", got)
	}
	if got := unsafe.Sizeof(part{}); got != 52 {
		t.Errorf("a part has %d bytes, want 52", got)
	}
	if got := unsafe.Sizeof(Match{}); got != 20 {
		t.Errorf("a match has %d bytes, want 20", got)
	}
	if got := unsafe.Sizeof(shard{}); got < 128 {
		t.Errorf("a shard has %d bytes: two locks may share a cache line", got)
	}
}
