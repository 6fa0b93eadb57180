package client

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
)

// twin is a mirror with no cleverness at all: it copies everything before a store and compares afterwards.
type twin struct {
	counted bool
	parents map[block.ID]Parent
	copies  map[block.ID][numTiers]int
}

func newTwin(counted bool) *twin {
	return &twin{counted, make(map[block.ID]Parent), make(map[block.ID][numTiers]int)}
}

func (w *twin) store(p Parent, ids []block.ID, tier int) bool {
	parents, copies := maps.Clone(w.parents), maps.Clone(w.copies)
	for i, id := range ids {
		if i > 0 && id == ids[i-1] {
			// told twice
		} else {
			if p == After(id) {
				return false
			}
			if old, ok := parents[id]; ok && old != p {
				return false
			}
			parents[id] = p
			p = After(id)
		}
		c := copies[id]
		if w.counted || c[tier] == 0 {
			c[tier]++
		}
		copies[id] = c
	}
	w.parents, w.copies = parents, copies
	return true
}

func (w *twin) remove(ids []block.ID, tier int) (gone []uint64) {
	for _, id := range ids {
		if c := w.copies[id]; c[tier] > 0 {
			c[tier]--
			w.copies[id] = c
			gone = append(gone, uint64(id))
		}
		w.sweep(id)
	}
	return gone
}

func (w *twin) clear(tier int) {
	for id, c := range w.copies {
		c[tier] = 0
		w.copies[id] = c
		w.sweep(id)
	}
}

func (w *twin) sweep(id block.ID) {
	if w.copies[id] == [numTiers]int{} {
		delete(w.copies, id)
		delete(w.parents, id)
	}
}

// state is the mirror in the twin's terms.
func (m *mirror) state() *twin {
	w := newTwin(m.counted)
	for id, h := range m.blocks {
		p := After(h.parent)
		if h.isRoot {
			p = Root()
		}
		var c [numTiers]int
		for t, n := range h.copies {
			c[t] = int(n)
		}
		w.parents[id], w.copies[id] = p, c
	}
	return w
}

// sums recomputes the digests.
func (w *twin) sums() (d [numTiers]digest) {
	for id, c := range w.copies {
		for t, n := range c {
			if n == 0 {
				continue
			}
			d[t].count++
			d[t].xor ^= uint64(id)
			d[t].sum += uint64(id)
			d[t].copies += uint64(n)
			d[t].copySum += uint64(n) * uint64(id)
		}
	}
	return d
}

// randomChain makes a short chain over few ids, so that repeats, conflicts and rings are common.
func randomChain(rng *rand.Rand) (Parent, []block.ID) {
	const ids = 12
	p := Root()
	if rng.IntN(2) == 0 {
		p = After(block.ID(rng.IntN(ids)))
	}
	chain := make([]block.ID, 1+rng.IntN(4))
	for i := range chain {
		chain[i] = block.ID(rng.IntN(ids))
	}
	return p, chain
}

func TestMirrorIsItsTwin(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m, w := newMirror(seed%2 == 1), newTwin(seed%2 == 1)
		for step := range 200 {
			tier := rng.IntN(numTiers)
			switch rng.IntN(12) {
			case 0:
				m.clear(tier)
				w.clear(tier)
			case 1:
				if rng.IntN(8) == 0 {
					m.clearAll()
					w = newTwin(w.counted)
				}
			case 2, 3, 4:
				_, ids := randomChain(rng)
				if d := cmp.Diff(w.remove(ids, tier), m.remove(ids, tier)); d != "" {
					t.Fatalf("seed %d step %d: removed (-want +got)\n%s", seed, step, d)
				}
			default:
				p, ids := randomChain(rng)
				before := m.state()
				ok := w.store(p, ids, tier)
				changed, err := m.store(p, ids, tier)
				if ok != (err == nil) || err != nil && !errors.Is(err, ErrParentConflict) {
					t.Fatalf("seed %d step %d: store(%v, %v): error %v, twin accepted: %t", seed, step, p, ids, err, ok)
				}
				if same := cmp.Equal(before, m.state(), compareTwins); changed == same {
					t.Fatalf("seed %d step %d: store(%v, %v) says changed=%t", seed, step, p, ids, changed)
				}
			}
			if d := cmp.Diff(w, m.state(), compareTwins); d != "" {
				t.Fatalf("seed %d step %d (-want +got)\n%s", seed, step, d)
			}
			if got, want := m.digests, w.sums(); got != want {
				t.Fatalf("seed %d step %d: digests %v, want %v", seed, step, got, want)
			}
		}
	}
}

