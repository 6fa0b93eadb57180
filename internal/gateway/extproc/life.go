package extproc

import (
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// life is one booking, from the choice to the end of its request. The request's own stream and that of an observer tell it
// what they see.
type life struct {
	s       *Service
	answer  *oracle.Answer
	seesAll bool          // response bodies come by the request's own stream: an observer has nothing to add
	renewed time.Time     // guarded by Service.mu
	over    chan struct{} // closed at the end

	mu         sync.Mutex
	isOver     bool
	isAnswered bool // response headers were seen
	isSeen     bool // response bodies are
	isStream   bool // they come piece by piece
	hasBegun   bool // the first has come
	usage      usageReader
}

// tell reports a step. mu is held.
func (l *life) tell(step oracle.Step, change func(*oracle.Event)) {
	if l.isOver {
		return
	}
	e := &oracle.Event{Decision: l.answer.Decision, Step: step, Cached: -1}
	if change != nil {
		change(e)
	}
	// What becomes of a step is counted by the oracle.
	_, _ = l.s.cfg.Oracle.Progress(e, time.Now())
}

// end tells the last step.
func (l *life) end(step oracle.Step, change func(*oracle.Event)) {
	if l.isOver {
		return
	}
	l.tell(step, change)
	l.isOver = true
	close(l.over)
	l.s.forget(l.answer.Decision)
}

// renew says that the request lives.
func (l *life) renew(time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell(oracle.Generating, nil)
}

// answered notes the headers of the response: who served it (empty: not said), and how it went.
func (l *life) answered(served string, status int, isStream, isEnd bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isAnswered {
		return
	}
	l.isAnswered, l.isStream = true, isStream
	l.tell(oracle.Dispatched, func(e *oracle.Event) { e.Worker, e.Rank = l.server(served) })
	switch {
	case status >= 500:
		l.end(oracle.Failed, nil)
	case status >= 300: // refused by the engine: nothing was computed
		l.end(oracle.Cancelled, nil)
	case isEnd:
		l.finish()
	}
}

// server finds the target that an address is. Nothing is said of one that is not known.
func (l *life) server(address string) (worker string, rank int) {
	a := l.answer
	if address == "" || address == oracle.HostPort(a.Target.Address) {
		return a.Target.Worker, a.Target.Rank
	}
	for i := range a.Alternatives {
		if t := &a.Alternatives[i].Target; address == oracle.HostPort(t.Address) {
			return t.Worker, t.Rank
		}
	}
	worker, _ = l.s.cfg.Oracle.At(a.Model, address)
	return worker, 0
}

// saw notes a piece of the response's body.
func (l *life) saw(body []byte, isEnd bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver {
		return
	}
	l.isSeen = true
	l.usage.add(body)
	if len(body) > 0 && !l.hasBegun {
		l.hasBegun = true
		if l.isStream {
			l.tell(oracle.FirstToken, nil)
		}
	}
	if isEnd {
		l.finish()
	}
}

// trailed notes the trailers of the response, which end it.
func (l *life) trailed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish()
}

// finish ends a request that has gone well, with what its body said. mu is held.
func (l *life) finish() {
	l.end(oracle.Finished, func(e *oracle.Event) {
		if u, ok := l.usage.find(); ok {
			e.OutputTokens, e.Cached, e.PromptTokens = u.output, u.cached, u.prompt
		}
	})
}

// watched notes that an observer will see the bodies.
func (l *life) watched() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isSeen = true
}

// observerWait is how long the end of a request waits for its observer, whose messages come by another stream.
const observerWait = 250 * time.Millisecond

// left notes that the request's own stream has ended.
func (l *life) left() {
	l.mu.Lock()
	mayBeWatched := l.isAnswered && !l.seesAll && !l.isOver && (l.isSeen || l.s.hasObservers.Load())
	l.mu.Unlock()
	if mayBeWatched {
		t := time.NewTimer(observerWait)
		defer t.Stop()
		select {
		case <-l.over:
		case <-t.C:
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isAnswered && !l.isSeen && !l.seesAll {
		l.finish() // it may have been given up; nobody can tell
		return
	}
	l.end(oracle.Cancelled, nil)
}
