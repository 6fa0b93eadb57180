// Package load knows how busy each target is, from two sources: the bookings of the oracle's own decisions, and the
// samples that engines send. A booking has a life (booked, dispatched, first token, generating, ended) told by the
// gateway, and a lease that any news of it renews. A sample adds only what the bookings do not explain.
//
// Invariants, for every target at every moment between two calls:
//   - each aggregate (booked, prefilling, pending prefill, tokens, ...) is exactly the sum over its living bookings, but
//     for those that are presumed over (of a gateway that tells no ends; see presume.go); sums are of integers
//     (nanoseconds, tokens), so nothing drifts and nothing goes below zero;
//   - a booking is on exactly one target and in at most one gateway's list; it is released once, by whatever comes
//     first: its end, its lease, or the loss of its gateway or target;
//   - releases go to the booking. A target that was dropped and added again starts from nothing;
//   - at most one living booking has a given RequestID, and at most one a given DecisionID;
//   - external work = max(0, running + waiting - bookings in flight when the sample came in). It holds until the next
//     sample, or until it is older than Config.MaxReportAge. Work is thus never counted twice: what the engine shows
//     of our own requests is subtracted, what we booked since is added.
//
// Unknown is neither zero nor fatal: what a target did not say lately is taken from the median of the targets that
// did, its own bookings on top, and State.Confidence says so.
//
// Time is handed in and only moves forward: a call with an earlier now is read as one at the latest now seen, so that
// leases expire in the order in which they were renewed. All times are the caller's clock; Sample.SampledAt, the
// worker's, only orders samples of one target and is never compared with it.
//
// Concurrency: one mutex guards everything; no call blocks on anything else, calls back, or starts a goroutine. A
// reader sees all of a change or none of it; States is one moment for all its targets.
//
// Cost: every lifecycle call is O(1), O(log of the target's bookings) where ends are not told, without allocation once the
// tracker has reached its size (but for a gateway's first booking). Expire, Drop and ReleaseGateway are O(bookings
// released), States is O(targets asked for), Peers.Changes is O(targets changed), but O(all of them) after a report where
// some say what others do not. Memory is bounded by MaxBookings, some 370 bytes each and up to 140 more where few of those
// decided next to them live, and by the highest TargetID.
package load
