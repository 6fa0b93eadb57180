package client

import (
	"cmp"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// snapshot is everything a rank held after one batch, taken under the reporter's lock. Copying costs 32 bytes and some 50
// ns a block; ordering and sending happen outside the lock.
type snapshot struct {
	sequence uint64
	doubtful bool
	blocks   []heldBlock
	count    uint64 // (block, tier) pairs
	digests  []*kvoraclev1.BlockDigest
}

type heldBlock struct {
	id block.ID
	held
}

// export copies the contents.
func (m *mirror) export() []heldBlock {
	out := make([]heldBlock, 0, len(m.blocks))
	for id, h := range m.blocks {
		out = append(out, heldBlock{id, h})
	}
	return out
}

// total is the number of (block, tier) pairs.
func (m *mirror) total() uint64 {
	var n uint64
	for t := range m.digests {
		n += m.digests[t].count
	}
	return n
}

// chains orders blocks so that parents come before children, and cuts them into runs in which each block follows the one
// before it and lies in the same tiers. yield gets the run's parent, its blocks (valid during the call) and their copies;
// it returns false to stop.
//
// Blocks whose parents are not held come too, and so do the rings that ids made by no hash can form: nothing that is
// held is left out.
func chains(blocks []heldBlock, yield func(p Parent, ids []uint64, copies [numTiers]uint16) bool) {
	place := make(map[block.ID]int32, len(blocks))
	// Sorted, so that two snapshots of one state are the same messages.
	slices.SortFunc(blocks, func(a, b heldBlock) int { return cmp.Compare(a.id, b.id) })
	for i := range blocks {
		place[blocks[i].id] = int32(i)
	}
	const none = -1
	first, next := make([]int32, len(blocks)), make([]int32, len(blocks)) // children of i: first[i], next[first[i]], ...
	for i := range first {
		first[i], next[i] = none, none
	}
	var tops, inner []int32
	for i := len(blocks) - 1; i >= 0; i-- {
		b := &blocks[i]
		if p, ok := place[b.parent]; ok && !b.isRoot {
			next[i], first[p] = first[p], int32(i)
			inner = append(inner, int32(i))
		} else {
			tops = append(tops, int32(i))
		}
	}
	done := make([]bool, len(blocks))
	var run []uint64
	var stack []int32
	// A ring has no top; whatever is not reached from the tops is entered where it comes.
	for _, top := range slices.Concat(tops, inner) {
		stack = append(stack[:0], top)
		for len(stack) > 0 {
			i := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if done[i] {
				continue
			}
			head := &blocks[i]
			run = run[:0]
			for {
				done[i] = true
				run = append(run, uint64(blocks[i].id))
				for c := first[i]; c != none; c = next[c] {
					stack = append(stack, c)
				}
				if first[i] == none {
					break
				}
				c := stack[len(stack)-1]
				if done[c] || blocks[c].copies != head.copies {
					break
				}
				i = c
				stack = stack[:len(stack)-1]
			}
			p := After(head.parent)
			if head.isRoot {
				p = Root()
			}
			if !yield(p, run, head.copies) {
				return
			}
		}
	}
}

// chunks turns a snapshot into messages of at most maxBytes each, as far as one block fits. send returns false to stop.
func (s *snapshot) chunks(maxBytes int, send func(*kvoraclev1.SnapshotChunk) bool) {
	p := packer{maxBytes: maxBytes, send: send, chunk: &kvoraclev1.SnapshotChunk{}}
	ok := true
	chains(s.blocks, func(parent Parent, ids []uint64, copies [numTiers]uint16) bool {
		for t := range numTiers {
			for range copies[t] {
				if ok = p.add(parent, ids, tierAt(t)); !ok {
					return false
				}
			}
		}
		return true
	})
	if ok {
		p.flush()
	}
}

// packer fills chunks.
type packer struct {
	maxBytes int
	send     func(*kvoraclev1.SnapshotChunk) bool
	chunk    *kvoraclev1.SnapshotChunk
	bytes    int
}

func (p *packer) add(parent Parent, ids []uint64, tier Tier) bool {
	for len(ids) > 0 {
		room := (p.maxBytes - p.bytes - opBytes(0)) / 8
		// A handful of blocks at a chunk's end costs more than it carries.
		if room < min(len(ids), 16) && p.bytes > 0 || len(p.chunk.GetStores()) == maxOps {
			if !p.flush() {
				return false
			}
			continue
		}
		n := min(len(ids), max(room, 1), maxOpBlocks)
		p.chunk.Stores = append(p.chunk.Stores, storeOf(parent, slices.Clone(ids[:n]), tier))
		p.bytes += opBytes(n)
		parent = After(block.ID(ids[n-1]))
		ids = ids[n:]
	}
	return true
}

func (p *packer) flush() bool {
	if p.bytes == 0 {
		return true
	}
	chunk := p.chunk
	p.chunk, p.bytes = &kvoraclev1.SnapshotChunk{}, 0
	return p.send(chunk)
}

const (
	// maxOpBlocks and maxOps are the protocol's limits.
	maxOpBlocks = 65_536
	maxOps      = 65_536
	// maxMessage is the most put into one message, whatever the oracle reads: large enough to be cheap, small enough not
	// to hold up what comes behind it.
	maxMessage = 1 << 20
	// minMessage is the least, whatever the oracle says.
	minMessage = 256
	// messageBytes is room for what surrounds the operations.
	messageBytes = 64
)

// opBytes is the most an operation on n blocks takes on the wire.
func opBytes(n int) int { return 40 + 8*n }

func storeOf(p Parent, ids []uint64, tier Tier) *kvoraclev1.StoreBlocks {
	s := &kvoraclev1.StoreBlocks{
		Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids}},
		Tier:    tier,
	}
	if p.kind == rootParent {
		s.Parent = &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}}
	} else {
		s.Parent = &kvoraclev1.StoreBlocks_ParentBlockId{ParentBlockId: uint64(p.id)}
	}
	return s
}
