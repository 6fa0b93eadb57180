package oracle

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// Hello opens a block stream; see BlocksHello in the proto for the rules.
type Hello struct {
	Spec         fleet.Spec
	Rank         int
	Incarnation  uint64 // at least 1
	NextSequence uint64 // at least 1
	Counted      bool   // a repeated store is another copy
}

// Accepted answers a Hello.
type Accepted struct {
	ResumeFrom       uint64
	SnapshotRequired bool
	Confidence       BlockConfidence
}

// OpKind tells the operations apart.
type OpKind uint8

// The operations.
const (
	OpRefused OpKind = iota // malformed at the door; carries its Refusal
	OpStore
	OpRemove
	OpClear
)

// Content is the form in which a store names its blocks.
type Content uint8

// The forms.
const (
	ContentIDs Content = iota
	ContentLocals
)

// Op is one change. Slices are only read during the call.
type Op struct {
	Kind    OpKind
	Tier    fleet.Tier
	AllTier bool // OpClear: every tier

	// OpStore. With IsRoot and ContentLocals the chain starts in the keyspace of LoRA, revision and salt.
	IsRoot                            bool
	Parent                            block.ID
	Content                           Content
	Locals                            []block.Local
	LoRAName, LoRARevision, CacheSalt string

	IDs []block.ID // OpStore with ContentIDs, OpRemove

	Refusal Refusal // OpRefused
}

// RefusalReason is why an operation was not applied. Numbers are those of the proto enum.
type RefusalReason uint8

// The reasons.
const (
	RefusalNone             RefusalReason = 0
	RefusalMalformed        RefusalReason = 1
	RefusalPartialBlock     RefusalReason = 2
	RefusalParentConflict   RefusalReason = 3
	RefusalOrphansFull      RefusalReason = 4
	RefusalCapacity         RefusalReason = 5
	RefusalGroup            RefusalReason = 6
	RefusalTier             RefusalReason = 7
	RefusalUnservedField    RefusalReason = 8
	RefusalDuplicateBatch   RefusalReason = 9
	RefusalAwaitingSnapshot RefusalReason = 10
	RefusalSnapshot         RefusalReason = 11
)

// Refusal names one refused operation.
type Refusal struct {
	Sequence uint64
	Op       int
	Reason   RefusalReason
	Detail   string
}

// ResyncReason is what made the oracle ask for a snapshot. Numbers are those of the proto enum.
type ResyncReason uint8

// The reasons.
const (
	ResyncNone           ResyncReason = 0
	ResyncGap            ResyncReason = 1
	ResyncRenumbered     ResyncReason = 2
	ResyncDigestMismatch ResyncReason = 3
	ResyncOrphansFull    ResyncReason = 4
	ResyncBadSnapshot    ResyncReason = 5
	ResyncOperator       ResyncReason = 6
	ResyncOutcomes       ResyncReason = 7
)

// String gives the lower-case name with underscores.
func (r ResyncReason) String() string {
	switch r {
	case ResyncNone:
		return "none"
	case ResyncGap:
		return "gap"
	case ResyncRenumbered:
		return "renumbered"
	case ResyncDigestMismatch:
		return "digest_mismatch"
	case ResyncOrphansFull:
		return "orphans_full"
	case ResyncBadSnapshot:
		return "bad_snapshot"
	case ResyncOperator:
		return "operator"
	case ResyncOutcomes:
		return "outcomes"
	default:
		return "unknown"
	}
}

// Resync asks the reporter for a snapshot.
type Resync struct {
	Reason             ResyncReason
	Expected, Received uint64
}

// BlockCounters counts what became of a stream's operations.
type BlockCounters struct {
	Stored, RepeatedStores, Removed, UnknownRemovals, Orphans, RefusedOps    uint64
	DuplicateBatches, Gaps, IgnoredBatches                                   uint64
	DigestsMatched, DigestsMismatched, DigestsSkipped, Snapshots, AppliedOps uint64
}

