package oracle

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// route decides one request and books it, in this order: which targets may take it; the prompt's block ids, once per
// block size in use; who holds how much of them; then, in one step that no other decision can get into, how busy
// everybody is, the choice, and the booking. t is not nil when the request has waited.
func (o *Oracle) route(ctx context.Context, r *RouteRequest, t *Ticket, now time.Time) (*Answer, error) {
	start := time.Since(o.born) // to read the one clock costs half of reading both
	if ctx.Err() != nil {
		return nil, Fault(Expired, ReasonDeadline, "", "", "the caller's deadline has passed")
	}
	w, ok := o.work.Get().(*work)
	if !ok {
		w = &work{}
	}
	defer o.work.Put(w)

	var a *Answer
	w.rules = o.rules.Load()
	quick := w.rules.quick && !r.Explain && !r.IsPair && !r.Goals.IsSet() && len(r.Preferred) == 0
	for try := range routeTries {
		w.reset(now)
		view := o.fleet.View()
		if quick = quick && try < quickTries && o.enlist(view, r, w); !quick {
			w.reset(now)
			if err := o.eligible(view, r, now, w); err != nil {
				return nil, err
			}
		}
		if r.IsPair {
			o.eligibleStarts(view, r, now, w)
		}
		o.match(r, w)
		var err error
		if a, err = o.decide(r, t, now, w); err == nil {
			break
		}
		switch {
		case errors.Is(err, errNobody):
			quick = false
		case !errors.Is(err, errLeft):
			return nil, err
		}
	}
	if a == nil {
		return nil, Fault(Unavailable, ReasonNoEligibleWorker, "", "", "workers left faster than a decision could be made; ask again")
	}
	if !a.Repeated {
		if a.Decision != 0 && !a.IsText && o.index.IsTight() {
			c := &w.targets[w.best]
			if f := o.feed(c.id); f != nil {
				f.touch(w.prompts[c.size].chain[:c.held.Total()/w.prompts[c.size].size])
			}
		}
		o.obs.Decided(a, time.Since(o.born)-start)
	}
	return a, nil
}

// errLeft says that the chosen target's life ended while the decision was made.
var errLeft = errors.New("oracle: the chosen target left")

// routeTries is how often a decision is begun again for that.
const routeTries = 4

// work is the memory of one decision, reused.
type work struct {
	now      time.Time
	rules    *rules      // one decision is made by one set of them
	targets  []candidate // eligible
	excluded []candidate
	counts   [numExclusions]int
	prompts  []promptAt // one per block size in use

	ids    []fleet.TargetID
	peers  []fleet.TargetID // all of the model
	states []load.State
	cands  []policy.Candidate
	picks  []int   // cands[i] is targets[picks[i]]
	places []int32 // by TargetID; see place
	marks  []uint64
	req    policy.Request
	choice policy.Decision
	second policy.Decision // the shadow's
	best   int             // targets[best] was booked

	last    fleet.TargetID // of the session, with SessionStayed
	session SessionOutcome

	eligible int     // candidates, ranked or not
	share    float64 // of them, those with prefill pending

	// The quick way; see quick.go.
	roster *roster // nil: the long way
	lineup lineup  // who may take it
	own    lineup  // memory for one that is not the roster's
	kinds  []kind  // what several hold alike
	kind   []uint8 // of the lineup
	full   []uint8 // of those of it that are not full, where some are
	slots  [kindSlots]uint8

	pattern [64]uint8 // one kind
	holds   []hold    // what some hold alone, by id
	table   []policy.Holder
	common  []policy.Holder
	picked  policy.Pick
	// isWhole: no target had to give up blocks.
	isWhole bool

	pair *pairing // of a decision for two; nil: none was made with this memory
}

// candidate is one target with what is known of it.
type candidate struct {
	hold

	worker *fleet.Worker
	rank   int
	why    Exclusion
	state  load.State
	cost   *policy.CostModel
}

// hold is what one target holds of the prompt.
type hold struct {
	id     fleet.TargetID
	blocks BlockConfidence
	size   int        // index into work.prompts
	held   TierTokens // as reported
	usable TierTokens // what the engine can reuse of it, discounted
	guess  int        // leading tokens beyond usable, expected
	credit float64    // the share of held that counts
	shared int        // leading tokens that requests under way there hold
}

// depth is how many leading tokens it will have.
func (h *hold) depth() int { return h.usable.Total() + h.guess }

