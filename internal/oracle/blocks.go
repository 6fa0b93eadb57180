package oracle

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// BlockSession is one open block stream. Its methods are called by one goroutine; Close and Kicked by any.
type BlockSession struct {
	f        *feed
	identity block.Identity
	counters BlockCounters
	kicked   chan struct{}
	cause    *Error       // why it was kicked; set before kicked is closed
	resyncs  chan *Resync // asked for from outside the stream (an operator)
	scratch  []block.ID
	marks    []uint64 // likewise
	roots    []uint64 // parents that stand for a prompt's start
	heardAt  float64  // of the message being applied, in Oracle.seconds
	doubtful bool     // see Doubt
	isVoid   bool     // a snapshot was dropped here, and parts of it may still come; guarded by the feed
}

// OpenBlocks registers the worker (or updates it, or begins its new life) and takes over the rank's feed. A stream that
// was open for it is kicked. A hello that is refused has changed nothing.
func (o *Oracle) OpenBlocks(h *Hello, now time.Time) (*BlockSession, Accepted, error) {
	o.lives.Lock()
	defer o.lives.Unlock()
	if err := o.mayOpen(h); err != nil {
		return nil, Accepted{}, err
	}
	w, err := o.register(h.Spec, h.Incarnation, now)
	if err != nil {
		return nil, Accepted{}, err
	}
	f := o.feed(w.Targets[h.Rank])
	s := &BlockSession{
		f:        f,
		identity: block.Identity{Model: w.Model, BlockSize: w.BlockSize, Secret: o.cfg.Secret},
		kicked:   make(chan struct{}),
		resyncs:  make(chan *Resync, 1),
		roots:    h.Roots,
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kick(Fault(Aborted, ReasonSuperseded, "", "", "another stream took over this rank"))
	f.dropSnapshot()
	f.session = s
	f.lostAt, f.isMistrusted = time.Time{}, false
	f.heardAt.Store(now.UnixNano())
	f.counted, f.byHash, f.mostNames = h.Counted, h.EngineHashes, mostNames(&w.Spec)
	f.prefixGroup, f.hasGroup = h.PrefixGroup, true
	if f.names != nil {
		f.names.SetNames(f.mostNames)
	}
	f.forgetApprox(asTokens) // facts win

	switch {
	case f.incarnation != h.Incarnation:
		// The first stream of this life. An engine whose numbering starts now has an empty cache; one that has already
		// spoken has contents nobody told us.
		f.incarnation = h.Incarnation
		f.doubtful = false
		f.applied = h.NextSequence - 1
		if h.NextSequence == 1 {
			f.show(f.newView())
		} else {
			f.awaiting = true
		}
	case f.awaiting:
		f.unanswered = time.Time{} // still owed from before the cut, and asked for with the answer to this hello
	case h.NextSequence <= f.applied && !h.IsReplayed:
		// It does not remember what it has sent: the numbering began again.
		f.await(ResyncRenumbered)
	}
	f.greet(h.NextSequence)
	f.sign()
	return s, Accepted{ResumeFrom: f.applied + 1, SnapshotRequired: f.awaiting, Confidence: f.confidence(now)}, nil
}

// MayOpen says whether OpenBlocks would refuse a hello, before anybody else is told of it.
func (o *Oracle) MayOpen(h *Hello) error {
	o.lives.Lock()
	defer o.lives.Unlock()
	return o.mayOpen(h)
}

// mayOpen holds a hello against all that it must not contradict. The lives lock is held, so that its answer stays true.
func (o *Oracle) mayOpen(h *Hello) error {
	if err := o.fleet.Check(&h.Spec, h.Incarnation); err != nil {
		return o.unregistrable(err, &h.Spec, h.Incarnation)
	}
	w := o.fleet.View().Worker(h.Spec.Worker)
	if w == nil || w.Incarnation != h.Incarnation {
		return nil
	}
	f := o.feed(w.Targets[h.Rank]) // it has that rank, or the hello would contradict what is known
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.incarnation != h.Incarnation {
		return nil // this rank has not spoken yet
	}
	within := " cannot change within incarnation " + utoa(h.Incarnation)
	contradiction := func(field, value, want string) error {
		return Fault(FailedPrecondition, ReasonSpecContradiction, field, value, want+within)
	}
	switch {
	case f.counted != h.Counted:
		return contradiction("hello.repeats", "", "what a repeated store means")
	case f.byHash != h.EngineHashes:
		return contradiction("hello.engine_hashes", "", "how blocks are named")
	case f.hasGroup && f.prefixGroup != h.PrefixGroup:
		return contradiction("hello.groups", utoa(uint64(h.PrefixGroup)), "the group that counts as prefix, "+utoa(uint64(f.prefixGroup))+",")
	default:
		return nil
	}
}

func workerGone(name string) *Error {
	return Fault(Aborted, ReasonWorkerGone, "", "", "worker "+name+" was removed or began a new life")
}

// Kicked is closed when the session has lost its feed; Cause then says why.
func (s *BlockSession) Kicked() <-chan struct{} { return s.kicked }

// Cause says why the session was kicked. Valid once Kicked is closed.
func (s *BlockSession) Cause() error { return s.cause }

// Resyncs delivers snapshot requests that did not come out of a message.
func (s *BlockSession) Resyncs() <-chan *Resync { return s.resyncs }

// Close ends the session: the grace of the lost stream begins now. A session that was kicked closes without effect.
func (s *BlockSession) Close(now time.Time) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.end(now) {
		f.sign()
	}
}

