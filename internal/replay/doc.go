// Package replay compares routing policies: every policy on the same requests and the same simulated engines, at loads
// that mean the same on every workload and fleet.
//
// # Loads
//
// A Cell is a workload on a fleet of engines of one class. Unloaded is what Informed, the reference, measures at about a
// twentieth of what the engines could prefill. The promise (SLO) of a cell is
//
//	p90 TTFT <= 4 * unloaded p90 TTFT   and   mean TPOT <= 3 * unloaded mean TPOT
//
// and load 1 is the highest at which the reference keeps it, found by doubling and halving to 2 %. The Capacity of a
// policy is the highest load at which it keeps the first half of the promise, in units of load 1, and beside it the highest
// at which it keeps both. In an open loop load is the speed at
// which the trace's arrivals come, in a closed one the number of users.
//
// # Fairness
//
// Rivals are their published rules with their default parameters, on what each of them knows, at once and without error:
// see Contestants. kvoracle is the real oracle, told what workers and gateways tell it.
//
// Everything is deterministic: the same cells, policies and seeds give the same numbers, whatever runs beside them.
package replay
