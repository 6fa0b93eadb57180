package sim

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Two prompts agree in exactly the tokens that their common hash ids cover.
func FuzzAppendTokens(f *testing.F) {
	f.Add([]byte{1, 2, 3}, []byte{1, 2, 4}, uint8(7), uint8(0), uint8(3))
	f.Add([]byte{1, 2}, []byte{1, 2, 2, 2}, uint8(64), uint8(63), uint8(0))
	f.Add([]byte{9}, []byte{8}, uint8(1), uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, a, b []byte, blockSize, cutA, cutB uint8) {
		if len(a) == 0 || len(b) == 0 || blockSize == 0 {
			return
		}
		size := int(blockSize)
		line := func(hs []byte, cut uint8) string {
			ids := make([]uint32, len(hs))
			for i, h := range hs {
				ids[i] = uint32(h)
			}
			return row(0, len(hs)*size-int(cut)%size, 1, ids...)
		}
		tr := readLines(t, ReadOptions{BlockSize: size}, line(a, cutA), line(b, cutB))
		ra, rb := tr.Requests[0], tr.Requests[1]
		ta, tb := ra.AppendTokens(nil), rb.AppendTokens(nil)
		if len(ta) != ra.Input || len(tb) != rb.Input {
			t.Fatalf("got %d and %d tokens, want %d and %d", len(ta), len(tb), ra.Input, rb.Input)
		}
		hashes := 0
		for hashes < min(len(a), len(b)) && a[hashes] == b[hashes] {
			hashes++
		}
		tokens := 0
		for tokens < min(len(ta), len(tb)) && ta[tokens] == tb[tokens] {
			tokens++
		}
		if want := min(ra.Input, rb.Input, hashes*size); tokens != want {
			t.Fatalf("%d common tokens, want %d", tokens, want)
		}
	})
}

func TestTokensDoNotDependOnTheRestOfTheTrace(t *testing.T) {
	lines := []string{row(0, 9, 1, 70, 71, 72), row(1, 12, 1, 70, 73, 74), row(2, 4, 1, 75)}
	all := readLines(t, ReadOptions{BlockSize: 4}, lines...)
	cut := readLines(t, ReadOptions{BlockSize: 4}, lines[:2]...)
	for i, r := range cut.Requests {
		if !slices.Equal(r.AppendTokens(nil), all.Requests[i].AppendTokens(nil)) {
			t.Errorf("request %d differs", i)
		}
	}
	if got := cut.Requests[0].AppendTokens([]uint32{1}); len(got) != 10 || got[0] != 1 {
		t.Errorf("does not append: %v", got)
	}
}

// A token stands for one place of one hash, so blocks of any size agree only where the trace says so.
func TestTokensAreDifferentEverywhere(t *testing.T) {
	const size, hashes = 16, 5000
	ids := make([]uint32, hashes)
	for i := range ids {
		ids[i] = uint32(i)
	}
	tokens := readLines(t, ReadOptions{BlockSize: size}, row(0, size*hashes, 1, ids...)).Requests[0].AppendTokens(nil)
	slices.Sort(tokens)
	if n := len(slices.Compact(tokens)); n != size*hashes {
		t.Errorf("%d different tokens, want %d", n, size*hashes)
	}
}

func TestScrambleIsAPermutation(t *testing.T) {
	inverse := func(odd uint32) uint32 {
		x := odd // right in 3 bits; each step doubles that
		for range 4 {
			x *= 2 - odd*x
		}
		return x
	}
	a, b := inverse(0x7feb352d), inverse(0x846ca68b)
	unscramble := func(x uint32) uint32 {
		x ^= x >> 16
		x *= b
		x ^= x>>15 ^ x>>30
		x *= a
		x ^= x >> 16
		return x
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		if x := rnd.Uint32(); unscramble(scramble(x)) != x {
			t.Fatalf("%d becomes %d", x, scramble(x))
		}
	}
}

func TestChain(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, r := range randomTrace(t, rnd, 50, 24, 9).Requests {
		tokens := r.AppendTokens(nil)
		for _, size := range []int{1, 7, 24, 300} {
			for _, k := range []block.Keyspace{1, 2} {
				want := block.AppendTokenChain(nil, k, tokens, size)
				for range 2 { // computed, kept
					if got := r.Chain(k, size); !slices.Equal(got, want) {
						t.Fatalf("keyspace %d, size %d: %v, want %v", k, size, got, want)
					}
				}
			}
		}
		a, b := r.Chain(1, 4), r.Chain(1, 4)
		if len(a) > 0 && &a[0] != &b[0] {
			t.Error("computed twice")
		}
	}
}

func TestChainConcurrently(t *testing.T) {
	r := readLines(t, ReadOptions{BlockSize: 8}, row(0, 24, 1, 0, 1, 2)).Requests[0]
	want := map[int][]block.ID{}
	for _, size := range []int{2, 3} {
		want[size] = block.AppendTokenChain(nil, 1, r.AppendTokens(nil), size)
	}
	done := make(chan bool)
	for size, ids := range want {
		go func() {
			ok := true
			for range 1000 {
				ok = ok && slices.Equal(r.Chain(1, size), ids)
			}
			done <- ok
		}()
	}
	for range want {
		if !<-done {
			t.Error("wrong chain")
		}
	}
}
