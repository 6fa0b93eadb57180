package client

import (
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Worker is what a Reporter says about the engine rank it speaks for.
type Worker struct {
	// ID is the unique name, 1 to 256 bytes. Required. All ranks of a worker have the same.
	ID string
	// Address is where gateways reach it ("host:port").
	Address string
	// Model is the base model, 1 to 256 bytes. Required.
	Model string
	// BlockSize is tokens per KV block, 1 to MaxBlockSize. Required.
	BlockSize int
	// DPSize is the number of data-parallel ranks; 0 means 1.
	DPSize int
	// Rank is the one this Reporter speaks for, below DPSize.
	Rank int
	// Roles is what it does; empty means RoleAggregated.
	Roles []Role
	// Labels are free, for Request.RequiredLabels; at most 64.
	Labels map[string]string
	// Capacities are blocks by tier, of one rank; a missing tier is of unknown size.
	Capacities map[Tier]uint64
	// MaxRunning is how many requests a rank runs at once; 0: unknown.
	MaxRunning int
	// MaxRequests is how many requests a rank accepts; 0: unlimited.
	MaxRequests int
	// PerformanceClass names a hardware and model class, whose workers learn together what work costs; empty: the default
	// prior, and those of a model that name none learn together.
	PerformanceClass string

	// Incarnation is one life of the engine process, higher at each restart; all ranks of a worker share it. A higher
	// one makes the oracle forget everything the former one held. 0: when this process started, which is right if the
	// Reporter lives in the engine. A bridge beside the engine must pass the engine's own start time.
	Incarnation uint64
	// Repeats says what a second Store of a held block means to this engine. Required: engines differ.
	Repeats Repeats
}

// processStart is the incarnation of an engine that lives in this process: one value, because all ranks must share it.
var processStart = uint64(time.Now().UnixNano()) //nolint:gochecknoglobals // a fact about the process; never changes

// check refuses what would be refused anyway, before a stream is opened for it.
func (w *Worker) check() *Error {
	ranks := max(w.DPSize, 1)
	switch {
	case w.ID == "":
		return invalid("Worker.ID", "want a name")
	case w.Model == "":
		return invalid("Worker.Model", "want a model")
	case w.BlockSize < 1 || w.BlockSize > MaxBlockSize:
		return invalid("Worker.BlockSize", fmt.Sprintf("got %d, want 1 to %d", w.BlockSize, MaxBlockSize))
	case w.Rank < 0 || w.Rank >= ranks:
		return invalid("Worker.Rank", fmt.Sprintf("got %d, want 0 to %d", w.Rank, ranks-1))
	case w.Repeats != RepeatsSet && w.Repeats != RepeatsCounted:
		return invalid("Worker.Repeats", "want RepeatsSet or RepeatsCounted")
	}
	for t := range w.Capacities {
		if _, ok := tierIndex(t); !ok {
			return invalid("Worker.Capacities", "got tier "+t.String()+", want a known one")
		}
	}
	texts := []string{w.ID, w.Address, w.Model, w.PerformanceClass}
	for k, v := range w.Labels {
		texts = append(texts, k, v)
	}
	if slices.ContainsFunc(texts, func(s string) bool { return !utf8.ValidString(s) }) {
		return invalid("Worker", "want UTF-8")
	}
	return nil
}

// spec is the worker in the oracle's terms. It shares nothing with w.
func (w *Worker) spec() *kvoraclev1.WorkerSpec {
	s := &kvoraclev1.WorkerSpec{
		WorkerId:           w.ID,
		Address:            w.Address,
		Model:              w.Model,
		BlockSize:          clamp32(w.BlockSize),
		DpSize:             clamp32(w.DPSize),
		Roles:              slices.Clone(w.Roles),
		Labels:             maps.Clone(w.Labels),
		MaxRunningRequests: clamp32(w.MaxRunning),
		MaxRequests:        clamp32(w.MaxRequests),
		PerformanceClass:   w.PerformanceClass,
	}
	for _, t := range slices.Sorted(maps.Keys(w.Capacities)) {
		s.Capacities = append(s.Capacities, &kvoraclev1.TierCapacity{Tier: t, Blocks: w.Capacities[t]})
	}
	return s
}