func (c *BlockCounters) add(d BlockCounters) {
	c.Stored += d.Stored
	c.RepeatedStores += d.RepeatedStores
	c.Removed += d.Removed
	c.UnknownRemovals += d.UnknownRemovals
	c.Orphans += d.Orphans
	c.RefusedOps += d.RefusedOps
	c.DuplicateBatches += d.DuplicateBatches
	c.Gaps += d.Gaps
	c.IgnoredBatches += d.IgnoredBatches
	c.DigestsMatched += d.DigestsMatched
	c.DigestsMismatched += d.DigestsMismatched
	c.DigestsSkipped += d.DigestsSkipped
	c.Snapshots += d.Snapshots
	c.AppliedOps += d.AppliedOps
}

// Ack is what a reporter is told after each message.
type Ack struct {
	Applied    uint64
	Confidence BlockConfidence
	Held       int
	Counters   BlockCounters
	Refusals   []Refusal // newest, at most maxRefusals
	Awaiting   bool      // a snapshot was asked for and has not come
	Resync     *Resync   // it is asked for now; said once per cause
}

const (
	// maxRefusals bounds the refusals named in one ack; the counters have them all.
	maxRefusals = 16
	// fingerprints is how many applied batches a feed can recognise as repeats. An older repeat costs a snapshot.
	fingerprints = 128
)

// feed is the oracle's end of one target's block reports. It outlives streams: a reporter that comes back resumes it.
//
// mu is held while a message is applied. It is taken before the index's locks and never while the registry's or the
// tracker's are held.
type feed struct {
	o      *Oracle
	target fleet.TargetID

	mu          sync.Mutex
	incarnation uint64
	ledger      *index.Ledger // visible; nil until the first snapshot or an empty start
	building    *index.Ledger // snapshot under way; nil otherwise
	buildingSeq uint64
	buildShort  bool // the snapshot did not fit in memory: its count cannot match
	counted     bool
	applied     uint64 // highest batch applied in this incarnation
	awaiting    bool   // a snapshot was asked for
	session     *BlockSession
	lostAt      time.Time // end of the last stream; zero while one is open or none ever was
	gone        bool      // the worker was removed or reborn
	trust       trust
	recent      [fingerprints]struct{ seq, contents uint64 }

	// What decisions read without waiting for a batch to be applied.
	signs     atomic.Pointer[signs]
	heardAt   atomic.Int64 // last message, Unix nanoseconds; 0: never
	decisions atomic.Uint64
}

// signs is the part of a feed's state that confidence is made of. It never changes.
type signs struct {
	spoke    bool // some stream was opened in this life
	awaiting bool
	shown    bool // a ledger is visible
	open     bool // a stream is open
	lostAt   time.Time
}

// BlockSession is one open block stream. Its methods are called by one goroutine; Close and Kicked by any.
type BlockSession struct {
	f        *feed
	identity block.Identity
	counters BlockCounters
	kicked   chan struct{}
	cause    *Error       // why it was kicked; set before kicked is closed
	resyncs  chan *Resync // asked for from outside the stream (an operator)
	scratch  []block.ID
}

