package block

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// word is a 64-bit value as the vectors write it.
type word uint64

func (w *word) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 16, 64)
	*w = word(v)
	return err
}

type vectors struct {
	Seed   uint64
	Scheme string
	Locals []struct {
		Tokens []uint32
		Hash   word
	}
	Keyspaces []struct {
		Model, LoRA, Revision, Salt, Secret string
		Size                                int
		Hash                                word
	}
	Chains []struct {
		Identity int
		Size     int
		Tokens   []uint32
		Locals   []word
		IDs      []word
	}
	Multimodal []struct {
		Size   int
		Tokens []uint32
		Items  []struct {
			First, Count int
			Digest       string
		}
		Locals []word
	}
}

func (v *vectors) identity(i int) Identity {
	k := v.Keyspaces[i]
	return Identity{
		Model: k.Model, BlockSize: k.Size, LoRAName: k.LoRA, LoRARevision: k.Revision, CacheSalt: k.Salt, Secret: k.Secret,
	}
}

func readVectors(t *testing.T) *vectors {
	t.Helper()
	raw, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	v := new(vectors)
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatal(err)
	}
	if len(v.Locals) == 0 || len(v.Keyspaces) == 0 || len(v.Chains) == 0 || len(v.Multimodal) == 0 {
		t.Fatal("vectors.json lacks a section")
	}
	return v
}

func TestConstantsMatchVectors(t *testing.T) {
	v := readVectors(t)
	if v.Seed != Seed || v.Scheme != Scheme {
		t.Errorf("vectors are for seed %d, scheme %q; want %d, %q", v.Seed, v.Scheme, Seed, Scheme)
	}
}

func TestLocalHashMatchesVectors(t *testing.T) {
	for _, c := range readVectors(t).Locals {
		if got := LocalHash(c.Tokens); got != Local(c.Hash) {
			t.Errorf("LocalHash of %d tokens = %016x, want %016x", len(c.Tokens), got, c.Hash)
		}
		if got := localPortable(c.Tokens); got != Local(c.Hash) {
			t.Errorf("localPortable of %d tokens = %016x, want %016x", len(c.Tokens), got, c.Hash)
		}
	}
}

func TestKeyspaceMatchesVectors(t *testing.T) {
	v := readVectors(t)
	seen := make(map[Keyspace]Identity)
	for i, c := range v.Keyspaces {
		id := v.identity(i)
		got := id.Keyspace()
		if got != Keyspace(c.Hash) {
			t.Errorf("Keyspace of %+v = %016x, want %016x", id, got, c.Hash)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%+v and %+v share a keyspace", id, other)
		}
		seen[got] = id
	}
}

func TestChainsMatchVectors(t *testing.T) {
	v := readVectors(t)
	for _, c := range v.Chains {
		k := v.identity(c.Identity).Keyspace()
		locals := AppendLocals(nil, c.Tokens, c.Size)
		gotLocals := make([]word, len(locals))
		for i, l := range locals {
			gotLocals[i] = word(l)
		}
		if d := cmp.Diff(c.Locals, gotLocals); d != "" {
			t.Errorf("size %d: locals (-want +got):\n%s", c.Size, d)
		}
		want := make([]ID, len(c.IDs))
		for i, w := range c.IDs {
			want[i] = ID(w)
		}
		if d := cmp.Diff(want, append([]ID{}, AppendChain(nil, k, locals)...)); d != "" {
			t.Errorf("size %d: AppendChain (-want +got):\n%s", c.Size, d)
		}
		if d := cmp.Diff(want, append([]ID{}, AppendTokenChain(nil, k, c.Tokens, c.Size)...)); d != "" {
			t.Errorf("size %d: AppendTokenChain (-want +got):\n%s", c.Size, d)
		}
		for cut := 1; cut < len(want); cut++ {
			got := AppendChainAfter(AppendChain(nil, k, locals[:cut]), want[cut-1], locals[cut:])
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("size %d, cut at %d: AppendChainAfter (-want +got):\n%s", c.Size, cut, d)
			}
		}
		if len(want) > 0 && k.Root(locals[0]) != want[0] {
			t.Errorf("size %d: Root = %016x, want %016x", c.Size, k.Root(locals[0]), want[0])
		}
	}
}

// The values are constants of NVIDIA Dynamo's own token tests (salt hash 1337, blocks of 4): callers of that family can
// send the hashes they have. Its sequence hash starts with the first local hash instead of a keyspace.
func TestHashesAreTheOnesTheFieldUses(t *testing.T) {
	locals := AppendLocals(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 4)
	if d := cmp.Diff([]Local{14643705804678351452, 16777012769546811212, 483935686894639516}, locals); d != "" {
		t.Errorf("locals (-want +got):\n%s", d)
	}
	ids := AppendChainAfter(nil, ID(locals[0]), locals[1:])
	if d := cmp.Diff([]ID{4945711292740353085, 12583592247330656132}, ids); d != "" {
		t.Errorf("sequence hashes (-want +got):\n%s", d)
	}
}

