package block

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// LocalHash hashes the tokens of one block: XXH3-64 with Seed over the ids as little-endian uint32. It allocates nothing
// on little-endian machines, and for blocks of at most 512 tokens on others.
func LocalHash(tokens []uint32) Local {
	if !isLittleEndian() {
		return localPortable(tokens)
	}
	return Local(localPacked(asBytes(tokens)))
}

// asBytes is the memory of the tokens, which on a little-endian machine already is what the scheme defines: copying it
// would cost more than hashing it.
func asBytes(tokens []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
}

// localPortable is LocalHash for any byte order.
func localPortable(tokens []uint32) Local {
	var buf [2048]byte
	b := buf[:0]
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return Local(xxh3.HashSeed(b, Seed))
}

// isLittleEndian reports the machine's byte order; the compiler makes it a constant or a single load.
func isLittleEndian() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}
