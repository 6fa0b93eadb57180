package oracle

import (
	"container/list"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// lru remembers where a session went last, for the newest sessions. What asks two models in one session has a place in each. The
// deciding lock guards it.
type lru struct {
	max   int
	order *list.List // of sessionEntry; front is the newest
	byKey map[sessionKey]*list.Element
}

// sessionKey names a session's requests to one model.
type sessionKey struct{ model, session string }

type sessionEntry struct {
	key    sessionKey
	target fleet.TargetID
	worker *fleet.Worker // tells a recycled id from the target it was
}

func newLRU(limit int) *lru {
	return &lru{max: limit, order: list.New(), byKey: make(map[sessionKey]*list.Element)}
}

// get finds a session's target: SessionStayed if the life it was in goes on, SessionWorkerGone if not.
func (l *lru) get(key sessionKey, view *fleet.View) (fleet.TargetID, SessionOutcome) {
	if key.session == "" {
		return 0, SessionNone
	}
	e := l.byKey[key]
	if e == nil {
		return 0, SessionNone
	}
	s, ok := e.Value.(sessionEntry)
	if !ok {
		return 0, SessionNone
	}
	w := view.Target(s.target)
	if w == nil || !sameLife(w, s.worker) {
		return 0, SessionWorkerGone
	}
	return s.target, SessionStayed
}

// put remembers; the oldest session beyond the bound is forgotten.
func (l *lru) put(key sessionKey, target fleet.TargetID, w *fleet.Worker) {
	if e := l.byKey[key]; e != nil {
		e.Value = sessionEntry{key, target, w}
		l.order.MoveToFront(e)
		return
	}
	l.byKey[key] = l.order.PushFront(sessionEntry{key, target, w})
	if l.order.Len() > l.max {
		oldest := l.order.Back()
		l.order.Remove(oldest)
		if s, ok := oldest.Value.(sessionEntry); ok {
			delete(l.byKey, s.key)
		}
	}
}