// OpenBlocks registers the worker (or updates it, or begins its new life) and takes over the rank's feed. A stream that
// was open for it is kicked.
func (o *Oracle) OpenBlocks(h *Hello, now time.Time) (*BlockSession, Accepted, error) {
	w, err := o.register(h.Spec, h.Incarnation, now)
	if err != nil {
		return nil, Accepted{}, err
	}
	f := o.feed(w.Targets[h.Rank])
	if f == nil {
		return nil, Accepted{}, workerGone(h.Spec.Worker)
	}
	s := &BlockSession{
		f:        f,
		identity: block.Identity{Model: w.Model, BlockSize: w.BlockSize, Secret: o.cfg.Secret},
		kicked:   make(chan struct{}),
		resyncs:  make(chan *Resync, 1),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return nil, Accepted{}, workerGone(h.Spec.Worker)
	}
	if f.incarnation == h.Incarnation && f.counted != h.Counted {
		return nil, Accepted{}, Fault(FailedPrecondition, ReasonSpecContradiction, "hello.repeats", "",
			"what a repeated store means cannot change within incarnation "+utoa(h.Incarnation))
	}
	f.kick(Fault(Aborted, ReasonSuperseded, "", "", "another stream took over this rank"))
	f.session = s
	f.lostAt = time.Time{}
	f.heardAt.Store(now.UnixNano())
	f.counted = h.Counted
	f.dropSnapshot()

	switch {
	case f.incarnation != h.Incarnation:
		// The first stream of this life. An engine whose numbering starts now has an empty cache; one that has already
		// spoken has contents nobody told us.
		f.incarnation = h.Incarnation
		f.applied = h.NextSequence - 1
		if h.NextSequence == 1 {
			f.show(o.index.NewLedger(f.target, f.counted))
		} else {
			f.awaiting = true
		}
	case f.awaiting:
		// Still owed from before the cut.
	case h.NextSequence <= f.applied:
		// It does not remember what it has sent: the numbering began again.
		f.await(ResyncRenumbered)
	}
	f.sign()
	return s, Accepted{ResumeFrom: f.applied + 1, SnapshotRequired: f.awaiting, Confidence: f.confidence(now)}, nil
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
	if f.session != s {
		return
	}
	f.kick(Fault(Aborted, ReasonSuperseded, "", "", "the session is closed"))
	f.lostAt = now
	f.dropSnapshot()
	f.sign()
}

// own locks the feed if the session still has it.
func (s *BlockSession) own(now time.Time) error {
	s.f.mu.Lock()
	if s.f.session == s {
		s.f.heardAt.Store(now.UnixNano())
		return nil
	}
	s.f.mu.Unlock()
	// Whoever took the feed closes kicked while holding its lock, so the cause is there.
	<-s.kicked
	return s.cause
}

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
	case f.awaiting || f.building != nil:
		d.IgnoredBatches++
	case seq == f.applied+1:
		var reason ResyncReason
		refusals, reason = s.apply(f.ledger, seq, ops, &d)
		f.applied = seq
		f.recent[seq%fingerprints].seq, f.recent[seq%fingerprints].contents = seq, fingerprint
		if reason != ResyncNone {
			resync = f.await(reason)
		}
	case seq <= f.applied:
		if r := f.recent[seq%fingerprints]; r.seq == seq && r.contents == fingerprint && seq > 0 {
			d.DuplicateBatches++
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

// SnapshotBegin starts to build a new view aside. One under way is given up.
func (s *BlockSession) SnapshotBegin(seq uint64, now time.Time) (Ack, error) {
	if err := s.own(now); err != nil {
		return Ack{}, err
	}
	f := s.f
	defer f.mu.Unlock()
	f.dropSnapshot()
	f.building = f.o.index.NewLedger(f.target, f.counted)
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
		return s.unbegun("snapshot_chunk", now), nil
	}
	var d BlockCounters
	refusals, _ := s.apply(f.building, 0, ops, &d)
	for _, r := range refusals {
		f.buildShort = f.buildShort || r.Reason == RefusalCapacity
	}
	return s.ack(d, refusals, nil, now), nil
}

