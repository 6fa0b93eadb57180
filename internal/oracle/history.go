package oracle

import "github.com/kvoracle/kvoracle/internal/load"

// history keeps the newest decisions for ExplainDecision and for repeated request ids. Decisions are bounded by number,
// their candidate rows by a number of their own: old decisions lose their rows first. The deciding lock guards it.
type history struct {
	maxAnswers, maxRows int
	rows                int
	byID                map[load.DecisionID]*Answer
	order               []load.DecisionID // oldest first; those before head are gone, those before bare have no rows
	head, bare          int
}

func newHistory(maxAnswers, maxRows int) *history {
	return &history{maxAnswers: maxAnswers, maxRows: maxRows, byID: make(map[load.DecisionID]*Answer)}
}

func (h *history) get(id load.DecisionID) *Answer { return h.byID[id] }

func (h *history) add(a *Answer) {
	h.byID[a.Decision] = a
	h.order = append(h.order, a.Decision)
	h.rows += len(a.Rows)
	for h.rows > h.maxRows && h.bare < len(h.order)-1 { // the newest always keeps its rows
		h.strip()
	}
	for len(h.order)-h.head > h.maxAnswers {
		if h.bare == h.head {
			h.strip()
		}
		delete(h.byID, h.order[h.head])
		h.head++
	}
	if h.head > h.maxAnswers {
		h.order = append(h.order[:0], h.order[h.head:]...)
		h.bare -= h.head
		h.head = 0
	}
}

// strip takes the rows off the oldest decision that has them. Others may hold the answer, so it is replaced.
func (h *history) strip() {
	id := h.order[h.bare]
	a := *h.byID[id]
	h.rows -= len(a.Rows)
	a.Rows = nil
	h.byID[id] = &a
	h.bare++
}
