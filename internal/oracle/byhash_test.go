package oracle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// pair is one engine that is reported twice: by block ids, and by hashes of its own with the contents. The oracle must
// believe the same of both.
type pair struct {
	t      *testing.T
	o      *Oracle
	dice   *rand.Rand
	ids    *BlockSession
	hashes *BlockSession
	seq    uint64
	seed   uint64
	life   uint64
	tree   []node // blocks that the engine may compute; node 0 is the start
	held   map[int][fleet.NumTiers]int
	counts bool
}

// node is a block: its parent's number and its content.
type node struct {
	parent int
	local  block.Local
	salt   string
	id     block.ID
}

func (p *pair) hello(now uint64) {
	p.t.Helper()
	for _, byHash := range []bool{false, true} {
		s, a, err := p.o.OpenBlocks(&Hello{
			Spec:        fleet.Spec{Worker: fmt.Sprint("hashes ", byHash), Model: "m", BlockSize: size, DPSize: 1},
			Incarnation: p.life, NextSequence: p.seq, Counted: p.counts, EngineHashes: byHash,
		}, t0)
		if err != nil || a.SnapshotRequired || a.ResumeFrom != now {
			p.t.Fatalf("hello: %+v, %v, want to resume from %d", a, err, now)
		}
		if byHash {
			p.hashes = s
		} else {
			p.ids = s
		}
	}
}

// hash is the engine's name of a block.
func (p *pair) hash(n int) EngineHash { return EngineHash(uint64(n)*0x9E3779B97F4A7C15 ^ p.seed) }

// grow makes a chain of up to three new or known blocks.
func (p *pair) grow() []int {
	at := p.dice.IntN(len(p.tree))
	var out []int
	for range 1 + p.dice.IntN(3) {
		next := -1
		for n, x := range p.tree {
			if n > 0 && x.parent == at && p.dice.IntN(2) == 0 {
				next = n
			}
		}
		if next < 0 {
			x := node{parent: at, local: block.Local(p.dice.IntN(4)), salt: p.tree[at].salt}
			if at == 0 {
				x.salt = []string{"", "s"}[p.dice.IntN(2)]
				x.id = block.Identity{Model: "m", BlockSize: size, CacheSalt: x.salt}.Keyspace().Root(x.local)
			} else {
				x.id = p.tree[at].id.Child(x.local)
			}
			next = slices.IndexFunc(p.tree, func(y node) bool { return y.id == x.id })
			if next < 0 {
				next = len(p.tree)
				p.tree = append(p.tree, x)
			}
		}
		out = append(out, next)
		at = next
	}
	return out
}

// store gives the same store in both forms.
func (p *pair) store(blocks []int, tier fleet.Tier) (byID, byHash Op) {
	first := p.tree[blocks[0]]
	byID = Op{Kind: OpStore, Tier: tier, IsRoot: first.parent == 0, Parent: p.tree[first.parent].id}
	byHash = Op{
		Kind: OpStore, Tier: tier, IsRoot: first.parent == 0, Content: ContentLocals, CacheSalt: first.salt,
		ParentHash: p.hash(first.parent), HasParentHash: first.parent != 0,
	}
	for _, n := range blocks {
		byID.IDs = append(byID.IDs, p.tree[n].id)
		byHash.Locals = append(byHash.Locals, p.tree[n].local)
		byHash.Hashes = append(byHash.Hashes, p.hash(n))
	}
	return byID, byHash
}

// ops lets the engine do something. It keeps the parent of what it computes, as engines do.
func (p *pair) ops() (byID, byHash []Op) {
	for range 1 + p.dice.IntN(3) {
		tier := fleet.Tier(p.dice.IntN(2))
		var a, b Op
		switch k := p.dice.IntN(20); {
		case k == 0:
			a = Op{Kind: OpClear, Tier: tier, AllTier: p.dice.IntN(3) == 0}
			b = a
			for n, h := range p.held {
				if h[tier] = 0; a.AllTier {
					h = [fleet.NumTiers]int{}
				}
				p.held[n] = h
			}
		case k < 9:
			a, b = Op{Kind: OpRemove, Tier: tier}, Op{Kind: OpRemove, Tier: tier}
			for range 1 + p.dice.IntN(2) {
				n := p.dice.IntN(len(p.tree))
				a.IDs, b.Hashes = append(a.IDs, p.tree[n].id), append(b.Hashes, p.hash(n))
				h := p.held[n]
				h[tier] = max(0, h[tier]-1)
				p.held[n] = h
			}
		default:
			blocks := p.grow()
			if up := p.tree[blocks[0]].parent; up != 0 && p.held[up] == [fleet.NumTiers]int{} {
				continue
			}
			a, b = p.store(blocks, tier)
			for _, n := range blocks {
				h := p.held[n]
				if h[tier]++; !p.counts {
					h[tier] = 1
				}
				p.held[n] = h
			}
		}
		byID, byHash = append(byID, a), append(byHash, b)
	}
	return byID, byHash
}

