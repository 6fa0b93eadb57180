package edge

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// check looks a chain up without changing anything but the mark of a name it contradicts. Blocks before from have no id;
// the ids of the others are in t.ids. fresh counts the new names and waits those of them without an id.
func (t *Translator) check(s *Store) (from, fresh, waits int, refused Refusal) {
	t.ids = t.ids[:0]
	clear(t.seen)
	from = len(s.Hashes)
	above, prev := block.ID(s.Keyspace), s.Parent
	if s.IsRoot {
		from = 0
	} else {
		if s.Parent == s.Hashes[0] {
			t.contest(s.Parent)
			return 0, 0, 0, SelfParent
		}
		p, ok := t.all[s.Parent]
		if ok && p.contested {
			return 0, 0, 0, Conflict
		}
		if ok && p.state == known {
			from, above = 0, p.id
		}
	}
	for i, h := range s.Hashes {
		if len(s.Hashes) > 1 {
			if _, again := t.seen[h]; again {
				t.contest(h)
				return 0, 0, 0, Conflict
			}
			t.seen[h] = struct{}{}
		}
		n, ok := t.all[h]
		id := above.Child(s.Locals[i])
		isSame := !n.contested
		switch {
		case !ok:
			fresh++
			if i < from {
				waits++
			}
		case n.state == known && i < from:
			// Its parent is not known any more, or not yet again. The tokens must still be the same, and from here on the chain
			// has ids.
			id = n.parent.Child(s.Locals[i])
			isSame = isSame && id == n.id
			from = i
		case n.state == known:
			isSame = isSame && id == n.id
		case n.state == waiting:
			w := t.waiters[h]
			isSame = isSame && w.local == s.Locals[i] && w.parent == prev && (i > 0 || !s.IsRoot)
		}
		if !isSame {
			t.contest(h)
			return 0, 0, 0, Conflict
		}
		if i >= from {
			t.ids = append(t.ids, id)
		}
		above, prev = id, h
	}
	return from, fresh, waits, None
}

// contest marks a name that is held: what it stands for is in doubt.
func (t *Translator) contest(h Hash) {
	if n, ok := t.all[h]; ok {
		n.contested = true
		t.all[h] = n
	}
}

// wait stores the part of a chain that has no ids yet.
func (t *Translator) wait(s *Store, from int, r *Result) {
	prev := s.Parent
	for i, h := range s.Hashes[:from] {
		n, ok := t.all[h]
		if !ok {
			n = t.first(waiting)
		}
		if n.state == nameless {
			n.state = waiting
			t.link(h, prev, s.Locals[i])
		}
		if !t.count(h, &n, s.Tier) {
			r.Repeated++
		}
		t.all[h] = n
		prev = h
	}
}

// run is a part of a chain whose blocks all get a copy, so that it can be handed on at once.
type run struct {
	from, to int // in the chain
	parent   block.ID
	isRoot   bool
}

// name stores the part of a chain that has ids, then what has waited for it.
func (t *Translator) name(s *Store, from int, c Contents, r *Result) {
	t.todo = t.todo[:0]
	var u run
	i := from
	for ; i < len(s.Hashes) && r.Refused == None; i++ {
		h, id := s.Hashes[i], t.ids[i-from]
		n, ok := t.all[h]
		if !ok {
			n = t.first(known)
		}
		isNew := n.state != known
		if isNew {
			n.parent, n.isRoot = t.above(s, i, from)
			t.know(h, &n, id)
			t.todo = append(t.todo, h)
		}
		before := n.copies
		got := t.count(h, &n, s.Tier)
		t.all[h] = n
		if ok && isNew {
			// What it was told to have before it had an id, after its parents.
			t.flush(s, &u, from, c, r)
			t.pushAll(h, before, c, r)
		}
		if !got {
			r.Repeated++
			t.flush(s, &u, from, c, r)
			continue
		}
		if u.from == u.to {
			u = run{from: i, to: i, parent: n.parent, isRoot: n.isRoot}
		}
		u.to++
	}
	t.flush(s, &u, from, c, r)
	t.Tell(s.Hashes[i:], s.Tier)
	t.adopt(c, r)
}

// above is what block i of a chain follows.
func (t *Translator) above(s *Store, i, from int) (parent block.ID, isRoot bool) {
	switch {
	case i > from:
		return t.ids[i-from-1], false
	case s.IsRoot:
		return block.ID(s.Keyspace), true
	default:
		return t.all[s.Parent].id, false
	}
}

// know gives a name its id.
func (t *Translator) know(h Hash, n *name, id block.ID) {
	if n.state == waiting {
		t.unlink(h)
	}
	if n.limited {
		n.limited = false
		t.limited--
	}
	n.state, n.id = known, id
}

// flush hands a run on. What is not taken loses the copy that it got, and is only remembered.
func (t *Translator) flush(s *Store, u *run, from int, c Contents, r *Result) {
	if u.from == u.to {
		return
	}
	taken := c.Store(u.parent, u.isRoot, t.ids[u.from-from:u.to-from], s.Tier)
	for _, h := range s.Hashes[u.from+taken : u.to] {
		n := t.all[h]
		t.drop(h, &n, s.Tier, 1)
		t.settle(h, n)
		t.tell(h, s.Tier)
		r.Refused = NoRoom
	}
	*u = run{}
}

// pushAll hands on the copies a name had before it got its id.
func (t *Translator) pushAll(h Hash, copies [fleet.NumTiers]uint16, c Contents, r *Result) {
	for tier, k := range copies {
		if k > 0 && !t.push(h, fleet.Tier(tier), k, c) {
			r.Refused = NoRoom
		}
	}
}

// adopt gives ids to what waits for the names in t.todo, and to what waits for those in turn.
func (t *Translator) adopt(c Contents, r *Result) {
	for len(t.todo) > 0 {
		h := t.todo[len(t.todo)-1]
		t.todo = t.todo[:len(t.todo)-1]
		p, ok := t.all[h]
		if !ok {
			continue // there was no room for it
		}
		for {
			kid, more := t.kids[h]
			if !more {
				break
			}
			n := t.all[kid]
			n.parent = p.id
			t.know(kid, &n, p.id.Child(t.waiters[kid].local))
			t.all[kid] = n
			t.todo = append(t.todo, kid)
			t.pushAll(kid, n.copies, c, r)
		}
	}
}
