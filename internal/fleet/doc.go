// Package fleet knows who the workers are: names, dense ids, incarnations and lives.
//
// A worker has one or more data-parallel ranks. Each (worker, rank) is a target: the unit that is chosen, booked and
// scored. A target has a dense id (TargetID) so that the state rooms can use arrays; ids are recycled, but only after
// everyone has let go of them (Registry.Recycle), so an id never means two targets at once.
//
// Invariants:
//   - every worker in a View has len(Targets) == Spec.DPSize, and View.Target(id) names it for each of them;
//   - an incarnation never goes down within a life; a higher one begins a new life with new target ids, so nothing
//     said about the former life can be credited to the new one;
//   - a View never changes. Readers load one and use it for the whole request.
//
// Ownership: Registry serialises writers with one mutex and publishes a new View after each change, O(workers) per
// change. Reading is one atomic load. No function blocks.
package fleet
