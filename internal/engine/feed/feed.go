package feed

import (
	"cmp"
	"slices"
	"time"
)

// Message is one batch as it came.
type Message interface {
	// Sum tells messages of one number apart.
	Sum() uint64
	// Size is its memory in bytes.
	Size() int
}

// Trust is how far what is held can be trusted. See the package comment.
type Trust uint8

// The trusts.
const (
	// Unheard: there was no message yet.
	Unheard Trust = iota
	// Whole: what is held is what the engine holds.
	Whole
	// Partial: what is held is right, and there may be more.
	Partial
	// Doubtful: what is held may be wrong.
	Doubtful
)

// String is the trust as a label of a metric.
func (t Trust) String() string {
	switch t {
	case Unheard:
		return "unheard"
	case Whole:
		return "whole"
	case Partial:
		return "partial"
	case Doubtful:
		return "doubtful"
	}
	return "unknown"
}

// Cause is why a new life began.
type Cause uint8

// The causes.
const (
	// Restarted: the engine has begun to count anew, or the caller says so.
	Restarted Cause = iota
	// Reconnected: after a new connection nothing proves that it is the same engine process.
	Reconnected
	// Outdated: what was in doubt for Config.DoubtFor is given up.
	Outdated
	// Overrun: what was missed is not in the engine's ring any more; the picture begins anew with what is.
	Overrun
	// Retold: the engine's side tells anew all that it holds.
	Retold
)

// String is the cause as a label of a metric.
func (c Cause) String() string {
	switch c {
	case Restarted:
		return "restarted"
	case Reconnected:
		return "reconnected"
	case Outdated:
		return "outdated"
	case Overrun:
		return "overrun"
	case Retold:
		return "retold"
	}
	return "unknown"
}

// Result is what an applied message means.
type Result struct {
	// IsLost: it was not understood.
	IsLost bool
	// IsWhole: it dropped everything the engine held.
	IsWhole bool
	// IsDoubtful: a part of it that may have been a removal was not understood.
	IsDoubtful bool
}

// Handler is who a feed works for. Its methods must not call the feed.
type Handler[M Message] interface {
	// Apply takes the next message.
	Apply(sequence uint64, m M) Result
	// Replay asks the engine for every message from a sequence on. The answer comes by Feed.Replayed, then Feed.ReplayEnd or
	// Feed.ReplayFailed. An earlier answer that is still on its way is not wanted any more.
	Replay(from uint64)
	// NewLife: nothing of what was applied is held any more.
	NewLife(Cause)
	// Trust has changed.
	Trust(Trust)
}

// Config is how a feed behaves. Zero values are the defaults.
type Config struct {
	// HasReplay: Handler.Replay can be answered.
	HasReplay bool
	// First is the number an engine begins with: 0, but for Mooncake's 1.
	First uint64
	// Messages and Bytes bound what waits for a gap to be filled; 16,384 and 64 MiB.
	Messages, Bytes int
	// ReorderWait is how long a missing number is waited for without a replay; 100 ms.
	ReorderWait time.Duration
	// ReplayTimeout is how long an answer may take from one message to the next; 10 s.
	ReplayTimeout time.Duration
	// Attempts is how often a replay that failed is tried; 3.
	Attempts int
	// DoubtFor is how long what is in doubt is kept; 30 min.
	DoubtFor time.Duration
	// FirstLook and Quiet are when a replay is asked for again though nothing is known to be missing: so long after one that
	// followed a new connection, then ever later, and when nothing has come for Quiet. 250 ms and 30 s.
	FirstLook, Quiet time.Duration
}

func (c *Config) setDefaults() {
	c.Messages = cmp.Or(c.Messages, 16<<10)
	c.Bytes = cmp.Or(c.Bytes, 64<<20)
	c.ReorderWait = cmp.Or(c.ReorderWait, 100*time.Millisecond)
	c.ReplayTimeout = cmp.Or(c.ReplayTimeout, 10*time.Second)
	c.Attempts = cmp.Or(c.Attempts, 3)
	c.DoubtFor = cmp.Or(c.DoubtFor, 30*time.Minute)
	c.FirstLook = cmp.Or(c.FirstLook, 250*time.Millisecond)
	c.Quiet = cmp.Or(c.Quiet, 30*time.Second)
}

// Stats counts what has happened.
type Stats struct {
	Applied    uint64 // messages
	Repeated   uint64 // messages that had been applied already
	Late       uint64 // messages that came after they had been given up
	Missing    uint64 // numbers given up
	Lost       uint64 // messages that were not understood
	Gaps       uint64 // times numbers were missing
	Replays    uint64 // times a replay was asked for
	Looks      uint64 // of them, those for which nothing was known to be missing
	Refilled   uint64 // messages that only a replay brought
	Failed     uint64 // replays that failed
	Overflows  uint64 // times too much waited
	Lives      uint64 // new lives
	Next       uint64 // number expected
	Waiting    int    // messages
	WaitingFor int    // bytes of them
}

const (
	memory  = 1024 // messages that are recognised
	gapsCap = 64   // ranges of given-up numbers that are remembered
	leap    = 1e9  // no engine loses so many messages
)