func (p *pair) compare(step int) {
	p.t.Helper()
	one, err := p.o.Verify("hashes false", 0, t0)
	if err != nil {
		p.t.Fatal(err)
	}
	two, err := p.o.Verify("hashes true", 0, t0)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, v := range []*View{&one, &two} {
		for t := range v.IDs {
			slices.Sort(v.IDs[t])
		}
	}
	if diff := cmp.Diff(one, two); diff != "" {
		p.t.Fatalf("step %d (-by ids +by hashes)\n%s", step, diff)
	}
	names := 0
	var digest index.Digest
	for n, h := range p.held {
		if h != [fleet.NumTiers]int{} {
			names++
		}
		if h[fleet.Host] > 0 {
			digest.Count++
			digest.XOR ^= uint64(p.hash(n))
			digest.Sum += uint64(p.hash(n))
		}
	}
	if got := p.o.Stats(t0).Names; got != names {
		p.t.Fatalf("step %d: %d names are kept, want %d", step, got, names)
	}
	ack, err := p.hashes.Digest(p.seq-1, fleet.Host, digest, t0)
	if err != nil || ack.Resync != nil || ack.Counters.DigestsSkipped != 0 {
		p.t.Fatalf("step %d: the digest of the engine's names does not agree: %+v, %v", step, ack, err)
	}
}

