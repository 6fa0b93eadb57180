package oracle

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvoracle/kvoracle/internal/edge"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// fingerprints is how many applied batches a feed can recognise as repeats. An older repeat costs a snapshot.
const fingerprints = 128

// feed is the oracle's end of one target's block reports. It outlives streams: a reporter that comes back resumes it.
//
// mu is held while a message is applied. It is taken before the index's locks and never while the registry's or the
// tracker's are held.
type feed struct {
	o      *Oracle
	target fleet.TargetID
	usage  *usage // of its model's blocks

	mu          sync.Mutex
	incarnation uint64
	ledger      *index.Ledger    // visible; nil until the first snapshot or an empty start
	names       *edge.Translator // what the ledger's blocks are called; only with byHash, and then beside each ledger
	building    *index.Ledger    // snapshot under way; nil otherwise
	buildNames  *edge.Translator
	isCut       bool // something of the visible view was refused, so that digests may differ without a loss
	buildCut    bool // the same of the snapshot under way: its count need not match
	// disputed tiers had a digest that differed while something was refused, and none since that agreed: the snapshot has not
	// cured it, so the two sides differ about what was refused.
	disputed    [fleet.NumTiers]bool
	buildingSeq uint64
	counted     bool
	byHash      bool   // the stream names blocks by engine hashes
	mostNames   int    // of byHash
	prefixGroup uint32 // the attention group that the blocks are of, if hasGroup
	hasGroup    bool   // false: no stream yet, or restored from a file that does not say it
	applied     uint64 // highest batch applied in this incarnation
	awaiting    bool   // a snapshot was asked for
	// unanswered is when the first message came since, none of a snapshot; zero: none has.
	unanswered time.Time
	doubtful   bool // whoever reports has said that it may be wrong
	// isMistrusted: whoever passes the reports on is not heard; see BlockSession.Mistrust.
	isMistrusted bool
	// isUnverified: it was restored, and its reporter has not yet confirmed all of it; that is so from batch completeAt on.
	isUnverified bool
	completeAt   uint64
	session      *BlockSession
	lostAt       time.Time // end of the last stream; zero while one is open or none ever was
	gone         bool      // the worker was removed or reborn
	trust        trust
	evicted      evictions // what acks have told of them
	restoring    restoring
	approx       [numForms]*approx // nil: nothing is guessed, as of tokens in every target that reports
	recent       [fingerprints]struct{ seq, contents uint64 }

	// What decisions read without waiting for a batch to be applied.
	steady    *atomic.Uint64 // its bit says whether what it reported counts in full; see steadiness
	signs     atomic.Pointer[signs]
	heardAt   atomic.Int64  // last message, Unix nanoseconds; 0: never
	eldest    atomic.Uint64 // float64 bits: when what it gave up lately had been used last, in Oracle.seconds; 0: it gave up nothing
	decisions atomic.Uint64
	outcomes  outcomes
	freed     atomic.Uint64 // blocks that left the visible ledger by the reporter's word, ever
	pricing   atomic.Pointer[pricing]
	unmatched unmatched
	credited  [numForms]atomic.Uint64 // float64 bits: the share of what is guessed that counts; 0: nothing is guessed
	kvBlocks  atomic.Uint64           // KV blocks by the last load sample; 0: unknown
}

// outcomes sums up the finished requests of a target whose engine has counted, in prompt tokens.
type outcomes struct {
	matched atomic.Uint64 // believed to be in the cache, when they were decided
	cached  atomic.Uint64 // counted by the engine
}

// signs is the part of a feed's state that confidence is made of. It never changes.
type signs struct {
	spoke      bool // some stream was opened in this life
	awaiting   bool
	doubtful   bool
	unverified bool
	shown      *index.Ledger // nil: none is visible
	open       bool          // a stream is open
	lostAt     time.Time
}

// await stops applying until a snapshot comes.
func (f *feed) await(reason ResyncReason) *Resync {
	f.awaiting, f.unanswered = true, time.Time{}
	f.o.obs.Resync(reason)
	return &Resync{Reason: reason, Expected: f.applied + 1}
}

