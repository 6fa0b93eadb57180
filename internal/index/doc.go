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
// Contents are stored once, whoever holds them. A segment is up to 512 consecutive blocks of a chain and the id that the
// first one follows. It grows at its end and is cut there; chains that part ways inside it go on in other segments, and
// nothing is ever split. While one ledger's chain is told piece by piece, its segment has room for twice as many blocks;
// when that ledger goes on elsewhere, it has what it needs. Tables of 32-bit locations, in which ids are looked up where they
// stand, find blocks by id; heads, one word for each segment, find what begins with a block.
//
// What a ledger has of a segment is a part: nearly always so many leading blocks, once each, in the device. The segment's
// list has a member for it, one word: target, slot, and how many leading blocks have a level. Holes, copies, farther tiers
// and orphans are spans, in the ledger alone; the member says what they come to:
//
//	list(segment) = { (target, slot, v, cover) : cover = leading blocks of the segment with a level of at most v }
//
// A ledger that holds all of a way is a member with full cover of every segment on it. So Match looks the first block up,
// compares the segment with the chain, goes once through its list, and does the same with the segment that begins with the
// next block, for those who had all so far. Where holders end and whether they have holes costs nothing.
//
// A block that is not held but is named as a parent by one that is held is a ghost: an entry of the ledger with no parent
// of its own, gone with its last child, so that no circle of parents keeps itself alive.
//
// # Invariants
//
//	one way       a query finds every holder of a block on one way: where the parent's segment goes on with the block,
//	              nobody whose parent is connected holds it elsewhere; else in the one segment that begins with it there
//	len(segment)  = most that any part of it reaches to
//	table         = { location(b) : b a block of some segment }
//	heads         = { segments }
//	entries       = held + ghosts <= MaxBlocks, over all ledgers, visible, aside or waiting for Reclaim; what a step of
//	                Reclaim has paid for but not yet freed, less than one segment, is not counted
//	parts        <= max(MaxBlocks/8, 4096), likewise, but for what a store under way or a parent that came late adds; so
//	                bytes <= 40 x MaxBlocks and 4 MiB
//	cover(part)   <= cover of the parent's part demands: a part shows no more than its parent's part showed before
//
// Reporters that give one id two parents (ids that are hashes of the way never do) make twins: one id at several
// locations. They are counted, and while there are any, look-ups that could be spared are made.
//
// MatchLayers says the same by sets of targets. What a list of 16 and more says is kept as a set in the working memory of
// each core, with the number of the list's changes (segment.turns), and read again only when that or the view is another one:
//
//	turns(segment) = changes of a cover in its list of several, or of who is in it, that have taken effect
//
// # What a concurrent Match may observe
//
//   - It credits nothing that was not held at some moment of the call. A cover stands for the whole way: it is there only
//     while (or while the operation runs that changes this) the ledger holds every block on it. A list is believed only if
//     the segment's blocks are in the same place before and after, since places are written once.
//   - It may credit less than there is for a target that is written to meanwhile. Other targets' counts are exact.
//   - The view, which slots are visible, is one immutable bit set for the whole call. So one Match sees of a target one
//     ledger whole, and one that begins after Drop or Publish returned sees nothing of the former. A slot or memory is used
//     again only when every Match that may know it has ended.
//   - A reporter that stores one id under another parent while a Match passes may be credited with both ways joined.
//
// An operation on a ledger has taken effect when it returns, and a refused one was never seen.
//
// # When it is full
//
// The ledger that has most gives up its deepest, least recently used blocks; evict.go says in which order and why. It
// keeps a digest of what was told and is not held, so that a reporter's own digest can still be compared, and says that
// it is partial until that is empty or the ledger is replaced. What it credits is true all the same. Recency is a coarse
// clock's value in each part, written by stores and by Touch, which the one who uses a match calls; Match writes nothing.
//
//	told(tier) = held(tier) + lost(tier); partial = lost is not empty
//
// # Locks
//
// Match takes none and writes only to a cache line of its core's. Writers, in this order:
//
//	Ledger.mu, garbage.mu, Index.mu; Ledger.mu, shard.mu, table.mu, space.mu
//
// At most one lock of a kind is held. Segments are spread over 64 shards by their first block and locations over 256 tables
// by id, so that writers below one hot prompt meet only where they enter its list.
//
// Memory taken out of the structure (pieces of arenas, segments, slots) is reused when the epochs say that every reader
// has entered later; see epochs. A reader that is not scheduled delays that and nothing else.
//
// # Bounds and cost
//
// Bytes for a block that one target holds, in chains of 155:
//
//	id            8    and about 0.4 for pieces not full, freed or waiting
//	location      6.4  5.3 in lines that are 74 to 92 % full, at any time some tables more and some less
//	segment       0.5  64 for each, with the member of a single holder, and 11 to 21 of heads
//	part          0.3  52 for each
//	together     15.6  16.7 measured, the process and its runtime included
//
// Another holder of the same block costs a member of two words and a part, 68 bytes for up to 512 blocks. The published
// gate, 35 % of holder-blocks with 8 holders and 15 % with 64, has 0.65 different blocks for each holder-block, which gives
// 0.65 x 15 + 1 = 11; a hole adds about 60 bytes: two spans of 14, and a ghost, if what follows it is held.
//
// Match: a look-up for each segment on the way, then a step for each member of it; comparing is a load for each block up to
// 64 and one for each segment in longer chains. When nothing of it is in a cache, that is four loads which follow from one
// another for each segment: where the heads are, the word, the segment, and its ids and list side by side; the first two are
// in a cache as a rule, and all there is to an unknown prompt. Store: one look at one line
// of a table for each new block, or at two side by side, for eight blocks or more at a time, and one entry; none for those
// that follow each other in memory. A chain that is told in pieces is copied about twice before it is all there. Remove: a
// look-up for each block that does not stand beside the one before. Both: two locks for each segment touched. A hole or its
// repair costs the spans of its part and one step for each part of the same ledger behind it. Drop: a new view, a bit for
// each slot. A table grows by a line in eight to a line in four of each group, under its own lock: a 256th of all locations
// moves while others go on. Making room: a look at each ledger's size and one at each part of the one that gives, for at
// least a 64th of what that has, of little an eighth or 32; only its own operations wait meanwhile.
//
// # Memory
//
// Ids, lists, tables and segments lie in grids, which double in place: a position leads to the memory with one look at a
// directory that is always in the cache. Chunks of 2 MiB and more come straight from the system, on Linux in large pages,
// outside of the garbage collector's heap; they go back when the index is collected, not before. What one of them has freed
// the others use. The parts of ledgers and their spans are in the heap, where they have no pointers that a collection would
// have to follow.
package index
