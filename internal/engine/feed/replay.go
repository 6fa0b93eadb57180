package feed

import "time"

// ask opens a replay; what comes live waits for its end.
func (f *Feed[M]) ask(from uint64, now time.Time) {
	f.isOpen, f.isRefused, f.isBegun, f.from = true, false, false, from
	f.timeout, f.retryAt, f.waitTo = now.Add(f.cfg.ReplayTimeout), time.Time{}, time.Time{}
	f.stats.Replays++
	f.h.Replay(from)
}

// Replayed takes a message of a replay, in the order of the answer.
func (f *Feed[M]) Replayed(sequence uint64, m M, now time.Time) {
	if !f.isOpen || f.isRefused {
		return
	}
	f.timeout = now.Add(f.cfg.ReplayTimeout)
	isFirst := !f.isBegun
	f.isBegun = true
	if f.isProving {
		f.isProving = false
		if sequence != f.next-1 {
			f.refuse()
			return
		}
	}
	if f.trust == Unheard && len(f.waiting) > 0 && f.waiting[0].sequence < sequence {
		f.start(f.waiting[0].sequence) // it came live, and the ring has forgotten it already
	}
	if f.trust != Unheard && sequence > f.next {
		f.drain(now)
	}
	switch {
	case f.trust == Unheard:
		f.start(sequence)
	case sequence < f.next && f.isRepeat(sequence, m):
		f.stats.Repeated++
		return
	case sequence < f.next:
		f.refuse()
		return
	case sequence > f.next && sequence-f.next > leap:
		f.refuse()
		return
	case sequence > f.next && isFirst:
		// The ring has everything from here on: right, if not all, instead of all, and perhaps not right.
		waiting, bytes := f.waiting, f.bytes
		f.stats.Missing += sequence - f.next
		f.begin(Overrun)
		f.waiting, f.bytes = waiting, bytes
		f.start(sequence)
	case sequence > f.next:
		f.skip(sequence, now) // the engine never had them
	}
	f.stats.Refilled++
	f.apply(sequence, m, now)
	f.covered = f.next
}

// refuse ends the life that a replay has disproved. The history of the new one is asked for when this answer is over.
func (f *Feed[M]) refuse() {
	f.isRefused = true
	f.begin(Restarted)
}

// ReplayEnd says that the answer is over.
func (f *Feed[M]) ReplayEnd(now time.Time) {
	if !f.isOpen {
		return
	}
	f.isOpen, f.attempt = false, 0
	if f.isProving {
		// A ring without the message that was applied last is another engine's.
		f.isProving = false
		f.refuse()
	}
	if f.isRefused {
		f.ask(f.cfg.First, now)
		return
	}
	f.release(now, f.from < f.next)
}

// ReplayFailed says that no more of the answer will come.
func (f *Feed[M]) ReplayFailed(now time.Time) {
	if !f.isOpen {
		return
	}
	f.isOpen = false
	f.stats.Failed++
	f.attempt++
	if f.attempt < f.cfg.Attempts {
		f.retryAt = now.Add(time.Second << (f.attempt - 1))
		return
	}
	f.abandon(now)
}

// abandon goes on without a replay.
func (f *Feed[M]) abandon(now time.Time) {
	f.isUnproven = f.isUnproven || f.isProving && f.trust != Unheard
	f.isOpen, f.isProving, f.isRefused, f.attempt, f.retryAt = false, false, false, 0, time.Time{}
	f.release(now, false)
}

// release lets what waited go its way. What is missing among it is asked for if that can help, else given up.
func (f *Feed[M]) release(now time.Time, canAsk bool) {
	all := f.waiting
	f.waiting, f.bytes = nil, 0
	for i, x := range all {
		isPlaced := f.trust != Unheard && !f.isUnproven
		if isPlaced && x.sequence < f.next {
			f.stats.Repeated++ // it is of this connection, and so of this life
			continue
		}
		if isPlaced && !canAsk && x.sequence > f.next && x.sequence-f.next <= leap {
			f.skip(x.sequence, now)
		}
		f.place(x.sequence, x.m, now)
		if f.isHeld() {
			// Another replay; the rest waits for it.
			for _, x := range all[i+1:] {
				f.Live(x.sequence, x.m, now)
			}
			return
		}
	}
	f.waitTo = time.Time{}
}

// look asks for what may have gone by unheard. A subscription is there a little after the connection is: what is published
// after the replay's answer and before that goes to nobody, and so does the last message of a burst that a full queue drops.
// Only the next message would tell, and an idle engine sends none.
func (f *Feed[M]) look(now time.Time) {
	f.lookAt = now.Add(f.lookNext)
	f.lookNext = min(4*f.lookNext, f.cfg.Quiet)
	f.stats.Looks++
	// If nobody answered when the life was to be proven, that comes first.
	f.isProving, f.isUnproven = f.isUnproven, false
	switch {
	case f.isProving:
		f.ask(f.next-1, now)
	case f.trust != Unheard:
		f.ask(f.next, now)
	default:
		f.ask(f.cfg.First, now)
	}
}

// canLook: there is somebody to ask, and no answer on its way.
func (f *Feed[M]) canLook() bool { return f.cfg.HasReplay && !f.lookAt.IsZero() && !f.isHeld() }

// outdate drops what is in doubt, for what the ring has, or for what comes from now on.
func (f *Feed[M]) outdate(now time.Time) {
	if f.cfg.HasReplay {
		f.begin(Outdated)
		f.isProving = false
		f.ask(f.cfg.First, now)
		return
	}
	f.stats.Lives++
	f.h.NewLife(Outdated)
	f.setTrust(Partial)
}

// Tick does what is due, and returns when to call it next, at the latest.
func (f *Feed[M]) Tick(now time.Time) time.Time {
	if f.isOpen && !now.Before(f.timeout) {
		f.ReplayFailed(now)
	}
	if !f.retryAt.IsZero() && !now.Before(f.retryAt) {
		switch {
		case f.isProving:
			f.ask(f.next-1, now)
		case f.trust != Unheard:
			f.ask(f.next, now)
		default:
			f.ask(f.cfg.First, now)
		}
	}
	if !f.waitTo.IsZero() && !now.Before(f.waitTo) {
		f.giveUp(now)
	}
	if f.trust == Doubtful && !f.isHeld() && !now.Before(f.doubtSince.Add(f.cfg.DoubtFor)) {
		f.outdate(now)
	}
	if f.canLook() && !now.Before(f.lookAt) {
		f.look(now)
	}
	due := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(due) {
			due = t
		}
	}
	if f.isOpen {
		sooner(f.timeout)
	}
	if f.canLook() {
		sooner(f.lookAt)
	}
	sooner(f.retryAt)
	sooner(f.waitTo)
	if f.trust == Doubtful && !f.isHeld() {
		sooner(f.doubtSince.Add(f.cfg.DoubtFor))
	}
	return due
}
