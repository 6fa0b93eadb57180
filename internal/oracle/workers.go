package oracle

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/learn"
	"github.com/kvoracle/kvoracle/internal/load"
)

// RankStatus is what is believed of one rank.
type RankStatus struct {
	Blocks     BlockConfidence
	Load       load.State
	Held       [fleet.NumTiers]int
	Applied    uint64        // highest batch applied
	BlocksAge  time.Duration // since the last block message; negative: none
	IsAwaiting bool          // a snapshot was asked for
	Decisions  uint64        // that chose it
	Cost       CostModel     // what work is taken to cost
	CostError  float64       // usual error of a prediction, as a share of it
	Learned    uint64        // prefills it was learned from in this life
	Unmatched  bool          // it holds blocks that no question begins with
	Matched    uint64        // prompt tokens of finished requests that were believed to be in its cache
	Cached     uint64        // those that its engine counted of the same requests
}

// WorkerStatus is one worker with its ranks.
type WorkerStatus struct {
	*fleet.Worker

	Ranks []RankStatus
}

// Worker shows one worker.
func (o *Oracle) Worker(name string, now time.Time) (WorkerStatus, error) {
	view := o.fleet.View()
	w := view.Worker(name)
	if w == nil {
		return WorkerStatus{}, workerUnknown(name)
	}
	loads := o.loads(view.Model(w.Model), now)
	return o.status(w, loads, now), nil
}

// loads reads the load of a model's targets at one moment, so that what is imputed to the silent ones is what a Route
// would impute.
func (o *Oracle) loads(ws []*fleet.Worker, now time.Time) map[fleet.TargetID]load.State {
	ids := targetsOf(ws, nil)
	out := make(map[fleet.TargetID]load.State, len(ids))
	for i, st := range o.load.States(ids, now, nil) {
		out[ids[i]] = st
	}
	return out
}

// targetsOf lists all targets of workers, in the memory of ids.
func targetsOf(ws []*fleet.Worker, ids []fleet.TargetID) []fleet.TargetID {
	ids = ids[:0]
	for _, w := range ws {
		ids = append(ids, w.Targets...)
	}
	return ids
}

// View is one rank's contents at one moment.
type View struct {
	IDs        [fleet.NumTiers][]block.ID // by tier, in no order
	Applied    uint64
	Confidence BlockConfidence
}

