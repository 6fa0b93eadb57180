package client

import (
	"sync"
	"time"
)

// breaker keeps a router from waiting for an oracle that does not answer.
//
// Closed: all calls ask. After limit failures in a row it opens: no call asks until the pause is over. Then it is half
// open: one call asks; its success closes the breaker, its failure opens it again for a longer pause. mu is a leaf lock.
type breaker struct {
	limit int // 0 or less: never opens

	mu       sync.Mutex
	pauses   backoff
	failures int       // in a row
	until    time.Time // zero: closed
	probing  bool      // half open, and one call is asking
	opened   uint64    // times it went from closed to open
}

// allow reports whether a call may ask, and whether it is the one that probes. Each allowed call must end in exactly one
// of success, failure and neither.
func (b *breaker) allow(now time.Time) (ok, probe bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.until.IsZero():
		return true, false
	case b.probing || now.Before(b.until):
		return false, false
	default:
		b.probing = true
		return true, true
	}
}

// success closes the breaker, whichever call it came from: the oracle answers.
func (b *breaker) success() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures, b.until, b.probing = 0, time.Time{}, false
	b.pauses.reset()
}

// failure counts. A call that began before the breaker opened and fails later changes nothing. wait is how long the
// oracle asked to be left alone; above zero it opens the breaker at once, for that long but no longer than the longest
// pause.
func (b *breaker) failure(now time.Time, probe bool, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit <= 0 {
		return
	}
	open := !b.until.IsZero()
	switch {
	case probe && b.probing:
		b.probing = false
	case open:
		return
	default:
		b.failures++
		if b.failures < b.limit && wait <= 0 {
			return
		}
		b.opened++
	}
	b.until = now.Add(max(b.pauses.next(), min(wait, b.pauses.most)))
}

// neither ends a call that says nothing about the oracle: its caller gave up.
func (b *breaker) neither(probe bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if probe {
		b.probing = false
	}
}

// hint ends the pause: another stream has just been answered.
func (b *breaker) hint(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.until.IsZero() && now.Before(b.until) {
		b.until = now
	}
}

// isOpen reports whether calls are kept from asking.
func (b *breaker) isOpen() (open bool, opened uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.until.IsZero(), b.opened
}
