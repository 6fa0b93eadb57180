package edge

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Contents is where translated changes go. Each call adds or takes one copy of each block.
type Contents interface {
	// Store adds a chain to a tier: ids[0] follows parent, or the prompt's start. It returns how many blocks were taken,
	// from the front; fewer than all when there is no room.
	Store(parent block.ID, isRoot bool, ids []block.ID, tier fleet.Tier) int
	// Remove takes a copy of each block out of a tier.
	Remove(ids []block.ID, tier fleet.Tier)
}

// Limits bounds one translator.
type Limits struct {
	Names   int // names in all
	Waiting int // names without an id, told since Limit
	Refused int // names remembered from refused stores
}

// Translator is what one target's engine hashes stand for. See the package comment; not for concurrent use.
type Translator struct {
	names

	limits    Limits
	isCounted bool
	isLimited bool // Limits.Waiting applies
	isShort   bool // something that was told is neither among the names nor among those refused

	// Working memory of one store.
	ids  []block.ID
	seen map[Hash]struct{}
	todo []Hash
	one  [1]block.ID
	paid int // names that the budget has granted and that are not there yet
}

// New makes an empty translator. With isCounted a repeated store is another copy, else it changes nothing. Give its names
// back with Drop in the end.
func New(b *Budget, l Limits, isCounted bool) *Translator {
	t := &Translator{names: names{budget: b, refused: refused{budget: b}}, limits: l, isCounted: isCounted, seen: make(map[Hash]struct{})}
	t.reset()
	return t
}

// Limit makes Limits.Waiting hold for what is told from now on: in a snapshot, parents may come after their children.
func (t *Translator) Limit() { t.isLimited = true }

// SetNames changes the bound on names. What is there stays.
func (t *Translator) SetNames(n int) { t.limits.Names = n }

// Drop forgets everything and gives the names back.
func (t *Translator) Drop() { t.reset() }

// Digest sums up the names with a copy in a tier.
func (t *Translator) Digest(tier fleet.Tier) Digest { return t.digests[tier] }

// IsShort reports whether something was refused since the names were last empty of which there is no memory, so that
// Told is not what was told.
func (t *Translator) IsShort() bool { return t.isShort }

// Shorten says that something was refused before it got here, and that its names are not known.
func (t *Translator) Shorten() { t.isShort = true }

// Pairs is the number of (name, tier) pairs.
func (t *Translator) Pairs() int {
	n := uint64(0)
	for i := range t.digests {
		n += t.digests[i].Count
	}
	return int(n)
}

// Store is a chain of blocks with their names.
type Store struct {
	Tier     fleet.Tier
	IsRoot   bool           // the first block begins a prompt
	Keyspace block.Keyspace // of the prompt, with IsRoot
	Parent   Hash           // what the first block follows, without IsRoot
	Hashes   []Hash
	Locals   []block.Local // one for each; nil: stored without content, and the parent means nothing
}

// Refusal is why a store was not applied, or not fully.
type Refusal uint8

// The refusals.
const (
	// None: it was applied.
	None Refusal = iota
	// SelfParent: a block is its own parent.
	SelfParent
	// Conflict: a name that is held was told with other content or another parent, or is contested for that; or one name
	// stands twice in a list.
	Conflict
	// WaitingFull: the parent is not known, and too many wait for theirs already.
	WaitingFull
	// NamesFull: there is no room for so many names.
	NamesFull
	// NoRoom: Contents took only a part; what it took was applied.
	NoRoom
)

// Result says what became of a store.
type Result struct {
	Repeated int // names that had a copy in the tier and got no other
	Waiting  int // names told first, and without an id for now
	Refused  Refusal
}

// Store adds a chain. What waited for one of its blocks is handed on too.
func (t *Translator) Store(s *Store, c Contents) Result {
	if len(s.Hashes) == 0 {
		return Result{}
	}
	if s.Locals == nil {
		return t.storeNameless(s, c)
	}
	from, fresh, waits, refused := t.check(s)
	if refused == None {
		refused = t.admit(fresh, waits)
	}
	if refused != None {
		t.Tell(s.Hashes, s.Tier)
		return Result{Refused: refused}
	}
	t.paid = fresh
	r := Result{Waiting: waits}
	t.wait(s, from, &r)
	t.name(s, from, c, &r)
	t.budget.give(t.paid) // for what there was no room for
	t.paid = 0
	return r
}

