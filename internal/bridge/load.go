package bridge

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/internal/engine/metrics"
	"github.com/kvoracle/kvoracle/internal/engine/orca"
)

// watchLoad looks at the engine's gauges again and again and reports them. An engine that does not answer is asked ever
// more rarely, and nothing is reported for it: the oracle lets an old sample fade by itself.
func (w *worker) watchLoad(ctx context.Context) {
	every := time.Duration(w.cfg.LoadEvery)
	pause := every
	var looked time.Time
	for rest(ctx, pause) {
		// What comes by itself is newer. It does not say what the engine is, which is asked all the same.
		if now := time.Now(); now.UnixNano()-w.counters.pushedAt.Load() < int64(fresh) && now.Sub(looked) < fresh {
			continue
		}
		r, err := w.askLoad(ctx)
		looked = time.Now()
		if w.cfg.Metrics == "" && w.cfg.API == "" && errors.Is(err, metrics.ErrAbsent) {
			return // TensorRT-LLM's servicer does not say it
		}
		if err != nil {
			if w.counters.loadFailures.Add(1); pause == every {
				w.log.Warn("kvoracle bridge: the engine does not say how busy it is", "error", err)
			}
			pause = min(2*pause, max(every, retryMost/4))
			continue
		}
		pause = every
		w.takeReading(ctx, r)
	}
}

// fresh is how long a sample that came by itself is as good as one that was asked for: those who send them do so at every
// change, and each second.
const fresh = 2 * time.Second

// askLoad asks the engine's documents, or its servicer, how busy it is.
func (w *worker) askLoad(ctx context.Context) (metrics.Reading, error) {
	engine := w.current.Load().facts.Engine
	if w.cfg.Metrics == "" && w.servicer != nil {
		return w.servicer.Loads(ctx, engine)
	}
	s, err := w.source()
	if err != nil {
		return metrics.Reading{}, err
	}
	return s.Load(ctx, engine)
}

// takeReading reports what an engine said, rank by rank. A process that began at another time than the one whose life is
// being told is another engine, and so is one with other settings.
func (w *worker) takeReading(ctx context.Context, r metrics.Reading) {
	w.counters.odd.Add(uint64(r.Odd))
	l := w.current.Load()
	_, differs := metrics.Merge(l.facts, metrics.Facts{BlockSize: r.Facts.BlockSize, TotalBlocks: r.Facts.TotalBlocks})
	w.mu.Lock()
	restarted := r.Facts.Started != 0 && w.started != 0 && r.Facts.Started != w.started
	if w.started == 0 {
		w.started = r.Facts.Started
	}
	w.mu.Unlock()
	if restarted || differs != nil {
		w.log.Info("kvoracle bridge: the engine has restarted, say its metrics")
		var err error
		if l, err = w.reborn(ctx, l, nil); err != nil {
			w.complain("no life begins", err)
			return
		}
	}
	said := false
	for rank, s := range r.Ranks {
		if rank < len(l.reporters) && s.Said() {
			l.reporters[rank].Load(sample(s, l.facts))
			said = true
		}
	}
	if said {
		w.counters.samples.Add(1)
		w.counters.loadAt.Store(time.Now().UnixNano())
	}
}

// watchORCA reports what an ORCA service streams. It knows no ranks, so it is for engines with one.
func (w *worker) watchORCA(ctx context.Context) {
	conn, err := grpc.NewClient(w.cfg.ORCA, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.complain("orca", err)
		return
	}
	defer conn.Close()
	r := orca.Reader{
		Conn: conn, Interval: time.Duration(w.cfg.LoadEvery),
		Take: func(v map[string]float64) { w.takeReading(ctx, metrics.ORCASample(v)) },
		Fail: func(err error) {
			w.counters.loadFailures.Add(1)
			w.log.Warn("kvoracle bridge: the ORCA stream has ended", "error", err)
		},
	}
	r.Run(ctx)
}