// item is a message that waits.
type item[M Message] struct {
	sequence uint64
	m        M
}

// span is numbers from, to exclusive.
type span struct{ from, to uint64 }

// Feed is one rank's messages. See the package comment; not for concurrent use.
type Feed[M Message] struct {
	cfg   Config
	h     Handler[M]
	stats Stats

	trust      Trust
	doubtSince time.Time
	next       uint64 // with trust above Unheard
	recent     [memory]struct {
		sequence, sum uint64
		isSet         bool
	}
	missing []span // oldest first

	waiting []item[M] // by number
	bytes   int
	waitTo  time.Time // until then missing numbers may still come; zero: none are missing

	// Of the replay under way.
	isOpen    bool
	isProving bool // it must begin with the last message applied
	isRefused bool // it turned out to be of another life: what else it brings is not wanted
	isBegun   bool // some of it has come
	attempt   int
	from      uint64
	timeout   time.Time
	retryAt   time.Time // zero: none is due

	// Of the connection.
	isUnproven bool   // the next live message decides whether the life is the same
	liveNext   uint64 // above all live messages on it
	covered    uint64 // replays have brought everything below
	lookAt     time.Time
	lookNext   time.Duration // after the one at lookAt
}

// New makes a feed that has heard nothing.
func New[M Message](cfg Config, h Handler[M]) *Feed[M] {
	cfg.setDefaults()
	return &Feed[M]{cfg: cfg, h: h}
}

// TrustNow is the trust.
func (f *Feed[M]) TrustNow() Trust { return f.trust }

// Stats is what has happened so far.
func (f *Feed[M]) Stats() Stats {
	s := f.stats
	s.Next, s.Waiting, s.WaitingFor = f.next, len(f.waiting), f.bytes
	return s
}

// Connected says that live messages come from a new connection from now on.
func (f *Feed[M]) Connected(now time.Time) {
	f.liveNext, f.covered = 0, 0
	f.lookAt, f.lookNext = now.Add(f.cfg.FirstLook), 4*f.cfg.FirstLook
	if !f.cfg.HasReplay {
		for len(f.waiting) > 0 {
			f.giveUp(now)
		}
		f.isUnproven = f.trust != Unheard
		return
	}
	// If the life is the same, the replay has what waits; if not, nobody wants it.
	f.waiting, f.bytes, f.attempt, f.isUnproven = nil, 0, 0, false
	if f.isProving = f.trust != Unheard; f.isProving {
		f.ask(f.next-1, now)
	} else {
		f.ask(f.cfg.First, now)
	}
}

// Proven says that the engine process is the one from before the new connection, as the caller knows by other means.
func (f *Feed[M]) Proven() { f.isUnproven = false }

// Restarted says that the engine process is another one.
func (f *Feed[M]) Restarted(now time.Time) {
	if f.trust != Unheard {
		f.begin(Restarted)
		if f.cfg.HasReplay {
			f.isProving = false
			f.ask(f.cfg.First, now)
		}
	}
}

// Lost says that messages have gone by of which no number is known: what is held may be wrong.
func (f *Feed[M]) Lost(now time.Time) {
	if f.trust != Unheard {
		f.doubt(now)
	}
}

// Retell says that the message with that number, the next one to come live, begins to tell anew all that the engine holds.
// What is held is dropped for it, and what comes is Partial until Result.IsWhole says that it is all, or Whole if it begins
// with Config.First. Only without a replay.
func (f *Feed[M]) Retell(sequence uint64) {
	if f.trust != Unheard {
		cause := Retold
		if f.isUnproven {
			cause = Reconnected
		}
		f.begin(cause)
	}
	f.start(sequence)
}

// Live takes a published message.
func (f *Feed[M]) Live(sequence uint64, m M, now time.Time) {
	f.lookAt, f.lookNext = now.Add(f.cfg.Quiet), f.cfg.Quiet
	if f.isHeld() {
		f.hold(sequence, m, now)
		return
	}
	f.place(sequence, m, now)
}

// isHeld: live messages wait for a replay.
func (f *Feed[M]) isHeld() bool { return f.isOpen || !f.retryAt.IsZero() }

// place takes a message that no replay stands before.
func (f *Feed[M]) place(sequence uint64, m M, now time.Time) {
	if f.isUnproven {
		f.isUnproven = false
		switch {
		case f.isRepeat(sequence, m):
		case sequence == f.next:
			f.doubt(now)
		default:
			f.begin(Reconnected)
		}
	}
	if f.trust == Unheard {
		f.start(sequence)
	}
	switch {
	case sequence == f.next:
		f.apply(sequence, m, now)
		f.drain(now)
	case sequence > f.next && sequence-f.next > leap:
		f.begin(Restarted)
		f.start(sequence)
		f.apply(sequence, m, now)
	case sequence > f.next:
		f.gap(sequence, m, now)
	default:
		f.back(sequence, m, now)
	}
	f.liveNext = max(f.liveNext, sequence+1)
}

// start takes a life's first message's number.
func (f *Feed[M]) start(sequence uint64) {
	f.next = sequence
	if sequence == f.cfg.First {
		f.setTrust(Whole)
	} else {
		f.setTrust(Partial)
	}
}