// snapshot states everything in an order of its own.
func (p *pair) snapshot() {
	p.t.Helper()
	var all []int
	pairs := uint64(0)
	for n, h := range p.held {
		if h != [fleet.NumTiers]int{} {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	p.dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var byID, byHash []Op
	for _, n := range all {
		for t, copies := range p.held[n] {
			if copies > 0 {
				pairs++
			}
			for range copies {
				a, b := p.store([]int{n}, fleet.Tier(t))
				byID, byHash = append(byID, a), append(byHash, b)
			}
		}
	}
	for i, s := range []*BlockSession{p.ids, p.hashes} {
		_, _ = s.SnapshotBegin(p.seq-1, t0) // one that is given up
		_, _ = s.SnapshotChunk([][]Op{byID, byHash}[i][:len(byID)/2], t0)
		_, _ = s.SnapshotBegin(p.seq-1, t0)
		_, _ = s.SnapshotChunk([][]Op{byID, byHash}[i], t0)
		if ack, err := s.SnapshotEnd(pairs, t0); err != nil || ack.Counters.Snapshots == 0 || len(ack.Refusals) > 0 {
			p.t.Fatalf("snapshot: %+v, %v", ack, err)
		}
	}
}

// TestReportsByHashEqualReportsByID plays random engine lives, with restarts, cut streams and snapshots, and looks at
// everything after each step.
func TestReportsByHashEqualReportsByID(t *testing.T) {
	for seed := range uint64(150) {
		p := &pair{
			t: t, o: New(Config{}, nil), dice: rand.New(rand.NewPCG(seed, 3)), counts: seed%2 == 0,
			seq: 1, life: 1, seed: seed, tree: make([]node, 1), held: make(map[int][fleet.NumTiers]int),
		}
		p.hello(1)
		for step := range 60 {
			switch k := p.dice.IntN(40); {
			case k == 0:
				clear(p.held)
				p.life++
				p.seq, p.seed = 1, p.dice.Uint64()
				p.hello(1)
			case k == 1:
				p.ids.Close(t0)
				p.hashes.Close(t0)
				p.hello(p.seq)
			case k == 2 && p.lasting():
				p.snapshot()
			default:
				byID, byHash := p.ops()
				a, err := p.ids.Batch(p.seq, p.seq, byID, t0)
				if err != nil {
					t.Fatal(err)
				}
				b, err := p.hashes.Batch(p.seq, p.seq, byHash, t0)
				if err != nil || len(a.Refusals)+len(b.Refusals) > 0 {
					t.Fatalf("seed %d, step %d: refused %v and %v, %v", seed, step, a.Refusals, b.Refusals, err)
				}
				p.seq++
			}
			p.compare(step)
		}
		_, _, _ = p.o.Remove("hashes true") // it is there
		if n := p.o.Stats(t0).Names; n != 0 {
			t.Fatalf("seed %d: %d names are left of a worker that was removed", seed, n)
		}
	}
}

// lasting says whether every block's parent is held: after the loss of a parent an engine that knows its blocks by hashes
// has no way to say where their children belong, and states them as what they are, without a place.
func (p *pair) lasting() bool {
	for n, h := range p.held {
		if up := p.tree[n].parent; up != 0 && h != [fleet.NumTiers]int{} && p.held[up] == [fleet.NumTiers]int{} {
			return false
		}
	}
	return true
}

func TestNamesAreGivenBack(t *testing.T) {
	o := New(Config{}, nil)
	hello := &Hello{Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 1, NextSequence: 1, EngineHashes: true}
	s, _, err := o.OpenBlocks(hello, t0)
	if err != nil {
		t.Fatal(err)
	}
	ops := []Op{{Kind: OpStore, IsRoot: true, Content: ContentLocals, Locals: []block.Local{1, 2}, Hashes: []EngineHash{1, 2}}}
	expect := func(when string, want int) {
		t.Helper()
		if n := o.Stats(t0).Names; n != want {
			t.Errorf("%s: %d names, want %d", when, n, want)
		}
	}
	_, _ = s.Batch(1, 1, ops, t0)
	expect("stored", 2)
	_, _ = s.SnapshotBegin(1, t0)
	_, _ = s.SnapshotChunk(ops, t0)
	expect("beside a snapshot", 4)
	s.Close(t0)
	expect("cut in a snapshot", 2)
	if _, err := o.Invalidate("w"); err != nil {
		t.Fatal(err)
	}
	expect("invalidated", 0)
	if s, _, err = o.OpenBlocks(hello, t0); err != nil {
		t.Fatal(err)
	}
	_, _ = s.SnapshotBegin(1, t0)
	_, _ = s.SnapshotChunk(ops, t0)
	_, _ = s.SnapshotEnd(2, t0)
	expect("shown again", 2)
	next := *hello
	next.Incarnation = 2
	if _, _, err := o.OpenBlocks(&next, t0); err != nil {
		t.Fatal(err)
	}
	expect("reborn", 0)
}

// Bounds: by what fits into the rank, and by what the oracle has for all.
func TestEngineHashesAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		config   Config
		capacity [fleet.NumTiers]uint64
		fits     int
	}{
		"rank": {Config{}, [fleet.NumTiers]uint64{10, 1, 1, 1}, 4096 + 2*13},
		"all":  {Config{EngineHashes: 100}, [fleet.NumTiers]uint64{}, 100},
	} {
		o := New(c.config, nil)
		s, _, err := o.OpenBlocks(&Hello{
			Spec:        fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1, Capacity: c.capacity},
			Incarnation: 1, NextSequence: 1, EngineHashes: true,
		}, t0)
		if err != nil {
			t.Fatal(err)
		}
		var ops []Op
		for n := range c.fits + 1 {
			ops = append(ops, Op{Kind: OpStore, IsRoot: true, Content: ContentLocals, Locals: []block.Local{block.Local(n)}, Hashes: []EngineHash{EngineHash(n)}})
		}
		ack, err := s.Batch(1, 1, ops, t0)
		if err != nil || ack.Held != c.fits || len(ack.Refusals) != 1 || ack.Refusals[0].Reason != RefusalEngineHashesFull || ack.Resync != nil {
			t.Errorf("%s: held %d of %d, refusals %v, %v", name, ack.Held, c.fits, ack.Refusals, err)
		}
	}
}

