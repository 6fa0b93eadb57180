package index

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// chooser makes choices: at random, or as the bytes of a fuzz input say.
type chooser interface {
	// below gives a number from 0 up to n, n not included.
	below(n int) int
}

const (
	scriptNodes   = 48
	scriptTargets = 5
)

// script drives an index and its twin through the same operations and compares them after each.
type script struct {
	t      *testing.T
	choose chooser
	parent [scriptNodes]int // the tree of honest chains; -1: the start

	ix      *Index
	twin    *twin
	visible [scriptTargets]pair // zero: none
	aside   []pair

	layers Layers

	log    []string // the last operations, for a failure
	counts map[string]int
}

// pair is a ledger and its twin.
type pair struct {
	real *Ledger
	twin *twinLedger
}

func newScript(t *testing.T, c chooser, maxBlocks, maxOrphans int) *script {
	s := &script{t: t, choose: c, counts: make(map[string]int)}
	s.ix = New(Config{MaxBlocks: maxBlocks, MaxOrphans: maxOrphans})
	s.twin = newTwin(maxBlocks, maxOrphans)
	s.parent[0] = -1
	for i := 1; i < scriptNodes; i++ {
		// Mostly long chains, some branches, a few more starts.
		switch n := c.below(12); {
		case n == 0:
			s.parent[i] = -1
		case n < 3:
			s.parent[i] = c.below(i)
		default:
			s.parent[i] = i - 1
		}
	}
	return s
}

// id names a node. Zero and ids that are near each other are among them.
func (s *script) id(node int) block.ID { return block.ID(node) }

// way lists a node's ancestors and itself, from the start.
func (s *script) way(node int) []block.ID {
	var ids []block.ID
	for ; node >= 0; node = s.parent[node] {
		ids = append(ids, s.id(node))
	}
	slices.Reverse(ids)
	return ids
}

func (s *script) failf(format string, args ...any) {
	s.t.Helper()
	for _, line := range s.log {
		s.t.Log(line)
	}
	s.t.Fatalf(format, args...)
}