// Verify shows what a rank is believed to hold. It copies the ids while the rank's reports wait.
func (o *Oracle) Verify(name string, rank int, now time.Time) (View, error) {
	w := o.fleet.View().Worker(name)
	if w == nil {
		return View{}, workerUnknown(name)
	}
	if rank >= len(w.Targets) {
		return View{}, rankUnknown("target.dp_rank", rank, len(w.Targets))
	}
	f := o.feed(w.Targets[rank])
	if f == nil {
		return View{}, workerUnknown(name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v := View{Applied: f.applied, Confidence: f.confidence(now)}
	if f.ledger != nil {
		f.ledger.Each(func(id block.ID, t fleet.Tier, _ int) bool {
			v.IDs[t] = append(v.IDs[t], id)
			return true
		})
	}
	return v, nil
}

// Workers shows all workers of a model (empty: of every model), ordered by name.
func (o *Oracle) Workers(model string, now time.Time) []WorkerStatus {
	view := o.fleet.View()
	ws := view.Workers()
	if model != "" {
		ws = view.Model(model)
	}
	loads := make(map[string]map[fleet.TargetID]load.State) // by model
	out := make([]WorkerStatus, len(ws))
	for i, w := range ws {
		if loads[w.Model] == nil {
			loads[w.Model] = o.loads(view.Model(w.Model), now)
		}
		out[i] = o.status(w, loads[w.Model], now)
	}
	return out
}

func (o *Oracle) status(w *fleet.Worker, loads map[fleet.TargetID]load.State, now time.Time) WorkerStatus {
	st := WorkerStatus{Worker: w, Ranks: make([]RankStatus, len(w.Targets))}
	for i, id := range w.Targets {
		r := &st.Ranks[i]
		r.Load = loads[id]
		r.BlocksAge = -1
		f := o.feed(id)
		if f == nil {
			continue
		}
		r.Blocks, r.Decisions = f.confidence(now), f.decisions.Load()
		l := o.learn.Of(id)
		r.Cost, r.CostError, r.Learned = f.pricing.Load().cost, l.Error, l.Samples
		r.Unmatched = f.unmatched.isFound.Load()
		r.Matched, r.Cached = f.outcomes.matched.Load(), f.outcomes.cached.Load()
		if at := f.heardAt.Load(); at != 0 {
			r.BlocksAge = now.Sub(time.Unix(0, at))
		}
		f.mu.Lock()
		r.Applied, r.IsAwaiting = f.applied, f.awaiting
		if f.ledger != nil {
			for t := range r.Held {
				r.Held[t] = f.ledger.Held(fleet.Tier(t))
			}
		}
		if a := f.approx[asTokens]; a != nil {
			r.Held[fleet.Device] = a.ledger.Held(fleet.Device)
		}
		f.mu.Unlock()
	}
	return st
}

// Stats are the oracle's gauges.
type Stats struct {
	Workers   [3]int              // by fleet.State
	Targets   [numConfidences]int // by BlockConfidence
	Index     index.Stats         // what targets reported
	Names     int                 // engine hashes kept for ranks that name blocks by them
	Guesses   int                 // prompts under way that are remembered
	Forgone   uint64              // prompts that were not, for want of room
	Evicted   uint64              // blocks given up at the memory limit, ever
	Refound   uint64              // of those, brought back by what engines counted
	Approx    index.Stats         // what is guessed of targets that do not report
	Text      index.Stats         // what is guessed of all targets from prompts that are text
	Load      load.Stats          // bookings and samples
	Learn     learn.Stats         // prefills that costs were learned from
	Model     map[string][2]int   // targets whose reports count in full and all, by model
	Unmatched int                 // targets that hold blocks which no question begins with
	Waiting   int                 // questions that wait for a place
	Outcomes  map[string]Outcomes // by worker, of those that have any
}

// Outcomes are prompt tokens of a worker's finished requests whose engine has counted.
type Outcomes struct {
	Matched uint64 // believed to be in its cache, when they were decided
	Cached  uint64 // counted by its engine
}

// Stats looks at everything once; O(workers).
func (o *Oracle) Stats(now time.Time) Stats {
	s := Stats{
		Index: o.index.Stats(), Evicted: o.index.Evicted(), Refound: o.refound.Load(), Approx: o.approx[asTokens].Stats(), Text: o.approx[asText].Stats(),
		Waiting: int(o.waits.some.Load()),
		Names:   o.names.Used() + o.names.Remembered(), Load: o.load.Stats(), Learn: o.learn.Stats(), Model: make(map[string][2]int),
		Outcomes: make(map[string]Outcomes),
	}
	for _, w := range o.fleet.View().Workers() {
		s.Workers[w.State()]++
		m := s.Model[w.Model]
		var found Outcomes
		for _, id := range w.Targets {
			c := Silent
			if f := o.feed(id); f != nil {
				c = f.confidence(now)
				found.Matched += f.outcomes.matched.Load()
				found.Cached += f.outcomes.cached.Load()
				if f.unmatched.isFound.Load() {
					s.Unmatched++
				}
			}
			s.Targets[c]++
			m[1]++
			if c.IsTrue() {
				m[0]++
			}
		}
		s.Model[w.Model] = m
		if found != (Outcomes{}) {
			s.Outcomes[w.Worker] = found
		}
	}
	o.guesses.mu.Lock()
	s.Guesses, s.Forgone = o.guesses.living.Len(), o.guesses.forgone
	o.guesses.mu.Unlock()
	return s
}
