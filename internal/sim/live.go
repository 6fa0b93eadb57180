package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// LiveOptions say what a Live oracle is told. The zero value tells it everything, at once.
type LiveOptions struct {
	// Oracle configures it. Costs, where empty, hold the truth about the engines.
	Oracle oracle.Config
	// NoEvents keeps the blocks from it.
	NoEvents bool
	// NoFirstToken keeps the first tokens from it, NoFinish the ends: bookings then go by their lease.
	NoFirstToken, NoFinish bool
	// LoadEvery is how many seconds are between two load samples of an engine; 0: none are sent.
	LoadEvery float64
}

// Live is a Chooser that asks a real oracle, of this process and in virtual time: it reports the engines' blocks and
// load and each request's progress as workers and gateways do, less the wire. What comes out is what the product does.
type Live struct {
	o         LiveOptions
	oracle    *oracle.Oracle
	engines   map[string]int
	specs     []fleet.Spec // by engine
	keyspace  block.Keyspace
	blockSize int
	decisions map[*Request]oracle.DecisionID
	ticked    float64
	reporters []*reporter
	restated  int   // snapshots that were asked for and sent
	err       error // the first report that was refused

	spec func(engine int, s *fleet.Spec) // changes how an engine introduces itself; nil: nothing
}

var (
	_ Attached = (*Live)(nil)
	_ Observer = (*Live)(nil)
)

// NewLive makes one for one run.
func NewLive(o LiveOptions) *Live { return &Live{o: o} }

// liveModel is the model that simulated engines serve.
const liveModel = "sim"

// LiveKeyspace is the keyspace that Live works in; Options.Keyspace must be this one.
func LiveKeyspace(blockSize int) block.Keyspace {
	return block.Identity{Model: liveModel, BlockSize: blockSize}.Keyspace()
}

// epoch is virtual second 0.
func epoch() time.Time { return time.Unix(1_700_000_000, 0) }

func moment(t float64) time.Time { return epoch().Add(time.Duration(t * float64(time.Second))) }

// Attach implements Attached.
func (a *Live) Attach(o *Options) error {
	a.keyspace, a.blockSize = LiveKeyspace(o.BlockSize), o.BlockSize
	if o.Keyspace != a.keyspace {
		return errors.New("Live needs the keyspace LiveKeyspace")
	}
	cfg := a.o.Oracle
	if cfg.Costs == nil {
		cfg.Costs = LiveCosts(o.Model.CostModel())
	}
	a.oracle = oracle.New(cfg, nil)
	a.engines, a.decisions = map[string]int{}, map[*Request]oracle.DecisionID{}
	o.Observer, o.Watcher, o.LoadEvery = a, a, a.o.LoadEvery
	o.Sinks = make([]Sink, o.Engines)
	for i := range o.Engines {
		name := fmt.Sprintf("engine-%d", i)
		a.engines[name] = i
		spec := fleet.Spec{
			Worker: name, Address: name, Model: liveModel, BlockSize: o.BlockSize, DPSize: 1, Class: liveModel,
			Capacity: [fleet.NumTiers]uint64{uint64(o.Model.KVTokens / o.BlockSize)}, MaxRunning: o.Model.MaxBatch,
		}
		if a.spec != nil {
			a.spec(i, &spec)
		}
		r := &reporter{live: a}
		o.Sinks[i] = r
		a.specs, a.reporters = append(a.specs, spec), append(a.reporters, r)
		if o.first(i) == absent {
			continue
		}
		if err := a.begin(i, 0); err != nil {
			return err
		}
	}
	return nil
}

