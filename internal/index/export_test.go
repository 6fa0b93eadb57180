package index

import (
	"slices"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// compareExport builds everything that is visible anew, in another index, from what ledgers export.
func (s *script) compareExport() {
	again := New(Config{MaxBlocks: 1_000_000, MaxOrphans: 1})
	var c Contents
	for _, p := range s.visible {
		if p.real == nil {
			continue
		}
		p.real.Export(&c)
		l := again.NewLedger(p.twin.target, p.twin.isCounted)
		var sum [fleet.NumTiers]Digest
		c.Each(func(r Run) bool {
			if len(r.IDs) == 0 || r.Copies == [fleet.NumTiers]uint16{} {
				s.failf("an empty run: %+v", r)
			}
			if why := l.StoreRun(r); why != None {
				s.failf("target %d: %+v was refused: %v", p.twin.target, r, why)
			}
			SumUp(&sum, r)
			return true
		})
		l.Owe(c.Lost)
		if sum != c.Digests {
			s.failf("target %d: the runs sum up to %+v, the digests are %+v", p.twin.target, sum, c.Digests)
		}
		if c.Blocks() != len(p.twin.parent) {
			s.failf("target %d: exported %d blocks, want %d", p.twin.target, c.Blocks(), len(p.twin.parent))
		}
		if l.IsPartial() != p.real.IsPartial() || l.Missing() != p.real.Missing() {
			s.failf("target %d: partial %v by %d, want %v by %d", p.twin.target, l.IsPartial(), l.Missing(), p.real.IsPartial(), p.real.Missing())
		}
		for t := range fleet.Tier(fleet.NumTiers) {
			if got, want := l.Told(t), p.real.Told(t); got != want || l.Digest(t) != p.real.Digest(t) {
				s.failf("target %d, %v: built anew it has %+v, want %+v", p.twin.target, t, got, want)
			}
		}
		again.Publish(l)
	}
	if got, want := again.Stats(), s.ix.Stats(); got.HolderBlocks != want.HolderBlocks || got.Orphans != want.Orphans {
		s.failf("built anew: %+v, want %+v", got, want)
	}
	for node := range scriptNodes {
		way := s.way(node)
		if got, want := again.Match(way, nil), s.ix.Match(way, nil); !slices.Equal(got, want) {
			s.failf("built anew: Match of %v (-want +got):\n%s", way, cmp.Diff(want, got))
		}
		s.counts["rebuilt"] += len(way)
	}
}
