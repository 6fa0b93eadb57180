// Package dynamo is a door for callers of Dynamo's standalone selection service (python -m dynamo.select_service): its paths
// and JSON shapes, answered by this oracle. A fleet that asks that service can ask this one by changing a URL.
//
// The shapes are those of Dynamo's published documentation and source as of version 1.6 (docs: "Standalone Selection
// Service"; lib/kv-router/src/services/selection). What a caller may send and this oracle has no use for, or no equal of,
// is either refused by name or listed in docs/dynamo.md; what it cannot know is left out of answers and never made up.
//
// How the nouns meet:
//
//	worker_id (an integer)     = the worker's name in decimal; another name is shown as a hash in [2^52, 2^53)
//	(model_name, routing_group) = the model, "model@group" where the group is not "default"
//	selection_id               = the decision's request_id; the door remembers which decision it names
//
// State: pending selections (what /select was asked, until /reservations books it) and reservations (which decision a
// selection_id names), both bounded and forgotten by age, oldest first. Dynamo's callers do not renew; so a reservation's
// lease is renewed by the calls that come through the door, until it is mostAge old, which is when Dynamo forgets it too.
//
// A Door may be used concurrently. One mutex guards both books; it is never held while the oracle is called. Another one keeps patches
// of workers apart, over their calls. It owns no goroutine.
package dynamo