// begin lets an engine introduce itself, with a new life.
func (a *Live) begin(engine int, t float64) error {
	r, spec := a.reporters[engine], a.specs[engine]
	r.life++
	r.isThere, r.sequence, r.held = true, 0, map[block.ID]ancestry{}
	if a.o.NoEvents {
		if _, err := a.oracle.Register(spec, moment(t)); err != nil {
			return err
		}
	} else {
		s, _, err := a.oracle.OpenBlocks(&oracle.Hello{Spec: spec, Incarnation: r.life, NextSequence: 1}, moment(t))
		if err != nil {
			return err
		}
		r.blocks = s
	}
	if a.o.LoadEvery > 0 {
		s, err := a.oracle.OpenLoad(spec.Worker, 0, r.life)
		if err != nil {
			return err
		}
		r.load = s
	}
	return nil
}

// Changed implements Watcher. Of an engine that is killed the streams end, the gateway says of each of its requests that it
// has failed, and who watches the processes removes the worker. Of one that vanishes the streams end, too, and that is all: the
// oracle waits for it as long as its lease says. That engines become faster or slower nobody says.
func (a *Live) Changed(t float64, c Change, lost []*Job) {
	name := a.specs[c.Engine].Worker
	switch c.Kind {
	case Join:
		if a.reporters[c.Engine].isThere {
			_, err := a.oracle.Drain(name, false)
			a.note(err)
			return
		}
		a.note(a.begin(c.Engine, t))
	case Drain:
		_, err := a.oracle.Drain(name, true)
		a.note(err)
	case Kill:
		if !a.reporters[c.Engine].isThere && !a.o.NoEvents {
			return // its lease is over; only of who has no streams somebody has to say so
		}
		a.cut(c.Engine, t)
		for _, j := range lost {
			a.Failed(t, j)
		}
		_, _, err := a.oracle.Remove(name)
		a.note(err)
	case Vanish:
		a.cut(c.Engine, t)
	case Pace:
	}
}

// cut ends an engine's streams.
func (a *Live) cut(engine int, t float64) {
	r := a.reporters[engine]
	if r.blocks != nil {
		r.blocks.Close(moment(t))
	}
	r.isThere, r.blocks, r.load = false, nil, nil
}

// Failed implements Watcher.
func (a *Live) Failed(t float64, j *Job) {
	if !a.o.NoFinish {
		a.progress(t, &oracle.Event{Decision: a.decisions[j.Request], Step: oracle.Failed})
	}
}

// reporter is one engine's streams.
type reporter struct {
	live     *Live
	life     uint64
	isThere  bool
	blocks   *oracle.BlockSession
	load     *oracle.LoadSession
	sequence uint64
	held     map[block.ID]ancestry
}

// ancestry is what a block follows.
type ancestry struct {
	parent block.ID
	isRoot bool // nothing
}

// Stored implements Sink.
func (r *reporter) Stored(t float64, parent block.ID, isRoot bool, ids []block.ID) {
	if r.blocks == nil {
		return
	}
	from := ancestry{parent, isRoot}
	for _, id := range ids {
		r.held[id] = from
		from = ancestry{parent: id}
	}
	r.batch(t, oracle.Op{Kind: oracle.OpStore, Parent: parent, IsRoot: isRoot, Content: oracle.ContentIDs, IDs: ids})
}

// Removed implements Sink.
func (r *reporter) Removed(t float64, ids []block.ID) {
	if r.blocks == nil {
		return
	}
	for _, id := range ids {
		delete(r.held, id)
	}
	r.batch(t, oracle.Op{Kind: oracle.OpRemove, IDs: ids})
}

func (r *reporter) batch(t float64, op oracle.Op) {
	r.sequence++
	ack, err := r.blocks.Batch(r.sequence, r.sequence, []oracle.Op{op}, moment(t))
	if err == nil && len(ack.Refusals) > 0 {
		err = fmt.Errorf("refused: %v", ack.Refusals[0])
	}
	r.live.note(err)
}

