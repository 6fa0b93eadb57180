package block

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
)

// Packed numbers are numbers as they lie on the wire and in most memories: little-endian, 4 bytes a token id or 8 a local
// hash, one after another. They may come in pieces that end anywhere, in the middle of a number too.

// AppendPackedChain is AppendTokenChain of packed token ids. Bytes after the last full block are not looked at.
func AppendPackedChain(dst []ID, k Keyspace, pieces [][]byte, size int) []ID {
	if size < 1 || size > MaxSize {
		return dst
	}
	bytes := 4 * size
	dst = slices.Grow(dst, PackedLen(pieces)/bytes)
	parent := uint64(k)
	var buf [2048]byte
	carry := buf[:0] // the beginning of a block that goes on in the next piece
	for _, p := range pieces {
		if len(carry) > 0 {
			n := min(bytes-len(carry), len(p))
			carry = append(carry, p[:n]...)
			if p = p[n:]; len(carry) < bytes {
				continue
			}
			parent = pair(parent, localPacked(carry))
			dst = append(dst, ID(parent))
			carry = carry[:0]
		}
		if bytes == blockOf16 {
			dst, parent, p = chain16(dst, parent, p)
		}
		for ; len(p) >= bytes; p = p[bytes:] {
			parent = pair(parent, localPacked(p[:bytes]))
			dst = append(dst, ID(parent))
		}
		carry = append(carry, p...)
	}
	return dst
}

// chain16 chains the full blocks of 16 tokens at the front of p and gives back the rest of it.
func chain16(dst []ID, parent uint64, p []byte) (out []ID, last uint64, rest []byte) {
	for ; len(p) >= blockOf16; p = p[blockOf16:] {
		parent = pair(parent, local64((*[blockOf16]byte)(p)))
		dst = append(dst, ID(parent))
	}
	return dst, parent, p
}

// localPacked hashes the packed tokens of one block.
func localPacked(b []byte) uint64 {
	if len(b) == blockOf16 {
		return local64((*[blockOf16]byte)(b))
	}
	return xxh3.HashSeed(b, Seed)
}

// AppendPackedLocals appends packed local hashes. Bytes after the last full one are not looked at.
func AppendPackedLocals(dst []Local, pieces [][]byte) []Local {
	dst = slices.Grow(dst, PackedLen(pieces)/8)
	var word [8]byte
	have := 0 // bytes of word
	for _, p := range pieces {
		if have > 0 {
			n := copy(word[have:], p)
			have += n
			if p = p[n:]; have < len(word) {
				continue
			}
			dst = append(dst, Local(binary.LittleEndian.Uint64(word[:])))
		}
		for ; len(p) >= 8; p = p[8:] {
			dst = append(dst, Local(binary.LittleEndian.Uint64(p)))
		}
		have = copy(word[:], p)
	}
	return dst
}

// PackedLen is the length of all pieces together, in bytes.
func PackedLen(pieces [][]byte) int {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	return n
}
