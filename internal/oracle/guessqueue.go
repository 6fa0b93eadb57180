package oracle

// The queue of a guesses is a binary heap on due.at, written out because container/heap would box every entry on the
// path of each decision.

func (g *guesses) push(d due) {
	g.queue = append(g.queue, d)
	q := g.queue
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if !q[i].at.Before(q[up].at) {
			break
		}
		q[i], q[up] = q[up], q[i]
		i = up
	}
}

func (g *guesses) pop() due {
	q := g.queue
	top := q[0]
	n := len(q) - 1
	q[0] = q[n]
	q = q[:n]
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && q[c+1].at.Before(q[c].at) {
			c++
		}
		if !q[c].at.Before(q[i].at) {
			break
		}
		q[i], q[c] = q[c], q[i]
		i = c
	}
	g.queue = q
	return top
}
