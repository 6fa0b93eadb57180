// Package capture keeps what engines published in a file, and serves it again the way they did.
//
// A capture is what a bridge saw: for each rank's publisher the frames of every message as they came, when they came, and
// where the connection was cut. Nothing is decoded, so a capture also holds what we do not understand yet. It holds token
// ids: whoever has the tokenizer can read the prompts in it.
//
// # Format, version 1
//
// Integers are little-endian, varints unsigned (LEB128), times in nanoseconds, checksums CRC-32C.
//
//	file   = header, record*
//	header = "kvoracle capture", version (2), zero (2), start as Unix time (8), checksum of the 28 bytes before (4)
//	record = size of body (4), checksum of body (4), body
//	body   = 1, rank (varint), endpoint                              a source; they are numbered from 0 in their order
//	       | 2, time (varint), source (varint), frames (varint), (size (varint), bytes)*
//	       | 3, time (varint), source (varint), event (1), count (varint)
//
// Time is since the start, by a clock that never goes back. A file whose name ends in .gz is the same, compressed.
//
// # Invariants
//
//	0 < bytes of a body <= MaxRecord; sources <= MaxSources; 0 < frames <= MaxFrames
//	times never fall; a message's or event's source stands before it
//	memory of a Reader <= 4 * bytes of the greatest record that is there + 128 KiB; what a length only claims costs nothing
//
// A file that ends within a record is one whose writer was killed: everything before is read, then ErrCut is returned. A
// record whose checksum or structure is wrong ends reading with ErrCorrupt.
//
// # Ownership
//
// A Writer and a Reader are for one goroutine. Take and Play own the goroutines they start, which have ended when they return.
package capture