func (f *Feed[M]) apply(sequence uint64, m M, now time.Time) {
	at := &f.recent[sequence%memory]
	at.sequence, at.sum, at.isSet = sequence, m.Sum(), true
	f.next = sequence + 1
	f.stats.Applied++
	r := f.h.Apply(sequence, m)
	if r.IsWhole {
		f.setTrust(Whole)
	}
	if r.IsLost {
		f.stats.Lost++
	}
	if r.IsLost || r.IsDoubtful {
		f.doubt(now)
	}
}

// gap takes a message from behind missing numbers.
func (f *Feed[M]) gap(sequence uint64, m M, now time.Time) {
	isFirst := len(f.waiting) == 0
	if isFirst {
		f.stats.Gaps++
	}
	f.hold(sequence, m, now)
	switch {
	case len(f.waiting) == 0 || !isFirst:
	case f.cfg.HasReplay:
		f.isProving = false
		f.ask(f.next, now)
	default:
		f.waitTo = now.Add(f.cfg.ReorderWait)
	}
}

// back takes a message whose number has been passed: seen already, given up, or a new life's.
func (f *Feed[M]) back(sequence uint64, m M, now time.Time) {
	at := &f.recent[sequence%memory]
	isOther := at.isSet && at.sequence == sequence && at.sum != m.Sum()
	// A live message may come long after a replay has brought it.
	isCovered := sequence < f.covered && sequence >= f.liveNext && !isOther
	if f.isRepeat(sequence, m) || isCovered {
		f.stats.Repeated++
		return
	}
	if f.isMissing(sequence) {
		// What came after it has been applied; applying it now could bring back what has gone.
		f.stats.Late++
		return
	}
	f.begin(Restarted)
	if f.cfg.HasReplay && sequence != f.cfg.First {
		f.isProving = false
		f.hold(sequence, m, now)
		f.ask(f.cfg.First, now)
		return
	}
	f.start(sequence)
	f.apply(sequence, m, now)
}

func (f *Feed[M]) isRepeat(sequence uint64, m M) bool {
	at := &f.recent[sequence%memory]
	return at.isSet && at.sequence == sequence && at.sum == m.Sum()
}

func (f *Feed[M]) isMissing(sequence uint64) bool {
	return slices.ContainsFunc(f.missing, func(s span) bool { return s.from <= sequence && sequence < s.to })
}

// hold makes a message wait. The oldest of a number stays.
func (f *Feed[M]) hold(sequence uint64, m M, now time.Time) {
	i, has := slices.BinarySearchFunc(f.waiting, sequence, func(x item[M], s uint64) int { return cmp.Compare(x.sequence, s) })
	if has {
		return
	}
	f.waiting = slices.Insert(f.waiting, i, item[M]{sequence, m})
	f.bytes += m.Size()
	if len(f.waiting) > f.cfg.Messages || f.bytes > f.cfg.Bytes && len(f.waiting) > 1 {
		f.stats.Overflows++
		f.abandon(now)
	}
}

// drain applies what waits, up to the next missing number.
func (f *Feed[M]) drain(now time.Time) {
	n := 0
	for ; n < len(f.waiting); n++ {
		x := f.waiting[n]
		if x.sequence > f.next {
			break
		}
		f.bytes -= x.m.Size()
		if x.sequence == f.next {
			f.apply(x.sequence, x.m, now)
		}
	}
	f.waiting = slices.Delete(f.waiting, 0, n)
	if len(f.waiting) == 0 {
		f.waitTo = time.Time{}
	}
}

// giveUp passes over the numbers that are missing before what waits.
func (f *Feed[M]) giveUp(now time.Time) {
	if len(f.waiting) == 0 {
		return
	}
	f.skip(f.waiting[0].sequence, now)
	f.drain(now)
	if len(f.waiting) > 0 {
		f.stats.Gaps++
		f.waitTo = now.Add(f.cfg.ReorderWait)
	}
}

// skip gives up all numbers before one.
func (f *Feed[M]) skip(to uint64, now time.Time) {
	f.stats.Missing += to - f.next
	if len(f.missing) == gapsCap {
		f.missing = slices.Delete(f.missing, 0, 1)
	}
	f.missing = append(f.missing, span{f.next, to})
	f.next = to
	f.doubt(now)
}

func (f *Feed[M]) doubt(now time.Time) {
	if f.trust != Doubtful {
		f.doubtSince = now
	}
	f.setTrust(Doubtful)
}

func (f *Feed[M]) setTrust(t Trust) {
	if f.trust != t {
		f.trust = t
		f.h.Trust(t)
	}
}

// begin ends a life: the next message is the first one of another.
func (f *Feed[M]) begin(c Cause) {
	f.stats.Lives++
	f.trust, f.isUnproven = Unheard, false
	f.missing = f.missing[:0]
	f.waiting, f.bytes, f.waitTo = nil, 0, time.Time{}
	f.liveNext, f.covered = 0, 0
	clear(f.recent[:])
	f.h.NewLife(c)
	f.h.Trust(Unheard)
}
