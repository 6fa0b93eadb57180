package client

import (
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// CachedUnknown says to Finished that the engine did not tell how much of the prompt it found in its cache.
const CachedUnknown = -1

// The methods below tell how a decided request goes on: Dispatched, FirstToken, any number of Generating, then one of
// Finished, Cancelled and Failed. They never block and never fail. Steps only move forward, so a repeated or late one
// does no harm, and steps may be left out; a request of which nothing is heard for the lease counts as ended.
//
// A decision of the fallback is unknown to the oracle: its steps only move this router's own counts. One of a dry run has
// no steps.

// Dispatched says that the request was sent to the decision's target or, if another one is given, to that.
func (r *Router) Dispatched(d Decision, actual ...Target) {
	e := &kvoraclev1.Dispatched{}
	if len(actual) > 0 {
		t := actual[0]
		e.Target = &kvoraclev1.Target{WorkerId: cut(t.Worker, 256), DpRank: t.Rank}
		r.bookings.move(d.booking, t, time.Now())
	}
	r.step(d, &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_Dispatched{Dispatched: e}})
}

// FirstToken says that prefill is over. ttft is the time from dispatch as the caller measured it; 0: not measured, and
// the oracle uses its own clock.
func (r *Router) FirstToken(d Decision, ttft time.Duration) {
	e := &kvoraclev1.FirstToken{TtftSeconds: max(ttft, 0).Seconds()}
	r.step(d, &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_FirstToken{FirstToken: e}})
}

// Generating is a sign of life during decode, with the output tokens so far. It renews the lease; each half minute is
// often enough.
func (r *Router) Generating(d Decision, outputTokens int) {
	e := &kvoraclev1.Generating{OutputTokens: clamp32(outputTokens)}
	r.step(d, &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_Generating{Generating: e}})
}

// Finished ends the request well. outputTokens is the whole output; cached is how many prompt tokens the engine took from
// its cache, or CachedUnknown.
func (r *Router) Finished(d Decision, outputTokens, cached int) {
	r.FinishedUsage(d, Usage{Output: outputTokens, Cached: cached})
}

// Usage is what an engine counted for one request, in tokens.
type Usage struct {
	// Output is the whole output.
	Output int
	// Cached is how much of the prompt the engine took from its cache, or CachedUnknown.
	Cached int
	// Prompt is the whole prompt; 0: the engine did not say. It is needed where the prompt was Request.Text, whose tokens nobody else
	// has counted: the share that was cached is then held against what was guessed.
	Prompt int
}

// FinishedUsage is Finished with all that the engine counted.
func (r *Router) FinishedUsage(d Decision, u Usage) {
	e := &kvoraclev1.Finished{OutputTokens: clamp32(u.Output), PromptTokens: uint64(max(u.Prompt, 0))}
	if u.Cached >= 0 {
		n := uint64(u.Cached)
		e.CachedTokens = &n
	}
	r.bookings.end(d.booking)
	r.step(d, &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_Finished{Finished: e}})
}

// Cancelled says that the user or the gateway gave the request up.
func (r *Router) Cancelled(d Decision) {
	r.bookings.end(d.booking)
	r.step(d, &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}}})
}

// Failed says that the worker failed the request. reason is a word for the operator, cut to 256 bytes; never prompt text.
func (r *Router) Failed(d Decision, reason string) {
	r.bookings.end(d.booking)
	e := &kvoraclev1.Failed{Reason: cut(reason, 256)}
	r.step(d, &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_Failed{Failed: e}})
}

// step renews what is alive and queues the event for the oracle.
func (r *Router) step(d Decision, e *kvoraclev1.ProgressEvent) {
	r.bookings.renew(d.booking, time.Now())
	if d.ID == "" {
		return
	}
	e.DecisionId = d.ID
	r.progress.put(e)
}

// cut shortens a string to n bytes without splitting a character, and drops what is not UTF-8: one bad string must not
// make the message unsendable.
func cut(s string, n int) string {
	out := make([]rune, 0, min(len(s), n))
	size := 0
	for _, c := range s { // an invalid byte comes out as U+FFFD
		size += len(string(c))
		if size > n {
			break
		}
		out = append(out, c)
	}
	return string(out)
}