// restate sends a snapshot if the oracle has asked for one.
func (r *reporter) restate(t float64) {
	if r.blocks == nil {
		return
	}
	select {
	case <-r.blocks.Resyncs():
	default:
		return
	}
	_, err := r.blocks.SnapshotBegin(r.sequence, moment(t))
	r.live.note(err)
	_, err = r.blocks.SnapshotChunk(r.contents(), moment(t))
	r.live.note(err)
	_, err = r.blocks.SnapshotEnd(uint64(len(r.held)), moment(t))
	r.live.note(err)
	r.live.restated++
}

// contents is what the engine holds, parents first, and in the same order in every run.
func (r *reporter) contents() []oracle.Op {
	ops := make([]oracle.Op, 0, len(r.held))
	told := make(map[block.ID]bool, len(r.held))
	var line []block.ID
	for _, id := range slices.Sorted(maps.Keys(r.held)) {
		for a, ok := r.held[id]; ok && !told[id]; a, ok = r.held[id] {
			told[id] = true
			line = append(line, id)
			id = a.parent
		}
		for _, id := range slices.Backward(line) {
			a := r.held[id]
			ops = append(ops, oracle.Op{Kind: oracle.OpStore, Parent: a.parent, IsRoot: a.isRoot, Content: oracle.ContentIDs, IDs: []block.ID{id}})
		}
		line = line[:0]
	}
	return ops
}

// Load implements Sink.
func (r *reporter) Load(t float64, s LoadSample) {
	if r.load == nil {
		return
	}
	_, err := r.load.Sample(oracle.Sample{
		Running: oracle.Known(s.Running), Waiting: oracle.Known(s.Waiting), WaitingPrefillTokens: oracle.Known(s.WaitingPrefillTokens),
		UsedBlocks: oracle.Known(s.UsedBlocks), TotalBlocks: oracle.Known(s.TotalBlocks),
	}, moment(t))
	r.live.note(err)
}

func (a *Live) note(err error) {
	if a.err == nil {
		a.err = err
	}
}

// Choose implements Chooser.
func (a *Live) Choose(t float64, r *Request, f *Fleet) int {
	a.tick(t)
	var failed []string
	for _, e := range f.without {
		failed = append(failed, a.specs[e].Worker)
	}
	answer, err := a.oracle.Route(context.Background(), &oracle.RouteRequest{
		Model: liveModel, Session: r.Session, Denied: failed,
		Prompt: oracle.Prompt{Locals: r.Locals(a.keyspace, a.blockSize), LocalsSize: a.blockSize, Length: r.Input},
	}, moment(t))
	if a.note(err); a.err != nil {
		return -1 // ends the run; Err says why
	}
	a.decisions[r] = answer.Decision
	return a.engines[answer.Target.Worker]
}

// tick does what time alone asks for.
func (a *Live) tick(t float64) {
	const every = 0.25 // seconds, as the server does it
	if t-a.ticked >= every {
		a.ticked = t
		a.oracle.Tick(moment(t))
	}
}

// Err is what the oracle refused, if a run ended because of it.
func (a *Live) Err() error { return a.err }

// FirstToken implements Observer.
func (a *Live) FirstToken(t float64, j *Job) {
	if a.o.NoFirstToken {
		return
	}
	a.progress(t, &oracle.Event{Decision: a.decisions[j.Request], Step: oracle.FirstToken, TTFT: j.FirstToken - j.Arrived})
}

// Finished implements Observer.
func (a *Live) Finished(t float64, j *Job) {
	id := a.decisions[j.Request]
	delete(a.decisions, j.Request)
	if a.o.NoFinish {
		return
	}
	a.progress(t, &oracle.Event{Decision: id, Step: oracle.Finished, OutputTokens: j.Request.Output, Cached: j.Cached})
	for _, r := range a.reporters {
		r.restate(t)
	}
}

func (a *Live) progress(t float64, e *oracle.Event) {
	_, err := a.oracle.Progress(e, moment(t))
	a.note(err)
}

// LiveCosts is an oracle's prior about the engines that Live shows it.
func LiveCosts(c oracle.CostModel) map[string]oracle.CostModel {
	return map[string]oracle.CostModel{liveModel: c}
}
