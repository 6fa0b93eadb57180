package replica

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// target is what a node knows of one target. Node.mu guards it.
type target struct {
	key   key
	claim uint64 // of its owner
	// origin is the owner, in one life of its.
	origin string
	boot   uint64
	local  *Stream // it is this replica, and the stream is open
	rival  *Stream // it was, until a hello came that has not been accepted yet
	began  uint64  // position of the present session's first entry

	// Of another's session:
	id         uint64
	number     uint64 // of the last entry
	parts      []byte // of a message that has come in part
	hello      *oracle.Hello
	session    *oracle.BlockSession
	applier    *wire.Applier
	isSkipping bool // an announcement tells what is known
	heard      time.Time

	lacks   bool // something is missing; its origin is asked for it
	nextAsk time.Time
	pause   time.Duration

	again again
}

// apply takes in one entry. Node.mu is held.
func (n *Node) apply(data []byte, at uint64, now time.Time) {
	e, err := decodeEntry(data)
	if err != nil {
		n.count.malformed.Add(1)
		return
	}
	if e.GetClaim() > at || e.GetLog() != 0 && int64(e.GetLog()) != n.logID {
		// Claimed in a log that is no more, by who had not heard of this one. To follow such a claim would be to pass over all
		// others until this log is as long as that was.
		n.count.overtaken.Add(1)
		if s := n.sessions[e.GetSession()]; s != nil && e.GetOrigin() == n.cfg.Name && e.GetBoot() == n.boot {
			s.void()
			wake(n.todo)
		}
		return
	}
	if e.GetAction() != 0 {
		n.act(e, at)
		return
	}
	t := n.target(key{e.GetWorker(), e.GetDpRank()})
	if t == nil {
		n.count.refused.Add(1)
		return
	}
	claim := e.GetClaim()
	if claim == 0 {
		claim = at
	}
	if e.GetOrigin() == n.cfg.Name && e.GetBoot() == n.boot {
		n.count.own.Add(1)
		n.applyOwn(t, e, claim)
		return
	}
	n.count.followed.Add(1)
	n.count.followedBytes.Add(uint64(len(data)))
	if claim < t.claim || n.late[t.key] != nil { // a stream that came late will claim, later than all there is
		n.count.overtaken.Add(1)
		return
	}
	if !n.isAlone() {
		n.hear(e.GetOrigin(), e.GetBoot(), now)
	}
	switch {
	case n.replay.isOn && t.id == 0 && e.GetNumber() != 1:
		n.count.skippedEntries.Add(1) // of a session that began before the log: what was loaded shows it
		return
	case e.GetEnd():
		if e.GetSession() == t.id {
			n.leave(t, now)
		}
		return
	case e.GetNumber() == 1 && e.GetSession() != t.id:
		n.begin(t, e, claim)
		t.began = at
	case e.GetSession() != t.id:
		t.claim, t.origin, t.boot = claim, e.GetOrigin(), e.GetBoot() // whom to ask
		n.count.gaps.Add(1)
		n.lack(t)
		return
	case e.GetNumber() <= t.number:
		n.count.repeated.Add(1)
		return
	case e.GetNumber() != t.number+1:
		n.count.gaps.Add(1)
		n.drop(t)
		n.lack(t)
		t.number = e.GetNumber() // said once; what follows is of no use before an announcement
		return
	}
	t.number, t.heard = e.GetNumber(), now
	n.collect(t, e, now)
}

// applyOwn takes note that an entry of this replica's has its place in the log.
func (n *Node) applyOwn(t *target, e *replicav1.Entry, claim uint64) {
	s := n.sessions[e.GetSession()]
	if e.GetNumber() != 1 || claim < t.claim || s == nil {
		return
	}
	if t.session != nil {
		n.leave(t, time.Now()) // the local session takes over, and if that is refused nobody speaks for the target
	}
	n.drop(t)
	if t.local != nil && t.local != s {
		t.local.superseded.Store(true) // the reporter has two streams here, and this is the later
	}
	if n.late[t.key] == s {
		delete(n.late, t.key)
	}
	t.claim, t.origin, t.boot, t.local, t.id, t.lacks = claim, n.cfg.Name, n.boot, s, e.GetSession(), false
	select {
	case s.claimed <- place{n.logID, claim}:
	default: // an announcement, which nobody waits for
	}
}

