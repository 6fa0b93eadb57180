// Package block names blocks of KV cache: from token ids to ids that mean the same in every process.
//
// A block is a fixed number of tokens (the block size, 1 to MaxSize) whose KV is cached as a unit. Only full blocks have
// names. There are three 64-bit values, all of them XXH3-64 with seed 1337 over the bytes given here. u32 and u64 are
// unsigned little-endian integers of that width; || joins bytes.
//
//	Local(tokens)       = H( u32(token[0]) || u32(token[1]) || ... )
//	Keyspace(identity)  = H( str(Scheme) || str(Model) || u64(BlockSize)
//	                         || str(LoRAName) || str(LoRARevision) || str(CacheSalt) || str(Secret) )
//	ID[0]               = H( u64(Keyspace) || u64(Local[0]) )
//	ID[i]               = H( u64(ID[i-1])  || u64(Local[i]) )     for i > 0
//
// Where multimodal items cover tokens of a block, its local hash is not Local(tokens) but
//
//	Local(tokens, items) = H( u64(Local(tokens)) || item[0] || item[1] || ... || "mm" )
//	item                 = i64(position of its first placeholder token - position of the block's first token)
//	                         || u64(H(content digest))
//
// with each item that has a placeholder token in the block, once, in order of (that distance, H(digest)), both compared as
// numbers. The distance is negative for one that began before the block. So a block is told apart by what it shows and by
// which part of it, and the same block has the same hash whether the whole prompt is at hand or the block alone. "mm" is
// two bytes, by which no such encoding has the length of a block of tokens, a pair or an identity.
//
// str(s) is u64(length of s in bytes) || the bytes of s as they are (no normalisation, no terminator); an absent string is
// the empty one, eight zero bytes. Scheme is the 12 bytes "xxh3-64/1337", or "text-4/xxh3-64/1337" for an identity of text,
// whose tokens are four bytes of it each. Every field is there in every identity, so the encoding can be read back in one
// way only and no two identities share one: ("ab","c") is not ("a","bc").
//
// Invariants:
//   - two chains made in one keyspace have equal ids at depth i exactly if their first i+1 blocks have equal tokens (but
//     for collisions of a 64-bit hash, which nothing here tries to detect);
//   - nothing in one keyspace equals anything in another;
//   - the values do not depend on the machine, its byte order, or the process. testdata/vectors.json holds values computed
//     by the C reference implementation; changing one is a new Scheme.
//
// Local is the value the field uses for blocks of plain text (NVIDIA Dynamo and its relatives), so callers who hash
// already can send what they have. Their sequence hash differs from ours at the root only: theirs begins with the local
// hash itself, ours with the keyspace.
//
// All functions are pure and may be called from any number of goroutines. Append functions allocate only if dst lacks
// capacity. The secret keeps outsiders from computing ids offline; it is no message authentication, XXH3 is not a
// cryptographic hash.
package block
