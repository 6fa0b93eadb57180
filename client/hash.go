package client

import "github.com/kvoracle/kvoracle/internal/block"

const (
	// HashScheme names the only way of hashing blocks there is: XXH3-64 with seed 1337.
	HashScheme = block.Scheme
	// MaxBlockSize is the largest block size served, in tokens. The smallest is 1.
	MaxBlockSize = block.MaxSize
)

type (
	// LocalHash is the hash of one block's tokens alone, wherever the block stands.
	LocalHash = block.Local
	// BlockID names a block together with everything before it, back to the prompt's start.
	BlockID = block.ID
	// Identity is everything besides the tokens that decides whether cached KV may be reused.
	Identity = block.Identity
)

// MultimodalItem is an image, a sound or a film behind placeholder tokens. Blocks it covers are told apart by its digest and
// by which part of it they show.
type MultimodalItem struct {
	// FirstToken is its first placeholder, counted from the start of the tokens at hand. Negative: it began before them,
	// which can be only where they are not a whole prompt.
	FirstToken int
	// TokenCount is the number of its placeholders from FirstToken on, at least 1. Behind the tokens at hand it does not
	// matter.
	TokenCount int
	// Digest is of its content, 8 to 64 bytes: what the engine calls it by, since workers and gateways must say the same.
	Digest []byte
}

// check says what is wrong with an item, or nothing.
func (m *MultimodalItem) check() string {
	switch {
	case m.TokenCount < 1:
		return "want TokenCount of at least 1"
	case len(m.Digest) < 8 || len(m.Digest) > 64:
		return "want a Digest of 8 to 64 bytes"
	}
	return ""
}

func mix(locals []LocalHash, blockSize int, items []MultimodalItem) {
	if len(items) == 0 {
		return
	}
	own := make([]block.Item, len(items))
	for i, m := range items {
		own[i] = block.Item{First: m.FirstToken, Count: m.TokenCount, Digest: block.Sum(m.Digest)}
	}
	block.MixItems(locals, blockSize, own)
}

// LocalHashes appends the hashes of the full blocks of a prompt to dst; a rest shorter than blockSize is left out. The
// result is what Request.Hashes wants: eight bytes a block instead of four a token. With a block size below 1 it appends
// nothing. It allocates only if dst lacks capacity, or for items: those under the prompt's placeholders, in any order.
func LocalHashes(dst []LocalHash, tokens []uint32, blockSize int, items ...MultimodalItem) []LocalHash {
	n := len(dst)
	dst = block.AppendLocals(dst, tokens, blockSize)
	mix(dst[n:], blockSize, items)
	return dst
}

// BlockIDs appends the ids of the full blocks of a prompt to dst, as every worker and every oracle of the deployment
// computes them. It allocates only if dst lacks capacity, or for items.
func BlockIDs(dst []BlockID, id Identity, tokens []uint32, items ...MultimodalItem) []BlockID {
	if len(items) > 0 {
		return block.AppendChain(dst, id.Keyspace(), LocalHashes(nil, tokens, id.BlockSize, items...))
	}
	return block.AppendTokenChain(dst, id.Keyspace(), tokens, id.BlockSize)
}

// BlockIDsAfter appends the ids of full blocks whose first one follows parent. Positions of items count from there.
func BlockIDsAfter(dst []BlockID, parent BlockID, tokens []uint32, blockSize int, items ...MultimodalItem) []BlockID {
	return block.AppendChainAfter(dst, parent, LocalHashes(nil, tokens, blockSize, items...))
}
