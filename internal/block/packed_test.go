package block

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
)

// naiveChain is what the package comment says, with a general hash and a copy of everything.
func naiveChain(k Keyspace, raw []byte, size int) []ID {
	var out []ID
	parent := uint64(k)
	for ; size > 0 && len(raw) >= 4*size; raw = raw[4*size:] {
		parent = naivePair(parent, xxh3.HashSeed(raw[:4*size], Seed))
		out = append(out, ID(parent))
	}
	return out
}

func naiveLocalChain(k Keyspace, raw []byte) []ID {
	var out []ID
	parent := uint64(k)
	for ; len(raw) >= 8; raw = raw[8:] {
		parent = naivePair(parent, binary.LittleEndian.Uint64(raw))
		out = append(out, ID(parent))
	}
	return out
}

func naivePair(parent, local uint64) uint64 {
	b := binary.LittleEndian.AppendUint64(nil, parent)
	return xxh3.HashSeed(binary.LittleEndian.AppendUint64(b, local), Seed)
}

// cut makes pieces that end where the bytes of cuts say, empty ones among them.
func cut(raw, cuts []byte) [][]byte {
	var out [][]byte
	for _, c := range cuts {
		n := min(int(c), len(raw))
		out = append(out, raw[:n])
		raw = raw[n:]
	}
	return append(out, raw)
}

func TestPackedChainsEqualNaiveOnes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		raw := make([]byte, r.IntN(1200))
		for i := range raw {
			raw[i] = byte(r.Uint32())
		}
		cuts := make([]byte, r.IntN(8))
		for i := range cuts {
			cuts[i] = byte(r.IntN(200))
		}
		size := []int{1, 2, 3, 4, 5, 8, 16, 17, 31, 32, 33, 64, 100}[r.IntN(13)]
		comparePacked(t, Keyspace(r.Uint64()), raw, cuts, size)
	}
}

func comparePacked(t *testing.T, k Keyspace, raw, cuts []byte, size int) {
	t.Helper()
	pieces := cut(raw, cuts)
	if got, want := AppendPackedChain([]ID{7}, k, pieces, size), append([]ID{7}, naiveChain(k, raw, size)...); !slices.Equal(got, want) {
		t.Fatalf("%d bytes cut at %v, size %d: chain %x, want %x", len(raw), cuts, size, got, want)
	}
	if got, want := AppendChain([]ID{7}, k, AppendPackedLocals(nil, pieces)), append([]ID{7}, naiveLocalChain(k, raw)...); !slices.Equal(got, want) {
		t.Fatalf("%d bytes cut at %v: chain of locals %x, want %x", len(raw), cuts, got, want)
	}
	tokens := tokensOf(raw)
	if got, want := AppendTokenChain(nil, k, tokens, size), naiveChain(k, raw[:4*len(tokens)], size); !slices.Equal(got, want) {
		t.Fatalf("%d tokens, size %d: chain %x, want %x", len(tokens), size, got, want)
	}
}

func TestPackedSizesOutOfRangeGiveNothing(t *testing.T) {
	for _, size := range []int{-1, 0, MaxSize + 1, 1 << 62} {
		if got := AppendPackedChain(nil, 1, [][]byte{make([]byte, 64)}, size); len(got) != 0 {
			t.Errorf("size %d gave %d ids", size, len(got))
		}
	}
}

// FuzzPackedChain compares the written-out hashes, and the joining of pieces, with the general hash over whole memory.
func FuzzPackedChain(f *testing.F) {
	f.Add(uint64(1), make([]byte, 200), []byte{63, 1, 0, 70}, uint8(16))
	f.Add(uint64(0), []byte("0123456789abcdef0123456789abcdef"), []byte{3}, uint8(2))
	f.Add(^uint64(0), make([]byte, 700), []byte{}, uint8(61))
	f.Fuzz(func(t *testing.T, k uint64, raw, cuts []byte, size uint8) {
		comparePacked(t, Keyspace(k), raw, cuts, int(size))
	})
}
