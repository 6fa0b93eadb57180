// Package bridge speaks for engines that know nothing of kvoracle. It reads what an engine publishes anyway, KV events over
// ZeroMQ and load over HTTP, and reports it by client.Reporter. One bridge serves any number of engines and ranks.
//
//	engine rank ── ZeroMQ ──► zmtp ──► feed (order, gaps) ──► kvevents ──► mapping ──► client.Reporter ── gRPC ──► oracle
//	engine ────── HTTP ─────► metrics ──────────────────────────────────────────────────┘
//
// # Lives
//
// An engine process's life is an incarnation at the oracle. A new one begins when the engine's numbering falls back, when
// its metrics say that the process began at another time or has other settings, and when the oracle refuses the present
// one. An engine's ranks share a life and die together: whichever notices first begins the next life, and the others begin
// anew in it. The incarnation is the time at which the engine's process began, if its metrics say that, so that a bridge
// that was restarted says the same again; else the time at which the bridge noticed. It rises always.
//
// # What it promises
//
//   - At any moment the reporter's contents are what the engine's events say up to Status.Next, less what was left out, each
//     of which is counted by reason. Contents that may be wrong (feed.Doubtful) are given up after two seconds.
//   - Order of one rank is kept. Nothing is dropped silently: what does not fit into the queue is a gap, and treated as one.
//   - Memory is bounded: per rank what is received and not read and what waits for a replay (QueueBytes each), the engine's
//     hashes and the reporter's mirror (by the engine's size), and the reporter's outbox.
//   - What contradicts the configuration is refused by name, and nothing is reported meanwhile.
//   - Tokens are in memory only for as long as they are hashed; none is logged.
//
// # Ownership and locks
//
// A rank has one goroutine that owns its feed, decoder and tables, one that receives, and one for a replay under way. A life does not change once it is made; worker.mu is held
// while one ends and the next begins, and taken by nobody who holds another lock. Status reads atomics and the reporters'
// own figures, so two of its numbers may be of two moments.
//
// # Cost
//
// make bench-bridge measures it: events a second on one core, and memory.
package bridge
