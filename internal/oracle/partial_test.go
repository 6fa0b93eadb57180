package oracle

import (
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// numbers makes n block contents from a first one on.
func numbers(from, n uint32) (out []uint32) {
	for i := range n {
		out = append(out, from+i)
	}
	return out
}

// asked reads the requests for snapshots that did not come out of a message.
func asked(s *BlockSession) (out []ResyncReason) {
	for {
		select {
		case r := <-s.Resyncs():
			out = append(out, r.Reason)
		default:
			return out
		}
	}
}

// tell sends a snapshot of chains.
func tell(t *testing.T, s *BlockSession, seq uint64, now time.Time, chains ...[]block.ID) Ack {
	t.Helper()
	n := 0
	if _, err := s.SnapshotBegin(seq, now); err != nil {
		t.Fatal(err)
	}
	for _, c := range chains {
		n += len(c)
		if _, err := s.SnapshotChunk([]Op{{Kind: OpStore, IsRoot: true, IDs: c}}, now); err != nil {
			t.Fatal(err)
		}
	}
	ack, err := s.SnapshotEnd(uint64(n), now)
	if err != nil {
		t.Fatal(err)
	}
	return ack
}

// A partial target is asked for one snapshot when there is room, none before, and ever more rarely if that does not last.
func TestPartialIsRestoredOnce(t *testing.T) {
	o := New(Config{Index: index.Config{MaxBlocks: 100}}, nil)
	now := t0
	w1, w2 := open(t, o, "w1", 1, now), open(t, o, "w2", 1, now)
	mine, theirs := chain(numbers(1, 80)...), chain(numbers(1000, 30)...)
	store(t, w1, 1, mine, now)
	ack := store(t, w2, 1, theirs, now)
	if ack.Confidence != Fresh && ack.Confidence != Partial {
		t.Fatalf("confidence %v", ack.Confidence)
	}
	// w2 took what w1 had beyond an equal share, and no more than that.
	if got := o.feeds[0].ledger.Held(fleet.Device) + o.feeds[1].ledger.Held(fleet.Device); got > 100 || got < 98 {
		t.Errorf("%d blocks in an index of 100", got)
	}
	for range 300 {
		now = now.Add(30 * time.Second)
		o.Tick(now)
	}
	if a, b := asked(w1), asked(w2); len(a)+len(b) != 0 {
		t.Errorf("a full index asked for snapshots: %v, %v", a, b)
	}
	// A digest of what was told agrees. One that does not may be the limit's doing, or a loss: it costs a snapshot once an hour.
	var d Digest
	for _, id := range mine {
		d.Count, d.XOR, d.Sum = d.Count+1, d.XOR^uint64(id), d.Sum+uint64(id)
	}
	wrong := Digest{Count: 7}
	for i, tt := range []struct {
		after time.Duration
		d     Digest
		want  BlockCounters
		asks  bool
	}{
		{0, d, BlockCounters{DigestsMatched: 1}, false},
		{0, wrong, BlockCounters{DigestsSkipped: 1}, true},
		{0, d, BlockCounters{DigestsMatched: 1}, false},
		{0, wrong, BlockCounters{DigestsSkipped: 1}, false},
		{time.Hour - time.Second, wrong, BlockCounters{DigestsSkipped: 1}, false},
		{time.Second, wrong, BlockCounters{DigestsSkipped: 1}, true},
	} {
		now = now.Add(tt.after)
		before := w1.counters
		ack, err := w1.Digest(1, fleet.Device, tt.d, now)
		if err != nil || (ack.Resync != nil) != tt.asks || tt.asks && ack.Resync.Reason != ResyncCapacity || (ack.Confidence == Stale) != tt.asks ||
			ack.Counters.DigestsMatched-before.DigestsMatched != tt.want.DigestsMatched ||
			ack.Counters.DigestsSkipped-before.DigestsSkipped != tt.want.DigestsSkipped {
			t.Errorf("digest %d: %+v, %v", i, ack, err)
		}
		if tt.asks {
			// The snapshot takes the room of what it replaces, and none of those who have less.
			held := [2]int{o.feeds[0].ledger.Held(fleet.Device), o.feeds[1].ledger.Held(fleet.Device)}
			if ack := tell(t, w1, 1, now, mine); ack.Confidence != Partial || ack.Held < held[0]-2 || o.feeds[1].ledger.Held(fleet.Device) != held[1] {
				t.Errorf("after the snapshot: %+v, held before: %v", ack, held)
			}
		}
	}
	var pauses []time.Duration
	last := now
	for life := uint64(2); life < 8; life++ {
		// The other leaves: there is room.
		if _, _, err := o.Remove("w2"); err != nil {
			t.Fatal(err)
		}
		for range 5 * 60 {
			now = now.Add(10 * time.Second)
			o.Tick(now)
			if got := asked(w1); len(got) > 0 {
				if len(got) != 1 || got[0] != ResyncCapacity {
					t.Fatalf("asked for %v", got)
				}
				pauses = append(pauses, now.Sub(last))
				last = now
				break
			}
		}
		if last != now {
			t.Fatalf("life %d: not asked", life)
		}
		for range 100 {
			now = now.Add(time.Second)
			o.Tick(now)
		}
		if got := asked(w1); len(got) != 0 {
			t.Fatalf("asked again before the answer: %v", got)
		}
		if ack := tell(t, w1, life, now, mine); ack.Confidence != Fresh || ack.Held != 80 {
			t.Fatalf("after the snapshot: %v, %d blocks", ack.Confidence, ack.Held)
		}
		// And comes back.
		w2 = open(t, o, "w2", life, now)
		store(t, w2, 1, theirs, now)
	}
	for i := 2; i < len(pauses); i++ {
		if pauses[i] < pauses[i-1] {
			t.Errorf("pauses %v: they should grow", pauses)
			break
		}
	}
}

// A snapshot that does not fit is taken as far as it goes and not asked for again; one that says less than it promised is
// refused, full or not.
func TestSnapshotThatDoesNotFit(t *testing.T) {
	o := New(Config{Index: index.Config{MaxBlocks: 50}}, nil)
	s := open(t, o, "w", 1, t0)
	if ack := tell(t, s, 1, t0, chain(numbers(1, 40)...), chain(numbers(100, 40)...)); ack.Resync != nil || ack.Confidence != Partial || ack.Held > 50 {
		t.Errorf("%+v", ack)
	}
	if _, err := s.SnapshotBegin(2, t0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SnapshotChunk([]Op{{Kind: OpStore, IsRoot: true, IDs: chain(numbers(1, 70)...)}}, t0); err != nil {
		t.Fatal(err)
	}
	ack, err := s.SnapshotEnd(90, t0)
	if err != nil || ack.Resync == nil || ack.Resync.Reason != ResyncBadSnapshot {
		t.Errorf("a snapshot with 70 of 90 blocks: %+v, %v", ack, err)
	}
}
