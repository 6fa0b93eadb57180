package telemetry

import (
	"context"
	"math"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// observer implements oracle.Observer. It is made once; all methods may be called concurrently.
type observer struct {
	in instruments
	// bg is what instruments want and measurements here do not have: they are made under locks, far from any request.
	bg context.Context //nolint:containedctx // never cancelled, carries nothing

	decisions *tally[decisionKey]
	prompt    *tally[struct{}]
	matched   *tally[fleet.Tier]
	progress  *tally[progressKey]
	shadows   *sets[shadowKey]
	refused   *sets[refusedKey]
	resyncs   *sets[oracle.ResyncReason]
	reloads   *sets[reloadKey]
	refusals  *sets[string]

	change, outcome, direction, source, cause, event, rpc, closed *sets[string]
}

var _ oracle.Observer = (*observer)(nil)

// decisionKey is what decisions are counted by.
type decisionKey struct {
	policy string
	reason oracle.ChoiceReason
	blocks oracle.BlockConfidence
	load   oracle.LoadConfidence
	booked bool
}

// shadowKey is what comparisons with a second policy are counted by.
type shadowKey struct {
	policy, shadow string
	agrees         bool
}

type progressKey struct {
	step    oracle.Step
	outcome oracle.Outcome
}

type refusedKey struct{ rpc, reason string }

func newObserver(in instruments) *observer {
	return &observer{
		in: in,
		bg: context.Background(),
		decisions: newTally(func(k decisionKey) []attribute.KeyValue {
			return []attribute.KeyValue{
				attribute.String(kPolicy, k.policy), attribute.String(kReason, k.reason.String()),
				attribute.String(kBlocks, k.blocks.String()), attribute.String(kLoad, k.load.String()),
				attribute.Bool(kBooked, k.booked),
			}
		}),
		shadows: newSets(func(k shadowKey) []attribute.KeyValue {
			return []attribute.KeyValue{
				attribute.String(kPolicy, k.policy), attribute.String(kShadow, k.shadow), attribute.Bool(kAgrees, k.agrees),
			}
		}),
		prompt: newTally(func(struct{}) []attribute.KeyValue { return nil }),
		matched: newTally(func(t fleet.Tier) []attribute.KeyValue {
			return []attribute.KeyValue{attribute.String(kTier, t.String())}
		}),
		progress: newTally(func(k progressKey) []attribute.KeyValue {
			return []attribute.KeyValue{attribute.String(kStep, k.step.String()), attribute.String(kOutcome, k.outcome.String())}
		}),
		refused: newSets(func(k refusedKey) []attribute.KeyValue {
			return []attribute.KeyValue{attribute.String(kRPC, method(k.rpc)), attribute.String(kReason, k.reason)}
		}),
		refusals: word(kReason),
		closed:   word(kReason),
		reloads: newSets(func(k reloadKey) []attribute.KeyValue {
			return []attribute.KeyValue{attribute.String(kFile, k.file), attribute.String(kOutcome, k.outcome)}
		}),
		resyncs: newSets(func(r oracle.ResyncReason) []attribute.KeyValue {
			return []attribute.KeyValue{attribute.String(kReason, r.String())}
		}),
		rpc: newSets(func(rpc string) []attribute.KeyValue {
			return []attribute.KeyValue{attribute.String(kRPC, method(rpc))}
		}),
		change:    word(kChange),
		outcome:   word(kOutcome),
		direction: word(kDirection),
		source:    word(kSource),
		cause:     word(kCause),
		event:     word(kEvent),
	}
}

// method is a full method name as OpenTelemetry writes it.
func method(full string) string { return strings.TrimPrefix(full, "/") }

// observe tells the counters that are read when somebody collects: matched before prompt, which are counted the other way
// round, so that no more is ever matched than was asked.
func (o *observer) observe(to metric.Observer) {
	o.decisions.observe(to, o.in.decisions)
	o.matched.observe(to, o.in.matchedTokens)
	o.prompt.observe(to, o.in.promptTokens)
	o.progress.observe(to, o.in.progress)
}

// Decided implements oracle.Observer.
func (o *observer) Decided(a *oracle.Answer, took time.Duration) {
	booked := a.Decision != 0
	o.decisions.add(decisionKey{a.Policy, a.Reason, a.Blocks, a.Load, booked}, 1)
	o.in.decisionDuration.Record(o.bg, took.Seconds())
	if s := a.Shadow; s != nil {
		o.in.shadows.Add(o.bg, 1, o.shadows.of(shadowKey{a.Policy, s.Policy, s.Agrees}).add...)
		if !s.Agrees {
			o.in.shadowCost.Record(o.bg, math.Abs(s.Cost), o.direction.of(directionOf(s.Cost > 0, s.Cost < 0)).record...)
		}
	}
	if booked && a.Goals.IsSet() {
		o.count(o.in.targets, o.outcome, reachedOr(!a.MissesTTFT && !a.MissesTPOT), 1)
	}
	if !booked || a.PromptTokens <= 0 {
		return
	}
	o.prompt.add(struct{}{}, int64(a.PromptTokens))
	left := a.PromptTokens
	for t, n := range a.Matched {
		if n = min(n, left); n > 0 {
			o.matched.add(fleet.Tier(t), int64(n))
			left -= n
		}
	}
	o.in.matchedShare.Record(o.bg, float64(a.PromptTokens-left)/float64(a.PromptTokens))
}

// Blocks implements oracle.Observer.
func (o *observer) Blocks(d oracle.BlockCounters) {
	o.count(o.in.blockChanges, o.change, "stored", d.Stored)
	o.count(o.in.blockChanges, o.change, "repeated_store", d.RepeatedStores)
	o.count(o.in.blockChanges, o.change, "removed", d.Removed)
	o.count(o.in.blockChanges, o.change, "unknown_removal", d.UnknownRemovals)
	o.count(o.in.blockChanges, o.change, "orphan", d.Orphans)
	o.count(o.in.blockOperations, o.outcome, "applied", d.AppliedOps)
	o.count(o.in.blockOperations, o.outcome, "refused", d.RefusedOps)
	o.count(o.in.blockOperations, o.outcome, "other_group", d.OtherGroupOps)
	if d.RefusedOps > 0 {
		for _, r := range oracle.RefusalReasons() {
			o.count(o.in.blockRefusals, o.refusals, r.String(), d.Refusals[r])
		}
	}
	o.count(o.in.blockBatches, o.outcome, "duplicate", d.DuplicateBatches)
	o.count(o.in.blockBatches, o.outcome, "gap", d.Gaps)
	o.count(o.in.blockBatches, o.outcome, "ignored", d.IgnoredBatches)
	o.count(o.in.blockDigests, o.outcome, "matched", d.DigestsMatched)
	o.count(o.in.blockDigests, o.outcome, "mismatched", d.DigestsMismatched)
	o.count(o.in.blockDigests, o.outcome, "skipped", d.DigestsSkipped)
	if d.Snapshots > 0 {
		o.in.snapshots.Add(o.bg, asCount(d.Snapshots))
	}
}

// count adds n under one word; most of a message's counters are zero and cost nothing.
func (o *observer) count(c metric.Int64Counter, by *sets[string], value string, n uint64) {
	if n > 0 {
		c.Add(o.bg, asCount(n), by.of(value).add...)
	}
}

func asCount(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// Resync implements oracle.Observer.
func (o *observer) Resync(r oracle.ResyncReason) { o.in.resyncs.Add(o.bg, 1, o.resyncs.of(r).add...) }

// Sample implements oracle.Observer.
func (o *observer) Sample(applied bool) {
	outcome := "ignored"
	if applied {
		outcome = "applied"
	}
	o.count(o.in.samples, o.outcome, outcome, 1)
}

// Progress implements oracle.Observer.
func (o *observer) Progress(step oracle.Step, outcome oracle.Outcome) {
	o.progress.add(progressKey{step, outcome}, 1)
}

// Prediction implements oracle.Observer.
func (o *observer) Prediction(matched, cached int) {
	o.in.cachedTokens.Add(o.bg, int64(max(matched, 0)), o.source.of("matched").add...)
	o.in.cachedTokens.Add(o.bg, int64(max(cached, 0)), o.source.of("counted").add...)
	distance, direction := matched-cached, directionOf(matched > cached, matched < cached)
	if distance < 0 {
		distance = -distance
	}
	o.in.cachedDistance.Record(o.bg, int64(distance), o.direction.of(direction).record...)
}

// FirstToken implements oracle.Observer.
func (o *observer) FirstToken(predicted, measured float64) {
	o.in.firstToken.Record(o.bg, measured)
	direction := directionOf(predicted > measured, predicted < measured)
	o.in.firstTokenDistance.Record(o.bg, math.Abs(predicted-measured), o.direction.of(direction).record...)
}

// Goal implements oracle.Observer.
func (o *observer) Goal(reached bool) { o.count(o.in.reached, o.outcome, reachedOr(reached), 1) }

func reachedOr(reached bool) string {
	if reached {
		return "reached"
	}
	return "missed"
}

func directionOf(over, under bool) string {
	switch {
	case over:
		return "over"
	case under:
		return "under"
	default:
		return "exact"
	}
}

// Waited implements oracle.Observer.
func (o *observer) Waited(how oracle.WaitOutcome, waited time.Duration) {
	if how != oracle.WaitServed && how != oracle.WaitAbandoned {
		o.count(o.in.queueShed, o.refusals, string(how), 1)
	}
	if how != oracle.WaitFull {
		o.in.queueWaits.Record(o.bg, waited.Seconds(), o.outcome.of(string(how)).record...)
	}
}

// Released implements oracle.Observer.
func (o *observer) Released(n int, why string) {
	o.count(o.in.released, o.cause, why, uint64(max(n, 0)))
}

// WorkerState implements oracle.Observer.
func (o *observer) WorkerState(_ *fleet.Worker, event string) {
	o.count(o.in.workerEvents, o.event, event, 1)
}

// Unmatched implements oracle.Observer.
func (o *observer) Unmatched(*fleet.Worker, int, int) {
	o.count(o.in.workerEvents, o.event, "unmatched", 1)
}
