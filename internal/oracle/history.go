package oracle

import (
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// history keeps the newest decisions for ExplainDecision and for repeated request ids, and apart from them the rows of
// their candidates, of which there are many more. Both are rings: what is new overwrites what is oldest, and nothing is
// allocated. The deciding lock guards it.
type history struct {
	ring  []remembered // by DecisionID modulo its length
	pages [][]kept     // of rows; they are made as rows come, until there is room for most, and never moved
	most  int          // rows
	wrote uint64       // rows ever written; row n is at n modulo most, see row
}

// remembered is one decision with the place of its rows.
type remembered struct {
	answer   *Answer // nil: none yet
	first    uint64  // its rows: candidates best first, as far as they were ranked, then the excluded
	cands    int
	excluded int
}

// kept is a Row in less memory: this is written for every candidate of every decision, and read once in a while.
type kept struct {
	worker       *fleet.Worker
	id           fleet.TargetID
	rank         int32
	held, usable [fleet.NumTiers]int32
	expected     int32
	inFlight     int32
	why          Exclusion
	blocks       BlockConfidence
	load         load.Confidence
	score        policy.Score

	start     *fleet.Worker // of a pair: who would prefill for it; nil: it does both, or no pair was wanted
	startID   fleet.TargetID
	startRank int32
}

// rowsEach bounds what is kept of one decision, candidates and excluded alike. In a larger fleet the best and any others
// are kept, and of a decision made the quick way no more than it ranked; who wants all asks for them with the question.
const rowsEach = 128

// rowsPage is how many rows are made at a time: some 50 KB of them, where to make a slice longer is to copy up to 12 MB.
const rowsPage = 256

func newHistory(maxAnswers, maxRows int) *history {
	return &history{ring: make([]remembered, maxAnswers), most: maxRows}
}

// row is the place of row n, as far as it was ever written.
func (h *history) row(n uint64) *kept {
	i := int(n % uint64(h.most))
	return &h.pages[i/rowsPage][i%rowsPage]
}

func (h *history) at(id load.DecisionID) *remembered { return &h.ring[uint64(id)%uint64(len(h.ring))] }

func (h *history) get(id load.DecisionID) *Answer {
	if m := h.at(id); m.answer != nil && m.answer.Decision == id {
		return m.answer
	}
	return nil
}

// add remembers a decision made from w; p is that of a pair, or nil.
func (h *history) add(a *Answer, w *work, p *pairing) {
	if a.Rows != nil { // in the ring alone they are bounded
		bare := *a
		bare.Rows = nil
		a = &bare
	}
	m := remembered{answer: a, first: h.wrote, cands: min(len(w.cands), rowsEach), excluded: min(len(w.excluded), rowsEach)}
	if over := m.cands + m.excluded - h.most; over > 0 { // a tiny ring
		m.excluded -= min(over, m.excluded)
		m.cands = min(m.cands, h.most)
	}
	for _, i := range w.choice.Order[:m.cands] {
		k := h.next()
		k.fill(&w.targets[w.picks[i]], &w.choice.Scores[i])
		if p != nil {
			k.begin(p.start(i))
		}
	}
	for i := range w.excluded[:m.excluded] {
		h.next().fill(&w.excluded[i], &policy.Score{})
	}
	*h.at(a.Decision) = m
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
	k.worker, k.id, k.rank = c.worker, c.id, int32(c.rank)
	for t := range k.held {
		k.held[t], k.usable[t] = int32(c.held[t]), int32(c.usable[t])
	}
	k.expected, k.inFlight, k.why, k.blocks, k.load = int32(c.guess), int32(c.state.InFlight), c.why, c.blocks, c.state.Confidence
	k.score = *s
	k.start = nil
}

// begin notes who would prefill, or nobody.
func (k *kept) begin(c *candidate) {
	if c != nil {
		k.start, k.startID, k.startRank = c.worker, c.id, int32(c.rank)
	}
}

func (k *kept) row() Row {
	r := Row{
		Target:   TargetRef{ID: k.id, Worker: k.worker.Worker, Rank: int(k.rank), Address: k.worker.Address},
		Excluded: k.why, Expected: int(k.expected), InFlight: int(k.inFlight), Score: k.score, Blocks: k.blocks, Load: k.load,
	}
	if k.start != nil {
		r.Prefill = &TargetRef{ID: k.startID, Worker: k.start.Worker, Rank: int(k.startRank), Address: k.start.Address}
	}
	for t := range k.held {
		r.Matched[t], r.Usable[t] = int(k.held[t]), int(k.usable[t])
	}
	return r
}

// explain is a decision with its rows, as far as they are still there: of candidates and of excluded targets.
func (h *history) explain(id load.DecisionID) (a *Answer, cands int) {
	if h.get(id) == nil {
		return nil, 0
	}
	m := h.at(id)
	full := *m.answer
	if h.wrote-m.first > uint64(h.most) {
		return &full, 0
	}
	for n := range uint64(m.cands + m.excluded) {
		full.Rows = append(full.Rows, h.row(m.first+n).row())
	}
	return &full, m.cands
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
