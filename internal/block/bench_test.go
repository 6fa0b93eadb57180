package block

import (
	"strconv"
	"testing"
)

func BenchmarkLocalHash(b *testing.B) {
	for _, n := range []int{16, 64, 256} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			tokens := make([]uint32, n)
			b.ReportAllocs()
			b.SetBytes(int64(4 * n))
			var sum Local
			for b.Loop() {
				sum += LocalHash(tokens)
			}
			_ = sum
		})
	}
}

func BenchmarkAppendTokenChain(b *testing.B) {
	// A prompt of 8,192 tokens.
	tokens := make([]uint32, 8192)
	for _, size := range []int{16, 64} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			dst := make([]ID, 0, len(tokens))
			b.ReportAllocs()
			b.SetBytes(int64(4 * len(tokens)))
			for b.Loop() {
				dst = AppendTokenChain(dst[:0], 1, tokens, size)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(dst)), "ns/block")
		})
	}
}

func BenchmarkAppendPackedChain(b *testing.B) {
	// The same prompt in pieces as gRPC receives them.
	raw := make([]byte, 4*8192)
	pieces := [][]byte{raw[:16379], raw[16379:32758], raw[32758:]}
	for _, size := range []int{16, 32, 64} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			dst := make([]ID, 0, 8192)
			b.ReportAllocs()
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				dst = AppendPackedChain(dst[:0], 1, pieces, size)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(dst)), "ns/block")
		})
	}
}

func BenchmarkAppendChain(b *testing.B) {
	locals := make([]Local, 78)
	dst := make([]ID, 0, len(locals))
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendChain(dst[:0], 1, locals)
	}
}

func BenchmarkKeyspace(b *testing.B) {
	id := Identity{Model: "llama-3.1-8b", BlockSize: 16, LoRAName: "sql", LoRARevision: "2", CacheSalt: "tenant-1"}
	b.ReportAllocs()
	var sum Keyspace
	for b.Loop() {
		sum += id.Keyspace()
	}
	_ = sum
}