// end ends the session if it was not kicked, as one whose stream was lost at a moment. The feed is locked.
func (s *BlockSession) end(lost time.Time) bool {
	f := s.f
	if f.session != s {
		return false
	}
	f.kick(Fault(Aborted, ReasonSuperseded, "", "", "the session is closed"))
	f.lostAt = lost
	f.dropSnapshot()
	return true
}

// own locks the feed if the session still has it.
func (s *BlockSession) own(now time.Time) error {
	s.f.mu.Lock()
	if s.f.session == s {
		s.f.heardAt.Store(now.UnixNano())
		s.heardAt = s.f.o.seconds(now)
		return nil
	}
	s.f.mu.Unlock()
	// Whoever took the feed closes kicked while holding its lock, so the cause is there.
	<-s.kicked
	return s.cause
}

// Doubt says whether the reporter vouches for what the next Batch or SnapshotEnd tells. If it does not, the target is STALE
// from when that is applied. Call it from where those are called.
func (s *BlockSession) Doubt(isDoubtful bool) { s.doubtful = isDoubtful }

// Batch applies numbered changes. The fingerprint is of the batch's contents: a repeat is recognised by it.
func (s *BlockSession) Batch(seq, fingerprint uint64, ops []Op, now time.Time) (Ack, error) {
	if err := s.own(now); err != nil {
		return Ack{}, err
	}
	f := s.f
	defer f.mu.Unlock()
	var d BlockCounters
	var refusals []Refusal
	var resync *Resync
	switch {
	case f.building != nil && seq > f.buildingSeq:
		// The snapshot does not show it, and whoever sends it does not keep to the order: the snapshot's end would make
		// the target FRESH without it.
		d.IgnoredBatches++
		refusals = wholeBatch(seq, RefusalAwaitingSnapshot, "batch: came before the end of a snapshot that does not show it")
		f.dropSnapshot()
		resync = f.await(ResyncBadSnapshot)
	case f.awaiting || f.building != nil:
		d.IgnoredBatches++
		refusals = wholeBatch(seq, RefusalAwaitingSnapshot, "batch: a snapshot is awaited")
		resync = f.askAgain(now)
	case seq == f.applied+1:
		var reason ResyncReason
		refusals, reason = s.apply(f.ledger, f.names, &f.isCut, seq, ops, &d)
		f.freed.Add(d.Removed)
		f.applied, f.doubtful = seq, s.doubtful
		f.isUnverified = f.isUnverified && seq < f.completeAt
		f.recent[seq%fingerprints].seq, f.recent[seq%fingerprints].contents = seq, fingerprint
		if reason != ResyncNone {
			resync = f.await(reason)
		}
	case seq <= f.applied:
		if r := f.recent[seq%fingerprints]; r.seq == seq && r.contents == fingerprint && seq > 0 {
			d.DuplicateBatches++
			refusals = wholeBatch(seq, RefusalDuplicateBatch, "batch.sequence: applied before, with the same contents")
		} else {
			resync = f.await(ResyncRenumbered)
		}
	default:
		d.Gaps++
		resync = f.await(ResyncGap)
	}
	if resync != nil {
		resync.Expected, resync.Received = f.applied+1, seq
	}
	return s.ack(d, refusals, resync, now), nil
}

// wholeBatch names a batch that was not applied; it is counted by its own counter.
func wholeBatch(seq uint64, why RefusalReason, detail string) []Refusal {
	return []Refusal{{Sequence: seq, Reason: why, Detail: detail}}
}

// SnapshotBegin starts to build a new view aside. One under way is given up.
func (s *BlockSession) SnapshotBegin(seq uint64, now time.Time) (Ack, error) {
	if err := s.own(now); err != nil {
		return Ack{}, err
	}
	f := s.f
	defer f.mu.Unlock()
	f.dropSnapshot()
	s.isVoid = false
	f.building, f.buildNames = f.newView()
	f.buildingSeq = seq
	return s.ack(BlockCounters{}, nil, nil, now), nil
}