func (s *script) note(format string, args ...any) {
	if len(s.log) == 60 {
		s.log = s.log[1:]
	}
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

// ledger picks one to write to.
func (s *script) ledger() (pair, bool) {
	if n := len(s.aside); n > 0 && s.choose.below(3) == 0 {
		return s.aside[s.choose.below(n)], true
	}
	p := s.visible[s.choose.below(scriptTargets)]
	return p, p.real != nil
}

func (s *script) tier() fleet.Tier {
	// The device twice as often as the others.
	return fleet.Tier(max(0, s.choose.below(fleet.NumTiers+1)-1))
}

// step does one operation.
func (s *script) step() {
	switch n := s.choose.below(200); {
	case n < 5:
		s.begin()
	case n < 10:
		s.publish()
	case n < 11:
		s.drop()
	case n < 13:
		s.discard()
	case n < 18:
		s.reclaim()
	default:
		p, ok := s.ledger()
		if !ok {
			s.begin()
			s.publish()
			return
		}
		switch n := s.choose.below(100); {
		case n < 45:
			s.storeHonest(p)
		case n < 52:
			s.storeAny(p)
		case n < 54:
			s.restore(p)
		case n < 55:
			s.prune(p)
		case n < 97:
			s.remove(p)
		case n < 99:
			s.clear(p)
		default:
			s.clearAll(p)
		}
		s.compareLedger(p)
	}
	s.compareMatch()
}

func (s *script) begin() {
	if len(s.aside) > 3 {
		return
	}
	t, counted := fleet.TargetID(s.choose.below(scriptTargets)), s.choose.below(2) == 0
	s.note("begin target %d, counted %v", t, counted)
	s.aside = append(s.aside, pair{s.ix.NewLedger(t, counted), s.twin.newLedger(t, counted)})
}

func (s *script) takeAside() (pair, bool) {
	if len(s.aside) == 0 {
		return pair{}, false
	}
	i := s.choose.below(len(s.aside))
	p := s.aside[i]
	s.aside = slices.Delete(s.aside, i, i+1)
	return p, true
}

func (s *script) publish() {
	p, ok := s.takeAside()
	if !ok {
		return
	}
	t := p.twin.target
	s.note("publish target %d", t)
	old := s.visible[t]
	s.ix.Publish(p.real)
	s.twin.publish(p.twin)
	s.visible[t] = p
	s.compareDead(old)
}

func (s *script) drop() {
	t := fleet.TargetID(s.choose.below(scriptTargets))
	s.note("drop target %d", t)
	old := s.visible[t]
	if got, want := s.ix.Drop(t), s.twin.drop(t); got != want {
		s.failf("Drop = %d, want %d", got, want)
	}
	s.visible[t] = pair{}
	s.compareDead(old)
}

func (s *script) discard() {
	p, ok := s.takeAside()
	if !ok {
		return
	}
	s.note("discard one of target %d", p.twin.target)
	s.ix.Discard(p.real)
	s.twin.forget(p.twin)
	s.compareDead(p)
}

// compareDead writes to a ledger that is out of use.
func (s *script) compareDead(p pair) {
	if p.real == nil {
		return
	}
	ids := []block.ID{s.id(0)}
	if r := p.real.Store(Parent{IsRoot: true}, ids, fleet.Device); r != (StoreResult{Refused: Dropped}) {
		s.failf("Store into a dropped ledger = %+v", r)
	}
	if removed, unknown := p.real.Remove(ids, fleet.Device); removed != 0 || unknown != 1 {
		s.failf("Remove from a dropped ledger = %d, %d", removed, unknown)
	}
	if n := p.real.ClearAll() + p.real.Clear(fleet.Device) + p.real.Held(fleet.Device) + p.real.Orphans(); n != 0 {
		s.failf("a dropped ledger holds something")
	}
	s.ix.Publish(p.real)
	s.ix.Discard(p.real)
}

func (s *script) reclaim() {
	n := s.choose.below(40)
	s.note("reclaim %d", n)
	if left := s.ix.Reclaim(n); left != s.ix.Stats().Reclaimable {
		s.failf("Reclaim left %d, Stats say %d", left, s.ix.Stats().Reclaimable)
	}
}

func (s *script) storeHonest(p pair) {
	way := s.way(s.choose.below(scriptNodes))
	from := max(0, len(way)-1-s.choose.below(12))
	if s.choose.below(3) == 0 {
		from = 0
	}
	ids := way[from:]
	if s.choose.below(20) == 0 {
		// One told twice.
		i := s.choose.below(len(ids))
		ids = slices.Insert(slices.Clone(ids), i, ids[i])
	}
	s.store(p, parentIn(way, from), ids)
}

// storeAny makes up a chain: circles, other parents, the same block in two places.
func (s *script) storeAny(p pair) {
	ids := make([]block.ID, s.choose.below(5))
	for i := range ids {
		ids[i] = s.id(s.choose.below(scriptNodes))
	}
	s.store(p, Parent{ID: s.id(s.choose.below(scriptNodes)), IsRoot: s.choose.below(4) == 0}, ids)
}

func (s *script) store(p pair, parent Parent, ids []block.ID) {
	if parent.IsRoot {
		parent.ID = 0
	}
	tier := s.tier()
	s.note("target %d: store %v below %+v in %v", p.twin.target, ids, parent, tier)
	got, want := p.real.Store(parent, ids, tier), s.twin.store(p.twin, parent, ids, tier)
	if got != want {
		s.failf("Store = %+v, want %+v", got, want)
	}
	s.counts[got.Refused.String()]++
	s.counts["orphan"] += got.Orphans
	s.counts["stored"] += got.Stored
	s.counts["repeated"] += got.Repeated
}

// restore brings back what is missing of the first blocks of a chain.
func (s *script) restore(p pair) {
	way := s.way(s.choose.below(scriptNodes))
	s.note("target %d: restore %v", p.twin.target, way)
	got, want := p.real.Restore(way), s.twin.restore(p.twin, way)
	if got != want {
		s.failf("Restore = %d, want %d", got, want)
	}
	s.counts["restored"] += got
}

func (s *script) prune(p pair) {
	if len(p.real.strays) > 0 {
		return // Prune does not promise to find them
	}
	id := s.id(s.choose.below(scriptNodes))
	s.note("target %d: prune %v", p.twin.target, id)
	if got, want := p.real.Prune(id), p.twin.prune(id); got != want {
		s.failf("Prune = %d, want %d", got, want)
	}
}

func (s *script) remove(p pair) {
	var ids []block.ID
	way := s.way(s.choose.below(scriptNodes))
	switch s.choose.below(3) {
	case 0: // the tail, leaf first, as engines do
		ids = way[s.choose.below(len(way)):]
		slices.Reverse(ids)
	case 1: // a hole
		ids = way[s.choose.below(len(way)):][:1]
	default:
		for range s.choose.below(6) {
			ids = append(ids, s.id(s.choose.below(scriptNodes)))
		}
	}
	tier := s.tier()
	s.note("target %d: remove %v from %v", p.twin.target, ids, tier)
	gotRemoved, gotUnknown := p.real.Remove(ids, tier)
	wantRemoved, wantUnknown := p.twin.remove(ids, tier)
	if gotRemoved != wantRemoved || gotUnknown != wantUnknown {
		s.failf("Remove = %d, %d, want %d, %d", gotRemoved, gotUnknown, wantRemoved, wantUnknown)
	}
	s.counts["removed"] += gotRemoved
}

func (s *script) clear(p pair) {
	tier := s.tier()
	s.note("target %d: clear %v", p.twin.target, tier)
	if got, want := p.real.Clear(tier), p.twin.clear(tier); got != want {
		s.failf("Clear = %d, want %d", got, want)
	}
}

func (s *script) clearAll(p pair) {
	s.note("target %d: clear all", p.twin.target)
	if got, want := p.real.ClearAll(), p.twin.clearAll(); got != want {
		s.failf("ClearAll = %d, want %d", got, want)
	}
}

func (s *script) compareLedger(p pair) {
	for t := range fleet.Tier(fleet.NumTiers) {
		if got, want := p.real.Digest(t), p.twin.digest(t); got != want {
			s.failf("target %d, %v: digest %+v, want %+v", p.twin.target, t, got, want)
		}
		if got, want := p.real.Held(t), len(p.twin.copies[t]); got != want {
			s.failf("target %d, %v: held %d, want %d", p.twin.target, t, got, want)
		}
	}
	for t := range fleet.Tier(fleet.NumTiers) {
		d := p.twin.digest(t)
		lost := &p.twin.lost[t]
		want := Digest{d.Count + lost.Count, d.XOR ^ lost.XOR, d.Sum + lost.Sum, d.Copies + lost.Copies, d.CopySum + lost.CopySum}
		if got := p.real.Told(t); got != want {
			s.failf("target %d, %v: told %+v, want %+v", p.twin.target, t, got, want)
		}
	}
	if got, want := p.real.IsPartial(), p.twin.isPartial(); got != want {
		s.failf("target %d: partial %v, want %v", p.twin.target, got, want)
	}
	if got, want := p.real.Orphans(), p.twin.orphans(); got != want {
		s.failf("target %d: %d orphans, want %d", p.twin.target, got, want)
	}
}

// compareMatch asks for one chain: an honest one, perhaps with a tail nobody knows, or one that never was.
func (s *script) compareMatch() {
	var chain []block.ID
	switch n := s.choose.below(10); {
	case n < 7:
		chain = s.way(s.choose.below(scriptNodes))
		for range s.choose.below(3) {
			chain = append(chain, 1<<40+block.ID(s.choose.below(1000)))
		}
	case n < 9:
		// Along links as they were told, true or not.
		p, ok := s.ledger()
		if !ok {
			return
		}
		id := s.id(s.choose.below(scriptNodes))
		for range scriptNodes {
			chain = append(chain, id)
			up, ok := p.twin.parent[id]
			if !ok || up.IsRoot {
				break
			}
			id = up.ID
		}
		slices.Reverse(chain)
	default:
		for range s.choose.below(6) {
			chain = append(chain, s.id(s.choose.below(scriptNodes)))
		}
	}
	got, want := s.ix.Match(chain, nil), s.twin.match(chain)
	if !slices.Equal(got, want) {
		s.failf("Match of %v (-want +got):\n%s", chain, cmp.Diff(want, got))
	}
	s.ix.evenLeast = 2 + s.counts["matches"]%2*evenLeast
	s.ix.MatchLayers(chain, &s.layers)
	if got := s.layers.matches(); !slices.Equal(got, want) {
		s.failf("layers of %v: %+v (-want +got):\n%s", chain, s.layers, cmp.Diff(want, got))
	}
	s.counts["layers"] += len(s.layers.All)
	s.counts["beside layers"] += min(len(s.layers.All), len(s.layers.Others))
	s.counts["matches"] += len(got)
	for _, m := range got {
		if m.Total() > int(m.Blocks[fleet.Device]) {
			s.counts["continued"]++
		}
	}
}

// compareAll looks at everything that costs too much to look at each time.
func (s *script) compareAll() {
	want := Stats{Ledgers: len(s.twin.visible), Entries: s.twin.entries()}
	for _, l := range s.twin.visible {
		want.HolderBlocks += len(l.parent)
		want.Orphans += l.orphans()
	}
	got := s.ix.Stats()
	if limit := s.twin.maxBlocks; got.Entries > limit {
		s.failf("%d entries, limit %d", got.Entries, limit)
	}
	got.Entries -= got.Reclaimable
	got.Reclaimable, got.DistinctBlocks, got.Slots = 0, 0, 0
	if d := cmp.Diff(want, got); d != "" {
		s.failf("Stats (-want +got):\n%s", d)
	}
	all := slices.Clone(s.aside)
	for _, p := range s.visible {
		if p.real != nil {
			all = append(all, p)
		}
	}
	s.checkInvariants(all)
	for _, p := range all {
		s.compareLedger(p)
		var have [fleet.NumTiers]map[block.ID]int
		for t := range have {
			have[t] = make(map[block.ID]int)
		}
		p.real.Each(func(id block.ID, tier fleet.Tier, copies int) bool {
			have[tier][id] = copies
			return true
		})
		for t := range have {
			if !maps.Equal(p.twin.copies[t], have[t]) {
				s.failf("target %d: Each (-want +got):\n%s", p.twin.target, cmp.Diff(p.twin.copies, have))
			}
		}
	}
}

// checkInvariants checks what doc.go and entry promise of the memory itself.
func (s *script) checkInvariants(all []pair) {
	parts := 0
	for _, p := range all {
		parts += checkLedger(s.t, p.real)
	}
	for _, r := range s.ix.garbage.queue {
		for i := range r.parts {
			if r.parts[i].flags&inUse != 0 {
				parts++
			}
		}
	}
	if got := checkMemory(s.t, s.ix); got != parts {
		s.failf("the lists have %d members, the ledgers %d", got, parts)
	}
	if s.t.Failed() {
		s.failf("memory is not as it should be")
	}
}

// finish empties everything and looks for what is left.
func (s *script) finish() {
	s.compareAll()
	s.counts["evicted"] += int(s.ix.Evicted())
	for t := range fleet.TargetID(scriptTargets) {
		s.ix.Drop(t)
	}
	for _, p := range s.aside {
		s.ix.Discard(p.real)
	}
	for s.ix.Reclaim(7) > 0 {
	}
	if got := s.ix.Stats(); got != (Stats{Slots: got.Slots}) {
		s.failf("an empty index has %+v", got)
	}
	if len(s.ix.free) != s.ix.slots {
		s.failf("%d of %d slots came back", len(s.ix.free), s.ix.slots)
	}
}
