package edge

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// ids is the chain of contents below the first keyspace.
func ids(locals ...block.Local) []block.ID { return block.AppendChain(nil, spaces[0], locals) }

func root(hashes ...Hash) *Store {
	s := &Store{IsRoot: true, Keyspace: spaces[0], Hashes: hashes}
	for _, h := range hashes {
		s.Locals = append(s.Locals, block.Local(h))
	}
	return s
}

func after(parent Hash, hashes ...Hash) *Store {
	s := root(hashes...)
	s.IsRoot, s.Parent = false, parent
	return s
}

func in(tier fleet.Tier, s *Store) *Store { s.Tier = tier; return s }

func without(s *Store) *Store { s.Locals = nil; return s }

// log is a Contents that notes the order.
type log struct {
	shelf

	order []block.ID
}

func (l *log) Store(parent block.ID, isRoot bool, blocks []block.ID, tier fleet.Tier) int {
	l.order = append(l.order, blocks...)
	return l.shelf.Store(parent, isRoot, blocks, tier)
}

func roomy() *Translator { return New(NewBudget(1000), Limits{Names: 100, Waiting: 100}, false) }

// A host copy that nobody can place, then the device's with tokens: both tiers.
func TestHostCopyWithoutTokens(t *testing.T) {
	tr, l := roomy(), &log{shelf: *newShelf()}
	if r := tr.Store(in(fleet.Host, without(root(2))), l); r != (Result{Waiting: 1}) || len(l.copies) != 0 {
		t.Fatalf("without tokens: %+v, %v", r, l.copies)
	}
	if r := tr.Store(root(1, 2), l); r != (Result{}) {
		t.Fatalf("with tokens: %+v", r)
	}
	chain := ids(1, 2)
	want := map[place]int{{chain[0], fleet.Device}: 1, {chain[1], fleet.Device}: 1, {chain[1], fleet.Host}: 1}
	if diff := cmp.Diff(want, l.copies, cmp.AllowUnexported(place{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if l.order[0] != chain[0] {
		t.Error("a child was handed on before its parent")
	}
	// And the other way round: the block is known, so it needs no tokens.
	if r := tr.Store(in(fleet.Disk, without(root(1, 1))), l); r != (Result{Repeated: 1}) || l.copies[place{chain[0], fleet.Disk}] != 1 {
		t.Errorf("a known block without tokens: %+v, %v", r, l.copies)
	}
}

// One name with two contents: the first one stays, nothing is stored below the name, and when it is gone it may begin
// anew.
func TestOneHashTwoContents(t *testing.T) {
	tr, sh := roomy(), newShelf()
	tr.Store(root(7), sh)
	other := root(7)
	other.Locals[0] = 8
	if r := tr.Store(other, sh); r != (Result{Refused: Conflict}) || tr.IsShort() {
		t.Fatalf("other content: %+v, short: %v", r, tr.IsShort()) // the name is told already
	}
	for _, s := range []*Store{after(7, 9), root(7), root(7, 9)} {
		if r := tr.Store(s, sh); r.Refused != Conflict {
			t.Errorf("%+v: %+v, want a conflict", s, r)
		}
	}
	if want := map[place]int{{ids(7)[0], fleet.Device}: 1}; !cmp.Equal(want, sh.copies, cmp.AllowUnexported(place{})) {
		t.Errorf("contents %v", sh.copies)
	}
	tr.Remove([]Hash{7}, fleet.Device, sh)
	if r := tr.Store(other, sh); r.Refused != None || sh.copies[place{ids(8)[0], fleet.Device}] != 1 {
		t.Errorf("after its removal: %+v, %v", r, sh.copies)
	}
	// Equal tokens below another adapter are another content, too.
	if r := tr.Store(&Store{IsRoot: true, Keyspace: spaces[1], Hashes: []Hash{7}, Locals: []block.Local{8}}, sh); r.Refused != Conflict {
		t.Errorf("another adapter: %+v", r)
	}
}

// Two names of one block: it is there until both are gone.
func TestTwoHashesOneContent(t *testing.T) {
	tr, sh := roomy(), newShelf()
	tr.Store(root(1), sh)
	tr.Store(&Store{IsRoot: true, Keyspace: spaces[0], Hashes: []Hash{2}, Locals: []block.Local{1}}, sh)
	tr.Remove([]Hash{1}, fleet.Device, sh)
	if n := sh.copies[place{ids(1)[0], fleet.Device}]; n != 1 {
		t.Errorf("%d copies after one of two names went", n)
	}
	tr.Remove([]Hash{2}, fleet.Device, sh)
	if len(sh.copies) != 0 || sh.err != nil {
		t.Errorf("left: %v, %v", sh.copies, sh.err)
	}
}

func TestNamesInCircles(t *testing.T) {
	tr, sh := roomy(), newShelf()
	for _, s := range []*Store{after(1, 1), after(2, 1, 2, 1)} {
		if r := tr.Store(s, sh); r.Refused == None {
			t.Errorf("%+v was taken", s)
		}
	}
	tr.Store(after(2, 1), sh)
	if r := tr.Store(after(1, 2), sh); r.Refused != None || len(sh.copies) != 0 {
		t.Errorf("each the other's parent: %+v, %v", r, sh.copies)
	}
	if n := tr.Remove([]Hash{1, 2, 1}, fleet.Device, sh); n != 1 || tr.Pairs() != 0 {
		t.Errorf("%d unknown, %d left", n, tr.Pairs())
	}
}

func TestLimits(t *testing.T) {
	b := NewBudget(10)
	one := New(b, Limits{Names: 6, Waiting: 2}, false)
	two := New(b, Limits{Names: 100, Waiting: 2}, false)
	sh := newShelf()
	expect := func(tr *Translator, s *Store, want Refusal, used int) {
		t.Helper()
		names, copies := len(tr.all), len(sh.copies)
		if r := tr.Store(s, sh); r.Refused != want || b.Used() != used {
			t.Errorf("%+v: %+v, %d used, want %d and %d", s, r, b.Used(), want, used)
		}
		if want != None && (len(tr.all) != names || len(sh.copies) != copies) {
			t.Errorf("%+v was refused and left something", s)
		}
	}
	// Before Limit, which is in a snapshot, any number may wait; those do not count afterwards.
	expect(one, after(99, 20, 21, 22), None, 3)
	one.Limit()
	expect(one, after(98, 30, 31), None, 5)
	expect(one, after(97, 32), WaitingFull, 5)
	expect(one, without(root(33)), WaitingFull, 5)
	expect(one, root(98), None, 6) // 30 and 31 have ids now
	expect(one, root(40), NamesFull, 6)
	expect(one, without(root(40)), NamesFull, 6)
	one.SetNames(7)
	expect(one, after(97, 32), None, 7)
	expect(two, root(1, 2, 3, 4), NamesFull, 7)
	expect(two, root(1, 2, 3), None, 10)
	expect(two, without(root(5)), NamesFull, 10)
	if !one.IsShort() || !two.IsShort() {
		t.Error("refusals are not remembered")
	}
	one.ClearAll()
	if one.IsShort() || b.Used() != 3 {
		t.Errorf("cleared: short %v, %d used", one.IsShort(), b.Used())
	}
	two.Drop()
	if b.Used() != 0 {
		t.Errorf("dropped: %d used", b.Used())
	}
}

// Names of refused stores are remembered within bounds: a translator's, and a 16th of the budget for all together. Beyond
// them a translator says that it does not know what it was told.
func TestRefusedNamesAreBounded(t *testing.T) {
	b := NewBudget(48) // three refused names in all
	one := New(b, Limits{Refused: 2}, false)
	two := New(b, Limits{Refused: 2}, false)
	sh := newShelf()
	expect := func(tr *Translator, s *Store, refused int64, isShort bool) {
		t.Helper()
		if r := tr.Store(s, sh); r.Refused != NamesFull || b.refused.Load() != refused || tr.IsShort() != isShort {
			t.Errorf("%+v: %+v, %d remembered, short: %v; want %d, %v", s, r, b.refused.Load(), tr.IsShort(), refused, isShort)
		}
	}
	expect(one, root(1, 2), 2, false)
	expect(one, root(2, 1), 2, false) // they are remembered already
	expect(one, root(3), 2, true)
	expect(two, root(4), 3, false)
	expect(two, root(5), 3, true)
	two.Drop()
	if b.refused.Load() != 2 {
		t.Errorf("%d remembered of one that was dropped", b.refused.Load()-2)
	}
	one.Remove([]Hash{1}, fleet.Device, sh)
	one.ClearAll()
	if b.refused.Load() != 0 || one.IsShort() {
		t.Errorf("cleared: %d remembered, short: %v", b.refused.Load(), one.IsShort())
	}
}

// A removed parent that comes back with other content does not drag along what was stored below the first.
func TestParentComesBackAsAnother(t *testing.T) {
	tr, sh := roomy(), newShelf()
	tr.Store(root(1, 2), sh)
	tr.Remove([]Hash{1}, fleet.Device, sh)
	tr.Store(after(1, 3), sh) // waits: 1 is not known any more
	other := root(1)
	other.Locals[0] = 5
	tr.Store(other, sh)
	want := map[place]int{{ids(1, 2)[1], fleet.Device}: 1, {ids(5)[0], fleet.Device}: 1, {ids(5, 3)[1], fleet.Device}: 1}
	if diff := cmp.Diff(want, sh.copies, cmp.AllowUnexported(place{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestCopiesRunOutOfBits(t *testing.T) {
	tr, sh := New(NewBudget(10), Limits{Names: 10, Waiting: 10}, true), newShelf()
	for range 1<<16 + 5 {
		tr.Store(root(1), sh)
	}
	for range 1<<16 - 1 {
		tr.Remove([]Hash{1}, fleet.Device, sh)
	}
	if len(sh.copies) != 0 || sh.err != nil || tr.Pairs() != 0 {
		t.Errorf("left: %v, %v, %d", sh.copies, sh.err, tr.Pairs())
	}
}

func BenchmarkStoreAndRemove(b *testing.B) {
	const chain = 64
	tr := New(NewBudget(1<<20), Limits{Names: 1 << 20, Waiting: 1 << 20}, false)
	s := root(make([]Hash, chain)...)
	null := nowhere{}
	for b.Loop() {
		for i := range s.Hashes {
			s.Hashes[i]++
			s.Locals[i]++
		}
		for i := range s.Hashes {
			s.Hashes[i] = Hash(uint64(s.Locals[i])*0x9E3779B97F4A7C15 + uint64(i))
		}
		tr.Store(s, null)
		tr.Remove(s.Hashes, fleet.Device, null)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/chain, "ns/block")
}

type nowhere struct{}

func (nowhere) Store(_ block.ID, _ bool, ids []block.ID, _ fleet.Tier) int { return len(ids) }
func (nowhere) Remove([]block.ID, fleet.Tier)                              {}
