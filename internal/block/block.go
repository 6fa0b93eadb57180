package block

import (
	"slices"

	"github.com/zeebo/xxh3"
)

const (
	// Seed of every hash in this package.
	Seed = 1337
	// Scheme names this way of making ids, on the wire and inside each keyspace.
	Scheme = "xxh3-64/1337"
	// TextScheme stands in Scheme's place where a prompt is text that nobody has tokenized: each four bytes of it are taken
	// for a token, so that a block of n tokens is 4n bytes. No engine knows such a block; two prompts that begin with the
	// same text have the same ones, and that is all they are for.
	TextScheme = "text-4/xxh3-64/1337"
	// MaxSize is the largest block size served, in tokens. The smallest is 1.
	MaxSize = 65536
)

// Local is the hash of one block's tokens alone, wherever the block stands. Zero is a value like any other.
type Local uint64

// ID names a block together with everything before it, back to the prompt's start. Zero is a value like any other.
type ID uint64

// Root is the id of a prompt's first block.
func (k Keyspace) Root(l Local) ID { return ID(pair(uint64(k), uint64(l))) }

// Child is the id of the block that follows p.
func (p ID) Child(l Local) ID { return ID(pair(uint64(p), uint64(l))) }

// Sum is the hash that everything here is made of: XXH3-64 with Seed. It names what callers know by longer bytes: an
// engine's digest of a block, the digest of an image.
func Sum(b []byte) uint64 { return xxh3.HashSeed(b, Seed) }

// AppendLocals appends the local hashes of the full blocks of size tokens; a rest shorter than size is left out. With a
// size below 1 it appends nothing.
func AppendLocals(dst []Local, tokens []uint32, size int) []Local {
	if size < 1 {
		return dst
	}
	dst = slices.Grow(dst, len(tokens)/size)
	for ; len(tokens) >= size; tokens = tokens[size:] {
		dst = append(dst, LocalHash(tokens[:size]))
	}
	return dst
}

// AppendChain appends the ids of a prompt whose blocks have these local hashes.
func AppendChain(dst []ID, k Keyspace, locals []Local) []ID {
	// The keyspace takes the parent's place before the first block: Root and Child hash alike.
	return AppendChainAfter(dst, ID(k), locals)
}

// AppendChainAfter appends the ids of blocks with these local hashes, the first of which follows parent.
func AppendChainAfter(dst []ID, parent ID, locals []Local) []ID {
	dst = slices.Grow(dst, len(locals))
	for _, l := range locals {
		parent = parent.Child(l)
		dst = append(dst, parent)
	}
	return dst
}

// AppendTokenChain appends the ids of the full blocks of a prompt in one pass, without keeping local hashes. With a size
// below 1 or above MaxSize it appends nothing.
func AppendTokenChain(dst []ID, k Keyspace, tokens []uint32, size int) []ID {
	if isLittleEndian() {
		piece := [1][]byte{asBytes(tokens)}
		return AppendPackedChain(dst, k, piece[:], size)
	}
	if size < 1 || size > MaxSize {
		return dst
	}
	dst = slices.Grow(dst, len(tokens)/size)
	for parent := ID(k); len(tokens) >= size; tokens = tokens[size:] {
		parent = parent.Child(LocalHash(tokens[:size]))
		dst = append(dst, parent)
	}
	return dst
}

// Usable is how many cached blocks a prompt of this many tokens can use at most: floor((tokens-1)/size), because engines
// compute the last token again to get its output. It is 0 for a prompt without tokens and for a size below 1.
func Usable(tokens, size int) int {
	if tokens < 1 || size < 1 {
		return 0
	}
	return (tokens - 1) / size
}
