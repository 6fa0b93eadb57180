package telemetry

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"
)

// instruments are those that are told, and those that the observer counts itself, made from the table.
type instruments struct {
	shadows    metric.Int64Counter
	targets    metric.Int64Counter // as predicted
	reached    metric.Int64Counter // as measured
	shadowCost metric.Float64Histogram

	decisions, promptTokens, matchedTokens, progress metric.Int64ObservableCounter // see observer.observe

	refused, panics                                                metric.Int64Counter
	picked, prompted, unobserved, tokenized, logged                metric.Int64Counter
	blockChanges, blockOperations, blockRefusals                   metric.Int64Counter
	blockBatches, blockDigests                                     metric.Int64Counter
	snapshots, resyncs, samples                                    metric.Int64Counter
	cachedTokens, released, workerEvents                           metric.Int64Counter
	decisionDuration, matchedShare, firstToken, firstTokenDistance metric.Float64Histogram
	cachedDistance                                                 metric.Int64Histogram
	closed, ended, reloads                                         metric.Int64Counter
	saves, saveBytes, loads                                        metric.Int64Counter
	saveDuration                                                   metric.Float64Histogram
	queueShed                                                      metric.Int64Counter
	queueWaits                                                     metric.Float64Histogram
}

// builder makes instruments by name from the table's rows and remembers what went wrong.
type builder struct {
	meter metric.Meter
	rows  map[string]Instrument
	errs  []error
}

func newBuilder(m metric.Meter) *builder {
	b := &builder{meter: m, rows: make(map[string]Instrument)}
	for _, row := range Instruments() {
		b.rows[row.Name] = row
	}
	return b
}

// take finds the row of a name and takes it out: each is made once.
func (b *builder) take(name string, want Kind) Instrument {
	row, ok := b.rows[name]
	if !ok || row.Kind != want {
		b.errs = append(b.errs, fmt.Errorf("telemetry: the table has no %s %s left", want, name))
	}
	delete(b.rows, name)
	return row
}

func (b *builder) note(err error) {
	if err != nil {
		b.errs = append(b.errs, err)
	}
}

func (b *builder) counter(name string) metric.Int64Counter {
	row := b.take(name, Counter)
	c, err := b.meter.Int64Counter(name, metric.WithUnit(row.Unit), metric.WithDescription(row.Meaning))
	b.note(err)
	return c
}

func (b *builder) histogram(name string) metric.Float64Histogram {
	row := b.take(name, Histogram)
	h, err := b.meter.Float64Histogram(name, metric.WithUnit(row.Unit), metric.WithDescription(row.Meaning),
		metric.WithExplicitBucketBoundaries(row.Bounds...))
	b.note(err)
	return h
}

func (b *builder) intHistogram(name string) metric.Int64Histogram {
	row := b.take(name, Histogram)
	h, err := b.meter.Int64Histogram(name, metric.WithUnit(row.Unit), metric.WithDescription(row.Meaning),
		metric.WithExplicitBucketBoundaries(row.Bounds...))
	b.note(err)
	return h
}

func (b *builder) gauge(name string) metric.Int64ObservableGauge {
	row := b.take(name, Gauge)
	g, err := b.meter.Int64ObservableGauge(name, metric.WithUnit(row.Unit), metric.WithDescription(row.Meaning))
	b.note(err)
	return g
}

// total is a counter that is read when somebody collects.
func (b *builder) total(name string) metric.Int64ObservableCounter {
	row := b.take(name, Counter)
	c, err := b.meter.Int64ObservableCounter(name, metric.WithUnit(row.Unit), metric.WithDescription(row.Meaning))
	b.note(err)
	return c
}

// done says whether the code and the table agree: every row made, none missing.
func (b *builder) done() error {
	for name := range b.rows {
		b.errs = append(b.errs, fmt.Errorf("telemetry: %s is in the table and was not made", name))
	}
	return errors.Join(b.errs...)
}

func newInstruments(b *builder) instruments {
	return instruments{
		decisions:          b.total(mDecisions),
		decisionDuration:   b.histogram(mDecisionDuration),
		promptTokens:       b.total(mPromptTokens),
		matchedTokens:      b.total(mMatchedTokens),
		matchedShare:       b.histogram(mMatchedShare),
		refused:            b.counter(mRefused),
		panics:             b.counter(mPanics),
		picked:             b.counter(mPicked),
		prompted:           b.counter(mPrompted),
		unobserved:         b.counter(mUnobserved),
		logged:             b.counter(mLogged),
		closed:             b.counter(mClosed),
		ended:              b.counter(mEnded),
		reloads:            b.counter(mReloads),
		saves:              b.counter(mSaves),
		saveDuration:       b.histogram(mSaveDuration),
		saveBytes:          b.counter(mSaveBytes),
		loads:              b.counter(mLoads),
		tokenized:          b.counter(mTokenized),
		queueShed:          b.counter(mQueueShed),
		queueWaits:         b.histogram(mQueueWaits),
		shadows:            b.counter(mShadow),
		shadowCost:         b.histogram(mShadowCost),
		targets:            b.counter(mTargetsPredicted),
		reached:            b.counter(mTargetsMeasured),
		blockChanges:       b.counter(mBlockChanges),
		blockOperations:    b.counter(mBlockOperations),
		blockRefusals:      b.counter(mBlockRefusals),
		blockBatches:       b.counter(mBlockBatches),
		blockDigests:       b.counter(mBlockDigests),
		snapshots:          b.counter(mSnapshots),
		resyncs:            b.counter(mResyncs),
		samples:            b.counter(mSamples),
		progress:           b.total(mProgress),
		firstToken:         b.histogram(mFirstToken),
		firstTokenDistance: b.histogram(mFirstTokenError),
		cachedTokens:       b.counter(mCachedTokens),
		cachedDistance:     b.intHistogram(mCachedError),
		released:           b.counter(mReleased),
		workerEvents:       b.counter(mWorkerEvents),
	}
}