// void says that what the stream has claimed is void: the log is another. Node.mu is held.
func (s *Stream) void() {
	s.reclaim.Store(true)
	s.isBroken.Store(true)
	select {
	case s.claimed <- place{}: // who still waits for it need not
	default:
	}
}

// target finds or makes one, if there is room.
func (n *Node) target(k key) *target {
	t := n.targets[k]
	if t == nil && len(n.targets) < n.cfg.MaxTargets {
		t = &target{key: k}
		n.targets[k] = t
	}
	return t
}

// begin starts a session of another's. What is open stays so until its hello is complete.
func (n *Node) begin(t *target, e *replicav1.Entry, claim uint64) {
	if t.local != nil {
		n.count.takeovers.Add(1)
		t.local.superseded.Store(true)
		t.rival, t.local = t.local, nil
	}
	n.clearParts(t)
	t.claim, t.origin, t.boot = claim, e.GetOrigin(), e.GetBoot()
	t.id, t.number, t.hello, t.isSkipping = e.GetSession(), 0, nil, false
}

// drop forgets what of a session is needed to go on with it; the oracle's end stays as it is.
func (n *Node) drop(t *target) {
	n.clearParts(t)
	t.hello, t.isSkipping = nil, false
}

func (n *Node) clearParts(t *target) {
	n.parts -= len(t.parts)
	t.parts = nil
}

// leave closes the oracle's end: the grace of the lost stream begins.
func (n *Node) leave(t *target, at time.Time) {
	switch {
	case t.session != nil && n.replay.isOn:
		n.rest(t, at)
	case t.session != nil:
		t.session.Close(at)
	}
	t.session, t.applier = nil, nil
	n.drop(t)
	t.id, t.lacks = 0, false
}

// collect takes in the next entry of a session: a piece of a message, a whole one, or where the target stands.
func (n *Node) collect(t *target, e *replicav1.Entry, now time.Time) {
	if t.number > 1 && t.hello == nil && len(t.parts) == 0 {
		return // an announcement is awaited
	}
	request := e.GetRequest()
	if e.GetMore() || len(t.parts) > 0 {
		if len(t.parts)+len(request) > n.cfg.MaxMessageBytes || n.parts+len(request) > maxParts {
			n.refuse(t, errors.New("replica: entry.request: too large"))
			return
		}
		t.parts = append(t.parts, request...)
		n.parts += len(request)
		if e.GetMore() {
			return
		}
		request = t.parts
		defer n.clearParts(t)
	}
	if len(request) > n.cfg.MaxMessageBytes {
		n.refuse(t, errors.New("replica: entry.request: too large"))
		return
	}
	if len(request) > 0 {
		m, err := decodeRequest(request)
		if err != nil {
			n.count.malformed.Add(1)
			n.refuse(t, err)
			return
		}
		if n.replay.isOn {
			n.handAgain(t, e, m, now)
			return
		}
		if !n.hand(t, e, m, now) {
			return
		}
	}
	if n.replay.isOn {
		n.check(t, e.GetAfter())
		return
	}
	if e.GetAfter() != nil && !t.isSkipping {
		n.compare(t, e.GetAfter())
	}
}

// hand gives a message to the oracle and says whether the target can be compared then.
func (n *Node) hand(t *target, e *replicav1.Entry, m *kvoraclev1.ReportBlocksRequest, now time.Time) bool {
	if t.hello == nil {
		return n.open(t, e, m, now)
	}
	if t.isSkipping {
		n.count.skippedEntries.Add(1)
		switch m.GetMessage().(type) {
		case *kvoraclev1.ReportBlocksRequest_SnapshotBegin, *kvoraclev1.ReportBlocksRequest_SnapshotChunk:
			return false
		case *kvoraclev1.ReportBlocksRequest_SnapshotEnd:
			t.isSkipping = false
			return true
		}
		t.isSkipping = false // it was not announced whole; what follows may go on all the same
	}
	if _, err := t.applier.Apply(m, now); err != nil {
		n.refuse(t, err)
		return false
	}
	if m.GetSnapshotBegin() != nil && len(e.GetLost()) > 0 {
		t.session.Owe(decodeDigests(e.GetLost()))
	}
	return true
}

