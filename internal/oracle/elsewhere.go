package oracle

import (
	"errors"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
)

// What replicas tell each other of load: which requests are where, how far they are, and what engines show. Any of it may
// come late, twice, in another order than it happened, or never; then a booking is there for a lease too long or is missing
// for as long as it lasts, and no sum is ever wrong for what it knows.

// Teller takes what other replicas have to know of what happens here. Its methods are called on hot paths, Book under the
// lock of the decisions: they must be quick, must not block and must not call back. What is handed to them is theirs only
// until they return.
type Teller interface {
	// Book tells a booking that was made.
	Book(b *Booked)
	// Step tells a step of a request; every replica ends, or moves on, its own copy of the booking.
	Step(e *Event)
	// Sample tells what an engine has shown of itself.
	Sample(s *Sampled)
	// Holds says of a step of a decision that is not known here whether it is kept until that is heard of, and whether the
	// decision is another replica's.
	Holds(e *Event) (isHeld, isTheirs bool)
}

// Booked is one booking, with everything by name that replicas number for themselves.
type Booked struct {
	Decision    DecisionID
	Worker      string
	Rank        int
	Incarnation uint64 // of the worker; 0: it was registered by hand
	RequestID   string

	PromptTokens, UncachedTokens, SharedTokens, ExpectedOutput int
	PrefillSeconds, DecodeSeconds                              float64
	// Decoding, ReadTokens and Transfer are the circumstances of its prefill; see load.Note.
	Decoding, ReadTokens, Transfer float32

	// Marks are a sample of its blocks, each standing for MarkTokens; together for Covered tokens. See load.Marks.
	Marks               []uint64
	MarkTokens, Covered int
}

// Sampled is one look at an engine's gauges.
type Sampled struct {
	Worker      string
	Rank        int
	Incarnation uint64 // of the worker; 0: it was registered by hand
	Sample      Sample
}

// Tell makes t hear what happens here from now on. Call it once, before anything is asked.
func (o *Oracle) Tell(t Teller) { o.teller = t }

// tellBooking tells a booking of this oracle's. The deciding lock is held.
func (o *Oracle) tellBooking(b *load.Booking, m *load.Marks, w *fleet.Worker, rank int) {
	if o.teller == nil {
		return
	}
	o.told = Booked{
		Decision: b.ID, Worker: w.Worker, Rank: rank, Incarnation: w.Incarnation, RequestID: b.RequestID,
		PromptTokens: b.PromptTokens, UncachedTokens: b.UncachedTokens, SharedTokens: b.SharedTokens, ExpectedOutput: b.ExpectedOutput,
		PrefillSeconds: b.PrefillSeconds, DecodeSeconds: b.DecodeSeconds, Decoding: b.Note.Decoding, ReadTokens: b.Note.ReadTokens, Transfer: b.Note.Transfer,
		Marks: m.Blocks, MarkTokens: m.Tokens, Covered: m.Covered,
	}
	o.teller.Book(&o.told)
}

// tellStep tells a step that no event from outside has said of this booking. gateway: empty if it stays whose it is.
func (o *Oracle) tellStep(id DecisionID, step Step, gateway string) {
	if o.teller != nil {
		o.teller.Step(&Event{Decision: id, Step: step, Gateway: gateway, Cached: -1})
	}
}

// Space names the decisions of this oracle: the upper half of their ids. It may change.
func (o *Oracle) Space() uint32 {
	o.deciding.Lock()
	defer o.deciding.Unlock()
	return SpaceOf(DecisionID(o.nextID))
}

// SpaceOf is the space that a decision's id is of.
func SpaceOf(id DecisionID) uint32 { return uint32(id >> spaceShift) }

// FirstOf is below every id of a space.
func FirstOf(space uint32) DecisionID { return DecisionID(space) << spaceShift }

// spaceShift is the bits of an id that count the decisions.
const spaceShift = 32

// ErrNotHere refuses what another replica tells of a worker that is not known, or in another life.
var ErrNotHere = errors.New("oracle: the worker is not known, or in another life")

// BookElsewhere takes in bookings of other replicas, in their order, as one step beside the decisions, and puts into errs
// what became of each: nil, ErrNotHere, load.ErrRepeated, or that there is no room.
//
// Two processes whose ids fall into one space (once in four billion pairs) would take each other's bookings for their own:
// whoever notices takes another space.
func (o *Oracle) BookElsewhere(all []Booked, now time.Time, errs []error) {
	o.deciding.Lock()
	defer o.deciding.Unlock()
	view := o.fleet.View()
	for i := range all {
		b := &all[i]
		if SpaceOf(b.Decision) == SpaceOf(DecisionID(o.nextID)) {
			o.nextID = firstDecision()
		}
		id, err := targetOf(view, b.Worker, b.Rank, b.Incarnation)
		if err == nil {
			err = o.load.BookMarked(load.Booking{
				ID: b.Decision, Target: id, RequestID: b.RequestID, PromptTokens: b.PromptTokens, UncachedTokens: b.UncachedTokens,
				SharedTokens: b.SharedTokens, PrefillSeconds: b.PrefillSeconds, ExpectedOutput: b.ExpectedOutput,
				DecodeSeconds: b.DecodeSeconds,
				Note:          load.Note{Decoding: b.Decoding, ReadTokens: b.ReadTokens, Transfer: b.Transfer},
			}, load.Marks{Blocks: b.Marks, Tokens: b.MarkTokens, Covered: b.Covered}, now)
		}
		if errs[i] = err; err != nil {
			continue
		}
		if f := o.feed(id); f != nil {
			f.usage.use(b.Marks, o.seconds(now))
		}
	}
}

// targetOf finds a target by name. An incarnation that either side does not know is not compared.
func targetOf(view *fleet.View, worker string, rank int, incarnation uint64) (fleet.TargetID, error) {
	w := view.Worker(worker)
	if w == nil || rank < 0 || rank >= len(w.Targets) || incarnation != 0 && w.Incarnation != 0 && incarnation != w.Incarnation {
		return 0, ErrNotHere
	}
	return w.Targets[rank], nil
}

// StepElsewhere takes in a step that another replica was told.
func (o *Oracle) StepElsewhere(e *Event, now time.Time) Outcome {
	out, err := o.progress(e, now)
	if err != nil {
		return UnknownDecision // a worker that is not known here
	}
	return out
}

// SampleElsewhere takes in a sample that another replica was told, and says whether it was news.
func (o *Oracle) SampleElsewhere(s *Sampled, now time.Time) bool {
	id, err := targetOf(o.fleet.View(), s.Worker, s.Rank, s.Incarnation)
	if err != nil {
		return false
	}
	b, err := o.sample(id, &s.Sample, now)
	return err == nil && !b.Ignored
}
