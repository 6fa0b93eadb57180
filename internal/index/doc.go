// Package index answers which targets hold how many leading blocks of a chain, exactly as their reports say.
//
// # Model
//
// A Ledger is what one target (worker, rank) holds: for each tier a set of blocks, and for each block held the parent it
// was stored below. A block counts for a chain only where its holder's own links put it, and only while everything before
// it is held. Along a chain a target is credited tier by tier: the leading blocks held in the device, then as many as
// the host holds from there on, then the disk, then a shared store; never back to a nearer tier. With
//
//	level(b) = least tier t >= level(parent(b)) that holds b, where the prompt's start has the level Device;
//	           none if there is no such tier or the parent has no level
//
// the blocks taken from tier t are those with level t, because levels only grow along a chain. An orphan is a block held
// whose way to the start is broken: its parent was never stored, or was removed since. Orphans are kept and have no level.
//
// A SET ledger takes a repeated store for an announcement, a COUNTED one for another copy (up to 65,535 of them; beyond
// that a block is given up early rather than believed in too long).
//
// # Structure
//
// Each ledger keeps its blocks as entries with tree links in a slab, found by id. A removed block with children stays as a
// ghost: without parent, gone with its last child, so that no circle of parents can keep itself alive. A change of one
// entry goes down its children as far as their levels change.
//
// One table, sharded, maps a place (a hash of the ids on the way from the start) to the list of all ledgers for which the
// block there has a level. For ledgers at rest
//
//	list(place) = { (slot(l), level_l(b)) : l a ledger, b in l with that place and a level }
//
// and along a chain the lists are nested: whoever is in one is in all before it, with no higher level. So Match reads the
// first list and the last; a target with one level at both has it everywhere between. For the others it reads the list in
// the middle, and so on.
//
// A slot is a ledger's own small number, never its target's. Whose it is, and whether that is visible, stands in the owner
// table. Publish and Drop only change the owner table; the entries and members of the former ledger are taken away by
// Reclaim, after which the slot may be used again.
//
// # What a concurrent Match may observe
//
//   - It credits nothing that was not held at some moment of the call. Each count rests on one member read in one list,
//     and a member stands for the whole way: it is there only while (or while the operation runs that changes this) the
//     ledger holds every block on it. Nothing is concluded from two lists together but where to look next.
//   - It may credit less than there is for a target that is written to meanwhile. Other targets' counts are exact.
//   - The owner table does not change from its first look to its last. So one Match sees of a target one ledger whole,
//     a Match that begins after Drop or Publish returned sees nothing of the former one, and a slot that is used again
//     cannot be taken for its former owner's.
//
// An operation on a ledger has taken effect when it returns, and a refused one was never seen.
//
// # Locks
//
// In this order; none is taken while a later one is held:
//
//	Ledger.mu, garbage.mu, Index.mu, shard.mu
//
// garbage.mu and Index.mu are never held together. Match takes Index.mu and shard.mu for reading. What a dropped ledger
// left behind belongs to whoever took it off the garbage queue and needs no lock.
//
// # Bounds and cost
//
//	entries(visible) + entries(aside) + entries(garbage) <= MaxBlocks       at all times; ghosts are entries
//	slots <= most ledgers alive or not yet reclaimed at once
//	memory(ledger) <= about 4 x what its entries need                       slabs and maps are rebuilt when sparse
//
// Match: n multiplications for a chain of n, then for each target at most 4 log2(n) looks into a list, of log2(holders)
// steps; a list that several targets need is locked once. Never targets x blocks. Store and Remove: a map access in the
// ledger and one in a shard for each block, and the insertion into that place's list, which moves up to 4 bytes for each
// holder. Making or filling a hole costs a shard access for each block behind it.
package index