// askAgain asks a second time for a snapshot that has not begun though other messages come: the reporter may believe that it
// has answered, and would for ever be believed no more. Whatever was on its way at the first time has come long since.
func (f *feed) askAgain(now time.Time) *Resync {
	switch {
	case f.building != nil:
		return nil
	case f.unanswered.IsZero():
		f.unanswered = now
		return nil
	case now.Sub(f.unanswered) < unansweredMost:
		return nil
	default:
		return f.await(ResyncBadSnapshot)
	}
}

// unansweredMost is how long a reporter may go on with other messages when it was asked for a snapshot.
const unansweredMost = time.Minute

// newView makes an empty view, to be filled aside. Names are copies of the block they stand for, so a ledger that is filled
// by names counts.
func (f *feed) newView() (*index.Ledger, *edge.Translator) {
	l := f.o.index.NewLedger(f.target, f.counted || f.byHash)
	if !f.byHash {
		return l, nil
	}
	return l, edge.New(f.o.names, edge.Limits{Names: f.mostNames, Waiting: f.o.cfg.Index.OrphanLimit(), Refused: namesRefused}, f.counted)
}

// show makes a view the target's visible one; what went before can no longer prove a repeat.
func (f *feed) show(l *index.Ledger, n *edge.Translator) {
	f.freed.Add(uint64(heldBlocks(f.ledger)))
	f.o.index.Publish(l)
	f.ledger = l
	f.dropNames()
	if f.names = n; n != nil {
		n.Limit()
	}
	f.awaiting, f.isUnverified = false, false
	if f.isCut, f.buildCut = f.buildCut, false; !f.isCut {
		f.disputed = [fleet.NumTiers]bool{} // whatever differs now was lost
	}
	f.evicted.publish()
	f.restoring.owed = 0
	clear(f.recent[:])
}

func (f *feed) dropSnapshot() {
	if f.building != nil {
		f.o.index.Discard(f.building)
		f.building = nil
		f.evicted.building = 0
		if f.session != nil {
			f.session.isVoid = true
		}
	}
	if f.buildNames != nil {
		f.buildNames.Drop()
		f.buildNames = nil
	}
	f.buildCut = false
}

// dropNames forgets what the visible ledger's blocks are called.
func (f *feed) dropNames() {
	if f.names != nil {
		f.names.Drop()
		f.names = nil
	}
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
		spoke: f.incarnation != 0, awaiting: f.awaiting, doubtful: f.doubtful || f.isMistrusted, unverified: f.isUnverified,
		shown: f.ledger, open: f.session != nil, lostAt: f.lostAt,
	}
	if old := f.signs.Load(); old == nil || *old != next {
		f.signs.Store(&next)
		f.setSteady(next.spoke && !next.awaiting && !next.doubtful && !next.unverified && next.open)
	}
}

func (f *feed) setSteady(is bool) {
	if bit := uint64(1) << (f.target % 64); is {
		f.steady.Or(bit)
	} else {
		f.steady.And(^bit)
	}
}

// isReporting says that a stream was opened in this life, so that nothing is learned from prompts. It takes no lock.
func (f *feed) isReporting() bool {
	s := f.signs.Load()
	return s != nil && s.spoke
}

// isShort says that what is shown lacks blocks, which outcomes may bring back. It takes no lock.
func (f *feed) isShort() bool {
	s := f.signs.Load()
	return s != nil && s.shown != nil && s.shown.IsPartial()
}

// confidence is the state said out loud. It takes no lock.
func (f *feed) confidence(now time.Time) BlockConfidence {
	s := f.signs.Load()
	switch {
	case s == nil || !s.spoke:
		if f.credited[asTokens].Load() != 0 {
			return Approximate
		}
		return Silent
	case s.awaiting && s.shown == nil:
		return Warming
	case s.awaiting, s.doubtful, s.unverified:
		return Stale
	case !s.open && now.Sub(s.lostAt) > f.o.cfg.StreamGrace:
		return Stale
	case f.o.index.Evicted() > 0 && s.shown != nil && s.shown.IsPartial():
		return Partial
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

// toldBlocks is heldBlocks with what was told and given up.
func toldBlocks(l *index.Ledger) uint64 {
	n := uint64(0)
	for t := range fleet.Tier(fleet.NumTiers) {
		n += l.Told(t).Count
	}
	return n
}
