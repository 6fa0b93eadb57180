package oracle

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// What a replica needs beyond what a reporter does: to say where a target stands, to copy it for others, and to take what
// another has copied.

// Standing is where a session's target stands.
type Standing struct {
	Applied    uint64 // the last batch that the contents show
	IsAwaiting bool   // a snapshot was asked for, or nothing is known yet
	// IsPartial: something was given up or refused for want of room, so that equal reports need not give equal digests.
	IsPartial bool
	// ByName: blocks are named by engine hashes, which a copy of the contents does not have.
	ByName bool
	// Digests are over what was told, by tier, as a reporter's would be.
	Digests [fleet.NumTiers]Digest
}

// Standing says where the target stands. The error is the cause for which the session was kicked.
func (s *BlockSession) Standing() (Standing, error) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session != s {
		return Standing{}, s.lost()
	}
	return f.standing(), nil
}

// lost is why the session has lost its feed. The feed is locked; who took it has set the cause.
func (s *BlockSession) lost() error {
	if s.cause == nil {
		return Fault(Aborted, ReasonSuperseded, "", "", "the session is closed")
	}
	return s.cause
}

// standing sums the feed up; it is locked.
func (f *feed) standing() Standing {
	st := Standing{Applied: f.applied, IsAwaiting: f.awaiting || f.ledger == nil, ByName: f.byHash}
	if f.ledger == nil {
		return st
	}
	st.IsPartial = f.ledger.IsPartial()
	if f.names != nil {
		st.IsPartial = st.IsPartial || f.names.IsShort()
	}
	if f.byHash && f.names == nil {
		return st // restored: the names are to come
	}
	for t := range st.Digests {
		st.Digests[t] = f.digest(fleet.Tier(t))
	}
	return st
}

// Copy copies the target's contents into c, of the moment that the standing and the doubt are of. Nothing is copied of a
// target that awaits a snapshot, or whose blocks are named by engine hashes.
func (s *BlockSession) Copy(c *Contents) (st Standing, isDoubtful bool, err error) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	c.Reset()
	if f.session != s {
		return Standing{}, false, s.lost()
	}
	st = f.standing()
	if !st.IsAwaiting && !st.ByName {
		f.ledger.Export(c)
	}
	return st, f.doubtful, nil
}

// Owe notes that the snapshot under way was taken of a target that had been told more; see Contents.Lost. Without a snapshot
// under way it does nothing.
func (s *BlockSession) Owe(lost [fleet.NumTiers]Digest) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session == s && f.building != nil {
		f.building.Owe(lost)
	}
}

// Ask makes the oracle ask the reporter for a snapshot unless one is awaited or under way.
func (s *BlockSession) Ask(reason ResyncReason) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session != s || f.awaiting || f.building != nil {
		return
	}
	f.tell(f.await(reason))
	f.sign()
}

// Mistrust makes the target STALE while whoever passes its reports on is not heard. It ends with the session.
func (s *BlockSession) Mistrust(is bool, now time.Time) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session != s {
		return
	}
	f.isMistrusted = is
	if !is {
		f.heardAt.Store(now.UnixNano())
	}
	f.sign()
}

// Rest ends a session of a hello that was replayed: the target is unverified until its reporter has spoken, as one that was
// restored, and has had no stream since last, or for a little longer than the lease if that is later.
func (s *BlockSession) Rest(last, now time.Time) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if lost := now.Add(-f.o.cfg.WorkerLease - time.Second); last.Before(lost) {
		last = lost // LOST at once, and forgotten no sooner than others
	} else if last.After(now) {
		last = now // the clock was set back
	}
	if s.end(last) {
		f.isUnverified = true
		f.sign()
	}
}