func TestPortableLocalHashEqualsTheFastOne(t *testing.T) {
	tokens := make([]uint32, 1100)
	x := uint32(1)
	for i := range tokens {
		x = x*1664525 + 1013904223
		tokens[i] = x
	}
	for n := range tokens {
		// Every offset of the memory, too: the fast path reads it as bytes.
		from := n % 7
		if from > n {
			from = 0
		}
		if got, want := LocalHash(tokens[from:n]), localPortable(tokens[from:n]); got != want {
			t.Fatalf("tokens[%d:%d]: fast %016x, portable %016x", from, n, got, want)
		}
	}
}

func TestCanonicalEncodingIsTheDocumentedOne(t *testing.T) {
	id := Identity{Model: "m", BlockSize: 258, LoRAName: "ab", CacheSalt: "\x00"}
	want := "\x0c\x00\x00\x00\x00\x00\x00\x00xxh3-64/1337" +
		"\x01\x00\x00\x00\x00\x00\x00\x00m" +
		"\x02\x01\x00\x00\x00\x00\x00\x00" +
		"\x02\x00\x00\x00\x00\x00\x00\x00ab" +
		"\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x01\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x00\x00\x00\x00"
	if d := cmp.Diff(want, string(id.appendCanonical(nil))); d != "" {
		t.Errorf("encoding (-want +got):\n%s", d)
	}
}

func TestSizesBelowOneGiveNothing(t *testing.T) {
	tokens := []uint32{1, 2, 3}
	for _, size := range []int{0, -1, math.MinInt} {
		if got := AppendLocals(nil, tokens, size); len(got) != 0 {
			t.Errorf("AppendLocals with size %d gave %d", size, len(got))
		}
		if got := AppendTokenChain(nil, 1, tokens, size); len(got) != 0 {
			t.Errorf("AppendTokenChain with size %d gave %d", size, len(got))
		}
	}
	if got := AppendLocals(nil, tokens, math.MaxInt); len(got) != 0 {
		t.Errorf("AppendLocals with a huge size gave %d", len(got))
	}
}

func TestAppendKeepsWhatIsThere(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4}
	if got := AppendLocals([]Local{7}, tokens, 2); len(got) != 3 || got[0] != 7 {
		t.Errorf("AppendLocals = %v", got)
	}
	if got := AppendTokenChain([]ID{7}, 1, tokens, 2); len(got) != 3 || got[0] != 7 {
		t.Errorf("AppendTokenChain = %v", got)
	}
}

func TestUsable(t *testing.T) {
	for _, c := range []struct{ tokens, size, want int }{
		{0, 16, 0},
		{-5, 16, 0},
		{math.MinInt, 16, 0},
		{1, 16, 0},
		{16, 16, 0},
		{17, 16, 1},
		{32, 16, 1},
		{33, 16, 2},
		{1, 1, 0},
		{5, 1, 4},
		{5, 0, 0},
		{5, -1, 0},
		{math.MaxInt, 1, math.MaxInt - 1},
		{math.MaxInt, math.MaxInt, 0},
	} {
		if got := Usable(c.tokens, c.size); got != c.want {
			t.Errorf("Usable(%d, %d) = %d, want %d", c.tokens, c.size, got, c.want)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	tokens := make([]uint32, 8*512)
	id := Identity{Model: "llama-3.1-8b", BlockSize: 512, LoRAName: "sql", LoRARevision: "2", CacheSalt: "tenant-1", Secret: "s"}
	k := id.Keyspace()
	locals := AppendLocals(nil, tokens, 512)
	dstLocals, dst := make([]Local, 0, 512), make([]ID, 0, 512)
	pieces := [][]byte{make([]byte, 4095), make([]byte, 5000)}
	var sink uint64
	for name, f := range map[string]func(){
		"LocalHash/16":       func() { sink += uint64(LocalHash(tokens[:16])) },
		"LocalHash/512":      func() { sink += uint64(LocalHash(tokens[:512])) },
		"localPortable/512":  func() { sink += uint64(localPortable(tokens[:512])) },
		"Keyspace":           func() { sink += uint64(id.Keyspace()) },
		"Root":               func() { sink += uint64(k.Root(1)) },
		"Child":              func() { sink += uint64(ID(1).Child(1)) },
		"AppendLocals":       func() { sink += uint64(len(AppendLocals(dstLocals, tokens, 16))) },
		"AppendChain":        func() { sink += uint64(len(AppendChain(dst, k, locals))) },
		"AppendChainAfter":   func() { sink += uint64(len(AppendChainAfter(dst, 1, locals))) },
		"AppendTokenChain":   func() { sink += uint64(len(AppendTokenChain(dst, k, tokens, 512))) },
		"AppendPackedChain":  func() { sink += uint64(len(AppendPackedChain(dst, k, pieces, 512))) },
		"AppendPackedLocals": func() { sink += uint64(len(AppendPackedLocals(dstLocals, pieces[:1]))) },
		"Follow":             func() { sink += uint64(Follow(1, locals, dst[:cap(dst)])) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
