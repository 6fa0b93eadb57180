package bridge

import (
	"time"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/internal/engine/feed"
)

// State is how it is with a rank.
type State uint8

// States.
const (
	Waiting      State = iota // the engine has not said yet what it is, or contradicts the configuration
	Disconnected              // its events do not come
	Unheard                   // they do, but the oracle is not told: it is away, or has refused the worker
	CatchingUp                // events are missing, and being asked for
	Live                      // all is well
	numStates
)

// String names the state.
func (s State) String() string {
	return [numStates]string{"waiting", "disconnected", "unheard", "catching up", "live"}[min(s, numStates-1)]
}

// Status is a look at one rank.
type Status struct {
	Worker string
	Rank   int
	State  State
	// Wrong says why, for people; often empty.
	Wrong string

	Trust     feed.Trust
	Next      uint64    // number of the batch that is expected next
	LastEvent time.Time // when it came; zero: never
	LastLoad  time.Time // when a sample was taken; zero: never

	Held        uint64 // blocks, all tiers
	OutboxBytes int    // what the oracle has not acknowledged
	Queued      int    // batches received and not yet read

	Batches, Events        uint64            // taken
	Gaps, Replays, Missing uint64            // times batches were missing, replays asked for, batches that were never had
	Lives                  uint64            // of the engine
	LoadSamples            uint64            // of the engine
	LoadFailures           uint64            // of the engine
	Dropped                map[string]uint64 // by reason
	Incarnation            uint64            // of the life being told; 0: none yet
}

// status looks at the ranks of a worker.
func (w *worker) status() []Status {
	base := Status{
		Worker: w.cfg.Worker, Lives: w.counters.lives.Load(), LoadSamples: w.counters.samples.Load(),
		LoadFailures: w.counters.loadFailures.Load(),
	}
	if at := w.counters.loadAt.Load(); at > 0 {
		base.LastLoad = time.Unix(0, at)
	}
	w.mu.Lock()
	if w.wrong != nil {
		base.Wrong = w.wrong.Error()
	}
	w.mu.Unlock()
	select {
	case <-w.known:
	default:
		return []Status{base}
	}
	l := w.current.Load()
	base.Incarnation = l.incarnation
	all := make([]Status, len(w.ranks))
	for i, r := range w.ranks {
		s := base
		s.Rank = i
		r.fill(&s)
		told := l.reporters[i].Stats()
		s.OutboxBytes = told.OutboxBytes
		for _, n := range told.Held {
			s.Held += n
		}
		if s.State == Live && !isTold(told) {
			s.State = Unheard
		}
		all[i] = s
	}
	return all
}

func isTold(s client.ReporterStats) bool { return s.Connected }
