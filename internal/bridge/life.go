package bridge

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/internal/engine/metrics"
)

// life is one life of an engine process, as the oracle is told of it: an incarnation, and a reporter for each rank. It
// does not change once made.
type life struct {
	incarnation uint64
	facts       metrics.Facts
	secret      string
	reporters   []*client.Reporter

	cancel context.CancelFunc
	tasks  sync.WaitGroup
	failed chan error    // holds the first thing that trying again cannot cure
	over   chan struct{} // closed when it ends
}

// begin makes a life and runs its reporters until end.
func begin(ctx context.Context, conn grpc.ClientConnInterface, cfg *Engine, facts metrics.Facts, incarnation uint64,
	secret string, log *slog.Logger, opts ...client.ReporterOption,
) (*life, error) {
	l := &life{incarnation: incarnation, facts: facts, secret: secret, failed: make(chan error, 1), over: make(chan struct{})}
	opts = append([]client.ReporterOption{client.WithLogger(log), client.WithSecret(secret)}, opts...)
	for rank := range max(facts.Ranks, 1) {
		r, err := client.NewReporter(conn, describe(cfg, facts, rank, incarnation), opts...)
		if err != nil {
			return nil, err
		}
		l.reporters = append(l.reporters, r)
	}
	ctx, l.cancel = context.WithCancel(ctx)
	for _, r := range l.reporters {
		l.tasks.Go(func() {
			if err := r.Run(ctx); err != nil {
				select {
				case l.failed <- err:
				default: // another rank's reporter was refused first
				}
			}
		})
	}
	return l, nil
}

// end stops the reporters and waits for them. What they have not sent is not sent: the next life would make it wrong.
func (l *life) end() {
	l.cancel()
	close(l.over)
	l.tasks.Wait()
}

// describe is what the oracle is told about a rank.
func describe(cfg *Engine, f metrics.Facts, rank int, incarnation uint64) client.Worker {
	w := client.Worker{
		ID: cfg.Worker, Address: cfg.Address, BlockSize: f.BlockSize, DPSize: max(f.Ranks, 1), Rank: rank,
		MaxRunning: f.MaxRunning, Labels: cfg.Labels, PerformanceClass: cfg.Class,
		Incarnation: incarnation, Repeats: client.RepeatsCounted,
	}
	if len(f.Models) > 0 {
		w.Model = f.Models[0]
	}
	if f.TotalBlocks > 0 {
		w.Capacities = map[client.Tier]uint64{client.TierDevice: uint64(f.TotalBlocks)}
	}
	return w
}

// sample is a look at an engine's gauges in the reporter's terms.
func sample(s metrics.Sample, f metrics.Facts) client.LoadSample {
	s = s.Complete(f)
	return client.LoadSample{
		Running: s.Running, Waiting: s.Waiting, WaitingPrefillTokens: s.WaitingPrefillTokens,
		UsedBlocks: s.UsedBlocks, TotalBlocks: s.TotalBlocks,
	}
}

// missing says what has to be known and is not.
func missing(f metrics.Facts) error {
	switch {
	case len(f.Models) == 0:
		return errors.New("model: the engine does not say it; give it")
	case f.BlockSize == 0:
		return errors.New("block-size: the engine does not say it; give it")
	}
	return nil
}
