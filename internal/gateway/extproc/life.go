package extproc

import (
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// life is one booking, from the choice to the end of its request. The request's own stream, that of an observer and the
// access log tell it what they see, in any order: its steps go forward only, and it ends once.
type life struct {
	s       *Service
	answer  *oracle.Answer
	seesAll bool          // response bodies come by the request's own stream: an observer has nothing to add
	byLog   bool          // an access log tells its end
	request string        // the proxy's name of it; empty: not said
	renewed time.Time     // the last news; guarded by Service.mu
	isLeft  bool          // its stream has ended, and the log's word is awaited; guarded by Service.mu
	doubted time.Time     // when it was last asked whether another replica has heard it; guarded by Service.mu
	settles time.Time     // not zero: it has ended well, and its observer may still say more; guarded by Service.mu
	due     time.Time     // when Service.Tick has something to do about it; guarded by Service.mu, as is the next
	place   int           // in Service.dues, or nowhere
	over    chan struct{} // closed at the end

	mu         sync.Mutex
	isOver     bool
	isAnswered bool   // response headers were seen
	isSeen     bool   // response bodies are
	isStream   bool   // they come piece by piece
	hasBegun   bool   // the first has come
	server     string // where it was last said to be; empty: not said
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
	l.close()
}

// close forgets it, whoever has told its end. mu is held.
func (l *life) close() {
	l.isOver = true
	close(l.over)
	l.s.forget(l)
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
	l.dispatched(served)
	switch {
	case status >= 500:
		l.end(oracle.Failed, nil)
	case status >= 300: // refused by the engine: nothing was computed
		l.end(oracle.Cancelled, nil)
	case isEnd:
		l.finish()
	}
}

// dispatched tells who serves it. mu is held.
func (l *life) dispatched(address string) {
	l.server = address
	l.tell(oracle.Dispatched, func(e *oracle.Event) { e.Worker, e.Rank = l.target(address) })
}

// target finds the target that an address is. Nothing is said of one that is not known.
func (l *life) target(address string) (worker string, rank int) {
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

// goesOn notes what the access log says of a request under way.
func (l *life) goesOn(served string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver {
		return false
	}
	if served != "" && served != l.server {
		l.dispatched(served)
	} else {
		l.tell(oracle.Generating, nil)
	}
	l.s.heardOf(l, now)
	return true
}

// logged notes the access log's last word: who has served it, how it went, and how long the first byte took where that is a
// token.
func (l *life) logged(served string, step oracle.Step, firstByte time.Duration, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver {
		return false
	}
	if !l.isAnswered || served != "" && served != l.server {
		l.isAnswered = true
		l.dispatched(served)
	}
	if firstByte > 0 && !l.hasBegun {
		l.hasBegun = true
		l.tell(oracle.FirstToken, func(e *oracle.Event) { e.TTFT = firstByte.Seconds() })
	}
	switch {
	case step != oracle.Finished:
		l.end(step, nil)
	case l.seesAll || l.isSeen:
		// What was cached is said by another stream, whose end may come later than this; its beginning has come long ago.
		l.s.settle(l, now.Add(observerWait))
	default:
		l.finish()
	}
	return true
}

// settled ends one that has ended well, with what was seen of it.
func (l *life) settled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish()
}

// lost ends one of which the access log says nothing.
func (l *life) lost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isOver {
		l.end(oracle.Cancelled, nil)
		l.s.cfg.Observer.Logged(EntryLost)
	}
}

// endedElsewhere forgets one of which another replica has heard the end.
func (l *life) endedElsewhere() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isOver {
		l.close()
	}
}

// observerWait is how long the end of a request waits for its observer, whose messages come by another stream.
const observerWait = 250 * time.Millisecond

// unheard ends one that the proxy does not know of: no access log will name it.
func (l *life) unheard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(oracle.Cancelled, nil)
}

// left notes that the request's own stream has ended.
func (l *life) left() {
	if l.byLog && l.s.await(l) {
		return
	}
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