// A snapshot of which a part was refused cannot have the count it promises; asking again would not help.
func TestRefusedPartsDoNotAskForSnapshotsForever(t *testing.T) {
	o := New(Config{}, nil)
	s, _, err := o.OpenBlocks(&Hello{
		Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 1, NextSequence: 5, EngineHashes: true,
	}, t0)
	if err != nil {
		t.Fatal(err)
	}
	at := func(l block.Local) Op {
		return Op{Kind: OpStore, IsRoot: true, Content: ContentLocals, Locals: []block.Local{l}, Hashes: []EngineHash{7}}
	}
	_, _ = s.SnapshotBegin(5, t0)
	_, _ = s.SnapshotChunk([]Op{at(1), at(2)}, t0)
	ack, err := s.SnapshotEnd(2, t0)
	if err != nil || ack.Resync != nil || ack.Awaiting || ack.Held != 1 || ack.Confidence != Fresh {
		t.Errorf("got %+v, %v", ack, err)
	}
	// Nor would a snapshot help again and again where digests go on differing about it.
	snapshots := 0
	for now := t0; now.Before(t0.Add(3 * time.Hour)); now = now.Add(10 * time.Second) {
		if ack, err = s.Digest(5, fleet.Device, index.Digest{Count: 2}, now); err != nil {
			t.Fatal(err)
		}
		if ack.Resync == nil {
			continue
		}
		if ack.Resync.Reason != ResyncDigestMismatch {
			t.Fatalf("asked for a snapshot: %v", ack.Resync.Reason)
		}
		snapshots++
		_, _ = s.SnapshotBegin(5, now)
		_, _ = s.SnapshotChunk([]Op{at(1), at(2)}, now)
		if ack, err = s.SnapshotEnd(2, now); err != nil || ack.Awaiting {
			t.Fatalf("%+v, %v", ack, err)
		}
	}
	if snapshots != 4 { // at once, when that has not cured it, and each hour since
		t.Errorf("%d snapshots in three hours, want 4", snapshots)
	}
}

// told sums up names, as a reporter does.
func told(names ...EngineHash) (d index.Digest) {
	for _, h := range names {
		d.Count++
		d.XOR ^= uint64(h)
		d.Sum += uint64(h)
	}
	return d
}

