package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// OnlySampled says that without a sampled parent no decision has a span.
func (t *Telemetry) OnlySampled() bool { return t.tracer == nil || t.onlySampled }

// StartDecision begins the span of one decision under the parent in ctx, when that parent is sampled or the sampler of
// OTEL_TRACES_SAMPLER wants it; otherwise the span records nothing. End it with EndDecision.
func (t *Telemetry) StartDecision(ctx context.Context) (context.Context, trace.Span) {
	if t.tracer == nil || t.onlySampled && !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, t.noSpan
	}
	return t.tracer.Start(ctx, SpanRoute, trace.WithSpanKind(trace.SpanKindServer)) //nolint:spancheck // EndDecision ends it
}

// EndDecision writes the answer, or why there is none, into the span and ends it. The answer may be nil when err is not.
func (t *Telemetry) EndDecision(span trace.Span, a *oracle.Answer, err error) {
	if span.IsRecording() {
		if err != nil {
			describeError(span, err)
		} else if a != nil {
			to, ok := t.described.Get().(*[]attribute.KeyValue)
			if !ok {
				to = new([]attribute.KeyValue)
			}
			*to = describe((*to)[:0], a)
			span.SetAttributes(*to...) // the SDK copies them
			clear(*to)
			t.described.Put(to)
		}
	}
	span.End()
}

// ContextFromTraceparent gives ctx the parent that a W3C traceparent names. An empty or malformed one names none, and
// ctx comes back as it was.
func (t *Telemetry) ContextFromTraceparent(ctx context.Context, traceparent string) context.Context {
	if t.tracer == nil || traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, carrier(traceparent))
}

// carrier is a set of headers with nothing but a traceparent.
type carrier string

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(key string) string {
	if key == "traceparent" {
		return string(c)
	}
	return ""
}

// Set implements propagation.TextMapCarrier; nothing is ever written.
func (carrier) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (carrier) Keys() []string { return []string{"traceparent"} }

// describe appends everything a span says of an answer. No prompt contents are in an answer.
func describe(attrs []attribute.KeyValue, a *oracle.Answer) []attribute.KeyValue {
	attrs = append(
		attrs,
		attribute.String(aModel, a.Model),
		attribute.Bool(aRepeated, a.Repeated),
		attribute.String(aPolicy, a.Policy),
		attribute.String(aReason, a.Reason.String()),
		attribute.String(aWorker, a.Target.Worker),
		attribute.Int(aRank, a.Target.Rank),
		attribute.Int(aCandidates, a.Candidates),
		attribute.Int(aPromptTokens, a.PromptTokens),
		attribute.Int(aMatchedDevice, a.Matched[fleet.Device]),
		attribute.Int(aMatchedHost, a.Matched[fleet.Host]),
		attribute.Int(aMatchedDisk, a.Matched[fleet.Disk]),
		attribute.Int(aMatchedShared, a.Matched[fleet.Shared]),
		attribute.Int(aUncached, a.Uncached),
		attribute.Float64(aPredictedTTFT, a.TTFT),
		attribute.Float64(aCostTotal, a.Terms.Sum()),
		attribute.Float64(aCostQueue, a.Terms.Queue),
		attribute.Float64(aCostPrefill, a.Terms.Prefill),
		attribute.Float64(aCostFleet, a.Terms.Fleet),
		attribute.Float64(aCostEvict, a.Terms.Evict),
		attribute.Float64(aCostStay, a.Terms.Stay),
		attribute.Float64(aCostDecode, a.Terms.Decode),
		attribute.Float64(aCostTransfer, a.Terms.Transfer),
		attribute.Float64(aCostMemory, a.Terms.Memory),
		attribute.Float64(aCostBatch, a.Terms.Batch),
		attribute.Float64(aCostCopy, -a.Terms.Copy),
		attribute.String(aBlocks, a.Blocks.String()),
		attribute.String(aLoad, a.Load.String()),
	)
	if s := a.Shadow; s != nil {
		attrs = append(attrs,
			attribute.String(aShadowPolicy, s.Policy), attribute.String(aShadowWorker, s.Target.Worker), attribute.Int(aShadowRank, s.Target.Rank),
			attribute.Bool(aShadowAgrees, s.Agrees), attribute.Float64(aShadowCost, s.Cost), attribute.Float64(aShadowTTFT, s.TTFT))
	}
	if a.Decision != 0 {
		attrs = append(attrs, attribute.String(aDecisionID, decisionID(a.Decision)))
	}
	return attrs
}

// decisionID is a decision's id as wire writes it.
func decisionID(id oracle.DecisionID) string {
	const digits = "0123456789abcdef"
	var b [16]byte
	for i := range b {
		b[i] = digits[uint64(id)>>(60-4*i)&15]
	}
	return string(b[:])
}

// describeError says why there is no answer: the stable reason, never the message, which may quote what the caller sent.
// The span counts as failed only when we did not do our part; a bad request is the caller's failure.
func describeError(span trace.Span, err error) {
	kind, reason := oracle.Internal, oracle.ReasonInternal
	var e *oracle.Error
	if errors.As(err, &e) {
		kind, reason = e.Kind, e.Reason
	}
	span.SetAttributes(attribute.String(aErrorType, string(reason)))
	switch kind {
	case oracle.Internal, oracle.Unavailable, oracle.Exhausted, oracle.Expired, oracle.Unserved:
		span.SetStatus(codes.Error, string(reason))
	case oracle.InvalidArgument, oracle.NotFound, oracle.FailedPrecondition, oracle.Aborted, oracle.Unauthenticated, oracle.Denied:
	}
}
