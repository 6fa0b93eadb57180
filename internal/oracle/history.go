package oracle

import (
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// history keeps the newest decisions for ExplainDecision and for repeated request ids, and apart from them the rows of
// their candidates, of which there are many more. Both are rings, made by the page as they fill: what is new overwrites what
// is oldest. Every decision is written here and few are read again, so what counts is how much memory that nobody has
// looked at for long one has to touch, and that no decision leaves anything to collect. The deciding lock guards it.
type history struct {
	ring  [][]remembered // by DecisionID modulo decisions
	pages [][]kept       // of rows, until there is room for most, and never moved
	lease time.Duration  // of every booking

	decisions, most int    // bounds of both
	wrote           uint64 // rows ever written; row n is at n modulo most, see row
}

// remembered is an Answer in less memory, with the place of its rows. What few decisions have is in more.
type remembered struct {
	id     load.DecisionID // 0: none yet
	more   *Answer         // all of it but the rows, where the fields below cannot say it; nil: they can
	worker *fleet.Worker

	target       fleet.TargetID
	rank         int32
	held, usable [fleet.NumTiers]int32
	promptTokens int
	uncached     int
	ttft         float64
	terms        policy.Terms
	alternatives [fewAlternatives]runnerUp
	decidedAt    time.Time
	model        string
	requestID    string
	policy       string
	freed, asked uint64

	first           uint64 // its rows: candidates best first, as far as they were ranked, then the excluded
	cands, excluded int32
	candidates      int32
	blocks          BlockConfidence
	load            load.Confidence
	reason          policy.Reason
	session         SessionOutcome
	isText          bool
	numAlternatives uint8
	pictures        [fewAlternatives]picture // of alternatives
}

// picture is how far that of a target could be trusted.
type picture struct {
	blocks BlockConfidence
	load   load.Confidence
}

func pictureOf(c *candidate) picture { return picture{c.blocks, c.state.Confidence} }

// fewAlternatives is what most ask for.
const fewAlternatives = 2

// runnerUp is an Alternative in less memory.
type runnerUp struct {
	worker *fleet.Worker
	id     fleet.TargetID
	rank   int32
	held   [fleet.NumTiers]int32
	ttft   float64
}

// kept is a Row in less memory, two lines of the processor's cache: this is written for several candidates of every decision,
// and read once in a while. Seconds have seven digits here.
type kept struct {
	worker       *fleet.Worker
	start        *fleet.Worker // of a pair: who would prefill for it; nil: it does both, or no pair was wanted
	id, startID  fleet.TargetID
	rank         int32
	startRank    int32
	held, usable [fleet.NumTiers]int32
	expected     int32
	inFlight     int32
	uncached     int32
	cached       int32
	terms        [policy.NumTerms]float32
	cost, ttft   float32
	why          Exclusion
	picture      picture
	startPicture picture // of start
}

// rowsEach bounds what is kept of one decision, candidates and excluded alike. In a larger fleet the best and any others
// are kept, and of a decision made the quick way no more than it ranked; who wants all asks for them with the question.
const rowsEach = 128

const (
	// rowsPage is how many rows are made at a time: 32 KB of them, where to make a slice longer is to copy up to 8 MB.
	rowsPage = 256
	// decisionsPage is how many decisions are, as large.
	decisionsPage = 96
)

func newHistory(maxAnswers, maxRows int, lease time.Duration) *history {
	return &history{
		ring:  make([][]remembered, (maxAnswers+decisionsPage-1)/decisionsPage),
		lease: lease, decisions: maxAnswers, most: maxRows,
	}
}

// row is the place of row n, as far as it was ever written.
func (h *history) row(n uint64) *kept {
	i := int(n % uint64(h.most))
	return &h.pages[i/rowsPage][i%rowsPage]
}

// find looks a decision up; nil: it is not known any more. What it finds is overwritten in time.
func (h *history) find(id load.DecisionID) *remembered {
	i := uint64(id) % uint64(h.decisions)
	page := h.ring[i/decisionsPage]
	if page == nil || id == 0 {
		return nil
	}
	if m := &page[i%decisionsPage]; m.id == id {
		return m
	}
	return nil
}

// place is where a decision will be.
func (h *history) place(id load.DecisionID) *remembered {
	i := uint64(id) % uint64(h.decisions)
	page := &h.ring[i/decisionsPage]
	if *page == nil {
		*page = make([]remembered, decisionsPage)
	}
	return &(*page)[i%decisionsPage]
}

// get is a decision without its rows, or nil.
func (h *history) get(id load.DecisionID) *Answer {
	m := h.find(id)
	if m == nil {
		return nil
	}
	return h.tell(m, new(Answer))
}

// add remembers a decision made from w; p is that of a pair, or nil.
func (h *history) add(a *Answer, w *work, p *pairing) {
	cands, excluded := min(len(w.cands), rowsEach), min(len(w.excluded), rowsEach)
	if over := cands + excluded - h.most; over > 0 { // a tiny ring
		excluded -= min(over, excluded)
		cands = min(cands, h.most)
	}
	m := h.place(a.Decision)
	m.note(a, w, p != nil)
	m.first, m.cands, m.excluded = h.wrote, int32(cands), int32(excluded)
	for _, i := range w.choice.Order[:cands] {
		k := h.next()
		k.fill(&w.targets[w.picks[i]], &w.choice.Scores[i])
		if p != nil {
			k.begin(p.start(i))
		}
	}
	for i := range w.excluded[:excluded] {
		h.next().fill(&w.excluded[i], &policy.Score{})
	}
}

// note writes a decision over an older one.
func (m *remembered) note(a *Answer, w *work, isPair bool) {
	best := &w.targets[w.picks[w.choice.Best]]
	m.id, m.more, m.worker, m.target, m.rank = a.Decision, nil, best.worker, best.id, int32(best.rank)
	m.held, m.usable = few(&a.Matched), few(&a.Usable)
	m.promptTokens, m.uncached, m.ttft, m.terms = a.PromptTokens, a.Uncached, a.TTFT, a.Terms
	m.decidedAt, m.model, m.requestID, m.policy, m.freed, m.asked = a.DecidedAt, a.Model, a.RequestID, a.Policy, a.freed, a.asked
	m.candidates, m.blocks, m.load, m.reason, m.session, m.isText = int32(a.Candidates), a.Blocks, a.Load, a.Reason, a.Session, a.IsText
	m.numAlternatives = 0
	if isPair || a.Shadow != nil || a.Goals.IsSet() || a.Position > 0 || len(a.Alternatives) > fewAlternatives {
		m.more = new(Answer)
		*m.more = *a
		m.more.Rows, m.more.Alternatives = nil, slices.Clone(a.Alternatives)
		return
	}
	for i := range a.Alternatives {
		c := &w.targets[w.picks[w.choice.Order[1+i]]]
		x := &m.alternatives[i]
		x.worker, x.id, x.rank, x.held, x.ttft = c.worker, c.id, int32(c.rank), few(&c.held), a.Alternatives[i].TTFT
		m.pictures[i] = pictureOf(c)
		m.numAlternatives++
	}
}

// tell puts the answer that was remembered into a.
func (h *history) tell(m *remembered, a *Answer) *Answer {
	room := a.Alternatives[:0]
	if m.more != nil {
		*a = *m.more
		a.Alternatives = append(room, a.Alternatives...)
		return a
	}
	for i := range m.alternatives[:m.numAlternatives] {
		x, known := &m.alternatives[i], m.pictures[i]
		room = append(room, Alternative{
			Target: refTo(x.worker, x.id, x.rank), Matched: many(&x.held), TTFT: x.ttft, Blocks: known.blocks, Load: known.load,
		})
	}
	*a = Answer{
		Decision: m.id, Target: refTo(m.worker, m.target, m.rank), Matched: many(&m.held), Usable: many(&m.usable),
		PromptTokens: m.promptTokens, IsText: m.isText, TTFT: m.ttft, Alternatives: room, Blocks: m.blocks, Load: m.load,
		Policy: m.policy, Reason: m.reason, Candidates: int(m.candidates), Uncached: m.uncached, Terms: m.terms, Lease: h.lease,
		Session: m.session, DecidedAt: m.decidedAt, Model: m.model, RequestID: m.requestID, freed: m.freed, asked: m.asked,
	}
	return a
}

// start is the booking of who prefills; 0: there is none.
func (m *remembered) start() load.DecisionID {
	if m.more == nil {
		return 0
	}
	return m.more.start
}

// goal is the TTFT that was asked for, in seconds; 0: none.
func (m *remembered) goal() float64 {
	if m.more == nil {
		return 0
	}
	return m.more.Goals.TTFT
}

func refTo(x *fleet.Worker, id fleet.TargetID, rank int32) TargetRef {
	return TargetRef{ID: id, Worker: x.Worker, Rank: int(rank), Address: x.Address}
}

// few are tokens in half the memory.
func few(t *TierTokens) (out [fleet.NumTiers]int32) {
	for i, n := range t {
		out[i] = int32(n)
	}
	return out
}

func many(t *[fleet.NumTiers]int32) (out TierTokens) {
	for i, n := range t {
		out[i] = int(n)
	}
	return out
}

// next is the place of the next row.
func (h *history) next() *kept {
	if made := len(h.pages) * rowsPage; made < h.most && h.wrote == uint64(made) {
		h.pages = append(h.pages, make([]kept, min(rowsPage, h.most-made)))
	}
	h.wrote++
	return h.row(h.wrote - 1)
}

func (k *kept) fill(c *candidate, s *policy.Score) {
	k.worker, k.id, k.rank, k.start = c.worker, c.id, int32(c.rank), nil
	k.held, k.usable = few(&c.held), few(&c.usable)
	k.expected, k.inFlight, k.why, k.picture = int32(c.guess), int32(c.state.InFlight), c.why, pictureOf(c)
	k.uncached, k.cached, k.cost, k.ttft = int32(s.Uncached), int32(s.Cached), float32(s.Cost), float32(s.TTFT)
	s.Terms.Narrow(&k.terms)
}

// begin notes who would prefill, or nobody.
func (k *kept) begin(c *candidate) {
	if c != nil {
		k.start, k.startID, k.startRank, k.startPicture = c.worker, c.id, int32(c.rank), pictureOf(c)
	}
}

func (k *kept) row() Row {
	r := Row{
		Target:   refTo(k.worker, k.id, k.rank),
		Excluded: k.why, Matched: many(&k.held), Usable: many(&k.usable), Expected: int(k.expected), InFlight: int(k.inFlight),
		Score: policy.Score{
			Terms: policy.TermsOf(&k.terms), Cost: float64(k.cost), TTFT: float64(k.ttft), Uncached: int(k.uncached), Cached: int(k.cached),
		},
		Blocks: k.picture.blocks, Load: k.picture.load,
	}
	if k.start != nil {
		start := refTo(k.start, k.startID, k.startRank)
		r.Prefill, r.PrefillBlocks, r.PrefillLoad = &start, k.startPicture.blocks, k.startPicture.load
	}
	return r
}

// explain is the decision with its rows, as far as they are still there: of candidates and of excluded targets.
func (h *history) explain(id load.DecisionID) (a *Answer, cands int) {
	m := h.find(id)
	if m == nil {
		return nil, 0
	}
	a = h.tell(m, new(Answer))
	if a.Rows = h.rows(m); a.Rows != nil {
		cands = int(m.cands)
	}
	return a, cands
}

// rows are those of a decision; none once they have been overwritten.
func (h *history) rows(m *remembered) []Row {
	if h.wrote-m.first > uint64(h.most) {
		return nil
	}
	var out []Row
	for n := range uint64(m.cands + m.excluded) {
		out = append(out, h.row(m.first+n).row())
	}
	return out
}

// Recent lists the newest booked decisions that are remembered, newest first, at most so many, without rows. They must not
// be changed.
func (o *Oracle) Recent(most int) []*Answer {
	o.deciding.Lock()
	defer o.deciding.Unlock()
	var out []*Answer
	for id := load.DecisionID(o.nextID); len(out) < most; id-- {
		a := o.history.get(id)
		if a == nil {
			break
		}
		out = append(out, a)
	}
	return out
}
