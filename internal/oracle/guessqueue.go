package oracle

import "time"

// The queue of a guesses is a binary heap on when each goes, written out because container/heap would go through an
// interface on the path of each decision. Times lie in the queue itself: to look for a place is not to look at guesses, which
// lie anywhere. Each guess knows its place, so that it can leave from the middle: the queue has the living guesses and
// nothing else.

// due is when a guess goes, from the epoch.
type due struct {
	at    time.Duration
	guess *guess
}

// clock is the time since the first now, which it may be.
func (g *guesses) clock(now time.Time) time.Duration {
	if g.epoch.IsZero() {
		g.epoch = now
	}
	return now.Sub(g.epoch)
}

func (g *guesses) push(x *guess, at time.Duration) {
	x.place = len(g.queue)
	g.queue = append(g.queue, due{at, x})
	g.up(x.place)
}

// unqueue takes out the guess at a place.
func (g *guesses) unqueue(i int) {
	n := len(g.queue) - 1
	g.swap(i, n)
	g.queue[n] = due{}
	g.queue = g.queue[:n]
	if i < n {
		g.fix(i)
	}
}

// fix puts a guess whose time has changed where it belongs.
func (g *guesses) fix(i int) {
	g.up(i)
	g.down(i)
}

func (g *guesses) swap(i, k int) {
	q := g.queue
	q[i], q[k] = q[k], q[i]
	q[i].guess.place, q[k].guess.place = i, k
}

func (g *guesses) up(i int) {
	for i > 0 {
		up := (i - 1) / 2
		if g.queue[i].at >= g.queue[up].at {
			return
		}
		g.swap(i, up)
		i = up
	}
}

func (g *guesses) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(g.queue) {
			return
		}
		if c+1 < len(g.queue) && g.queue[c+1].at < g.queue[c].at {
			c++
		}
		if g.queue[c].at >= g.queue[i].at {
			return
		}
		g.swap(i, c)
		i = c
	}
}
