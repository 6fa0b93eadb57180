// Package snapshot keeps what an oracle knows of a fleet in files, so that a process that starts again begins where the one
// before it has ended: who the workers are, and what each rank had reported to hold.
//
// # Format
//
// A file is the eight bytes "KVOSNAP1", then frames. A frame is a length (4 bytes), a checksum (4 bytes) and so many bytes
// of payload, at most 1 MiB; integers are little-endian. The checksum is CRC-32C over the payload, begun with the checksum
// of the frame before it (the first with 0): so a frame that is damaged, missing, or not in its place does not match. The
// first byte of a payload is its kind:
//
//	header   version, time of writing (Unix ns), fingerprint of the deployment
//	worker   what a worker says about itself, its incarnation, whether it is draining or lost
//	rank     number, incarnation, last batch applied, flags, attention group if it is known; and what was given up for want
//	         of room, as digests by tier
//	runs     pieces of chains, after a rank or a guess: what the first block follows, how the blocks are held, and their ids
//	guess    rank, whether of text, size, credit; of caches that nobody reports
//	rankEnd  digests by tier, which the runs must sum up to
//	end      how many workers, ranks and blocks there were; nothing follows it
//
// The fingerprint is a keyspace made with the deployment's secret: block ids of another deployment mean nothing here.
// Small numbers are varints; ids and digests take 8 bytes each. A block costs 8 bytes and a run about 15 more.
//
// # Invariants
//
//   - a file with a name that counts is whole: it is written under another one, synced, and then renamed, and the
//     folder is synced; a process that is killed at any moment leaves the former file in force;
//   - what is not whole, damaged, of another version or of another deployment is refused by name, and the next older
//     file is tried. It is read through, with every checksum, digest and bound, before the first bit of it is put into
//     the oracle, and shown there only when all of it is built;
//   - a folder belongs to one process at a time.
//
// Write and Load do the same for who keeps the bytes elsewhere, and sees to it that what is there is whole.
//
// # Cost and concurrency
//
// Writing copies one rank at a time and holds up the reports of that rank only, for as long as the copy takes; nobody waits
// for the disk. Memory is that of the largest rank and of two buffers. A Dir is used by one goroutine at a time.
package snapshot
