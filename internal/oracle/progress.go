package oracle

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
)

// Step is a step in the life of a routed request.
type Step uint8

// The steps, in order.
const (
	Dispatched Step = iota
	FirstToken
	Generating
	Finished
	Cancelled
	Failed
)

// String gives the lower-case name.
func (s Step) String() string {
	switch s {
	case Dispatched:
		return "dispatched"
	case FirstToken:
		return "first_token"
	case Generating:
		return "generating"
	case Finished:
		return "finished"
	case Cancelled:
		return "cancelled"
	case Failed:
		return "failed"
	default:
		return "unknown"
	}
}

// Event is one step of one request, told by the gateway.
type Event struct {
	Decision DecisionID
	Step     Step
	Gateway  string // who tells; empty: unknown

	Worker string // Dispatched: the worker really used; empty: the chosen one
	Rank   int

	TTFT         float64 // FirstToken: seconds as the gateway measured; 0: not measured
	OutputTokens int     // Generating, Finished
	Cached       int     // Finished: prompt tokens the engine took from its cache; negative: not said
	PromptTokens int     // Finished: tokens of the prompt as the engine counted; 0: not said
	IsInferred   bool    // Finished: nobody has told it, another step shows it. Only replicas tell each other such ends
}

// Progress applies one step and tells other replicas of it. Steps only move forward; what is late or unknown is said in
// the outcome and changes nothing. The error is for a target that is not there.
func (o *Oracle) Progress(e *Event, now time.Time) (Outcome, error) {
	out, err := o.progress(e, now)
	if err != nil {
		return out, err
	}
	if o.teller != nil {
		isTheirs := false
		if out == UnknownDecision {
			var isHeld bool
			if isHeld, isTheirs = o.teller.Holds(e); isHeld {
				out = Applied // as soon as whoever made it has said so
			} else if isTheirs {
				out, _ = o.progress(e, now) // that may have happened meanwhile
			}
		}
		if out == Applied || out == UnknownDecision && isTheirs {
			o.teller.Step(e)
		}
	}
	o.obs.Progress(e.Step, out)
	return out, nil
}

// CheckEvent says with which error Progress would refuse a step.
func (o *Oracle) CheckEvent(e *Event) error {
	if e.Step != Dispatched {
		return nil
	}
	_, _, err := o.dispatchTarget(e)
	return err
}

// IsBooked says whether a decision's booking lives here.
func (o *Oracle) IsBooked(id DecisionID) bool {
	_, ok := o.load.Lookup(id)
	return ok
}

// progress applies one step here.
func (o *Oracle) progress(e *Event, now time.Time) (Outcome, error) {
	var out Outcome
	ttft := e.TTFT
	past, known := o.recall(e.Decision) // before the booking is looked for: while that lives the id is not another's
	a := &past
	slots := o.slots(e.Decision, a)
	isPair := a.start() != 0 // what one engine counts of it is not what the other was believed to hold
	switch e.Step {
	case Dispatched:
		id, has, err := o.dispatchTarget(e)
		if err != nil {
			return UnknownDecision, err
		}
		out = o.load.Dispatched(e.Decision, id, has, e.Gateway, now)
		if out == Applied && has {
			o.guesses.move(e.Decision, id, known && o.isAlike(a.target, id), now)
		}
	case FirstToken:
		var waited time.Duration
		prefilled := e.Decision // the booking under which it was
		if isPair {
			prefilled = a.start()
		}
		booking, isBooked := o.load.Lookup(prefilled)
		out, waited = o.load.FirstToken(e.Decision, now)
		if out == Applied {
			if isBooked {
				o.learnFirstToken(&booking, waited, e.TTFT, now)
			}
			if ttft == 0 {
				ttft = waited.Seconds()
			}
			if known {
				o.computed(e.Decision, a, now)
				o.obs.FirstToken(a.ttft, ttft)
				if goal := a.goal(); goal > 0 {
					o.obs.Goal(ttft <= goal)
				}
			}
		}
	case Generating:
		out = o.load.Generating(e.Decision, e.OutputTokens, now)
	case Finished:
		if e.IsInferred {
			out = o.load.Complete(e.Decision, now)
			o.guesses.linger(e.Decision, now)
			break
		}
		var f *feed
		if known {
			f = o.feed(a.target)
		}
		booking, _ := o.load.Lookup(e.Decision)
		ages := o.load.Ages(e.Decision, now)
		out = o.load.Finish(e.Decision, e.OutputTokens, now)
		switch {
		case f == nil || out != Applied || isPair:
		case booking.Target == a.target:
			o.outcome(f, a, e, now)
		default: // who has served it holds it; what that was believed to have before is not known
			o.learnGuess(e.Decision, a, now)
		}
		o.guesses.linger(e.Decision, now)
		if known && out == Applied && !ages.Told && !isPair {
			o.learnWhole(&booking, a, ages.Booked, e.OutputTokens)
		}
		if f != nil && out == Applied && booking.Target == a.target && e.Cached >= 0 && !isPair {
			matched, cached := a.promptTokens-a.uncached, a.cached(e)
			f.outcomes.matched.Add(uint64(max(matched, 0)))
			f.outcomes.cached.Add(uint64(max(cached, 0)))
			o.obs.Prediction(matched, cached)
		}
	case Cancelled:
		out = o.load.Cancel(e.Decision, now)
		o.guesses.cancel(e.Decision)
	case Failed:
		out = o.load.Fail(e.Decision, now)
		o.guesses.cancel(e.Decision)
	}
	if out == Applied {
		if isPair {
			o.progressStart(a.start(), e, now)
		}
		o.recordings.step(e, ttft, now)
		o.freed(now, slots...)
	}
	return out, nil
}