// SnapshotChunk adds stores to the view being built.
func (s *BlockSession) SnapshotChunk(ops []Op, now time.Time) (Ack, error) {
	if err := s.own(now); err != nil {
		return Ack{}, err
	}
	f := s.f
	defer f.mu.Unlock()
	if f.building == nil {
		return s.unbegun("snapshot_chunk", nil, now), nil
	}
	var d BlockCounters
	refusals, _ := s.apply(f.building, f.buildNames, &f.buildCut, 0, ops, &d)
	return s.ack(d, refusals, nil, now), nil
}

// SnapshotEnd swaps the new view in. want is the number of blocks it should hold, 0: not checked.
//
// A count that does not match refuses the snapshot. One that did not fit in memory, or of which an operation was refused,
// is shown as far as it goes: asking again would not help, and a part can only under-credit. What did not fit is counted
// as told, some of it perhaps twice.
func (s *BlockSession) SnapshotEnd(want uint64, now time.Time) (Ack, error) {
	if err := s.own(now); err != nil {
		return Ack{}, err
	}
	f := s.f
	defer f.mu.Unlock()
	if f.building == nil {
		var r *Resync
		if !s.isVoid {
			// Its beginning got lost, and whoever sent it takes it for an answer.
			r = f.await(ResyncBadSnapshot)
		}
		s.isVoid = false
		return s.unbegun("snapshot_end", r, now), nil
	}
	var d BlockCounters
	held := toldBlocks(f.building)
	isWrong := want > held || want < held && !f.building.IsPartial()
	if f.buildNames != nil {
		held = uint64(f.buildNames.Pairs())
		isWrong = want != held
	}
	if want != 0 && isWrong && !f.buildCut {
		d.refuse(RefusalSnapshot)
		refusal := Refusal{
			Sequence: f.buildingSeq, Reason: RefusalSnapshot,
			Detail: "snapshot_end.block_count: got " + utoa(want) + ", the chunks held " + utoa(held),
		}
		f.dropSnapshot() // and asked for once, though this may be the end of the one before, told twice, and its own still come
		r := f.await(ResyncBadSnapshot)
		r.Expected, r.Received = f.applied+1, f.buildingSeq
		return s.ack(d, []Refusal{refusal}, r, now), nil
	}
	d.Evicted = f.evicted.since(f)
	ledger, names := f.building, f.buildNames
	f.building, f.buildNames = nil, nil
	f.applied, f.doubtful = f.buildingSeq, s.doubtful
	f.show(ledger, names)
	d.Snapshots++
	return s.ack(d, nil, nil, now), nil
}

// unbegun refuses a part of a snapshot that was not begun, or is void. The feed is locked.
func (s *BlockSession) unbegun(part string, resync *Resync, now time.Time) Ack {
	refusal := Refusal{Reason: RefusalSnapshot, Detail: part + " without snapshot_begin"}
	var d BlockCounters
	d.refuse(RefusalSnapshot)
	return s.ack(d, []Refusal{refusal}, resync, now)
}

// Digest compares what the reporter believes with what the oracle has understood, at the same moment. One of a later
// moment proves that batches were lost. Copies are compared if they are stated.
func (s *BlockSession) Digest(seq uint64, tier fleet.Tier, want index.Digest, now time.Time) (Ack, error) {
	if err := s.own(now); err != nil {
		return Ack{}, err
	}
	f := s.f
	defer f.mu.Unlock()
	var d BlockCounters
	var resync *Resync
	switch {
	case f.awaiting || f.building != nil:
		d.DigestsSkipped++
		resync = f.askAgain(now)
	case seq < f.applied:
		d.DigestsSkipped++
	case seq > f.applied:
		d.Gaps++
		resync = f.await(ResyncGap)
	case f.agrees(tier, want):
		d.DigestsMatched++
		f.disputed[tier] = false
	case f.isCut && f.disputed[tier]:
		d.DigestsSkipped++
		if f.restoring.mayDoubt(now) {
			resync = f.await(ResyncDigestMismatch)
		}
	case f.names == nil && f.ledger.IsPartial():
		// What is missing may have been told again or taken away, which looks the same as a loss on the way.
		d.DigestsSkipped++
		if f.restoring.mayDoubt(now) {
			resync = f.await(ResyncCapacity)
		}
	default:
		d.DigestsMismatched++
		f.disputed[tier] = f.isCut
		resync = f.await(ResyncDigestMismatch)
	}
	if resync != nil {
		resync.Expected, resync.Received = f.applied+1, seq
	}
	return s.ack(d, nil, resync, now), nil
}

func isEqual(have, want index.Digest) bool {
	if want.Copies == 0 && want.Count != 0 {
		have.Copies, have.CopySum, want.CopySum = 0, 0, 0
	}
	return have == want
}
