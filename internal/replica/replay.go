package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/oracle"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// A replica that is alone with its log has nobody to ask for what it knew. It begins with what was loaded from a file, a copy
// of some moment, and applies what the log says since: the entries of a former life of its own are another's to it, and go
// the way of all others, but
//
//   - the copy may be newer than the entry: a message is passed over whose batch the copy shows, t.again.from is the first
//     that it does not;
//   - nobody can be asked for an announcement. Where the copy and the log do not fit together the target awaits a snapshot of
//     its reporter's, as it does where the former life awaited one in the end;
//   - that a former life has heard a reporter is no sign that it lives: all that was replayed is unverified in the end.
//
// That the log goes back far enough is seen to by Mark and Trim: what is trimmed is older than a copy that was saved.

// A replica that begins with a copy of several's (keep.go) does the same with what the log has behind it, but that others can be
// asked then.

// replaying is how a node reads what was written before it began.
type replaying struct {
	done chan struct{} // closed when a former life's own log was read
	// Node.mu guards what follows.
	isOn bool
	to   uint64    // last entry of a log of several that was there at the start
	last time.Time // when the newest entry so far was written
}

// again is what is known of a target while its entries are replayed.
type again struct {
	life    uint64 // of its engine
	from    uint64 // first batch that what was loaded does not show
	applied uint64 // by the former life's last word
	// isAwaited: the former life awaited a snapshot. isOld: the one that comes is shown already.
	isAwaited, isOld bool
}

// Replayed is closed when what a former life has left in the log is known, or cannot be. A nil node's is closed.
func (n *Node) Replayed() <-chan struct{} {
	if n == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	return n.replay.done
}

// readAgain applies what a former life has written. What cannot be read is missing until reporters tell it.
func (n *Node) readAgain(ctx context.Context) {
	start := time.Now()
	n.mu.Lock()
	n.replay.isOn = true
	n.mu.Unlock()
	from, last, err := n.readLog(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	targets := 0
	for _, t := range n.targets {
		if t.session != nil {
			targets++
		}
		n.leave(t, start)
	}
	clear(n.targets)
	n.replay.isOn = false
	if err != nil && ctx.Err() == nil {
		n.log.LogAttrs(ctx, slog.LevelError, "the log of the former life cannot be read to its end; reporters will be asked", slog.Any("error", err))
	}
	n.log.LogAttrs(ctx, slog.LevelInfo, "the log is read", slog.Uint64("from", from), slog.Uint64("to", n.position), slog.Uint64("end", last),
		slog.Int("targets", targets), slog.Duration("took", time.Since(start)))
}

// caughtUp ends the reading of what others have written before the start. Their targets are believed when they say where they
// stand. Node.mu is held.
func (n *Node) caughtUp() {
	if !n.replay.isOn {
		return
	}
	n.replay.isOn = false
	now, targets := time.Now(), 0
	for _, t := range n.targets {
		t.again = again{}
		if t.session == nil {
			continue
		}
		targets++
		if o := n.origins[t.origin]; o != nil && o.boot > t.boot {
			n.leave(t, now) // its former life's
			continue
		}
		t.session.Mistrust(true, now)
		t.lacks, t.nextAsk, t.heard = true, now.Add(askLate), now
	}
	n.log.LogAttrs(context.Background(), slog.LevelInfo, "the log behind the copy is read", slog.Uint64("position", n.position), slog.Int("targets", targets))
}

// readLog goes through the log as it is, whatever NATS says meanwhile, unless it gets no further.
func (n *Node) readLog(ctx context.Context) (from, last uint64, err error) {
	asked, done := context.WithTimeout(ctx, n.cfg.natsWait)
	defer done()
	s, info, err := n.ensure(asked)
	if err != nil {
		return 0, 0, err
	}
	from, last = max(info.State.FirstSeq, 1), info.State.LastSeq
	n.mu.Lock()
	n.logID, n.position, n.tail = info.Created.UnixNano(), from-1, last
	n.mu.Unlock()
	const mostTries = 5
	for at, tries := from-1, 0; at < last; {
		err = n.readOn(ctx, s, at+1, last)
		if ctx.Err() != nil {
			return from, last, ctx.Err()
		}
		n.mu.Lock()
		was := at
		at = n.position
		n.mu.Unlock()
		if tries++; at > was {
			tries = 0
		}
		if tries == mostTries {
			return from, last, errors.Join(errors.New("replica: the log is not delivered"), err)
		}
	}
	return from, last, nil
}

// readOn applies entries from one position to another.
func (n *Node) readOn(ctx context.Context, s jetstream.Stream, from, to uint64) error {
	asked, done := context.WithTimeout(ctx, n.cfg.natsWait)
	defer done()
	messages, stop, err := n.messages(asked, s, from)
	if err != nil {
		return err
	}
	defer stop()
	for at := from - 1; at < to; {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("replica: the log: %w", err)
		}
		if err := n.message(m); err != nil {
			return err
		}
		at = meta.Sequence.Stream
	}
	return nil
}

