package extproc

import (
	"container/heap"
	"time"
)

// dues are lives in the order in which something has to be done about them, so that nobody looks at all of them: of those that no
// access log ends there may be tens of thousands. It has each life that is not over, once. Service.mu guards it.
type dues []*life

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (d *dues) Len() int           { return len(*d) }
func (d *dues) Less(i, k int) bool { return (*d)[i].due.Before((*d)[k].due) }

func (d *dues) Swap(i, k int) {
	q := *d
	q[i], q[k] = q[k], q[i]
	q[i].place, q[k].place = i, k
}

func (d *dues) Push(x any) {
	l := x.(*life) //nolint:forcetypeassert // begin pushes nothing else
	l.place = len(*d)
	*d = append(*d, l)
}

func (d *dues) Pop() any {
	q := *d
	l := q[len(q)-1]
	q[len(q)-1] = nil
	*d = q[:len(q)-1]
	l.place = nowhere
	return l
}

const nowhere = -1

// plan puts a life that has changed where it belongs, unless it is out. The caller holds mu.
func (s *Service) plan(l *life) {
	if l.place != nowhere {
		l.due = s.dueOf(l)
		heap.Fix(&s.dues, l.place)
	}
}

// unplan takes a life out: it is over, or about to be. The caller holds mu.
func (s *Service) unplan(l *life) {
	if l.place != nowhere {
		heap.Remove(&s.dues, l.place)
	}
}

// dueOf is when something has to be done about a life: it is to be ended, or it is to be renewed, or another replica may have heard
// its end.
func (s *Service) dueOf(l *life) time.Time {
	switch {
	case !l.settles.IsZero():
		return l.settles
	case !l.isLeft:
		return l.renewed.Add(renewEvery)
	}
	end := l.renewed.Add(s.cfg.LogSilence)
	if ask := l.doubted.Add(renewEvery); s.cfg.HasReplicas && ask.Before(end) {
		return ask
	}
	return end
}
