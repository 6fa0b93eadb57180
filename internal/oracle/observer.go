package oracle

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Observer is told what happens, for metrics. Methods are called on hot paths, some under locks: they must be quick,
// must not block and must not call back. All may be called concurrently.
type Observer interface {
	// Decided reports one decision and the time it took inside the oracle.
	Decided(a *Answer, took time.Duration)
	// Blocks reports what a message of a block stream changed.
	Blocks(delta BlockCounters)
	// Resync reports that a snapshot was asked for.
	Resync(reason ResyncReason)
	// Sample reports a load sample; ignored when a newer one was known.
	Sample(applied bool)
	// Progress reports what became of one lifecycle event.
	Progress(step Step, outcome Outcome)
	// Prediction reports, at the end of a request, the prompt tokens the engine took from its cache beside those the
	// oracle had matched.
	Prediction(matched, cached int)
	// FirstToken reports the time a request waited for its first token beside the predicted one, in seconds.
	FirstToken(predicted, measured float64)
	// Goal reports, at the first token, whether it came as soon as was asked for.
	Goal(reached bool)
	// Waited reports how the waiting of a question for a place ended, and how long it was; 0 where it did not begin.
	Waited(how WaitOutcome, waited time.Duration)
	// Released reports bookings dropped without word from the gateway.
	Released(n int, why string)
	// WorkerState reports a change of a worker's life: "registered", "reborn", "draining", "ready", "lost", "removed".
	WorkerState(w *fleet.Worker, event string)
	// Unmatched reports a rank that holds blocks which thousands of questions have found no use for.
	Unmatched(w *fleet.Worker, rank, blocks int)
}

// NopObserver ignores everything.
type NopObserver struct{}

var _ Observer = NopObserver{}

// Decided implements Observer.
func (NopObserver) Decided(*Answer, time.Duration) {}

// Blocks implements Observer.
func (NopObserver) Blocks(BlockCounters) {}

// Resync implements Observer.
func (NopObserver) Resync(ResyncReason) {}

// Sample implements Observer.
func (NopObserver) Sample(bool) {}

// Progress implements Observer.
func (NopObserver) Progress(Step, Outcome) {}

// Prediction implements Observer.
func (NopObserver) Prediction(int, int) {}

// FirstToken implements Observer.
func (NopObserver) FirstToken(float64, float64) {}

// Goal implements Observer.
func (NopObserver) Goal(bool) {}

// Waited implements Observer.
func (NopObserver) Waited(WaitOutcome, time.Duration) {}

// Released implements Observer.
func (NopObserver) Released(int, string) {}

// WorkerState implements Observer.
func (NopObserver) WorkerState(*fleet.Worker, string) {}

// Unmatched implements Observer.
func (NopObserver) Unmatched(*fleet.Worker, int, int) {}