// SnapshotEnd swaps the new view in. want is the number of blocks it should hold, 0: not checked.
//
// A count that does not match refuses the snapshot. One that did not fit in memory is shown as far as it goes: asking
// again would not make room, and a part can only under-credit.
func (s *BlockSession) SnapshotEnd(want uint64, now time.Time) (Ack, error) {
	if err := s.own(now); err != nil {
		return Ack{}, err
	}
	f := s.f
	defer f.mu.Unlock()
	if f.building == nil {
		return s.unbegun("snapshot_end", now), nil
	}
	var d BlockCounters
	held := heldBlocks(f.building)
	if want != 0 && want != uint64(held) && !f.buildShort {
		d.RefusedOps++
		refusal := Refusal{
			Sequence: f.buildingSeq, Reason: RefusalSnapshot,
			Detail: "snapshot_end.block_count: got " + utoa(want) + ", the chunks held " + utoa(uint64(held)),
		}
		f.dropSnapshot()
		r := f.await(ResyncBadSnapshot)
		r.Expected, r.Received = f.applied+1, f.buildingSeq
		return s.ack(d, []Refusal{refusal}, r, now), nil
	}
	ledger := f.building
	f.building, f.buildShort = nil, false
	f.applied = f.buildingSeq
	f.show(ledger)
	d.Snapshots++
	return s.ack(d, nil, nil, now), nil
}

// unbegun refuses a part of a snapshot that was never begun. The feed is locked.
func (s *BlockSession) unbegun(part string, now time.Time) Ack {
	refusal := Refusal{Reason: RefusalSnapshot, Detail: part + " without snapshot_begin"}
	return s.ack(BlockCounters{RefusedOps: 1}, []Refusal{refusal}, nil, now)
}

// Digest compares what the reporter believes with what the oracle has understood, at the same moment.
func (s *BlockSession) Digest(seq uint64, tier fleet.Tier, want index.Digest, now time.Time) (Ack, error) {
	if err := s.own(now); err != nil {
		return Ack{}, err
	}
	f := s.f
	defer f.mu.Unlock()
	var d BlockCounters
	var resync *Resync
	switch {
	case f.awaiting || f.building != nil || seq != f.applied:
		d.DigestsSkipped++
	case f.ledger.Digest(tier) == want:
		d.DigestsMatched++
	default:
		d.DigestsMismatched++
		resync = f.await(ResyncDigestMismatch)
		resync.Expected, resync.Received = f.applied+1, seq
	}
	return s.ack(d, nil, resync, now), nil
}

// apply runs the operations in order on one ledger and says whether the view can no longer be trusted.
func (s *BlockSession) apply(l *index.Ledger, seq uint64, ops []Op, d *BlockCounters) ([]Refusal, ResyncReason) {
	var refusals []Refusal
	resync := ResyncNone
	for i := range ops {
		op := &ops[i]
		r := op.Refusal
		switch op.Kind {
		case OpStore:
			r = s.store(l, op, d)
		case OpRemove:
			removed, unknown := l.Remove(op.IDs, op.Tier)
			d.Removed += uint64(removed)
			d.UnknownRemovals += uint64(unknown)
			if op.Tier == fleet.Device {
				s.f.o.guesses.evicted(s.f.target, op.IDs)
			}
		case OpClear:
			if op.AllTier {
				d.Removed += uint64(l.ClearAll())
			} else {
				d.Removed += uint64(l.Clear(op.Tier))
			}
			if op.AllTier || op.Tier == fleet.Device {
				s.f.o.guesses.cleared(s.f.target)
			}
		case OpRefused:
		}
		if r.Reason == RefusalNone {
			d.AppliedOps++
			continue
		}
		d.RefusedOps++
		if r.Reason == RefusalOrphansFull {
			resync = ResyncOrphansFull
		}
		r.Sequence, r.Op = seq, i
		if len(refusals) == maxRefusals {
			refusals = refusals[1:]
		}
		refusals = append(refusals, r)
	}
	return refusals, resync
}

