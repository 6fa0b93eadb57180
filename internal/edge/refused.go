package edge

import "github.com/kvoracle/kvoracle/internal/fleet"

// refused is what was told in stores that were refused. It stands for nothing; whoever told it counts it all the same, so
// that without it every digest after a refusal would differ and a loss behind it would not be found.
//
// A set has a name among what is believed or among what is refused, never both; a count may have copies in both, and
// removals take those that are believed first: what is left of the doubt then can only under-credit.
type refused struct {
	copies map[Hash][fleet.NumTiers]uint16
	// beyond is what Told has beyond Digest: count, XOR and sum of the names that are only here, and all copies.
	beyond [fleet.NumTiers]Digest
	budget *Budget
}

func (r *refused) reset() {
	r.budget.waive(len(r.copies))
	r.copies = nil
	r.beyond = [fleet.NumTiers]Digest{}
}

// believed notes that a name got its first copy that is believed.
func (r *refused) believed(h Hash, tier fleet.Tier, isCounted bool) {
	c, ok := r.copies[h]
	if !ok || c[tier] == 0 {
		return
	}
	d := &r.beyond[tier]
	d.remove(h)
	if !isCounted {
		d.fewer(h, c[tier])
		c[tier] = 0
		r.settle(h, c)
	}
}

// disbelieved notes that the last copy that was believed is gone.
func (r *refused) disbelieved(h Hash, tier fleet.Tier) {
	if c := r.copies[h]; c[tier] > 0 {
		r.beyond[tier].add(h)
	}
}

// take takes a copy of a name away that has none that is believed.
func (r *refused) take(h Hash, tier fleet.Tier) {
	c, ok := r.copies[h]
	if !ok || c[tier] == 0 {
		return
	}
	c[tier]--
	d := &r.beyond[tier]
	d.fewer(h, 1)
	if c[tier] == 0 {
		d.remove(h)
	}
	r.settle(h, c)
}

func (r *refused) clear(tier fleet.Tier) {
	for h, c := range r.copies {
		c[tier] = 0
		r.settle(h, c)
	}
	r.beyond[tier] = Digest{}
}

func (r *refused) settle(h Hash, c [fleet.NumTiers]uint16) {
	if c != [fleet.NumTiers]uint16{} {
		r.copies[h] = c
		return
	}
	delete(r.copies, h)
	r.budget.waive(1)
}

// Tell notes that a chain was told and refused: whoever told it will count it in its digests.
func (t *Translator) Tell(hashes []Hash, tier fleet.Tier) {
	for _, h := range hashes {
		t.tell(h, tier)
	}
}

func (t *Translator) tell(h Hash, tier fleet.Tier) {
	r := &t.refused
	believed := t.all[h].copies[tier]
	c, ok := r.copies[h]
	switch {
	case !t.isCounted && (believed > 0 || c[tier] > 0), c[tier] == ^uint16(0):
		return
	case !ok && (len(r.copies) >= t.limits.Refused || !r.budget.remember()):
		t.isShort = true
		return
	case r.copies == nil:
		r.copies = make(map[Hash][fleet.NumTiers]uint16)
	}
	d := &r.beyond[tier]
	if believed == 0 && c[tier] == 0 {
		d.add(h)
	}
	c[tier]++
	d.another(h)
	r.copies[h] = c
}

// Told sums up the names with a copy in a tier, those of refused stores included: what a reporter that takes no notice of
// refusals believes. It is exact unless IsShort.
func (t *Translator) Told(tier fleet.Tier) Digest {
	d, b := t.digests[tier], &t.refused.beyond[tier]
	d.Count += b.Count
	d.XOR ^= b.XOR
	d.Sum += b.Sum
	d.Copies += b.Copies
	d.CopySum += b.CopySum
	return d
}
