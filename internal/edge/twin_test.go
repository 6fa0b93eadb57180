package edge

import (
	"fmt"
	"maps"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// fact is all that was told about one engine hash, as it was told.
type fact struct {
	hasContent, isRoot bool
	keyspace           block.Keyspace
	parent             Hash
	local              block.Local
	hasID              bool
	id, parentID       block.ID
	copies             [fleet.NumTiers]int
	contested          bool
}

// twin is a Translator in the plainest words there are: one map of facts, looked through from end to end for whatever
// can be concluded. It has no limits.
type twin struct {
	isCounted bool
	facts     map[Hash]fact
	told      rumour
}

// rumour is what a reporter that takes no notice of refusals believes to have told.
type rumour map[Hash][fleet.NumTiers]int

func (r rumour) store(s *Store, isCounted bool) {
	for _, h := range s.Hashes {
		c := r[h]
		if c[s.Tier] == 0 || isCounted {
			c[s.Tier]++
		}
		r[h] = c
	}
}

func (r rumour) remove(hashes []Hash, tier fleet.Tier) {
	for _, h := range hashes {
		c := r[h]
		c[tier] = max(0, c[tier]-1)
		r[h] = c
	}
}

func (r rumour) clear(tier fleet.Tier) {
	for h, c := range r {
		c[tier] = 0
		r[h] = c
	}
}

func (r rumour) digest(tier fleet.Tier) Digest {
	var d Digest
	for h, c := range r {
		if n := uint64(c[tier]); n > 0 {
			d.add(h)
			d.Copies += n
			d.CopySum += n * uint64(h)
		}
	}
	return d
}

func (w *twin) store(s *Store) Refusal {
	w.told.store(s, w.isCounted)
	before := maps.Clone(w.facts)
	told := make(map[Hash]bool)
	if s.Locals != nil && !s.IsRoot {
		if s.Parent == s.Hashes[0] {
			w.contest(s.Parent)
			return SelfParent
		}
		if w.facts[s.Parent].contested {
			return Conflict
		}
	}
	for i, h := range s.Hashes {
		f, ok := w.facts[h]
		if s.Locals != nil {
			claim := fact{isRoot: s.IsRoot, keyspace: s.Keyspace, parent: s.Parent, local: s.Locals[i]}
			if i > 0 {
				claim.isRoot, claim.parent = false, s.Hashes[i-1]
			}
			if told[h] || f.contested || f.hasContent && !w.agree(f, claim) {
				w.facts = before
				w.contest(h)
				return Conflict
			}
			told[h] = true
			if !f.hasContent {
				f.hasContent, f.isRoot, f.keyspace, f.parent, f.local = true, claim.isRoot, claim.keyspace, claim.parent, claim.local
			}
		} else if !ok {
			f = fact{}
		}
		if f.copies[s.Tier] == 0 || w.isCounted {
			f.copies[s.Tier]++
		}
		w.facts[h] = f
		w.conclude()
	}
	return None
}

func (w *twin) contest(h Hash) {
	if f, ok := w.facts[h]; ok {
		f.contested = true
		w.facts[h] = f
	}
}

// agree says whether a claim may be about the same block as a fact.
func (w *twin) agree(f, claim fact) bool {
	if !f.hasID {
		return f.isRoot == claim.isRoot && f.parent == claim.parent && f.local == claim.local
	}
	if id, ok := w.idOf(claim); ok {
		return id == f.id
	}
	return f.parentID.Child(claim.local) == f.id
}

func (w *twin) idOf(f fact) (block.ID, bool) {
	if f.isRoot {
		return f.keyspace.Root(f.local), true
	}
	p := w.facts[f.parent]
	return p.id.Child(f.local), p.hasID
}

// conclude gives ids until there is nothing left to conclude.
func (w *twin) conclude() {
	for found := true; found; {
		found = false
		for h, f := range w.facts {
			if f.hasID || !f.hasContent {
				continue
			}
			if id, ok := w.idOf(f); ok {
				f.hasID, f.id, f.parentID = true, id, w.facts[f.parent].id
				if f.isRoot {
					f.parentID = block.ID(f.keyspace)
				}
				w.facts[h] = f
				found = true
			}
		}
	}
}

func (w *twin) remove(hashes []Hash, tier fleet.Tier) (unknown int) {
	w.told.remove(hashes, tier)
	for _, h := range hashes {
		f := w.facts[h]
		if f.copies[tier] == 0 {
			unknown++
			continue
		}
		f.copies[tier]--
		w.facts[h] = f
		w.forget()
	}
	return unknown
}

func (w *twin) clear(tier fleet.Tier) {
	w.told.clear(tier)
	for h, f := range w.facts {
		f.copies[tier] = 0
		w.facts[h] = f
	}
	w.forget()
}

func (w *twin) forget() {
	maps.DeleteFunc(w.facts, func(_ Hash, f fact) bool { return f.copies == [fleet.NumTiers]int{} })
}

func (w *twin) digest(tier fleet.Tier) Digest {
	var d Digest
	for h, f := range w.facts {
		if n := uint64(f.copies[tier]); n > 0 {
			d.add(h)
			d.Copies += n
			d.CopySum += n * uint64(h)
		}
	}
	return d
}

// place is a block in a tier.
type place struct {
	id   block.ID
	tier fleet.Tier
}

func (w *twin) contents() map[place]int {
	out := make(map[place]int)
	for _, f := range w.facts {
		for t, n := range f.copies {
			if f.hasID && n > 0 {
				out[place{f.id, fleet.Tier(t)}] += n
			}
		}
	}
	return out
}

// shelf is a Contents that remembers, and notices what no index would stand for.
type shelf struct {
	copies  map[place]int
	parents map[block.ID]string
	room    func() bool // nil: always
	err     error
}

func newShelf() *shelf {
	return &shelf{copies: make(map[place]int), parents: make(map[block.ID]string)}
}

func (s *shelf) Store(parent block.ID, isRoot bool, ids []block.ID, tier fleet.Tier) int {
	for i, id := range ids {
		if s.room != nil && !s.room() {
			return i
		}
		p := fmt.Sprint(parent, isRoot)
		if was, ok := s.parents[id]; ok && was != p {
			s.err = fmt.Errorf("block %x was stored after %s and now after %s", id, was, p)
		}
		s.parents[id] = p
		s.copies[place{id, tier}]++
		parent, isRoot = id, false
	}
	return len(ids)
}

func (s *shelf) Remove(ids []block.ID, tier fleet.Tier) {
	for _, id := range ids {
		at := place{id, tier}
		if s.copies[at]--; s.copies[at] < 0 {
			s.err = fmt.Errorf("block %x was removed and had no copy in %v", id, tier)
		}
		if s.copies[at] == 0 {
			delete(s.copies, at)
		}
	}
}

func (s *shelf) clear(tier fleet.Tier) {
	maps.DeleteFunc(s.copies, func(p place, _ int) bool { return p.tier == tier })
}
