package oracle

import (
	"errors"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// The quick way of a decision, for the default policy without a second one beside it: it costs a few nanoseconds a target
// and what the holders of the prompt cost, and decides what the long way decides on the same facts. Who asks for the
// reasons of all candidates gets them from the long way.

// errNobody says that the quick way found nobody; the long way says why.
var errNobody = errors.New("oracle: nobody can take it")

const (
	// quickTries is how many of the routeTries may be spent on the quick way: a fleet that changes all the time must not
	// starve decisions.
	quickTries = 2
	// rankedPlaces is how many places are ranked and remembered at least, for who asks for the reasons later.
	rankedPlaces = 4
	// sieveLeast is from how many targets on it is worth while to pass over those that cannot win.
	sieveLeast = 100
)

// pick chooses from the board and leaves the first places, and the deepest match wherever it ranks, as the candidates of
// a decision in which they are ranked. The caller holds deciding.
func (o *Oracle) pick(r *RouteRequest, req *policy.Request, now time.Time, w *work) error {
	ro, b := w.roster, &o.board
	if !o.isCurrent(ro) {
		return errLeft
	}
	o.follow(ro, now)

	table := policy.Table{Rows: b.rows, Chosen: b.chosen, Members: w.lineup.ids, Kind: w.kind}
	switch {
	case ro.full > 0:
		table.Members, table.Kind = o.notFull(w)
	case ro.least != nil && len(w.lineup.ids) == len(ro.plain.ids) && &w.lineup.ids[0] == &ro.plain.ids[0]:
		table.Usual, table.Least = w.usualKind(), ro.least
	}
	if len(table.Members) == 0 {
		return errNobody
	}
	w.eligible = len(table.Members)
	deepest := w.tell(&table, r.Prompt.Length, b)
	w.last, w.session = o.sessions.get(sessionKey{r.Model, r.Session}, o.fleet.View())
	table.Session, table.HasSession = w.last, w.session == SessionStayed

	busy := ro.busy
	if !ro.isPlain(r) {
		busy = 0
		for _, id := range table.Members {
			if b.posts[id].isBusy {
				busy++
			}
		}
	}
	w.share = float64(busy) / float64(w.eligible)
	req.Prices = o.prices(r, w.share, now)
	debt := o.indebt(req, w, deepest, now)
	req.Places = max(req.Places, rankedPlaces)
	policy.LeastTime{}.Pick(req, &table, &w.picked)
	o.owe(r, debt, w.picked.Owed, now)

	form := r.Prompt.form()
	w.isWhole = o.index.Evicted() == 0
	for i := range w.picked.Top {
		at := w.picked.Top[i].Member
		id := table.Members[at]
		h := w.holdOf(id)
		if h != nil {
			w.take(h, &w.table[w.places[id]], b, req)
		} else {
			k := &w.kinds[table.Kind[at]]
			h = &k.hold
			w.takeOf(k, id, form, b, req)
		}
		if h == deepest {
			deepest = nil
		}
	}
	if deepest != nil {
		if k := w.kindWith(deepest); k != nil {
			w.takeOf(k, table.Members[k.first], form, b, req)
		} else {
			w.take(deepest, &w.table[w.places[deepest.id]], b, req)
		}
	}
	w.choice.Best, w.choice.Reason = 0, w.picked.Reason
	return nil
}

// usualKind is the kind that most are of.
func (w *work) usualKind() uint8 {
	usual := 0
	for i := range w.kinds {
		if w.kinds[i].n > w.kinds[usual].n {
			usual = i
		}
	}
	return uint8(usual)
}

// notFull lists those of the lineup that take another request and their kinds, and leaves only those among the holds and in
// the kinds' numbers.
func (o *Oracle) notFull(w *work) (ids []fleet.TargetID, kinds []uint8) {
	posts := o.board.posts
	w.ids, w.full = w.ids[:0], w.full[:0]
	for i := range w.kinds {
		w.kinds[i].n = 0
	}
	w.holds = slices.DeleteFunc(w.holds, func(h hold) bool { return posts[h.id].isFull })
	own := 0
	for i, id := range w.lineup.ids {
		if posts[id].isFull {
			continue
		}
		if own < len(w.holds) && w.holds[own].id == id {
			w.placeAt(id, own)
			own++
		} else {
			w.kinds[w.kind[i]].count(len(w.ids))
		}
		w.ids, w.full = append(w.ids, id), append(w.full, w.kind[i])
	}
	return w.ids, w.full
}

// holdOf finds what a target holds, or nil.
func (w *work) holdOf(id fleet.TargetID) *hold {
	if int64(id) >= int64(len(w.places)) {
		return nil
	}
	if i := int(w.places[id]); i < len(w.holds) && w.holds[i].id == id {
		return &w.holds[i]
	}
	return nil
}

// kindWith is the kind that a hold is of; nil: it is a target's own.
func (w *work) kindWith(h *hold) *kind {
	for i := range w.kinds {
		if k := &w.kinds[i]; h == &k.hold {
			return k
		}
	}
	return nil
}

// takeOf appends a target that holds what its kind does.
func (w *work) takeOf(k *kind, id fleet.TargetID, as form, b *board, req *policy.Request) {
	// Feeds and workers lie anywhere in memory, and are looked at only where they matter.
	h := k.hold
	if len(w.prompts) > 1 {
		h.size = w.promptFor(w.roster.at(id).worker.BlockSize)
	}
	if as == asTokens && w.isWhole && w.roster.steady.has(id) {
		h.id, h.blocks, h.credit = id, Fresh, 1 // as it would be believed
	} else {
		h.believe(w.roster.at(id).feed, as, w.now)
	}
	w.take(&h, &w.common[k.at], b, req)
}

// take appends a target to the candidates of the decision, as the next in rank; the policy was told the same of it as in as.
func (w *work) take(h *hold, as *policy.Holder, b *board, req *policy.Request) {
	s, p, at := w.roster.at(h.id), &b.posts[h.id], len(w.targets)
	w.targets = append(w.targets, candidate{})
	c := &w.targets[at] // filled in where it stays, as in addCandidate
	c.hold, c.worker, c.rank, c.state, c.cost = *h, s.worker, int(s.rank), p.state, p.cost
	w.addCandidate(at)
	w.choice.Order = append(w.choice.Order, at)
	w.choice.Scores = append(w.choice.Scores, policy.Score{})
	policy.LeastTime{}.ScoreRow(req, &w.cands[at], as, &b.rows[h.id], &w.choice.Scores[at])
}
