package block

import (
	"encoding/binary"
	"math/bits"
)

// XXH3-64 with Seed, written out for the two lengths that every decision hashes over and over: 16 bytes (an id) and 64 (a
// block of 16 tokens). With length and seed known, what a general hash has to look up and branch over is constant.
// From the specification of xxHash 0.8.3, sections "XXH3 small inputs" and "medium inputs"; the tests compare with
// zeebo/xxh3.

// The words of XXH3's default secret that these lengths use, at their byte offsets.
const (
	secret00 = 0xbe4ba423396cfeb8
	secret08 = 0x1cad21f72c81017c
	secret16 = 0xdb979083e96dd4de
	secret24 = 0x1f67b3b7a4a44072
	secret32 = 0x78e5c0cc4ee679cb
	secret40 = 0x2172ffcc7dd05a82
	secret48 = 0x8e2443f7744608b8
	secret56 = 0x4c263a81e69035e0

	// Of an id: the parent (or the keyspace) and the local hash are mixed with these.
	mixParent = secret24 ^ secret32 + Seed
	mixLocal  = secret40 ^ secret48 - Seed

	prime64   = 0x9E3779B185EBCA87 // PRIME64_1
	primeMix  = 0x165667919E3779F9 // PRIME_MX1
	length64  = 64 * prime64 & (1<<64 - 1)
	blockOf16 = 64 // bytes of a block of 16 tokens
)

// fold is the 128-bit product with its halves folded together.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func avalanche(x uint64) uint64 {
	x ^= x >> 37
	x *= primeMix
	return x ^ x>>32
}

// pair hashes two words.
func pair(parent, local uint64) uint64 {
	lo, hi := parent^mixParent, local^mixLocal
	return avalanche(16 + bits.ReverseBytes64(lo) + hi + fold(lo, hi))
}

// local64 hashes a block of 16 tokens.
func local64(p *[blockOf16]byte) uint64 {
	le := binary.LittleEndian
	acc := length64 +
		fold(le.Uint64(p[16:])^(secret32+Seed), le.Uint64(p[24:])^(secret40-Seed)) +
		fold(le.Uint64(p[32:])^(secret48+Seed), le.Uint64(p[40:])^(secret56-Seed)) +
		fold(le.Uint64(p[0:])^(secret00+Seed), le.Uint64(p[8:])^(secret08-Seed)) +
		fold(le.Uint64(p[48:])^(secret16+Seed), le.Uint64(p[56:])^(secret24-Seed))
	return avalanche(acc)
}
