package fleet

import (
	"maps"
	"slices"
)

// TargetID is the dense id of one (worker, rank). Ids start at 0 and stay small: they are recycled.
type TargetID uint32

// Tier is where a block of KV cache lies. Tiers continue one another in this order.
type Tier uint8

// The tiers, nearest first.
const (
	Device Tier = iota // accelerator memory
	Host               // the worker's main memory
	Disk               // the worker's local disk
	Shared             // a store shared by several workers

	NumTiers = 4
)

// String gives the lower-case name.
func (t Tier) String() string {
	switch t {
	case Device:
		return "device"
	case Host:
		return "host"
	case Disk:
		return "disk"
	case Shared:
		return "shared"
	default:
		return "unknown"
	}
}

// Roles is the set of things a worker does. The zero value means Aggregated.
type Roles uint8

// The roles.
const (
	Aggregated Roles = 1 << iota // prefill and decode
	Prefill                      // prompts only
	Decode                       // generation only
)

// Serves reports whether a worker with these roles can take a request that wants the given one. An aggregated worker
// can take any.
func (r Roles) Serves(want Roles) bool {
	if r == 0 {
		r = Aggregated
	}
	return r&(want|Aggregated) != 0
}

// Spec is what a worker says about itself. It must not be changed after it was handed to a Registry.
type Spec struct {
	Worker      string            // unique name
	Address     string            // where gateways reach it; may be empty
	Model       string            // base model
	BlockSize   int               // tokens per block, at least 1
	DPSize      int               // number of ranks, at least 1
	Roles       Roles             // what it does
	Labels      map[string]string // free labels
	Capacity    [NumTiers]uint64  // blocks per tier of one rank; 0: unknown
	MaxRunning  int               // requests a rank runs at once; 0: unknown
	MaxRequests int               // requests a rank accepts; 0: unlimited
	Class       string            // performance class; empty: none named
}

// sameLife reports whether next can replace s without dropping what is known: nothing that gives blocks or bookings
// their meaning has changed.
func (s *Spec) sameLife(next *Spec) bool {
	return s.Model == next.Model && s.BlockSize == next.BlockSize && s.DPSize == next.DPSize
}

// clone makes the spec independent of the caller's maps.
func (s Spec) clone() Spec {
	s.Labels = maps.Clone(s.Labels)
	return s
}

// State is a worker's place in its life.
type State uint8

// The states.
const (
	Ready    State = iota // can be chosen
	Draining              // kept out of new choices by an operator
	Lost                  // its streams are gone for longer than the grace
)

// String gives the lower-case name.
func (s State) String() string {
	switch s {
	case Ready:
		return "ready"
	case Draining:
		return "draining"
	case Lost:
		return "lost"
	default:
		return "unknown"
	}
}

// Worker is one worker in one moment. It is immutable: a change makes a new one.
type Worker struct {
	Spec
	Life         uint64     // number of this life, never used again
	Incarnation  uint64     // of the engine; 0: it never reported
	Targets      []TargetID // one per rank, in order
	IsDraining   bool       // an operator's wish; outlives incarnations
	IsLost       bool       // no sign of life for longer than the grace
	RegisteredAt int64      // Unix nanoseconds on the oracle's clock; start of this life
}

// State sums up the flags. An operator's drain is shown before a loss.
func (w *Worker) State() State {
	switch {
	case w.IsDraining:
		return Draining
	case w.IsLost:
		return Lost
	default:
		return Ready
	}
}

// Rank gives the rank of one of the worker's targets, or -1.
func (w *Worker) Rank(id TargetID) int { return slices.Index(w.Targets, id) }