// promptAt is the prompt at one block size.
type promptAt struct {
	size    int
	locals  []block.Local
	chain   []block.ID
	facts   []index.Match
	guesses []index.Match
	approx  []index.Match // of targets that do not report
	quick   layered       // instead of these, the quick way
}

func (w *work) reset(now time.Time) {
	w.now, w.roster = now, nil
	clear(w.targets) // let go of workers
	clear(w.excluded)
	w.targets, w.excluded, w.prompts = w.targets[:0], w.excluded[:0], w.prompts[:0]
	w.counts = [numExclusions]int{}
	w.cands, w.picks = w.cands[:0], w.picks[:0]
	w.choice.Order, w.choice.Scores = w.choice.Order[:0], w.choice.Scores[:0]
}

// decide looks at the load, chooses and books, as one step.
func (o *Oracle) decide(r *RouteRequest, t *Ticket, now time.Time, w *work) (*Answer, error) {
	o.deciding.Lock()
	defer o.deciding.Unlock()
	asked := uint64(0)
	if r.RequestID != "" && !r.DryRun {
		asked = r.asked()
		if id, ok := o.load.Living(r.RequestID); ok {
			if m := o.history.find(id); m != nil {
				if m.asked != asked {
					return nil, Fault(FailedPrecondition, ReasonRequestIDTaken, "request_id", strconv.Quote(r.RequestID),
						"another request of that name is under way; want a name that no other request has")
				}
				a := o.history.tell(m, r.room())
				if r.Explain {
					a.Rows = o.history.rows(m)
				}
				a.Repeated = true
				return a, nil
			}
			o.release(id, now) // its answer was forgotten: decide anew rather than book twice
		}
	}
	expected := float64(r.ExpectedOutput)
	if expected == 0 {
		expected = o.load.MeanOutput(r.Model)
	}
	req := &w.req
	*req = policy.Request{
		PromptTokens: r.Prompt.Length, ExpectedOutput: expected, Turn: o.turn, Seed: o.turn * 0x9E3779B97F4A7C15,
		Places: r.MaxAlternatives + 1,
	}
	var err error
	switch {
	case r.IsPair:
		err = o.choosePair(r, req, now, w)
	case w.roster != nil:
		err = o.pick(r, req, now, w)
	default:
		err = o.choose(r, req, now, w)
	}
	if err != nil {
		return nil, err
	}

	best := &w.targets[w.picks[w.choice.Best]]
	score := &w.choice.Scores[w.choice.Best]
	a := r.room()
	*a = Answer{
		Target:       ref(best),
		Matched:      best.held,
		Usable:       best.usable,
		PromptTokens: r.Prompt.Length,
		IsText:       r.Prompt.IsText,
		TTFT:         score.TTFT,
		Alternatives: w.alternatives(a.Alternatives[:0], r.MaxAlternatives),
		Blocks:       best.blocks,
		Load:         best.state.Confidence,
		Policy:       w.rules.policy.Name(),
		Reason:       w.choice.Reason,
		Candidates:   w.eligible,
		Uncached:     score.Uncached,
		Terms:        score.Terms,
		Session:      w.session,
		DecidedAt:    now,
		Model:        r.Model,
		RequestID:    r.RequestID,
	}
	if r.Goals.IsSet() {
		a.Goals, a.TPOT = r.Goals, policy.TPOT(req, &w.cands[w.choice.Best])
		a.MissesTTFT, a.MissesTPOT = r.Goals.Missed(score, a.TPOT)
	}
	if t != nil {
		a.Waited, a.Position = now.Sub(t.came), t.position
		t.holds(req, &w.cands[w.choice.Best], score)
	}
	if a.Session == SessionStayed && best.id != w.last {
		a.Session = SessionMoved
	}
	if r.Explain {
		a.Rows = w.rows()
	}
	if r.IsPair {
		w.pair.name(a, w)
	}
	if r.DryRun {
		return a, nil
	}
	// The view may be old and the id another's by now. Ids are recycled under this lock, so what is checked here stays.
	if !o.isThere(best) {
		return nil, errLeft
	}
	decode := policy.DecodeTime(req, &w.cands[w.choice.Best], o.busy(r.Model))
	uncached, prefill := score.Uncached, w.cands[w.choice.Best].Cost.PrefillTime(score.Uncached, r.Prompt.Length-score.Uncached)
	if a.Prefill != nil {
		if err := o.bookStart(r, a, w, now); err != nil {
			return nil, err
		}
		uncached, prefill, decode = 0, 0, decode+a.TTFT // its prompt comes when the other has computed it
	}
	if !r.IsPair && w.rules.shadow != nil {
		a.Shadow = o.shadow(*req, w)
	}
	o.turn++
	if o.turn%watchEvery == 0 && !r.Prompt.IsText {
		o.watch(r, w)
	}
	o.nextID++
	a.Decision, a.asked = load.DecisionID(o.nextID), asked
	a.Lease = o.cfg.Load.Lease
	p := &w.prompts[best.size]
	booking := load.Booking{
		ID: a.Decision, Target: best.id, RequestID: r.RequestID,
		PromptTokens: r.Prompt.Length, UncachedTokens: uncached, SharedTokens: best.shared, PrefillSeconds: prefill,
		ExpectedOutput: int(expected), DecodeSeconds: decode, Note: note(best, score),
	}
	marks := w.mark(p)
	if err := o.load.BookMarked(booking, marks, now); err != nil {
		if a.start != 0 {
			o.release(a.start, now)
		}
		return nil, bookingFault(err)
	}
	f := o.feed(best.id)
	if f != nil {
		f.usage.use(marks.Blocks, o.seconds(now))
	}
	o.tellBooking(&booking, &marks, best.worker, best.rank)
	o.guesses.add(a.Decision, best.id, p.chain, now)
	o.recordings.begin(a, r.Session, p.size, p.chain)
	w.best = w.picks[w.choice.Best]
	if r.Session != "" {
		o.sessions.put(sessionKey{best.worker.Model, r.Session}, best.id, best.worker)
	}
	if f != nil {
		f.decisions.Add(1)
		a.freed = f.freed.Load()
	}
	var pair *pairing
	if r.IsPair {
		pair = w.pair
	}
	o.history.add(a, w, pair)
	return a, nil
}

