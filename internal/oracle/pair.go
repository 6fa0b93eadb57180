package oracle

import (
	"errors"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// A pair is a decision for two targets: one prefills, the other decodes. It goes the long way, once for those that may
// prefill (starts) and once for those that may decode (ends, in the work of the decision itself), and the policy joins
// them. Two bookings are made: the end's has the decision's id, the start's one of its own and goes with the first token.

// pairing is what a decision for two needs beside the work of one.
type pairing struct {
	starts   *work
	from     []policy.Start
	ends     []policy.End
	at       map[fleet.TargetID]int // places in from
	decision policy.PairDecision
}

// The labels that say where a worker stands.
const (
	labelDomain = "nvlink_domain"
	labelRack   = "rack"
	labelZone   = "zone"
)

// eligibleStarts finds who may prefill for another. If nobody may, those that decode have to do both; what is wrong with the
// question itself was said when those were looked for.
func (o *Oracle) eligibleStarts(view *fleet.View, r *RouteRequest, now time.Time, w *work) {
	if w.pair == nil {
		w.pair = &pairing{starts: &work{}, at: make(map[fleet.TargetID]int)}
	}
	s := w.pair.starts
	s.reset(now)
	alone := *r
	alone.Role = fleet.Prefill
	_ = o.eligible(view, &alone, now, s)
	s.targets = slices.DeleteFunc(s.targets, func(c candidate) bool { return c.worker.Roles&fleet.Prefill == 0 })
	o.match(r, s)
}

// isWhole reports whether a worker may prefill what it decodes.
func isWhole(x *fleet.Worker) bool { return x.Roles == 0 || x.Roles&fleet.Aggregated != 0 }

// choosePair fills w with the ends, ranked, as choose does with candidates.
func (o *Oracle) choosePair(r *RouteRequest, req *policy.Request, now time.Time, w *work) error {
	p := w.pair
	s := p.starts
	if len(s.targets) > 0 {
		if err := o.look(r, now, s); errors.Is(err, errLeft) {
			return err
		}
	}
	if err := o.look(r, now, w); err != nil {
		return err
	}
	if len(s.cands) == 0 {
		w.keepWhole()
		if len(w.cands) == 0 {
			e := Fault(Unavailable, ReasonNoEligibleWorker, "phase", "PHASE_BOTH", "no target can prefill it, and none that decodes may do both")
			e.IsFull = s.counts[ExcludedFull] > 0
			return e
		}
	}
	p.line(w)

	busy := s
	if len(s.cands) == 0 {
		busy = w
	}
	w.eligible, w.share = len(w.cands), busy.busy()
	req.Prices = o.prices(r, w.share, now)
	if r.Explain || r.Goals.IsSet() {
		req.Places = 0
	}
	policy.ChoosePair(req, p.from, p.ends, &o.cfg.Links, &p.decision)
	policy.Prefer(req, r.Goals, w.cands, &p.decision.Decision)
	w.choice = p.decision.Decision
	return nil
}

// keepWhole drops the candidates that cannot serve a request alone.
func (w *work) keepWhole() {
	picks, cands := w.picks[:0], w.cands[:0]
	for k, i := range w.picks {
		if isWhole(w.targets[i].worker) {
			picks, cands = append(picks, i), append(cands, w.cands[k])
		}
	}
	w.picks, w.cands = picks, cands
}

// line gives both sides the policy's form.
func (p *pairing) line(w *work) {
	s := p.starts
	p.from, p.ends = p.from[:0], p.ends[:0]
	clear(p.at)
	for k, i := range s.picks {
		p.at[s.targets[i].id] = k
		p.from = append(p.from, policy.Start{Candidate: s.cands[k], Place: placeOf(s.targets[i].worker)})
	}
	for k, i := range w.picks {
		x := w.targets[i].worker
		e := policy.End{
			Candidate: w.cands[k], Place: placeOf(x), Whole: isWhole(x), Takes: x.Roles&fleet.Decode != 0, AlsoStart: -1,
		}
		if at, ok := p.at[w.targets[i].id]; ok && e.Takes {
			e.AlsoStart = at
		}
		p.ends = append(p.ends, e)
	}
}

// start is who prefills for an end, or nil: it does so itself.
func (p *pairing) start(end int) *candidate {
	if k := p.decision.Starts[end]; k >= 0 {
		return &p.starts.targets[p.starts.picks[k]]
	}
	return nil
}

// name puts the starts into an answer.
func (p *pairing) name(a *Answer, w *work) {
	a.Policy = policy.DefaultLeastTime().Name()
	if c := p.start(w.choice.Best); c != nil {
		start := ref(c)
		a.Prefill, a.PrefillMatched, a.PrefillBlocks, a.PrefillLoad = &start, c.held, c.blocks, c.state.Confidence
	}
	for i := range a.Alternatives {
		if c, x := p.start(w.choice.Order[1+i]), &a.Alternatives[i]; c != nil {
			start := ref(c)
			x.Prefill, x.PrefillBlocks, x.PrefillLoad = &start, c.blocks, c.state.Confidence
		}
	}
	for i := range a.Rows[:min(len(a.Rows), len(w.choice.Order))] {
		if c, x := p.start(w.choice.Order[i]), &a.Rows[i]; c != nil {
			start := ref(c)
			x.Prefill, x.PrefillBlocks, x.PrefillLoad = &start, c.blocks, c.state.Confidence
		}
	}
}

// bookStart books the prefill of a pair on its start, whose life is looked at like that of any chosen target.
func (o *Oracle) bookStart(r *RouteRequest, a *Answer, w *work, now time.Time) error {
	best := w.choice.Best
	c, score := w.pair.start(best), &w.choice.Scores[best]
	if !o.isThere(c) {
		return errLeft
	}
	o.nextID++
	a.start = load.DecisionID(o.nextID)
	s := w.pair.starts
	p := &s.prompts[c.size]
	b := load.Booking{
		ID: a.start, Target: c.id, PromptTokens: r.Prompt.Length, UncachedTokens: score.Uncached, SharedTokens: c.shared,
		PrefillSeconds: c.cost.PrefillTime(score.Uncached, r.Prompt.Length-score.Uncached), ExpectedOutput: 1,
		DecodeSeconds: c.cost.IterationBase, // none, but it ends: with the first token
		Note:          note(c, score),
	}
	marks := s.mark(p)
	if err := o.load.BookMarked(b, marks, now); err != nil {
		return bookingFault(err)
	}
	o.tellBooking(&b, &marks, c.worker, c.rank)
	o.guesses.add(a.start, c.id, p.chain, now)
	if f := o.feed(c.id); f != nil {
		f.decisions.Add(1)
	}
	return nil
}

// progressStart carries a step of a pair over to the booking of its start, which ends with the first token.
func (o *Oracle) progressStart(id load.DecisionID, e *Event, now time.Time) {
	switch e.Step {
	case Dispatched:
		o.load.Dispatched(id, 0, false, e.Gateway, now)
		o.tellStep(id, Dispatched, e.Gateway)
	case Generating:
		if e.OutputTokens == 0 {
			o.load.Generating(id, 0, now)
			o.tellStep(id, Generating, "")
			return
		}
		o.endStart(id, now)
	case FirstToken, Finished:
		o.endStart(id, now)
	case Cancelled, Failed:
		o.release(id, now)
	}
}

// endStart ends a start's booking whose prefill is done. What it left in the cache stays.
func (o *Oracle) endStart(id load.DecisionID, now time.Time) {
	if out, _ := o.load.FirstToken(id, now); out != Applied {
		return
	}
	o.load.Complete(id, now)
	o.guesses.linger(id, now)
	o.tellStep(id, FirstToken, "")
	if o.teller != nil {
		o.teller.Step(&Event{Decision: id, Step: Finished, Cached: -1, IsInferred: true})
	}
}

// placeOf reads where a worker stands from its labels.
func placeOf(x *fleet.Worker) policy.Place {
	if len(x.Labels) == 0 {
		return policy.Place{}
	}
	return policy.Place{Domain: named64(x.Labels[labelDomain]), Rack: named64(x.Labels[labelRack]), Zone: named64(x.Labels[labelZone])}
}

// named64 makes a number of a name; 0: no name. Two names that fall together would be taken for one, once in 10^19 pairs.
func named64(s string) uint64 {
	if s == "" {
		return 0
	}
	return max(block.Sum([]byte(s)), 1)
}
