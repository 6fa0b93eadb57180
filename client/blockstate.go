package client

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// What a block stream does to its reporter's state. Each function here is one critical section.

// todo is what a stream should send next: one of snapshot, batch with digests, or digests alone; else nothing is due for
// wait.
type todo struct {
	snapshot *snapshot
	batch    *kvoraclev1.BlockBatch
	digests  []*kvoraclev1.BlockDigest
	wait     time.Duration
}

func (r *Reporter) hello() *kvoraclev1.ReportBlocksRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
		Worker:       r.spec,
		DpRank:       r.rank,
		Incarnation:  r.incarnation,
		NextSequence: r.out.next,
		HashScheme:   HashScheme,
		Repeats:      r.repeats,
	}}}
}

// accepted starts a stream where the oracle wants it.
func (r *Reporter) accepted(s *blockStream, m *kvoraclev1.BlocksAccepted) {
	s.maxBytes = maxMessage
	if n := m.GetMaxMessageBytes(); n > 0 {
		// Below the least a single block would not fit.
		s.maxBytes = int(min(max(n, minMessage), maxMessage))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.resume(m.GetResumeFrom(), m.GetSnapshotRequired())
	r.stats.Connected = true
	r.stats.Confidence = m.GetConfidence()
	r.stats.Oracle = nil
	r.announce()
}

// next decides what a stream sends. A snapshot goes before everything: batches would be ignored until it is there.
func (r *Reporter) next(s *blockStream, now time.Time) todo {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out.needSnapshot {
		if wait := r.snapNext.Sub(now); wait > 0 {
			return todo{wait: wait}
		}
		return todo{snapshot: r.takeSnapshot(s, now)}
	}
	if b := r.out.unsent(); b != nil {
		return todo{batch: b.msg, digests: b.digests}
	}
	if r.out.hasWork() {
		if wait := r.batchNot.Sub(now); wait > 0 && !r.out.barrier && r.out.bytes < r.out.limit/2 {
			return todo{wait: wait}
		}
		if d := r.cfg.gather; d > 0 {
			r.batchNot = now.Add(d + rand.N(d/2+1)) // or a fleet that started together would talk in chorus
		}
		b := r.out.seal(s.maxBytes)
		b.msg.Doubtful = r.vouch(r.out.pending.len() == 0)
		r.stats.Batches++
		r.digestGap++
		// The mirror runs ahead of the batches while changes are pending: a digest holds only when none are.
		if r.out.pending.len() == 0 && r.digestDue(now) <= 0 {
			b.digests = r.takeDigests(b.msg.GetSequence(), now)
		}
		return todo{batch: b.msg, digests: b.digests}
	}
	wait := r.digestDue(now)
	if wait <= 0 {
		if d := r.takeDigests(r.out.next-1, now); len(d) > 0 {
			return todo{digests: d}
		}
		wait = r.digestDue(now)
	}
	return todo{wait: wait}
}

// takeSnapshot copies the contents at a sequence of their own. The first snapshot goes at once; one that follows another
// closely waits, ever longer, so that an oracle that refuses what it gets is not flooded. r is locked.
func (r *Reporter) takeSnapshot(s *blockStream, now time.Time) *snapshot {
	if now.Sub(r.snapTaken) > 2*r.snapPace.most {
		r.snapPace.reset()
	}
	r.snapTaken, r.snapNext = now, now.Add(r.snapPace.next())
	r.stats.Snapshots++
	snap := &snapshot{doubtful: r.vouch(true), sequence: r.out.show(), blocks: r.mirror.export(), count: r.mirror.total()}
	s.shown = snap.sequence
	snap.digests = r.takeDigests(snap.sequence, now)
	return snap
}

// digestDue is how long it is until the next digest; at most 0: now.
func (r *Reporter) digestDue(now time.Time) time.Duration {
	const never = time.Hour
	wait := never
	if n := r.cfg.digestInterval; n > 0 {
		wait = r.digestAt.Add(n).Sub(now)
	}
	if n := r.cfg.digestBatches; n > 0 && r.digestGap >= n {
		wait = 0
	}
	return max(wait, r.digestNot.Sub(now))
}

// takeDigests sums up every tier of the mirror, which must show the state after that sequence. Empty tiers too: the
// oracle may have missed that they were emptied. r is locked.
func (r *Reporter) takeDigests(sequence uint64, now time.Time) []*kvoraclev1.BlockDigest {
	r.digestAt, r.digestGap = now, 0
	if now.Before(r.digestNot) || sequence == 0 {
		return nil
	}
	out := make([]*kvoraclev1.BlockDigest, numTiers)
	for t, d := range r.mirror.digests {
		m := &kvoraclev1.BlockDigest{Sequence: sequence, Tier: tierAt(t), Count: d.count, Xor: d.xor, Sum: d.sum}
		if r.mirror.counted {
			m.Copies, m.CopySum = d.copies, d.copySum
		}
		out[t] = m
	}
	return out
}

// acknowledged takes an ack in.
func (r *Reporter) acknowledged(s *blockStream, m *kvoraclev1.BlocksAck) {
	for _, f := range m.GetRefusals() {
		if f.GetReason() == kvoraclev1.RefusalReason_REFUSAL_REASON_AWAITING_SNAPSHOT {
			continue // the request for the snapshot says it
		}
		if _, again := s.warned[f.GetReason()]; again {
			continue
		}
		if s.warned == nil {
			s.warned = make(map[kvoraclev1.RefusalReason]struct{})
		}
		s.warned[f.GetReason()] = struct{}{}
		r.log(slog.LevelWarn, "kvoracle: operation refused", "sequence", f.GetSequence(), "op", f.GetOp(), "reason", f.GetReason().String(), "detail", f.GetDetail())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range m.GetRefusals() {
		if f.GetReason() == kvoraclev1.RefusalReason_REFUSAL_REASON_CAPACITY {
			r.digestNot = time.Now().Add(capacityPause)
		}
	}
	r.out.ack(m.GetAppliedSequence())
	r.stats.Acknowledged = m.GetAppliedSequence()
	r.stats.Confidence = m.GetConfidence()
	r.stats.HeldByOracle = m.GetHeldBlocks()
	r.stats.Oracle = m.GetCounters()
	r.announce()
}

// resync answers a request for a snapshot with exactly one: if one that was begun after the cause is on its way, that is
// the answer. One that has arrived is not: its acknowledgement came before this request, so the cause came after it. An
// operator's request has no cause to compare with, and a snapshot that was refused needs another.
func (r *Reporter) resync(s *blockStream, m *kvoraclev1.ResyncRequest) {
	cause := m.GetReceivedSequence()
	r.mu.Lock()
	r.stats.Resyncs++
	answered := m.GetReason() != kvoraclev1.ResyncReason_RESYNC_REASON_OPERATOR && cause != 0 && cause < s.shown && r.out.showing != 0
	if !answered {
		r.out.giveUp()
	}
	r.mu.Unlock()
	wake(r.wake)
	r.log(slog.LevelWarn, "kvoracle: snapshot asked for",
		"reason", m.GetReason().String(), "expected", m.GetExpectedSequence(), "received", cause, "on_its_way", answered)
}

// log writes a line about this rank. r must not be locked: a logger may be slow.
func (r *Reporter) log(level slog.Level, msg string, args ...any) {
	args = append(args, "worker", r.spec.GetWorkerId(), "dp_rank", r.rank)
	r.cfg.log.Log(context.Background(), level, msg, args...)
}