func (s *BlockSession) store(l *index.Ledger, op *Op, d *BlockCounters) Refusal {
	ids := op.IDs
	if op.Content == ContentLocals {
		s.scratch = s.scratch[:0]
		if op.IsRoot {
			id := s.identity
			id.LoRAName, id.LoRARevision, id.CacheSalt = op.LoRAName, op.LoRARevision, op.CacheSalt
			s.scratch = block.AppendChain(s.scratch, id.Keyspace(), op.Locals)
		} else {
			s.scratch = block.AppendChainAfter(s.scratch, op.Parent, op.Locals)
		}
		ids = s.scratch
	}
	res := l.Store(index.Parent{ID: op.Parent, IsRoot: op.IsRoot}, ids, op.Tier)
	d.Stored += uint64(res.Stored)
	d.RepeatedStores += uint64(res.Repeated)
	d.Orphans += uint64(res.Orphans)
	switch res.Refused {
	case index.None:
		return Refusal{}
	case index.SelfParent:
		return Refusal{Reason: RefusalParentConflict, Detail: "store: a block is its own parent"}
	case index.ParentConflict:
		return Refusal{Reason: RefusalParentConflict, Detail: "store: a held block is named with another parent"}
	case index.OrphansFull:
		return Refusal{Reason: RefusalOrphansFull, Detail: "store.parent_block_id: not held, and too many orphans wait already"}
	case index.Capacity:
		return Refusal{Reason: RefusalCapacity, Detail: "store: the index is at its memory limit"}
	case index.Dropped:
		return Refusal{Reason: RefusalAwaitingSnapshot, Detail: "store: what the target held was dropped meanwhile"}
	default:
		return Refusal{Reason: RefusalMalformed, Detail: "store: " + res.Refused.String()}
	}
}

// ack sums a message up and tells the observer. The feed is locked.
func (s *BlockSession) ack(d BlockCounters, refusals []Refusal, resync *Resync, now time.Time) Ack {
	s.counters.add(d)
	f := s.f
	f.sign()
	f.o.obs.Blocks(d)
	return Ack{
		Applied:    f.applied,
		Confidence: f.confidence(now),
		Held:       heldBlocks(f.ledger),
		Counters:   s.counters,
		Refusals:   refusals,
		Awaiting:   f.awaiting,
		Resync:     resync,
	}
}

// await stops applying until a snapshot comes.
func (f *feed) await(reason ResyncReason) *Resync {
	f.awaiting = true
	f.o.obs.Resync(reason)
	return &Resync{Reason: reason, Expected: f.applied + 1}
}

// show makes a ledger the target's visible one; what went before can no longer prove a repeat.
func (f *feed) show(l *index.Ledger) {
	f.o.index.Publish(l)
	f.ledger = l
	f.awaiting = false
	clear(f.recent[:])
}

func (f *feed) dropSnapshot() {
	if f.building != nil {
		f.o.index.Discard(f.building)
		f.building = nil
	}
	f.buildShort = false
}

// tell asks the open session for a snapshot from outside its stream.
func (f *feed) tell(r *Resync) {
	if f.session == nil {
		return
	}
	select {
	case f.session.resyncs <- r:
	default: // the one before it is still on its way, and asks for the same
	}
}

// kick ends the open session, if any.
func (f *feed) kick(cause *Error) {
	if f.session != nil {
		f.session.cause = cause
		close(f.session.kicked)
		f.session = nil
	}
}

// sign publishes what confidence is made of. The feed is locked.
func (f *feed) sign() {
	next := signs{
		spoke: f.incarnation != 0, awaiting: f.awaiting, shown: f.ledger != nil,
		open: f.session != nil, lostAt: f.lostAt,
	}
	if old := f.signs.Load(); old == nil || *old != next {
		f.signs.Store(&next)
	}
}

// confidence is the state said out loud. It takes no lock.
func (f *feed) confidence(now time.Time) BlockConfidence {
	s := f.signs.Load()
	switch {
	case s == nil || !s.spoke:
		return Silent
	case s.awaiting && !s.shown:
		return Warming
	case s.awaiting:
		return Stale
	case !s.open && now.Sub(s.lostAt) > f.o.cfg.StreamGrace:
		return Stale
	default:
		return Fresh
	}
}

func heldBlocks(l *index.Ledger) int {
	if l == nil {
		return 0
	}
	n := 0
	for t := range fleet.Tier(fleet.NumTiers) {
		n += l.Held(t)
	}
	return n
}
