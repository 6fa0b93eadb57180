// Package storm proves the report protocol by weather. It has tests only.
//
// One seed is one run: a few workers, each with an engine whose cache is known, reporters that do their duties as
// report_blocks.proto says, one oracle.Oracle used through its session API, and a transport in memory between them. Engines
// differ: in the size of their blocks; in that they have one attention group or several, whose blocks have the same hashes;
// and in how they name blocks, by ids, or by their own hashes, numbers or bytes, of which a block may have two. What names or
// groups concern goes through the form that it has on the wire. One dice decides what happens next and what breaks; time is a
// number; there is no goroutine, no socket and no clock. Two storms, a calm after each, then everybody leaves.
//
// What must hold:
//
//  1. At every step, for some prompt, Route credits a FRESH or STALE target with exactly the greedy match, tier by tier,
//     of what its engine held when it made the last message that the oracle has acknowledged (in an ack, whether or not
//     that has arrived). Nothing else may stand between credit and engine but what is in flight or not sent yet. An
//     earlier state would be one the oracle itself has called overtaken; a later one it cannot know. Targets of any other
//     confidence are credited with nothing. FRESH is who owes no snapshot and has a stream, or had one within the grace.
//  2. One exception: where a report was falsified before it was sent, or two publishers share a numbering, the credit is
//     exactly what was told, and the first digest at the same sequence must find the difference, and never one that is
//     not there. Copies are part of it. A digest of a batch that has not come is a gap. What an engine hash stands for is
//     not: where the store that said so was falsified away and others of the same hash were not, the digests agree, and the
//     block and what follows it is credited with nothing until it is said again.
//  3. In the calm, when everything has arrived and every debt is paid, every target is FRESH, and its match for every
//     prompt is its engine's. With engine hashes: no more than it holds, and no less than any chain of its hashes leads to.
//  4. No more snapshots are asked for than things have happened that may each cost one, and none while one is owed.
//     TestOneCauseOneSnapshot counts them for each kind of fault alone.
//  5. Once the oracle has heard of an engine's new life, nothing that was said in the former one is credited.
//  6. In one storm of three the index is too small. Then a target may be PARTIAL instead of FRESH, and is credited with no
//     more than was told and no nearer tier. While the index is full nobody is asked for a snapshot for that, save once an
//     hour if a digest differs; once it no longer is, within an hour, each is asked once, and then the picture is whole.
//  7. When all workers are removed, the index is empty after a tick.
//
// With engine hashes, what 1 credits are the blocks of which it can be known what they are: their content was told, and that
// of their parents.
//
// What is believed of a rank (shadow) is computed from the protocol alone, message by message, and every ack, answer to
// a hello and verdict on a digest must agree with it.
//
//	go test ./internal/storm -run TestStorm -seed=N -v      replays one run, step by step in words
//	go test ./internal/storm -run TestStorm -storms=N       weathers more of them
package storm