// begin says that a hello was replayed and the first batch is not shown yet.
func (a *again) begin(life, from uint64) {
	if a.life != life {
		*a = again{life: life}
	}
	a.from, a.isOld = from, false
}

// isShown says whether what was loaded shows what a message tells.
func (a *again) isShown(m *kvoraclev1.ReportBlocksRequest) bool {
	switch x := m.GetMessage().(type) {
	case *kvoraclev1.ReportBlocksRequest_Batch:
		return x.Batch.GetSequence() < a.from
	case *kvoraclev1.ReportBlocksRequest_SnapshotBegin:
		a.isOld = x.SnapshotBegin.GetSequence() < a.from
		return a.isOld
	case *kvoraclev1.ReportBlocksRequest_SnapshotChunk:
		return a.isOld
	case *kvoraclev1.ReportBlocksRequest_SnapshotEnd:
		is := a.isOld
		a.isOld = false
		return is
	}
	return false
}

// handAgain gives a message that is replayed to the oracle.
func (n *Node) handAgain(t *target, e *replicav1.Entry, m *kvoraclev1.ReportBlocksRequest, now time.Time) {
	switch {
	case t.hello == nil:
		n.open(t, e, m, now)
		t.isSkipping = false // an announcement is known by its batch, too
	case t.again.isShown(m):
		n.count.skippedEntries.Add(1)
	default:
		if _, err := t.applier.Apply(m, now); err != nil {
			n.refuse(t, err)
			return
		}
		if m.GetSnapshotBegin() != nil && len(e.GetLost()) > 0 {
			t.session.Owe(decodeDigests(e.GetLost()))
		}
	}
	n.check(t, e.GetAfter())
}

// check holds a target against where it stood in the former life. One that stands further on is newer.
func (n *Node) check(t *target, was *replicav1.Standing) {
	if t.session == nil || was == nil {
		return
	}
	a := &t.again
	switch {
	case was.GetApplied() < a.applied:
		a.from = 0 // the numbering began again: what a number stands for is not known
		t.session.Ask(oracle.ResyncRenumbered)
	case !was.GetAwaiting() && n.differs(t, was) == inDigest:
		n.count.differences.Add(1)
		t.session.Ask(oracle.ResyncDigestMismatch)
	}
	a.applied, a.isAwaited = was.GetApplied(), was.GetAwaiting()
}

// rest ends a session that was replayed.
func (n *Node) rest(t *target, now time.Time) {
	if t.again.isAwaited {
		t.session.Ask(oracle.ResyncGap)
	}
	t.session.Rest(n.replay.last, now)
}

// Mark prepares for a copy of the oracle that is about to be made, and returns a position in the log: with that copy, what
// comes after it is enough. ok is false where nobody is alone with a log, or it is not there.
//
// A replay needs a hello before a target's messages, and an old one may be trimmed. So each stream says its own again.
func (n *Node) Mark() (position uint64, ok bool) {
	if n == nil || !n.isAlone() || !n.isConnected() || !n.following.Load() {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.natsWait)
	defer cancel()
	s, err := n.js.Stream(ctx, n.name)
	if err != nil {
		return 0, false
	}
	position = s.CachedInfo().State.LastSeq
	n.greetAll()
	return position, true
}

// greetAll has each stream say hello again.
func (n *Node) greetAll() {
	n.mu.Lock()
	all := make([]*Stream, 0, len(n.streams))
	for s := range n.streams {
		all = append(all, s)
	}
	n.mu.Unlock()
	for _, s := range all {
		s.expect(s.greet())
	}
}

// greet writes the stream's hello as of now.
func (s *Stream) greet() ([]jetstream.PubAckFuture, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil || s.isBroken.Load() || s.superseded.Load() || s.claim == (place{}) {
		return nil, nil // it is over, or will be announced
	}
	st, err := s.session.Standing()
	if err != nil {
		return nil, nil // kicked: the caller will notice
	}
	hello := proto.CloneOf(s.hello)
	hello.NextSequence = st.Applied + 1
	s.n.rename(s)
	return s.publish(&replicav1.Entry{
		After:   encodeStanding(&st),
		Request: marshal(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: hello}}),
	})
}

// Trim forgets what the log has up to a position that Mark has returned, since a copy that was begun after it is saved.
func (n *Node) Trim(position uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.natsWait)
	defer cancel()
	s, err := n.js.Stream(ctx, n.name)
	if err == nil {
		err = s.Purge(ctx, jetstream.WithPurgeSequence(position+1))
	}
	if err != nil {
		n.log.LogAttrs(ctx, slog.LevelWarn, "the log is not trimmed", slog.Any("error", err))
	}
}
