package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// gauges are the observable instruments.
type gauges struct {
	workers, targets, modelTargets                        metric.Int64ObservableGauge
	ledgers, holderBlocks, distinct, orphans, reclaimable metric.Int64ObservableGauge
	unmatched                                             metric.Int64ObservableGauge
	engineHashes, approximate, text, guesses              metric.Int64ObservableGauge
	bookings, gateways, queued                            metric.Int64ObservableGauge
	evicted, refound, forgone, workerCached               metric.Int64ObservableCounter
	learned, unlearned, presumed, outlived                metric.Int64ObservableGauge
}

func newGauges(b *builder) gauges {
	return gauges{
		workers:      b.gauge(mWorkers),
		targets:      b.gauge(mTargets),
		modelTargets: b.gauge(mModelTargets),
		ledgers:      b.gauge(mLedgers),
		holderBlocks: b.gauge(mHolderBlocks),
		distinct:     b.gauge(mDistinctBlocks),
		orphans:      b.gauge(mOrphans),
		reclaimable:  b.gauge(mReclaimable),
		unmatched:    b.gauge(mUnmatched),
		engineHashes: b.gauge(mEngineHashes),
		evicted:      b.total(mEvicted),
		refound:      b.total(mRefound),
		approximate:  b.gauge(mApproximate),
		text:         b.gauge(mText),
		guesses:      b.gauge(mGuesses),
		forgone:      b.total(mForgone),
		workerCached: b.total(mWorkerCached),
		bookings:     b.gauge(mBookings),
		gateways:     b.gauge(mGateways),
		queued:       b.gauge(mQueued),
		learned:      b.gauge(mLearned),
		unlearned:    b.gauge(mUnlearned),
		presumed:     b.gauge(mPresumed),
		outlived:     b.gauge(mOutlived),
	}
}

func (g *gauges) all() []metric.Observable {
	return []metric.Observable{
		g.workers, g.targets, g.modelTargets, g.ledgers, g.holderBlocks, g.distinct, g.orphans, g.reclaimable,
		g.unmatched, g.engineHashes, g.guesses, g.bookings, g.gateways, g.queued, g.learned, g.unlearned, g.presumed, g.outlived,
		g.evicted, g.refound, g.approximate, g.text, g.forgone, g.workerCached,
	}
}

// Watch reads the gauges from stats whenever somebody collects. Call it once, when the oracle is there. stats is called
// by the collecting goroutine, possibly by several at once.
func (t *Telemetry) Watch(stats func() oracle.Stats) error {
	_, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := stats()
		t.gauges.observe(o, &s)
		return nil
	}, t.gauges.all()...)
	return err
}

func (g *gauges) observe(o metric.Observer, s *oracle.Stats) {
	by := func(kv ...attribute.KeyValue) metric.ObserveOption { return metric.WithAttributes(kv...) }
	for state, n := range s.Workers {
		o.ObserveInt64(g.workers, int64(n), by(attribute.String(kState, fleet.State(state).String())))
	}
	for c, n := range s.Targets {
		o.ObserveInt64(g.targets, int64(n), by(attribute.String(kConfidence, oracle.BlockConfidence(c).String())))
	}
	for model, n := range s.Model {
		fresh, all := n[0], n[1]
		o.ObserveInt64(g.modelTargets, int64(fresh), by(attribute.String(kModel, model), attribute.Bool(kFresh, true)))
		o.ObserveInt64(g.modelTargets, int64(all-fresh), by(attribute.String(kModel, model), attribute.Bool(kFresh, false)))
	}
	for worker, n := range s.Outcomes {
		o.ObserveInt64(g.workerCached, asCount(n.Matched), by(attribute.String(kWorker, worker), attribute.String(kSource, "matched")))
		o.ObserveInt64(g.workerCached, asCount(n.Cached), by(attribute.String(kWorker, worker), attribute.String(kSource, "counted")))
	}
	o.ObserveInt64(g.ledgers, int64(s.Index.Ledgers))
	o.ObserveInt64(g.holderBlocks, int64(s.Index.HolderBlocks))
	o.ObserveInt64(g.distinct, int64(s.Index.DistinctBlocks))
	o.ObserveInt64(g.orphans, int64(s.Index.Orphans))
	o.ObserveInt64(g.reclaimable, int64(s.Index.Reclaimable))
	o.ObserveInt64(g.unmatched, int64(s.Unmatched))
	o.ObserveInt64(g.engineHashes, int64(s.Names))
	o.ObserveInt64(g.evicted, asCount(s.Evicted))
	o.ObserveInt64(g.refound, asCount(s.Refound))
	o.ObserveInt64(g.approximate, int64(s.Approx.HolderBlocks))
	o.ObserveInt64(g.text, int64(s.Text.HolderBlocks))
	o.ObserveInt64(g.guesses, int64(s.Guesses))
	o.ObserveInt64(g.forgone, asCount(s.Forgone))
	o.ObserveInt64(g.bookings, int64(s.Load.Bookings))
	o.ObserveInt64(g.gateways, int64(s.Load.Gateways))
	o.ObserveInt64(g.queued, int64(s.Waiting))
	o.ObserveInt64(g.learned, int64(s.Learn.Samples))
	o.ObserveInt64(g.unlearned, int64(s.Learn.Refused))
	o.ObserveInt64(g.presumed, int64(s.Load.Presumed))
	o.ObserveInt64(g.outlived, int64(s.Load.Outlived))
}
