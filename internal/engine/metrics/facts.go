package metrics

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
)

// Facts is what an engine is. A zero field was not said.
type Facts struct {
	// Source says where the facts were read, for error texts.
	Source string
	// Engine is the family.
	Engine kvevents.Engine
	// Models are the names under which the base model is served, the first being the one its metrics carry. A flag has one.
	Models []string
	// BlockSize is tokens per KV block.
	BlockSize int
	// TotalBlocks is KV blocks of one rank.
	TotalBlocks int
	// MaxRunning is how many requests one rank runs at once (max_num_seqs).
	MaxRunning int
	// Ranks is data-parallel ranks.
	Ranks int
	// Events is where KV events are published, as far as the engine says: "tcp://*:5557", rank 0.
	Events string
	// Topic is what the events' first frame holds.
	Topic string
	// Replay is where rank 0 repeats events, and LoadSocket where it publishes its load, with LoadTopic in front (SGLang).
	Replay, LoadSocket, LoadTopic string

	// Started is when the serving process began, Unix seconds; 0: not said. It identifies the process and is compared with
	// nothing else; under some set-ups it is the API server's and not the engine's.
	Started float64

	sources map[string]string // where each field was read, once merged
}

// ContradictionError says that two sources differ about one fact.
type ContradictionError struct {
	// Fact is the flag's name of it.
	Fact string
	// A and B are what they say, SourceA and SourceB who says it.
	A, SourceA, B, SourceB string
}

// Error implements error.
func (e *ContradictionError) Error() string {
	return fmt.Sprintf("%s: %s says %s, %s says %s", e.Fact, e.SourceA, e.A, e.SourceB, e.B)
}

// Merge puts two statements together. The error is a *ContradictionError; it names the first fact they differ about.
func Merge(a, b Facts) (Facts, error) {
	out := Facts{sources: make(map[string]string)}
	m := merger{a: &a, b: &b, sources: out.sources}
	out.Engine = merge(&m, "engine", a.Engine, b.Engine)
	out.BlockSize = merge(&m, "block-size", a.BlockSize, b.BlockSize)
	out.TotalBlocks = merge(&m, "blocks", a.TotalBlocks, b.TotalBlocks)
	out.MaxRunning = merge(&m, "max-running", a.MaxRunning, b.MaxRunning)
	out.Ranks = merge(&m, "ranks", a.Ranks, b.Ranks)
	out.Events = merge(&m, "events", a.Events, b.Events)
	out.Topic = merge(&m, "topic", a.Topic, b.Topic)
	out.Replay = merge(&m, "replay", a.Replay, b.Replay)
	out.LoadSocket = merge(&m, "load", a.LoadSocket, b.LoadSocket)
	out.LoadTopic = merge(&m, "load-topic", a.LoadTopic, b.LoadTopic)
	out.Started = cmp.Or(a.Started, b.Started)
	out.Models = m.models()
	if m.err != nil {
		return Facts{}, m.err
	}
	out.Source = b.Source
	return out, nil
}

type merger struct {
	a, b    *Facts
	sources map[string]string
	err     error
}

func merge[T comparable](m *merger, fact string, a, b T) T {
	var zero T
	switch {
	case a == zero && b == zero:
	case a == zero:
		m.sources[fact] = m.b.source(fact)
		return b
	case b == zero || a == b:
		m.sources[fact] = m.a.source(fact)
	default:
		m.differ(fact, fmt.Sprint(a), fmt.Sprint(b))
	}
	return a
}

// models keeps the names both know, a's order first: one engine has several names, and each source may know some.
func (m *merger) models() []string {
	const fact = "model"
	a, b := m.a.Models, m.b.Models
	switch {
	case len(a) == 0 && len(b) == 0:
		return nil
	case len(a) == 0:
		m.sources[fact] = m.b.source(fact)
		return slices.Clone(b)
	case len(b) == 0:
		m.sources[fact] = m.a.source(fact)
		return slices.Clone(a)
	}
	both := slices.DeleteFunc(slices.Clone(a), func(name string) bool { return !slices.Contains(b, name) })
	if len(both) == 0 {
		m.differ(fact, strings.Join(a, ", "), strings.Join(b, ", "))
	}
	m.sources[fact] = m.a.source(fact)
	return both
}

func (m *merger) differ(fact, a, b string) {
	if m.err == nil {
		m.err = &ContradictionError{Fact: fact, A: a, SourceA: m.a.source(fact), B: b, SourceB: m.b.source(fact)}
	}
}

// source is where a fact was read.
func (f *Facts) source(fact string) string {
	if s := f.sources[fact]; s != "" {
		return s
	}
	return f.Source
}