// isAlike says whether two targets have blocks of one size.
func (o *Oracle) isAlike(a, b fleet.TargetID) bool {
	view := o.fleet.View()
	v, w := view.Target(a), view.Target(b)
	return v != nil && w != nil && v.BlockSize == w.BlockSize
}

// computed notes that the target where a prompt is booked has it in its cache now.
func (o *Oracle) computed(id DecisionID, a *remembered, now time.Time) {
	if o.IsBooked(id) {
		o.learnGuess(id, a, now)
	}
}

// learnGuess learns that a target has a prompt in its cache, if what it holds of such prompts is guessed.
func (o *Oracle) learnGuess(id DecisionID, a *remembered, now time.Time) {
	target, ok := o.guesses.at(id)
	if !ok {
		return
	}
	if f := o.feed(target); f != nil && (a.isText || !f.isReporting()) {
		f.learn(o.guesses.believed(id), a.form(), now)
	}
}

// left notes that a request is presumed to have ended on a target that does not report: what it has there is used no more
// and goes when its turn comes. Of who reports what is gone it is known when it goes.
func (o *Oracle) left(id DecisionID, a *remembered, now time.Time) {
	target, ok := o.guesses.at(id)
	if !ok {
		return
	}
	if f := o.feed(target); f != nil && (a.isText || !f.isReporting()) {
		f.learn(o.guesses.believed(id), a.form(), now)
		o.guesses.linger(id, now)
	}
}

// outcome holds what an engine counted (if it did) against what its target was believed to have. f is the feed of the
// target that the request went to.
func (o *Oracle) outcome(f *feed, a *remembered, e *Event, now time.Time) {
	w := o.fleet.View().Target(f.target)
	if w == nil {
		return
	}
	var chain []block.ID
	if !f.isReporting() || f.isShort() || a.isText {
		chain = o.guesses.believed(a.id)
	}
	if cached := a.cached(e); cached >= 0 {
		switch a.blocks {
		case Fresh, Partial:
			f.judge(many(&a.usable).Total(), cached, a.freed, w.BlockSize)
		case Approximate:
			f.correct(chain, a.form(), min(many(&a.held).Total(), block.Usable(a.promptTokens, w.BlockSize)*w.BlockSize), cached, w.BlockSize)
		case Silent, Warming, Stale:
		}
		if !a.isText {
			o.refound.Add(uint64(f.found(chain, cached/w.BlockSize)))
		}
	}
	f.learn(chain, a.form(), now)
}

func (o *Oracle) dispatchTarget(e *Event) (fleet.TargetID, bool, error) {
	if e.Worker == "" {
		return 0, false, nil
	}
	w := o.fleet.View().Worker(e.Worker)
	if w == nil {
		fault := workerUnknown(e.Worker)
		fault.Field = "dispatched.target.worker_id"
		return 0, false, fault
	}
	if e.Rank >= len(w.Targets) {
		return 0, false, rankUnknown("dispatched.target.dp_rank", e.Rank, len(w.Targets))
	}
	return w.Targets[e.Rank], true, nil
}

// Explain finds a recent decision with its candidates best first, or nil. Old decisions have lost their candidates, and
// only some are kept: see Config.HistoryRows.
func (o *Oracle) Explain(id DecisionID) *Answer {
	a, cands := o.explain(id)
	if a == nil || len(a.Rows) == 0 {
		return a
	}
	ranked := a.Rows[min(1+len(a.Alternatives), cands):cands]
	slices.SortStableFunc(ranked, func(x, y Row) int { return cmp.Compare(x.Score.Cost, y.Score.Cost) })
	return a
}

func (o *Oracle) explain(id DecisionID) (a *Answer, cands int) {
	o.deciding.Lock()
	defer o.deciding.Unlock()
	return o.history.explain(id)
}

// recall finds a recent decision.
func (o *Oracle) recall(id DecisionID) (m remembered, ok bool) {
	o.deciding.Lock()
	defer o.deciding.Unlock()
	if found := o.history.find(id); found != nil {
		return *found, true
	}
	return m, false
}

// release gives up a booking.
func (o *Oracle) release(id DecisionID, now time.Time) {
	o.load.Cancel(id, now)
	o.guesses.cancel(id)
	o.tellStep(id, Cancelled, "")
}

func bookingFault(err error) error {
	switch {
	case errors.Is(err, load.ErrFull):
		return Fault(Exhausted, ReasonBookingsFull, "", "", "too many requests are booked already")
	case errors.Is(err, load.ErrUnknownTarget):
		return errLeft
	default:
		return Fault(Internal, ReasonInternal, "", "", err.Error())
	}
}