// open opens a session for another replica's hello.
func (n *Node) open(t *target, e *replicav1.Entry, m *kvoraclev1.ReportBlocksRequest, now time.Time) bool {
	hello, err := wire.DecodeBlocksHello(m)
	if err == nil && (hello.Spec.Worker != t.key.worker || hello.Rank != int(t.key.rank)) {
		err = errors.New("replica: entry.request: a hello for another target")
	}
	if err != nil {
		n.count.malformed.Add(1)
		n.refuse(t, err)
		return false
	}
	hello.IsReplayed = n.replay.isOn
	session, accepted, err := n.o.OpenBlocks(hello, now)
	if err != nil {
		n.refuse(t, err)
		n.restore(t)
		return false
	}
	if t.again.begin(hello.Incarnation, accepted.ResumeFrom); accepted.Confidence == oracle.Warming {
		t.again.from = 0 // nothing was loaded of it
	}
	n.wanted(t.key.worker)
	t.rival = nil
	t.hello, t.session, t.applier = hello, session, wire.NewApplier(hello, session, n.cfg.Seed)
	if n.mistrust {
		session.Mistrust(true, now)
	}
	if e.GetAnnounced() && !e.GetAfter().GetAwaiting() {
		// Contents follow. Who has them already spares itself to build them again.
		if t.isSkipping = n.differs(t, e.GetAfter()) == ""; t.isSkipping {
			n.agree(t)
		}
		return false
	}
	return e.GetAfter() != nil
}

// refuse gives a session up that says what no reporter may, or that there is no room for. It is asked for again, ever more
// seldom.
func (n *Node) refuse(t *target, err error) {
	n.count.refused.Add(1)
	n.log.LogAttrs(context.Background(), slog.LevelWarn, "another replica's report refused", slog.String("worker", t.key.worker),
		slog.Uint64("dp_rank", uint64(t.key.rank)), slog.String("origin", t.origin), slog.String("error", err.Error()))
	n.drop(t)
	n.lack(t)
}

// compare holds the target against what its origin has. A snapshot that the origin awaits will come to this replica too.
func (n *Node) compare(t *target, want *replicav1.Standing) {
	if want.GetAwaiting() {
		return
	}
	if why := n.differs(t, want); why != "" {
		n.count.differences.Add(1)
		n.log.LogAttrs(context.Background(), slog.LevelInfo, "differs from its origin", slog.String("worker", t.key.worker),
			slog.Uint64("dp_rank", uint64(t.key.rank)), slog.String("origin", t.origin), slog.String("in", why))
		n.lack(t)
		return
	}
	n.agree(t)
}

// agree notes that nothing is missing.
func (n *Node) agree(t *target) {
	if t.lacks {
		t.session.Mistrust(n.mistrust, time.Now())
	}
	t.lacks, t.pause = false, 0
}

// inDigest is of differs: at the same batch the contents are not the same.
const inDigest = "digest"

// differs says in what, or nothing.
func (n *Node) differs(t *target, want *replicav1.Standing) string {
	have, err := t.session.Standing()
	switch {
	case err != nil:
		return "session"
	case have.IsAwaiting != want.GetAwaiting():
		return "awaiting"
	case have.Applied != want.GetApplied():
		return "applied"
	case !want.GetHasDigests() || have.IsPartial || want.GetPartial() || have.IsAwaiting:
		return ""
	case have.Digests != decodeDigests(want.GetDigests()):
		return inDigest
	}
	n.count.digestsMatched.Add(1)
	return ""
}

// restore gives the target back to this replica, whose oracle has refused who would have taken it over: one that speaks for a
// former life, most likely, to a replica that does not know of the present one. The stream claims it again.
func (n *Node) restore(t *target) {
	if s := t.rival; s != nil {
		t.local, t.rival, t.lacks = s, nil, false
		s.superseded.Store(false)
		s.reclaim.Store(true)
		s.isBroken.Store(true)
		wake(n.todo)
	}
}

// lack notes that the target misses something: it is STALE until it is told. The watch asks for it.
func (n *Node) lack(t *target) {
	if t.session != nil {
		t.session.Mistrust(true, time.Now())
	}
	if !t.lacks {
		t.lacks = true
		n.count.lacking.Add(1)
	}
}
