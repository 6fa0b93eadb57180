package block

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestMultimodalMatchesVectors(t *testing.T) {
	for i, c := range readVectors(t).Multimodal {
		var items []Item
		for _, x := range c.Items {
			digest, err := hex.DecodeString(x.Digest)
			if err != nil {
				t.Fatal(err)
			}
			items = append(items, Item{x.First, x.Count, Sum(digest)})
		}
		got := AppendLocals(nil, c.Tokens, c.Size)
		MixItems(got, c.Size, items)
		for n, want := range c.Locals {
			if got[n] != Local(want) {
				t.Errorf("case %d, block %d: %016x, want %016x", i, n, got[n], want)
			}
		}
	}
}

// mixPlainly is the definition, block by block and item by item.
func mixPlainly(local Local, from, size int, items []Item) Local {
	type entry struct {
		distance int64
		digest   uint64
	}
	inside := make(map[entry]bool)
	for _, it := range items {
		for at := it.First; at < it.First+it.Count; at++ {
			if at >= from && at < from+size {
				inside[entry{int64(it.First - from), it.Digest}] = true
			}
		}
	}
	if len(inside) == 0 {
		return local
	}
	var all []entry
	for e := range inside {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.digest, b.digest))
	})
	b := binary.LittleEndian.AppendUint64(nil, uint64(local))
	for _, e := range all {
		b = binary.LittleEndian.AppendUint64(b, uint64(e.distance))
		b = binary.LittleEndian.AppendUint64(b, e.digest)
	}
	return Local(Sum(append(b, "mm"...)))
}

func TestMixItemsIsTheDefinition(t *testing.T) {
	for seed := range uint64(3000) {
		dice := rand.New(rand.NewPCG(seed, 4))
		size, blocks := 1+dice.IntN(5), dice.IntN(8)
		plain := make([]Local, blocks)
		for i := range plain {
			plain[i] = Local(dice.Uint64())
		}
		var items []Item
		for range dice.IntN(6) {
			items = append(items, Item{dice.IntN(40) - 10, 1 + dice.IntN(15), uint64(dice.IntN(3))})
		}
		was := slices.Clone(items)
		got := slices.Clone(plain)
		MixItems(got, size, items)
		for n := range plain {
			if want := mixPlainly(plain[n], n*size, size, items); got[n] != want {
				t.Fatalf("seed %d: block %d of %d tokens with %v: %016x, want %016x", seed, n, size, items, got[n], want)
			}
		}
		if !slices.Equal(items, was) {
			t.Fatalf("seed %d: the caller's items were changed", seed)
		}
		dice.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
		again := slices.Clone(plain)
		MixItems(again, size, items)
		if !slices.Equal(got, again) {
			t.Fatalf("seed %d: the order of %v matters", seed, items)
		}
		// A part of the blocks, with positions counted from where it begins.
		from := dice.IntN(blocks + 1)
		for i := range items {
			items[i].First -= from * size
		}
		part := slices.Clone(plain[from:])
		MixItems(part, size, items)
		if !slices.Equal(got[from:], part) {
			t.Fatalf("seed %d: from block %d on the hashes differ", seed, from)
		}
	}
}

func TestMixItemsOfNothing(t *testing.T) {
	MixItems(nil, 4, []Item{{0, 1, 1}})
	MixItems([]Local{1}, 0, []Item{{0, 1, 1}})
	locals := []Local{1, 2}
	if n := testing.AllocsPerRun(10, func() { MixItems(locals, 4, nil) }); n != 0 || locals[0] != 1 {
		t.Errorf("without items: %v allocations, %v", n, locals)
	}
}