// room is where the answer goes.
func (r *RouteRequest) room() *Answer {
	if r.Room != nil {
		return r.Room
	}
	made := new(struct {
		answer Answer
		places [fewAlternatives]Alternative
	})
	made.answer.Alternatives = made.places[:0]
	return &made.answer
}

// isThere reports whether a candidate's life has not ended since it was looked at.
func (o *Oracle) isThere(c *candidate) bool {
	now := o.fleet.View().Target(c.id)
	return now != nil && sameLife(now, c.worker)
}

// note is what is wanted of a booking when its first token comes.
func note(c *candidate, s *policy.Score) load.Note {
	return load.Note{
		Decoding: float32(c.state.Decoding), ReadTokens: float32(c.state.ActiveTokens), Transfer: float32(s.Terms.Transfer),
	}
}

// markEvery is how many tokens one marked block stands for, roughly.
const markEvery = 512

// markStep is of how many blocks of a size one is marked.
func markStep(size int) int { return max(markEvery/size, 1) }

// mark samples the blocks of a prompt.
func (w *work) mark(p *promptAt) load.Marks {
	w.marks = appendMarked(w.marks[:0], p.chain, p.size)
	return load.Marks{Blocks: w.marks, Tokens: markStep(p.size) * p.size, Covered: len(p.chain) * p.size}
}

// appendMarked appends those of a list of blocks of a size that are marked, which their ids say.
func appendMarked(to []uint64, ids []block.ID, size int) []uint64 {
	every := uint64(markStep(size))
	if every&(every-1) == 0 { // as of nearly all block sizes: a division costs as much as hashing the block
		for _, id := range ids {
			if uint64(id)&(every-1) == 0 {
				to = append(to, uint64(id))
			}
		}
		return to
	}
	for _, id := range ids {
		if uint64(id)%every == 0 {
			to = append(to, uint64(id))
		}
	}
	return to
}

// head names the first headTokens of a prompt, or as many of them as are full blocks; 0: not one is.
func head(p *promptAt) uint64 {
	n := min(max(headTokens/p.size, 1), len(p.chain))
	if n == 0 {
		return 0
	}
	return uint64(p.chain[n-1])
}

// headTokens is where prompts that differ behind it still count as alike.
const headTokens = 2048

// sameLife reports whether two moments show the same life of a worker.
func sameLife(a, b *fleet.Worker) bool { return a.Life == b.Life }

func ref(c *candidate) TargetRef {
	return TargetRef{ID: c.id, Worker: c.worker.Worker, Rank: c.rank, Address: c.worker.Address}
}