// A reporter may sum up what was refused or leave it out: its digests agree either way, and a loss after the refusal is
// found. In a snapshot as well.
func TestLossAfterRefusalIsFound(t *testing.T) {
	root := func(h EngineHash, l block.Local) Op {
		return Op{Kind: OpStore, IsRoot: true, Content: ContentLocals, Locals: []block.Local{l}, Hashes: []EngineHash{h}}
	}
	long := func(kind OpKind, n int) Op {
		op := Op{Kind: kind, IsRoot: true, Content: ContentLocals}
		for i := range n {
			op.Locals, op.Hashes = append(op.Locals, block.Local(i)), append(op.Hashes, EngineHash(1000+i))
		}
		return op
	}
	malformed := Op{Kind: OpRefused, Hashes: []EngineHash{5, 6}, Refusal: Refusal{Reason: RefusalMalformed}}
	mostTold := long(OpStore, 30)
	for name, tt := range map[string]struct {
		op     Op
		reason RefusalReason
		refuse []EngineHash // what it tells
	}{
		"conflict":      {Op{Kind: OpStore, IsRoot: true, Content: ContentLocals, Locals: []block.Local{9, 8}, Hashes: []EngineHash{1, 7}}, RefusalHashConflict, []EngineHash{7}},
		"own parent":    {Op{Kind: OpStore, Content: ContentLocals, Locals: []block.Local{9}, Hashes: []EngineHash{4}, ParentHash: 4, HasParentHash: true}, RefusalParentConflict, []EngineHash{4}},
		"malformed":     {malformed, RefusalMalformed, []EngineHash{5, 6}},
		"parent's form": {Op{Kind: OpStore, Content: ContentLocals, Locals: []block.Local{9}, Hashes: []EngineHash{3}, Parent: 77}, RefusalMalformed, []EngineHash{3}},
		"no room":       {mostTold, RefusalEngineHashesFull, mostTold.Hashes},
		"other group":   {Op{Kind: OpRefused, Refusal: Refusal{Reason: RefusalGroup}}, RefusalGroup, nil},
	} {
		for _, leavesOut := range []bool{false, true} {
			for _, inSnapshot := range []bool{false, true} {
				o := New(Config{EngineHashes: 40 * 16}, nil) // and there is room for 40 names that are refused
				s, _, err := o.OpenBlocks(&Hello{
					Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 1, NextSequence: 1, EngineHashes: true,
				}, t0)
				if err != nil {
					t.Fatal(err)
				}
				s.f.mostNames = 20 // of the views to come
				believed := append([]EngineHash{1, 2}, tt.refuse...)
				if leavesOut {
					believed = believed[:2]
				}
				ops := []Op{root(1, 1), root(2, 2), tt.op}
				var ack Ack
				_, _ = s.SnapshotBegin(1, t0)
				if inSnapshot {
					ack, err = s.SnapshotChunk(ops, t0)
					if err == nil && (len(ack.Refusals) != 1 || ack.Refusals[0].Reason != tt.reason) {
						t.Errorf("%s: refused %v, want %v", name, ack.Refusals, tt.reason)
					}
					ack, err = s.SnapshotEnd(uint64(len(believed)), t0)
				} else {
					_, _ = s.SnapshotEnd(0, t0)
					ack, err = s.Batch(2, 2, ops, t0)
					if err == nil && (len(ack.Refusals) != 1 || ack.Refusals[0].Reason != tt.reason) {
						t.Errorf("%s: refused %v, want %v", name, ack.Refusals, tt.reason)
					}
				}
				if err != nil || ack.Resync != nil || ack.Held != 2 {
					t.Fatalf("%s: %+v, %v", name, ack, err)
				}
				if ack, err = s.Digest(ack.Applied, fleet.Device, told(believed...), t0); err != nil || ack.Resync != nil || ack.Counters.DigestsMatched != 1 {
					t.Fatalf("%s (left out: %v, in a snapshot: %v): digest after the refusal: %+v, %v", name, leavesOut, inSnapshot, ack, err)
				}
				// Now a store is lost on its way.
				ack, err = s.Batch(ack.Applied+1, 3, nil, t0)
				if err == nil {
					ack, err = s.Digest(ack.Applied, fleet.Device, told(append(believed, 99)...), t0)
				}
				if err != nil || ack.Resync == nil || ack.Resync.Reason != ResyncDigestMismatch || ack.Confidence != Stale {
					t.Errorf("%s (left out: %v, in a snapshot: %v): the loss is not found: %+v, %v", name, leavesOut, inSnapshot, ack, err)
				}
			}
		}
	}
}

// An index that is full gives up blocks and goes on knowing what it was told: digests of names agree, and removals of
// what was given up are no news.
func TestFullIndexKeepsTheNames(t *testing.T) {
	o := New(Config{Index: index.Config{MaxBlocks: 8}}, nil)
	s, _, err := o.OpenBlocks(&Hello{
		Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 1, NextSequence: 1, EngineHashes: true,
	}, t0)
	if err != nil {
		t.Fatal(err)
	}
	var want index.Digest
	var names []EngineHash
	for n := range uint64(20) {
		h := EngineHash(n * n)
		names = append(names, h)
		want.Count++
		want.XOR ^= uint64(h)
		want.Sum += uint64(h)
		op := Op{Kind: OpStore, IsRoot: true, Content: ContentLocals, Locals: []block.Local{block.Local(n)}, Hashes: []EngineHash{h}}
		if _, err := s.Batch(n+1, n, []Op{op}, t0); err != nil {
			t.Fatal(err)
		}
	}
	ack, err := s.Digest(20, fleet.Device, want, t0)
	if err != nil || ack.Held > 8 || ack.Held < 4 || ack.Counters.DigestsMatched != 1 {
		t.Errorf("full: %+v, %v", ack, err)
	}
	ack, err = s.Batch(21, 21, []Op{{Kind: OpRemove, Hashes: names}}, t0)
	if err != nil || ack.Held != 0 || ack.Counters.UnknownRemovals != 0 || o.Stats(t0).Names != 0 {
		t.Errorf("emptied: %+v, %v", ack, err)
	}
	if ack, err = s.Digest(21, fleet.Device, index.Digest{}, t0); err != nil || ack.Counters.DigestsMatched != 2 {
		t.Errorf("empty: %+v, %v", ack, err)
	}
}
