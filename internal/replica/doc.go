// Package replica makes several kvoracle processes one service: what reporters tell one replica is told to all, over NATS.
//
// A reporter's block stream lives at one replica, its target's origin. The origin applies each message and then writes it,
// as it came, to a log in JetStream (Stream); every other replica follows the log (follow.go) and hands the message to its
// own oracle, through the same code (wire.Applier) and with the same checks. The reporter is answered when the message is in
// the log.
//
// Invariants:
//   - the log has one order, and each target's entries are applied in it, each at most once: entries of a session are
//     numbered, and a number that is missing is found by the next one;
//   - the owner of a target is who took it over last in the log's order: position(claim) is largest. What others still say
//     of it is passed over, so a reporter that moves is never heard twice;
//   - a reporter that moves is greeted only when its own claim has come back through the log, so all that was acknowledged
//     to it elsewhere has been applied here before it is told where to go on (bounded by Config.HelloWait);
//   - a position is of one log: what was claimed in another is void, for the claimer too;
//   - standing(replica, e) = standing(origin, e) after every entry e that tells it, where the standing is the last batch
//     applied, whether a snapshot is awaited and, now and then, the digests. Any difference makes the target lack
//     something, and its origin is asked to announce it: to write a snapshot of what it holds into the log, under the same
//     incarnation and batch. Whoever agrees with the announcement's digests passes its contents over;
//   - so the log's retention is a matter of traffic and not of truth: a replica that starts loads a copy of the index that others
//     keep in NATS and follows from the position it stands for, or else from the log's end. Then it asks all where their targets
//     stand, or to announce all. It has caught up when it is past the last that was said to that, and what it has is believed
//     only then (keep.go).
//
// When NATS is away each replica serves on by itself: reporters are acknowledged without the log, which is counted, targets
// of other replicas turn STALE after Config.Grace and stay candidates, and on return each stream that has said something
// meanwhile is announced again. When an origin dies its targets lose their stream (oracle.BlockSession.Close), as if the
// reporter's own connection had been cut: STALE after the grace, LOST after the lease, unless the reporter comes back to
// anyone.
//
// What comes from the log is trusted as far as a reporter is: it is decoded by the same code, bounded in size and number,
// and refused with a counter.
//
// What operators do (act.go) goes by the log, too, since nobody says it again: it is done everywhere at its place there.
//
// Load goes another way, by core NATS (tell.go, hear.go): it must be there soon, and what is lost ends by itself. Every replica
// has every booking, whoever made it, under the id that its maker gave it; ids of two replicas are of two spaces. Whoever
// hears a step from its gateway tells it to all; what comes from others is applied and not told again. So
//
//	bookings(replica) = bookings(all) - those on their way or lost + those whose end is, for a lease
//
// Not told to others: what engine hashes stand for (such a target is announced by its reporter's own snapshot), sessions,
// prompts under way, what was learned of costs, and targets whose origin is gone, which a fresh replica learns of when they
// report again.
//
// Ownership: one goroutine follows, one watches (beats, questions, joining), one announces, one keeps copies, one tells of load and
// one of NATS's hears of it; each reporter's stream publishes in its own. Lock order: Stream.mu, then Node.mu, then heard.mu, then the
// oracle's, then told.mu. Node.mu is held while one entry is applied, so what hears of load never takes it.
//
// Cost: a message costs its origin one marshalling and one publication, and each follower what it cost the origin. A node
// without NATS is a nil *Node, whose methods do nothing.
package replica
