package oracle

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// layersOf makes layers of a few depths, each with a part of those before, and names some others.
func layersOf(r *rand.Rand, targets, most, tiers int) (l index.Layers) {
	var set index.Set
	blocks := 0
	for range r.IntN(most) {
		blocks += 1 + r.IntN(3)
		next := l.Add(blocks, 1+r.IntN(targets/64+1))
		for i := range next {
			if next[i] = r.Uint64() | r.Uint64() | r.Uint64(); set != nil {
				next[i] &= set.Word(i)
			}
		}
		set = next
	}
	for id := range fleet.TargetID(targets) {
		if r.IntN(20) > 0 {
			continue
		}
		m := index.Match{Target: id}
		m.Blocks[r.IntN(tiers)] = 1 + r.Uint32N(4)
		l.Others = append(l.Others, m)
	}
	return l
}

// blocksOf is what layers say of a target.
func blocksOf(l *index.Layers, id fleet.TargetID) (out [fleet.NumTiers]uint32) {
	for _, m := range l.Others {
		if m.Target == id {
			return m.Blocks
		}
	}
	for _, x := range l.All {
		if x.Set.Has(id) {
			out[fleet.Device] = x.Blocks
		}
	}
	return out
}

// TestDivideIsWhatWasMatched: each of a lineup, of one block size or of two, with gaps in its ids or without, is of the kind,
// or has the hold, that a look into what was matched of it says; and kinds know how many they are and who is the first.
func TestDivideIsWhatWasMatched(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	met := map[string]int{}
	o := New(Config{}, nil)
	for n := range 800 {
		const targets, length = 200, 1000
		w := &work{roster: &roster{}, now: t0}
		sizes := []int{16, 32}[:1+r.IntN(2)]
		for _, size := range sizes {
			q := &w.prompts[w.promptFor(size)].quick
			q.facts, q.guesses = layersOf(r, targets, 4, fleet.NumTiers), layersOf(r, targets, 4, 1)
			if r.IntN(3) == 0 {
				q.approx = layersOf(r, targets, 2, 1)
			}
			if r.IntN(10) == 0 { // more kinds than there may be
				q.facts, q.guesses = layersOf(r, targets, 17, fleet.NumTiers), layersOf(r, targets, 17, 1)
			}
		}
		gaps, skew := r.IntN(2) == 0, r.IntN(4)
		w.roster.steady.cover(targets)
		end := 40 + fleet.TargetID(r.IntN(targets-40))
		for id := fleet.TargetID(r.IntN(30)); id < end; id++ {
			if gaps && r.IntN(3) == 0 {
				continue
			}
			if skew == 0 || r.IntN(9) > 0 {
				w.roster.steady.at(id).Or(1 << (id % 64))
			}
			k := r.IntN(len(sizes))
			w.roster.seats = append(w.roster.seats, seat{
				id: id, feed: &feed{o: o, target: id}, worker: &fleet.Worker{Spec: fleet.Spec{BlockSize: sizes[k]}},
			})
			w.lineup.add(id, len(w.lineup.ids), k)
		}
		if len(w.lineup.ids) == 0 {
			continue
		}
		for k := range w.prompts { // a block size that nobody has
			for k >= len(w.lineup.sets) {
				w.lineup.sets = append(w.lineup.sets, nil)
			}
		}
		w.placeHolders(asTokens, length)

		counts, firsts := map[uint8]int{}, map[uint8]int{}
		for i, id := range w.lineup.ids {
			size := slices.IndexFunc(w.lineup.sets, func(s index.Set) bool { return s.Has(id) })
			q := &w.prompts[size].quick
			facts, guesses, approx := blocksOf(&q.facts, id), blocksOf(&q.guesses, id), blocksOf(&q.approx, id)
			want := said{facts[fleet.Device], guesses[fleet.Device]}
			isOwn := isFarther(&facts) || approx != (byTier{}) || want.facts > 0 && !w.roster.steady.has(id)
			h := w.holdOf(id)
			switch {
			case h != nil && !isOwn && len(w.kinds) < maxKinds, h == nil && isOwn:
				t.Fatalf("lineup %d, target %d: a hold of its own %t, want %t", n, id, h != nil, isOwn)
			case h != nil:
				x := hold{id: id, size: size, blocks: h.blocks, credit: h.credit}
				most := (length - 1) / sizes[size] * sizes[size]
				x.holds(&facts, sizes[size], most)
				x.expects(&guesses, sizes[size], most)
				if x != *h {
					t.Fatalf("lineup %d, target %d: holds %+v, want %+v", n, id, *h, x)
				}
				met["own"]++
				if !isOwn {
					met["too many"]++
				}
			default:
				k := &w.kinds[w.kind[i]]
				if k.said != want || k.said != (said{}) && k.hold.size != size {
					t.Fatalf("lineup %d, target %d: kind %+v, want %+v of size %d", n, id, *k, want, size)
				}
				if counts[w.kind[i]]++; counts[w.kind[i]] == 1 {
					firsts[w.kind[i]] = i
				}
				met["alike"]++
			}
		}
		for i, k := range w.kinds {
			if k.n != counts[uint8(i)] || k.n > 0 && k.first != firsts[uint8(i)] {
				t.Fatalf("lineup %d: kind %d has %d from place %d, want %d from %d", n, i, k.n, k.first, counts[uint8(i)], firsts[uint8(i)])
			}
		}
		if !slices.IsSortedFunc(w.holds, func(a, b hold) int { return cmp.Compare(a.id, b.id) }) {
			t.Fatalf("lineup %d: holds are not in order", n)
		}
		if gaps {
			met["gaps"]++
		}
		met[[...]string{"", "one size", "two sizes"}[len(sizes)]]++
	}
	for _, what := range []string{"own", "alike", "too many", "gaps", "one size", "two sizes"} {
		if met[what] < 50 {
			t.Errorf("%q was met %d times: too few", what, met[what])
		}
	}
}

// TestPaint: those whose bit is set change, and nobody else.
func TestPaint(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		list := make([]uint8, 1+r.IntN(64))
		for i := range list {
			list[i] = uint8(r.IntN(256))
		}
		set, k := r.Uint64()&(1<<len(list)-1), uint8(r.IntN(256))
		want := slices.Clone(list)
		for i := range want {
			if set>>i&1 != 0 {
				want[i] = k
			}
		}
		if paint(list, k, set); !slices.Equal(list, want) {
			t.Fatalf("%x: got %v, want %v", set, list, want)
		}
	}
}
