package main

import (
	"sync"
	"time"
)

// target is what a trace is replayed to. Lookups come from one goroutine; events of one engine from one, in their order.
type target interface {
	lookup(*lookup)
	apply(*event)
}

// outcome is what came of one replay.
type outcome struct {
	window   time.Duration // that the trace was scaled into
	issued   time.Duration // when the last operation was issued
	drained  time.Duration // when all of them were done
	ops      int           // block operations
	lookups  []float64     // ns that each call took
	behind   []float64     // ns that each call began after its deadline
	expected int           // lookups in the trace
}

// isValid: the operations were issued when they should have been. If not, it says nothing about the target.
func (o *outcome) isValid() bool { return o.issued <= o.window+o.window/100 }

// offered and achieved are block operations a second. What is still waiting when the window ends counts as time taken.
func (o *outcome) offered() float64 { return float64(o.ops) / o.window.Seconds() }

func (o *outcome) achieved() float64 {
	return float64(o.ops) / max(o.window, o.issued, o.drained).Seconds()
}

// isSustained: at least 99 % of what was offered.
func (o *outcome) isSustained() bool { return o.isValid() && o.achieved() >= 0.99*o.offered() }

// clock tells the time since the replay began and waits for a moment of it.
type clock interface {
	now() time.Duration
	wait(until time.Duration)
}

// replay scales a trace into a window and issues everything at its deadline, whether the target keeps up or not: events go
// to queues that writers empty, engines spread over them; a lookup's caller waits for its answer, as a router's does.
func replay(t *trace, to target, c clock, window time.Duration, writers int) *outcome {
	o := &outcome{window: window, ops: t.ops(), expected: len(t.lookups)}
	o.lookups = make([]float64, 0, len(t.lookups))
	o.behind = make([]float64, 0, len(t.lookups))
	deadline := func(at float64) time.Duration { return time.Duration(at / t.seconds * float64(window)) }

	// Room for everything: the one who issues never waits for a writer.
	queues := make([]chan *event, writers)
	var writing, issuing sync.WaitGroup
	for w := range queues {
		queues[w] = make(chan *event, len(t.events))
		writing.Go(func() {
			for e := range queues[w] {
				to.apply(e)
			}
		})
	}
	var lastEvent, lastLookup time.Duration
	issuing.Go(func() {
		for i := range t.events {
			e := &t.events[i]
			c.wait(deadline(e.at))
			lastEvent = c.now()
			queues[e.engine%writers] <- e
		}
		for _, q := range queues {
			close(q)
		}
	})
	issuing.Go(func() {
		for i := range t.lookups {
			due := deadline(t.lookups[i].at)
			c.wait(due)
			lastLookup = c.now()
			to.lookup(&t.lookups[i])
			o.lookups = append(o.lookups, float64(c.now()-lastLookup))
			o.behind = append(o.behind, float64(lastLookup-due))
		}
	})
	issuing.Wait()
	writing.Wait()
	o.issued, o.drained = max(lastEvent, lastLookup), c.now()
	return o
}

// wallClock is the real time.
type wallClock struct{ start time.Time }

func (c wallClock) now() time.Duration { return time.Since(c.start) }

// wait sleeps, to a millisecond or so: a lane that looked at the clock until the moment came would take a core from those
// it measures.
func (c wallClock) wait(until time.Duration) {
	if d := until - c.now(); d > 0 {
		time.Sleep(d)
	}
}

// leastWindow is too short for a sleeper's deadlines to mean anything.
const leastWindow = 10 * time.Millisecond

// search looks for the shortest window that is sustained: it halves the window while it is, then bisects steps times.
// nil: not even the first one was.
func search(first time.Duration, steps int, try func(time.Duration) *outcome) *outcome {
	var best *outcome
	window := first
	for window >= leastWindow {
		o := try(window)
		if !o.isSustained() {
			break
		}
		best = o
		window /= 2
	}
	if best == nil {
		return nil
	}
	for low := window; steps > 0; steps-- {
		window = (low + best.window) / 2
		if o := try(window); o.isSustained() {
			best = o
		} else {
			low = window
		}
	}
	return best
}
