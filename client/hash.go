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

// LocalHashes appends the hashes of the full blocks of a prompt to dst; a rest shorter than blockSize is left out. The
// result is what Request.Hashes wants: eight bytes a block instead of four a token. With a block size below 1 it appends
// nothing. It allocates only if dst lacks capacity.
func LocalHashes(dst []LocalHash, tokens []uint32, blockSize int) []LocalHash {
	return block.AppendLocals(dst, tokens, blockSize)
}

// BlockIDs appends the ids of the full blocks of a prompt to dst, as every worker and every oracle of the deployment
// computes them. It allocates only if dst lacks capacity.
func BlockIDs(dst []BlockID, id Identity, tokens []uint32) []BlockID {
	return block.AppendTokenChain(dst, id.Keyspace(), tokens, id.BlockSize)
}

// BlockIDsAfter appends the ids of full blocks whose first one follows parent.
func BlockIDsAfter(dst []BlockID, parent BlockID, tokens []uint32, blockSize int) []BlockID {
	return block.AppendChainAfter(dst, parent, block.AppendLocals(nil, tokens, blockSize))
}