// admit takes room for so many new names, some of which wait, or says what there is no room for.
func (t *Translator) admit(fresh, waits int) Refusal {
	switch {
	case t.isLimited && waits > 0 && t.limited+waits > t.limits.Waiting:
		return WaitingFull
	case len(t.all)+fresh > t.limits.Names || !t.budget.take(fresh):
		return NamesFull
	default:
		return None
	}
}

// storeNameless adds copies of names, some of which may stand for nothing yet.
func (t *Translator) storeNameless(s *Store, c Contents) Result {
	fresh := 0
	clear(t.seen)
	for _, h := range s.Hashes {
		if _, ok := t.all[h]; ok {
			continue
		}
		if _, again := t.seen[h]; !again {
			t.seen[h] = struct{}{}
			fresh++
		}
	}
	if refused := t.admit(fresh, fresh); refused != None {
		t.Tell(s.Hashes, s.Tier)
		return Result{Refused: refused}
	}
	t.paid = fresh
	r := Result{Waiting: fresh}
	for _, h := range s.Hashes {
		n, ok := t.all[h]
		if !ok {
			n = t.first(nameless)
		}
		if t.count(h, &n, s.Tier) {
			t.all[h] = n
			if n.state == known && !t.push(h, s.Tier, 1, c) {
				r.Refused = NoRoom
			}
		} else {
			r.Repeated++
		}
	}
	return r
}

// first is a name told for the first time. One without an id counts against the limit.
func (t *Translator) first(s state) name {
	t.paid--
	n := name{limited: t.isLimited && s != known}
	if n.limited {
		t.limited++
	}
	return n
}

// count adds a copy and reports whether it did: a set has one of each, and a count that has run out of bits loses copies
// rather than invent any.
func (t *Translator) count(h Hash, n *name, tier fleet.Tier) bool {
	switch k := n.copies[tier]; {
	case k == 0:
		t.digests[tier].add(h)
		t.refused.believed(h, tier, t.isCounted)
	case !t.isCounted || k == ^uint16(0):
		return false
	}
	n.copies[tier]++
	t.digests[tier].another(h)
	return true
}

// push hands copies of one known name on. If there is no room they are only remembered.
func (t *Translator) push(h Hash, tier fleet.Tier, copies uint16, c Contents) bool {
	n := t.all[h]
	t.one[0] = n.id
	for k := range copies {
		if c.Store(n.parent, n.isRoot, t.one[:], tier) == 1 {
			continue
		}
		t.drop(h, &n, tier, copies-k)
		t.settle(h, n)
		for range copies - k {
			t.tell(h, tier)
		}
		return false
	}
	return true
}

// Remove takes a copy of each name out of a tier and returns how many had none there.
func (t *Translator) Remove(hashes []Hash, tier fleet.Tier, c Contents) (unknown int) {
	t.ids = t.ids[:0]
	for _, h := range hashes {
		n, ok := t.all[h]
		if !ok || n.copies[tier] == 0 {
			t.refused.take(h, tier)
			unknown++
			continue
		}
		t.drop(h, &n, tier, 1)
		if n.state == known {
			t.ids = append(t.ids, n.id)
		}
		t.settle(h, n)
	}
	if len(t.ids) > 0 {
		c.Remove(t.ids, tier)
	}
	return unknown
}

// Clear empties a tier. What it held is the caller's to clear.
func (t *Translator) Clear(tier fleet.Tier) {
	for h, n := range t.all {
		if k := n.copies[tier]; k > 0 {
			t.drop(h, &n, tier, k)
			t.settle(h, n)
		}
	}
	t.refused.clear(tier)
}

// ClearAll empties all tiers.
func (t *Translator) ClearAll() {
	t.reset()
	t.isShort = false
}
