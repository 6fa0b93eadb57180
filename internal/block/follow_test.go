package block

import (
	"math/rand/v2"
	"testing"
)

// TestFollowEqualsChaining compares with the ids made one after another, with any one id or local hash wrong.
func TestFollowEqualsChaining(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 3000 {
		locals := make([]Local, r.IntN(20))
		for i := range locals {
			locals[i] = Local(r.Uint64())
		}
		parent := ID(r.Uint64())
		made := AppendChainAfter(nil, parent, locals)
		ids := append([]ID{}, made...)
		switch n := r.IntN(20); {
		case n < len(ids):
			ids[n] ^= 1 << r.IntN(64)
		case n < 2*len(ids):
			locals[n-len(ids)]++
			made = AppendChainAfter(nil, parent, locals)
		}
		ids = ids[:r.IntN(len(ids)+1)]
		want := 0
		for want < len(ids) && ids[want] == made[want] {
			want++
		}
		if got := Follow(parent, locals, ids); got != want {
			t.Fatalf("seed %d: %d of %d blocks, want %d", seed, got, len(ids), want)
		}
	}
}

func BenchmarkFollow(b *testing.B) {
	locals := make([]Local, 8192)
	for i := range locals {
		locals[i] = Local(i)
	}
	ids := AppendChain(nil, 1, locals)
	for b.Loop() {
		if Follow(1, locals, ids) != len(ids) {
			b.Fatal("not all")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(ids)), "ns/block")
}
