package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/sim"
)

// blockSize is the engines' block size in tokens.
const blockSize = 16

// lookup is a question: who holds this prompt?
type lookup struct {
	at       float64 // seconds of the trace
	keyspace block.Keyspace
	locals   []block.Local
}

// event is an engine's report: blocks stored below a parent, or removed.
type event struct {
	at       float64
	engine   int
	isRemove bool
	isRoot   bool
	parent   block.ID
	ids      []block.ID
}

// trace is what is replayed: lookups and events, each in order of time.
type trace struct {
	engines      int
	seconds      float64 // to the last of both
	lookups      []lookup
	events       []event
	lookupBlocks int
	eventBlocks  int
}

// ops is how many block operations there are.
func (t *trace) ops() int { return t.lookupBlocks + t.eventBlocks }

// record serves requests on simulated engines and keeps what a router in front of them would see. Each copy is the same
// requests on engines of its own and, since its keyspace is another one, with blocks of its own; copies arrive a little
// after each other, so that they do not ask all at once.
//
// The rule for who serves: the same first 64 blocks go to the same engine, unless that one has over twice the mean in
// flight; then, and if nobody was asked yet, the one with the fewest.
func record(requests *sim.Trace, engines, copies int) (*trace, error) {
	t := &trace{engines: engines * copies}
	if engines < 1 || copies < 1 || len(requests.Requests) < 2 {
		return nil, fmt.Errorf("%d engines, %d copies, %d requests", engines, copies, len(requests.Requests))
	}
	gap := requests.Requests[len(requests.Requests)-1].Arrival / float64(len(requests.Requests))
	locals := make(map[int][]block.Local)
	for c := range copies {
		r := &recorder{trace: t, keyspace: block.Keyspace(c + 1), shift: gap * float64(c) / float64(copies), locals: locals, home: make(map[block.ID]int)}
		o := sim.RunOptions{Options: sim.Options{Engines: engines, BlockSize: blockSize, Keyspace: r.keyspace}}
		for e := range engines {
			o.Sinks = append(o.Sinks, &engineSink{r, c*engines + e})
		}
		if _, err := sim.Run(requests, r, o); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(t.lookups, func(a, b lookup) int { return compare(a.at, b.at) })
	slices.SortStableFunc(t.events, func(a, b event) int { return compare(a.at, b.at) })
	for i := range t.lookups {
		t.lookupBlocks += len(t.lookups[i].locals)
		t.seconds = max(t.seconds, t.lookups[i].at)
	}
	for i := range t.events {
		t.eventBlocks += len(t.events[i].ids)
		t.seconds = max(t.seconds, t.events[i].at)
	}
	return t, nil
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// recorder is a copy's router.
type recorder struct {
	trace    *trace
	keyspace block.Keyspace
	shift    float64
	locals   map[int][]block.Local // by request, the same for all copies
	home     map[block.ID]int
}

// Choose implements sim.Chooser.
func (r *recorder) Choose(at float64, q *sim.Request, f *sim.Fleet) int {
	locals, ok := r.locals[q.Index]
	if !ok {
		locals = block.AppendLocals(nil, q.AppendTokens(nil), blockSize)
		r.locals[q.Index] = locals
	}
	if len(locals) > 0 {
		r.trace.lookups = append(r.trace.lookups, lookup{at + r.shift, r.keyspace, locals})
	}
	least, all := 0, 0
	for e := range f.Engines() {
		all += f.InFlight(e)
		if f.InFlight(e) < f.InFlight(least) {
			least = e
		}
	}
	chain := q.Chain(r.keyspace, blockSize)
	if len(chain) == 0 {
		return least
	}
	first := chain[min(64, len(chain))-1]
	e, ok := r.home[first]
	if most := math.Ceil(2 * float64(all) / float64(f.Engines())); !ok || float64(f.InFlight(e)) > most {
		e = least
		r.home[first] = e
	}
	return e
}

// engineSink is where an engine reports to.
type engineSink struct {
	*recorder
	engine int
}

// Stored implements sim.Sink.
func (s *engineSink) Stored(at float64, parent block.ID, isRoot bool, ids []block.ID) {
	s.trace.events = append(s.trace.events, event{at: at + s.shift, engine: s.engine, isRoot: isRoot, parent: parent, ids: slices.Clone(ids)})
}

// Removed implements sim.Sink.
func (s *engineSink) Removed(at float64, ids []block.ID) {
	s.trace.events = append(s.trace.events, event{at: at + s.shift, engine: s.engine, isRemove: true, ids: slices.Clone(ids)})
}

// Load implements sim.Sink.
func (s *engineSink) Load(float64, sim.LoadSample) {}
