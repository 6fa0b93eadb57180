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
)

// goesQuick reports whether decisions of an oracle with this configuration can go the quick way.
func goesQuick(c *Config) bool {
	_, ok := c.Policy.(policy.LeastTime)
	return ok && c.Shadow == nil
}

// pick chooses from the board and leaves the first places, and the deepest match wherever it ranks, as the candidates of
// a decision in which they are ranked. The caller holds deciding.
func (o *Oracle) pick(r *RouteRequest, req *policy.Request, now time.Time, w *work) error {
	ro, b := w.roster, &o.board
	if !o.isCurrent(ro, r.Model) {
		return errLeft
	}
	o.follow(ro, now)

	table := policy.Table{Rows: b.rows, Chosen: b.chosen, Members: w.lineup.ids}
	if ro.full > 0 {
		table.Members = o.notFull(w)
	}
	if len(table.Members) == 0 {
		return errNobody
	}
	w.eligible = len(table.Members)
	deepest := w.holders(r.Prompt.Length, b)
	table.Holders = w.table
	end := deepest
	if len(table.Members) == len(w.holds) {
		w.alike = alike{} // who held it is full
	}
	shared, isShared := w.commonHold(r.Prompt.Length)
	if isShared {
		h := policy.NewHolder(r.Prompt.Length, &policy.Candidate{
			Cached: shared.usable, Expected: shared.guess, Held: shared.held.Total(), Shared: shared.shared,
		})
		table.Common = &h
		if end = w.deeper(deepest, &shared); end != deepest {
			deepest = nil // most have it
		}
	}
	w.last, w.session = o.sessions.get(r.Session, o.fleet.View())
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
	req.Prices = o.prices(r, w.end(end), w.share, now)
	req.Places = max(req.Places, rankedPlaces)
	policy.LeastTime{}.Pick(req, &table, &w.picked)

	for i := range w.picked.Top {
		id := table.Members[w.picked.Top[i].Member]
		if h := w.holdOf(id); h != nil {
			w.take(h, b, req)
			deepest = other(deepest, h)
			continue
		}
		s := ro.at(id)
		h := shared
		h.size = w.promptFor(s.worker.BlockSize)
		h.believe(s.feed, r.Prompt.form(), now)
		w.take(&h, b, req)
	}
	if deepest != nil {
		w.take(deepest, b, req)
	}
	w.choice.Best, w.choice.Reason = 0, w.picked.Reason
	return nil
}

// other is h unless it is x.
func other(h, x *hold) *hold {
	if h == x {
		return nil
	}
	return h
}

// notFull lists those of the lineup that take another request, and leaves only those among the holders.
func (o *Oracle) notFull(w *work) []fleet.TargetID {
	posts := o.board.posts
	w.ids = w.ids[:0]
	for _, id := range w.lineup.ids {
		if !posts[id].isFull {
			w.ids = append(w.ids, id)
		}
	}
	w.holds = slices.DeleteFunc(w.holds, func(h hold) bool { return posts[h.id].isFull })
	for i := range w.holds {
		w.placeAt(w.holds[i].id, i)
	}
	return w.ids
}

// holders tells the policy what each holder holds of a prompt of so many tokens, and finds the deepest match; nil: nobody
// holds anything.
func (w *work) holders(length int, b *board) (deepest *hold) {
	w.table = w.table[:0]
	var c policy.Candidate
	for i := range w.holds {
		h := &w.holds[i]
		c.Target, c.Cached, c.Expected, c.Held, c.Shared = h.id, h.usable, h.guess, h.held.Total(), h.shared
		if c.Cost = nil; h.usable[fleet.Device] < h.usable.Total() { // its rates matter
			c.Cost = b.posts[h.id].cost
		}
		w.table = append(w.table, policy.NewHolder(length, &c))
		deepest = w.deeper(deepest, h)
	}
	return deepest
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

// take appends a target to the candidates of the decision, as the next in rank.
func (w *work) take(h *hold, b *board, req *policy.Request) {
	s, p := w.roster.at(h.id), &b.posts[h.id]
	w.targets = append(w.targets, candidate{worker: s.worker, rank: int(s.rank), hold: *h, state: p.state, cost: p.cost})
	at := len(w.targets) - 1
	w.addCandidate(at)
	w.choice.Order = append(w.choice.Order, at)
	w.choice.Scores = append(w.choice.Scores, policy.Score{})
	policy.LeastTime{}.Score(req, &w.cands[at], &w.choice.Scores[at])
}
