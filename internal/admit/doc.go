// Package admit orders the questions that wait for a place in a fleet whose workers are all at their limits.
//
// A pool is what shares places: the targets of one model. Of a pool's questions the most urgent go first, whatever else
// holds. Questions of equal priority take turns by tenant, by deficit round robin (Shreedhar and Varghese, "Efficient fair
// queuing using deficit round-robin", SIGCOMM 1995) over predicted cost: at each turn a tenant is given Quantum seconds,
// saves what it does not use as long as it has something waiting, and its first question goes when what it has covers the
// predicted cost. Of one tenant the one that came first goes first. A place may suit some questions only; those that it
// does not suit are passed over, and what their tenants have saved stays.
//
// Invariants, between two calls:
//   - Len() = sum of the tenants' questions <= MaxItems, and Tokens() = sum of their tokens <= MaxTokens;
//   - a tenant is in its class's ring exactly while it has questions there, called ones among them; its deficit is
//     forgotten when it leaves the ring, so that nobody saves for later;
//   - between two tenants that both always have something waiting that suits every place, the costs charged differ by at
//     most the dearest question of each and two quanta;
//   - what is called was charged once; Back and Leave give it back, Served corrects it by what it came to.
//
// When there are too many, one has to go: of those of the lowest priority that is there, the newest of the tenant with most
// cost waiting, which may be the one that has just come. So a tenant that sends without end fills the queue with nobody's
// questions but its own, and questions that are not urgent do not keep urgent ones out.
//
// The package has no clock, no lock and no goroutine: the caller holds a lock around every call, says when things are, and
// wakes whoever was called. Join, Next and Back cost O(tenants of the pool) and what is passed over; the rest is O(questions of the tenant).
package admit