var compareTwins = cmp.AllowUnexported(twin{}, Parent{})

func TestMirrorCopiesSaturate(t *testing.T) {
	m := newMirror(true)
	ids := slices.Repeat([]block.ID{7}, 70_000) // the same block told 70,000 times
	if _, err := m.store(Root(), ids, 0); err != nil {
		t.Fatal(err)
	}
	if got := m.blocks[7].copies[0]; got != 65_535 {
		t.Fatalf("%d copies, want 65,535", got)
	}
	m.remove(ids[:65_535], 0)
	if len(m.blocks) != 0 || m.digests[0] != (digest{}) {
		t.Fatalf("not empty: %v", m)
	}
}

// replay is what an oracle makes of a snapshot: a mirror, and how many stores came before their parent.
func replay(t *testing.T, counted bool, blocks []heldBlock, maxBytes int, seen func(bytes int)) (m mirror, early int) {
	t.Helper()
	m = newMirror(counted)
	snap := snapshot{blocks: blocks}
	snap.chunks(maxBytes, func(c *chunkMessage) bool {
		seen(messageSize(c))
		for _, s := range c.GetStores() {
			p := parentOf(s)
			if _, ok := m.blocks[p.id]; !ok && p.kind == blockParent {
				early++
			}
			if _, err := m.store(p, asBlockIDs(s.GetBlockIds().GetIds()), int(s.GetTier()-TierDevice)); err != nil {
				t.Fatalf("store in a snapshot: %v", err)
			}
		}
		return true
	})
	return m, early
}

func TestSnapshotShowsTheMirror(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		m := newMirror(seed%2 == 1)
		for range rng.IntN(60) {
			p, ids := randomChain(rng)
			_, _ = m.store(p, ids, rng.IntN(numTiers)) // conflicts are the mirror's test
			if rng.IntN(3) == 0 {
				_, ids := randomChain(rng)
				m.remove(ids, rng.IntN(numTiers))
			}
		}
		maxBytes := []int{minMessage - messageBytes, 1000, 1 << 20}[seed%3]
		got, _ := replay(t, m.counted, m.export(), maxBytes, func(bytes int) {
			if bytes > maxBytes {
				t.Errorf("seed %d: chunk of %d bytes, want at most %d", seed, bytes, maxBytes)
			}
		})
		if d := cmp.Diff(m.state(), got.state(), compareTwins); d != "" {
			t.Fatalf("seed %d (-want +got)\n%s", seed, d)
		}
		if got.total() != m.total() {
			t.Fatalf("seed %d: block count %d, want %d", seed, got.total(), m.total())
		}
	}
}

func TestSnapshotTellsParentsFirst(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	m := newMirror(false)
	chain := []block.ID{1}
	for id := block.ID(2); id < 3000; id++ {
		// A random tree, in random tiers: parents in a farther tier than their children too.
		parent := chain[rng.IntN(len(chain))]
		if rng.IntN(4) > 0 {
			parent = chain[len(chain)-1]
		}
		p := After(parent)
		if id == 2 {
			p = Root()
		}
		if id == 2 {
			chain = chain[:0]
		}
		if _, err := m.store(p, []block.ID{id}, rng.IntN(2)); err != nil {
			t.Fatal(err)
		}
		chain = append(chain, id)
	}
	chunks := 0
	got, early := replay(t, false, m.export(), 4096, func(int) { chunks++ })
	if early != 0 {
		t.Errorf("%d stores came before their parents", early)
	}
	if chunks < 3 {
		t.Errorf("%d chunks: the limit was not tried", chunks)
	}
	if d := cmp.Diff(m.state(), got.state(), compareTwins); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestSnapshotsOfOneStateAreEqual(t *testing.T) {
	m := newMirror(false)
	for id := block.ID(1); id < 500; id++ {
		if _, err := m.store(After(id/2), []block.ID{id}, 0); err != nil && id > 1 {
			t.Fatal(err)
		}
	}
	var first, second []int
	replay(t, false, m.export(), 700, func(n int) { first = append(first, n) })
	replay(t, false, m.export(), 700, func(n int) { second = append(second, n) })
	if d := cmp.Diff(first, second); d != "" {
		t.Errorf("two snapshots differ:\n%s", d)
	}
}
