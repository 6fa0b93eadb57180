package load

// IDTable finds what decisions have by their ids. Those that were made one after the other, as an oracle counts them, lie side
// by side: to enter one is to write next to the last one, where a map of single ids would look at memory that nobody has
// looked at for long. Any ids will do.
//
//	groups[k].at[i] = of the decision k*idGroup+i
//	groups[k].n     = how many of at are there; a group without any is put away
//
// It costs at most idGroup+2 words for each living one, where of every group only one is left. The zero value is empty. It
// has no lock.
type IDTable[V any] struct {
	groups map[DecisionID]*idsOf[V]
	newest *idsOf[V] // the group that was added to last, so as not to look for it
	key    DecisionID
	free   []*idsOf[V]
	n      int
}

const (
	idGroupBits = 4
	idGroup     = 1 << idGroupBits
	freeGroups  = 256 // kept for reuse
)

// idsOf is idGroup ids that follow each other.
type idsOf[V any] struct {
	n  int
	at [idGroup]*V
}

// Len is how many there are.
func (t *IDTable[V]) Len() int { return t.n }

func (t *IDTable[V]) group(key DecisionID) *idsOf[V] {
	if t.newest != nil && t.key == key {
		return t.newest
	}
	return t.groups[key]
}

// Get finds what an id has, or nil.
func (t *IDTable[V]) Get(id DecisionID) *V {
	if g := t.group(id >> idGroupBits); g != nil {
		return g.at[id%idGroup]
	}
	return nil
}

// Put enters v, which is not nil, under an id that has nothing.
func (t *IDTable[V]) Put(id DecisionID, v *V) {
	key := id >> idGroupBits
	g := t.group(key)
	if g == nil {
		if last := len(t.free) - 1; last >= 0 {
			g, t.free[last] = t.free[last], nil
			t.free = t.free[:last]
		} else {
			g = new(idsOf[V])
		}
		if t.groups == nil {
			t.groups = make(map[DecisionID]*idsOf[V])
		}
		t.groups[key] = g
	}
	t.newest, t.key = g, key
	g.at[id%idGroup] = v
	g.n++
	t.n++
}

// Remove takes an id out that has something.
func (t *IDTable[V]) Remove(id DecisionID) {
	key := id >> idGroupBits
	g := t.group(key)
	g.at[id%idGroup] = nil
	t.n--
	if g.n--; g.n > 0 {
		return
	}
	delete(t.groups, key)
	if t.newest == g {
		t.newest = nil
	}
	if len(t.free) < freeGroups {
		t.free = append(t.free, g)
	}
}

// All gives everything, in no order.
func (t *IDTable[V]) All(yield func(DecisionID, *V) bool) {
	for key, g := range t.groups {
		for i, v := range g.at {
			if v != nil && !yield(key<<idGroupBits+DecisionID(i), v) {
				return
			}
		}
	}
}
