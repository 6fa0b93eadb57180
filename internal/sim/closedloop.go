package sim

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
)

// closedLoop is users who wait for their answers. It is the fleet's observer, before the chooser's.
type closedLoop struct {
	trace     *Trace
	o         *RunOptions
	inner     Observer
	sessions  [][]*Request
	shared    []bool // by hash: more than one session has it
	names     uint32 // hashes in the trace
	order     []int
	handedOut int
	users     map[*Request]*user // by the request they wait for
	due       dueUsers
	warm      float64
	isWarm    bool
	numbers   int
}

// user works through one session at a time.
type user struct {
	at      float64 // when the next request is sent
	order   int     // of two at one moment the one that began first
	request *Request
	rest    []*Request
}

// newClosedLoop takes the place of the options' observer.
func newClosedLoop(tr *Trace, o *RunOptions) (*closedLoop, error) {
	l := &closedLoop{
		trace: tr, o: o, inner: o.Observer, users: map[*Request]*user{}, warm: o.Warmup * o.Horizon,
	}
	if l.inner == nil {
		l.inner = noReports{}
	}
	o.Observer = l
	l.findSessions()
	if len(l.sessions) == 0 {
		return nil, errNoSessions
	}
	rnd := rand.New(rand.NewPCG(o.Seed, 2))
	l.order = rnd.Perm(len(l.sessions))
	for i := range o.Users {
		// They begin anywhere in a session, one after the other over the first third of the warm-up.
		u := &user{order: i, at: rnd.Float64() * l.warm / 3}
		session, err := l.session()
		if err != nil {
			return nil, err
		}
		from := rnd.IntN(len(session))
		u.request, u.rest = session[from], session[from+1:]
		heap.Push(&l.due, u)
	}
	return l, nil
}

// findSessions sorts the requests by session and the hashes into private and shared ones.
func (l *closedLoop) findSessions() {
	at := map[string]int{}
	var owner []int32 // by hash: session + 1
	for _, r := range l.trace.Requests {
		if r.Session == "" {
			continue
		}
		s, ok := at[r.Session]
		if !ok {
			s = len(l.sessions)
			at[r.Session] = s
			l.sessions = append(l.sessions, nil)
		}
		l.sessions[s] = append(l.sessions[s], r)
		for _, h := range r.hashes {
			for int(h) >= len(owner) {
				owner, l.shared = append(owner, 0), append(l.shared, false)
			}
			switch owner[h] {
			case 0:
				owner[h] = int32(s + 1)
			case int32(s + 1):
			default:
				l.shared[h] = true
			}
		}
	}
	l.names = uint32(len(owner))
}

// session hands out the next session.
func (l *closedLoop) session() ([]*Request, error) {
	round := l.handedOut / len(l.order)
	original := l.sessions[l.order[l.handedOut%len(l.order)]]
	l.handedOut++
	if most := (1 << 32) / max(l.trace.BlockSize, 1) / max(int(l.names), 1); round >= most {
		return nil, fmt.Errorf("RunOptions.Horizon: the sessions were handed out %d times, want fewer for the hashes to be different", round)
	}
	again := make([]*Request, len(original))
	for i, r := range original {
		c := &Request{
			Index: l.numbers, Input: r.Input, Output: r.Output, Session: fmt.Sprintf("%s/%d", r.Session, l.handedOut), Delay: r.Delay,
			blockSize: r.blockSize, hashes: r.hashes,
		}
		l.numbers++
		if round == 0 {
			c.twin = r
		} else {
			c.hashes = make([]uint32, len(r.hashes))
			for k, h := range r.hashes {
				if !l.shared[h] {
					h += uint32(round) * l.names
				}
				c.hashes[k] = h
			}
		}
		again[i] = c
	}
	return again, nil
}

func (l *closedLoop) next() float64 {
	if len(l.due) == 0 {
		return math.Inf(1)
	}
	return l.due[0].at
}

func (l *closedLoop) take() (*Request, bool) {
	u, ok := heap.Pop(&l.due).(*user)
	if !ok {
		return nil, false
	}
	l.users[u.request] = u
	begins := !l.isWarm && u.at >= l.warm
	l.isWarm = l.isWarm || begins
	return u.request, begins
}

func (l *closedLoop) refused(r *Request) { l.goOn(r, l.users[r].at) }

// goOn lets the user who waited for r think about the next request.
func (l *closedLoop) goOn(r *Request, now float64) {
	u := l.users[r]
	delete(l.users, r)
	if u == nil {
		return
	}
	thought := 1.0
	if len(u.rest) == 0 {
		var err error
		if u.rest, err = l.session(); err != nil {
			return // this user goes home; the rest of the run is measured as it is
		}
	} else {
		thought = min(u.rest[0].Delay, l.o.MostThought)
	}
	u.at, u.request, u.rest = now+thought, u.rest[0], u.rest[1:]
	if u.at <= l.o.Horizon {
		heap.Push(&l.due, u)
	}
}

// FirstToken implements Observer.
func (l *closedLoop) FirstToken(t float64, j *Job) { l.inner.FirstToken(t, j) }

// Finished implements Observer.
func (l *closedLoop) Finished(t float64, j *Job) {
	l.inner.Finished(t, j)
	l.goOn(j.Request, t)
}

// dueUsers is a heap by time.
type dueUsers []*user

// Len implements heap.Interface.
func (h dueUsers) Len() int { return len(h) }

// Less implements heap.Interface.
func (h dueUsers) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}

// Swap implements heap.Interface.
func (h dueUsers) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *dueUsers) Push(x any) {
	if u, ok := x.(*user); ok {
		*h = append(*h, u)
	}
}

// Pop implements heap.Interface.
func (h *dueUsers) Pop() any {
	s := *h
	u := s[len(s)-1]
	*h = s[:len(s)-1]
	return u
}
