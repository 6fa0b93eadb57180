package client

import (
	"math"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Parent is what the first block of a store follows. The zero value is neither the start nor a block and is refused: an
// unknown parent must never be taken for the prompt's start.
type Parent struct {
	id   block.ID
	kind parentKind
}

type parentKind uint8

const (
	noParent parentKind = iota
	rootParent
	blockParent
)

// Root is the prompt's start.
func Root() Parent { return Parent{kind: rootParent} }

// After is a block. If the worker does not hold it, what is stored after it is kept but counts for nothing until it is
// stored too.
func After(id BlockID) Parent { return Parent{id: id, kind: blockParent} }

// mirror is what a rank holds: the reporter's own copy of what the oracle should believe. It follows the oracle's rules
// to the letter, since a difference is a digest mismatch: a block lives while some tier holds it, its parent is fixed
// for as long as it lives, and a repeated store is another copy (counted) or nothing (set).
//
// Invariant: for each tier, digest == count, XOR and sum of the ids with copies in it, and count and sum of the copies. Not for concurrent use.
type mirror struct {
	counted bool
	blocks  map[block.ID]held
	digests [numTiers]digest
	undo    []block.ID // scratch of store
}

// held is one block; 24 bytes.
type held struct {
	parent block.ID
	copies [numTiers]uint16 // saturated: a count that has run out of bits loses copies, never invents any
	isRoot bool
}

func (h *held) isHeld() bool { return h.copies != [numTiers]uint16{} }

// digest sums up the blocks of a tier, and their copies.
type digest struct{ count, xor, sum, copies, copySum uint64 }

func (d *digest) add(id block.ID) {
	d.count++
	d.xor ^= uint64(id)
	d.sum += uint64(id)
	d.another(id)
}

// another takes in a further copy.
func (d *digest) another(id block.ID) {
	d.copies++
	d.copySum += uint64(id)
}

// fewer takes out a copy, not the last one.
func (d *digest) fewer(id block.ID) {
	d.copies--
	d.copySum -= uint64(id)
}

// remove takes out the last copy.
func (d *digest) remove(id block.ID) {
	d.count--
	d.xor ^= uint64(id)
	d.sum -= uint64(id)
	d.fewer(id)
}

func newMirror(counted bool) mirror {
	return mirror{counted: counted, blocks: make(map[block.ID]held)}
}

// store adds a chain and reports whether anything changed. A conflict changes nothing. An id that repeats its
// predecessor is the same block told twice.
func (m *mirror) store(p Parent, ids []block.ID, tier int) (changed bool, err error) {
	isRoot, parent := p.kind == rootParent, p.id
	if !isRoot && len(ids) > 0 && ids[0] == parent {
		return false, &Error{Kind: ErrParentConflict, Field: "parent", Message: "a block is its own parent"}
	}
	m.undo = m.undo[:0]
	for i, id := range ids {
		h, ok := m.blocks[id]
		switch {
		case i > 0 && id == ids[i-1]: // the same once more
		case !ok:
			h = held{parent: parent, isRoot: isRoot}
		case h.isRoot != isRoot || !isRoot && h.parent != parent:
			m.rollback(tier)
			return false, &Error{Kind: ErrParentConflict, Field: "ids", Message: "a held block is named with another parent"}
		}
		switch c := &h.copies[tier]; {
		case *c == 0:
			*c = 1
			m.digests[tier].add(id)
			m.undo = append(m.undo, id)
		case m.counted && *c < math.MaxUint16:
			*c++
			m.digests[tier].another(id)
			m.undo = append(m.undo, id)
		}
		m.blocks[id] = h
		isRoot, parent = false, id
	}
	return len(m.undo) > 0, nil
}

// rollback takes back what an unfinished store did.
func (m *mirror) rollback(tier int) {
	for i := len(m.undo) - 1; i >= 0; i-- {
		m.removeOne(m.undo[i], tier)
	}
}

// remove takes a copy of each block out of a tier and returns those that were there.
func (m *mirror) remove(ids []block.ID, tier int) (gone []uint64) {
	for _, id := range ids {
		if m.removeOne(id, tier) {
			gone = append(gone, uint64(id))
		}
	}
	return gone
}

func (m *mirror) removeOne(id block.ID, tier int) bool {
	h, ok := m.blocks[id]
	if !ok || h.copies[tier] == 0 {
		return false
	}
	h.copies[tier]--
	if h.copies[tier] == 0 {
		m.digests[tier].remove(id)
	} else {
		m.digests[tier].fewer(id)
	}
	m.settle(id, h)
	return true
}

// settle keeps a block that is still held and forgets one that is not.
func (m *mirror) settle(id block.ID, h held) {
	if h.isHeld() {
		m.blocks[id] = h
	} else {
		delete(m.blocks, id)
	}
}

// clear empties a tier and reports whether it held anything.
func (m *mirror) clear(tier int) bool {
	if m.digests[tier].count == 0 {
		return false
	}
	for id, h := range m.blocks {
		if h.copies[tier] > 0 {
			h.copies[tier] = 0
			m.settle(id, h)
		}
	}
	m.digests[tier] = digest{}
	return true
}

// clearAll empties every tier and reports whether any held anything.
func (m *mirror) clearAll() bool {
	if len(m.blocks) == 0 {
		return false
	}
	m.blocks = make(map[block.ID]held)
	m.digests = [numTiers]digest{}
	return true
}