// choose is the long way of a decision: every candidate with everything that is known of it, and any policy.
func (o *Oracle) choose(r *RouteRequest, req *policy.Request, now time.Time, w *work) error {
	if err := o.look(r, now, w); err != nil {
		return err
	}
	w.eligible, w.share = len(w.cands), w.busy()
	req.Head, req.Prices = head(&w.prompts[0]), o.prices(r, w.share, now)
	debt := o.indebt(req, w, w.deepest(), now)
	if r.Explain || r.Goals.IsSet() {
		req.Places = 0
	}
	w.rules.policy.Choose(req, w.cands, &w.choice)
	policy.Prefer(req, r.Goals, w.cands, &w.choice)
	o.owe(r, debt, w.choice.Owed(), now)
	return nil
}

// look joins the candidates with their load; full ones drop out here.
func (o *Oracle) look(r *RouteRequest, now time.Time, w *work) error {
	w.ids = w.ids[:0]
	view := o.fleet.View()
	w.targets = slices.DeleteFunc(w.targets, func(c candidate) bool {
		x := view.Target(c.id)
		return x == nil || !sameLife(x, c.worker)
	})
	if len(w.targets) == 0 {
		return errLeft
	}
	for i := range w.targets {
		w.ids = append(w.ids, w.targets[i].id)
	}
	// What is imputed comes from all of the model's targets, whomever this request may go to.
	w.peers = append(w.peers[:0], w.ids...)
	for i := range w.excluded {
		w.peers = append(w.peers, w.excluded[i].id)
	}
	w.states = o.load.StatesAmong(w.ids, w.peers, now, w.states[:0])
	w.last, w.session = o.sessions.get(sessionKey{r.Model, r.Session}, view)
	for i := range w.targets {
		c := &w.targets[i]
		c.state = w.states[i]
		if m := c.worker.MaxRequests; m > 0 && c.state.InFlight >= m {
			c.why = ExcludedFull
			w.counts[ExcludedFull]++
			w.excluded = append(w.excluded, *c)
			continue
		}
		w.addCandidate(i)
		w.cands[len(w.cands)-1].Preferred = preferred(c.worker, r)
	}
	if len(w.cands) == 0 {
		return w.nobody(r)
	}
	return nil
}

// preferred counts the labels that a request prefers and a worker has.
func preferred(x *fleet.Worker, r *RouteRequest) int {
	n := 0
	for k, v := range r.Preferred {
		if got, ok := x.Labels[k]; ok && got == v {
			n++
		}
	}
	return n
}

// addCandidate makes a candidate of the policy of targets[i].
func (w *work) addCandidate(i int) {
	// It is filled in where it stays: a copy of what was only just written waits for that to be written.
	w.picks, w.cands = append(w.picks, i), append(w.cands, policy.Candidate{})
	c, x := &w.targets[i], &w.cands[len(w.cands)-1]
	c.tell(x)
	x.SameSession, x.Cost, x.IsClamped = w.session == SessionStayed && w.last == c.id, c.cost, true
	loadOf(x, &c.state)
}

// alternatives appends the next best to out.
func (w *work) alternatives(out []Alternative, most int) []Alternative {
	n := min(most, len(w.choice.Order)-1)
	if n <= 0 {
		return out
	}
	for _, i := range w.choice.Order[1 : n+1] {
		c := &w.targets[w.picks[i]]
		out = append(out, Alternative{})
		a := &out[len(out)-1] // filled in where it stays, as in addCandidate
		a.Target.ID, a.Target.Worker, a.Target.Rank, a.Target.Address = c.id, c.worker.Worker, c.rank, c.worker.Address
		a.Matched, a.TTFT, a.Blocks, a.Load = c.held, w.choice.Scores[i].TTFT, c.blocks, c.state.Confidence
	}
	return out
}

// rows are the reasons: candidates best first, as far as they were ranked, then the excluded.
func (w *work) rows() []Row {
	out := make([]Row, 0, len(w.cands)+len(w.excluded))
	for _, i := range w.choice.Order {
		c := &w.targets[w.picks[i]]
		out = append(out, Row{
			Target: ref(c), Matched: c.held, Usable: c.usable, Expected: c.guess, InFlight: c.state.InFlight,
			Score: w.choice.Scores[i], Blocks: c.blocks, Load: c.state.Confidence,
		})
	}
	for i := range w.excluded {
		c := &w.excluded[i]
		out = append(out, Row{
			Target: ref(c), Excluded: c.why, Matched: c.held, Usable: c.usable, InFlight: c.state.InFlight, Blocks: c.blocks, Load: c.state.Confidence,
		})
	}
	return out
}

// firstDecision starts the numbering somewhere else in each process, so that a decision id of a former one is unknown
// rather than another's.
func firstDecision() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand crashes the process instead
	return binary.LittleEndian.Uint64(b[:]) &^ (1<<spaceShift - 1)
}
