// Package mapping turns an engine's events into what the oracle is told: block ids with copies in tiers.
//
// An engine's hashes are handles; what they stand for is computed from tokens, adapter, salt and multimodal items, as
// internal/block defines, and kept per rank and life by an edge.Translator. That is the same table that the oracle keeps for
// reporters which send engine hashes, so both ways agree on orphans, conflicts and copies.
//
// # What becomes of an event
//
//	stored with tokens      blocks in the tier of its medium; the first follows its parent, or waits for it
//	stored without tokens   another copy of blocks that are known, else it waits until somebody says what they are
//	                        (offloading connectors); never a prompt's start
//	removed                 one copy in one tier less; in all tiers where the engine names none (TensorRT-LLM)
//	cleared                 everything is gone; vLLM's speaks of the device only
//	moved                   a copy there, and one less where it was
//
// A repeated store is another copy for vLLM and SGLang, which send a removal for each, and a repeat for TensorRT-LLM.
//
// # What is left out, and counted
//
// Each reason is a [Reason]. Blocks are left out when they are no prefix (other attention groups, smaller windows), when
// what they hold cannot be told (an adapter known only by a number, embeddings, items without a place), when they are not
// the worker's own (remote, owned by a store, a pool), when nobody will say when they go (storage of vLLM's, unless
// Config.Storage), and when their size is not the worker's (LMCache's chunks, partial blocks). A chain is cut at the first
// block that cannot be told; what follows it in later events waits for it and is never credited. Leaving out costs
// credit; it never makes a wrong one.
//
// # Invariants
//
//	what the Sink was told = sum over the known names of their copies (internal/edge/doc.go)
//	copies told of a block in a tier <= copies the engine has, as long as no removal was lost
//
// # Concurrency and cost
//
// A Mapper is used by one goroutine at a time. Names take 100 bytes each, at most Config.Names of them. It allocates for new
// names and for multimodal items only.
package mapping
