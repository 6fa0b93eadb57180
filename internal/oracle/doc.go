// Package oracle holds the use cases: route a request, apply what workers report, follow a request's life, show the
// fleet. Plain Go values in and out; it knows no wire, logs nothing and starts no goroutine.
//
// It is where the rooms meet. internal/index knows who holds which prefix, internal/load how busy everybody is,
// internal/policy how to choose; none of them knows another, and this package carries values between them.
//
// Path of a Route: the eligible targets of the model (one immutable fleet.View for the whole request); the prompt's
// block ids, once per block size in use; who holds how much of them, facts and guesses apart; then, under one lock, the
// load, the choice and the booking. There are two ways to do that, which decide alike: the long way puts together all that
// is known of each candidate, for any policy and for who asks for the reasons; the quick way (quick.go) is for least_time
// alone. It keeps a line of numbers for each target (board.go), brings those up to date that have changed since the last
// decision, and reads them all; beyond that it costs what the holders of the prompt cost.
//
// Invariants:
//   - choosing and booking are one step: no decision is made on a load that lacks an earlier decision's booking;
//   - a report counts for the life (incarnation) it was made in and for no other; when a life ends nothing of it can be
//     credited to the next, though the id may be used again;
//   - one cause asks for one snapshot: while one is awaited nothing else is asked for and no batch is applied;
//   - guesses (what prompts under way will leave in a cache) live in a tree of their own and never become facts; so does
//     what is guessed of targets that do not report, which ends with their first report;
//   - what was restored from a former process (save.go) is STALE until its reporter has said that it goes on from there;
//   - a question waits only when it says that it may, all that could take it are full, and there is room (waits.go);
//   - a target that had to give up blocks at the memory limit says so, and is asked for a snapshot only when there is room.
//
// Lock order: lives, then rosterMu, then feedsMu; lives, then a feed's mu, then the rooms' own locks; deciding, then the
// rooms' own and feedsMu. lives may be followed by deciding, never the other way round. waits.mu is taken with none of them
// held, before the rooms' own. No lock is held while a caller's code runs, except Observer methods, which must be quick.
package oracle
