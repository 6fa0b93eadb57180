// Package edge turns what simple reporters say into what the index understands: an engine's own names of blocks (engine
// hashes) into block ids.
//
// An engine hash means something only inside one life of one rank: engines seed their hashes at random, sign them or
// not, and hash other things than their neighbours do. So it is a handle, and the tokens are the truth. A Translator
// keeps, for one target in one life, what each handle stands for; it dies with that life and knows of no other.
//
// # Model
//
// A name is an engine hash with copies in some tier. It is in one of three states:
//
//	nameless   stored without content: nobody knows what it is yet (a host copy told before the device's)
//	waiting    its content is known, its parent's id is not, so that it has no id
//	known      it has an id, for as long as it has a copy
//
// With c(n, t) the copies that name n has in tier t, the block ids handed on are, at all times,
//
//	copies(b, t) = sum of c(n, t) over the known names n with id b
//
// so two names of one block (an engine that tells apart what we cannot) keep it alive until both are gone. A name gets
// its id from its parent's as soon as that is known, however late; never from anything else, and never from the prompt's
// start unless the reporter said so. An id once given stays until the last copy goes, even if the parent is evicted: the
// index then holds it back by itself.
//
// A store that gives a held name other content, or another parent, or names one block twice, is refused whole. Which of the two is true cannot be
// known, so the name keeps what it was told first and is contested: nothing new is stored below it, and no store of it is
// believed, until all its copies are gone.
//
// # Invariants
//
//	names     = names with a copy in some tier, at most Limits.Names; summed over all translators at most Budget's
//	waiting   = names without an id that were stored while limited, at most Limits.Waiting
//	digest(t) = count, XOR and sum of the hashes of names with a copy in tier t, in whatever state; count and sum of the
//	            copies
//	told(t)   = the same as if no store had ever been refused, unless IsShort
//
// A refused store changes nothing but the mark of a contested name, except that NoRoom may stop in the middle. What it
// told is remembered by name, at most Limits.Refused of them and a 16th of the budget for all: it stands for no block and
// is no parent, but whoever told it counts it, and without it no digest would agree again after a refusal.
//
// # Concurrency and cost
//
// A Translator is used by one goroutine at a time; its owner's lock guards it. A Budget is shared and takes none. Store
// is two map look-ups and one hash for each block, Remove one look-up, Clear of a tier goes through all names. A name takes up to
// 100 bytes, one that waits as much again.
package edge
