package block

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// Item is an image, a sound or a film behind placeholder tokens. What a cache holds for its blocks depends on the item,
// which the tokens do not show.
type Item struct {
	First  int    // its first placeholder token, from the start of the tokens at hand; negative: it began before them
	Count  int    // placeholder tokens from First on, at least 1
	Digest uint64 // Sum of its content digest
}

// covers reports whether some of the item's tokens lie in [from, to).
func (it *Item) covers(from, to int) bool { return it.First < to && it.First+it.Count > from }

// MixItems replaces the local hashes of the blocks that items cover, as the package comment defines. The blocks have size
// tokens each and begin where the tokens do. The order of the items does not matter, nor does one that is named twice; how
// long an item goes on beyond a block has no effect on it. It allocates a copy of the items, and nothing without any.
//
// The cost is one hash for each covered block, over each item that covers it.
func MixItems(locals []Local, size int, items []Item) {
	if size < 1 || len(items) == 0 {
		return
	}
	items = slices.Clone(items)
	slices.SortFunc(items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Digest, b.Digest))
	})
	var stack [512]byte
	var open []Item // those that may cover the block, in order
	for n := max(0, items[0].First/size); n < len(locals); n++ {
		from := n * size
		open = slices.DeleteFunc(open, func(it Item) bool { return !it.covers(from, from+size) })
		for len(items) > 0 && items[0].First < from+size {
			if items[0].covers(from, from+size) {
				open = append(open, items[0])
			}
			items = items[1:]
		}
		if len(open) == 0 {
			if len(items) == 0 {
				return
			}
			n = items[0].First/size - 1
			continue
		}
		b := binary.LittleEndian.AppendUint64(stack[:0], uint64(locals[n]))
		for i, it := range open {
			if i > 0 && it.First == open[i-1].First && it.Digest == open[i-1].Digest {
				continue
			}
			b = binary.LittleEndian.AppendUint64(b, uint64(int64(it.First-from)))
			b = binary.LittleEndian.AppendUint64(b, it.Digest)
		}
		locals[n] = Local(Sum(append(b, "mm"...)))
	}
}
