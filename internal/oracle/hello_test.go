package oracle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// TestRefusedHelloChangesNothing: whatever a hello contradicts, nothing of it is kept, neither what it says besides nor the
// stream that it would have taken over.
func TestRefusedHelloChangesNothing(t *testing.T) {
	good := func() *Hello {
		return &Hello{
			Spec:        fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 2, Labels: map[string]string{"zone": "a"}},
			Incarnation: 5, NextSequence: 1, PrefixGroup: 1,
		}
	}
	for name, tt := range map[string]struct {
		change func(*Hello)
		reason Reason
		field  string
	}{
		"an old incarnation":   {func(h *Hello) { h.Incarnation = 4 }, ReasonOldIncarnation, "hello.incarnation"},
		"another model":        {func(h *Hello) { h.Spec.Model = "n" }, ReasonSpecContradiction, "worker"},
		"another block size":   {func(h *Hello) { h.Spec.BlockSize = 2 * size }, ReasonSpecContradiction, "worker"},
		"more ranks":           {func(h *Hello) { h.Spec.DPSize = 3 }, ReasonSpecContradiction, "worker"},
		"fewer ranks":          {func(h *Hello) { h.Spec.DPSize = 1 }, ReasonSpecContradiction, "worker"},
		"copies now count":     {func(h *Hello) { h.Counted = true }, ReasonSpecContradiction, "hello.repeats"},
		"engine hashes now":    {func(h *Hello) { h.EngineHashes = true }, ReasonSpecContradiction, "hello.engine_hashes"},
		"another prefix group": {func(h *Hello) { h.PrefixGroup = 2 }, ReasonSpecContradiction, "hello.groups"},
		"a worker too many":    {func(h *Hello) { h.Spec.Worker = "x" }, ReasonFleetFull, "worker"},
	} {
		o := New(Config{MaxWorkers: 1}, nil)
		s, _, err := o.OpenBlocks(good(), t0)
		if err != nil {
			t.Fatal(err)
		}
		store(t, s, 1, chain(1, 2), t0)
		if _, err := s.SnapshotBegin(1, t0); err != nil { // one under way goes on, too
			t.Fatal(err)
		}
		before := o.Workers("", t0)
		h := good()
		h.Spec.Labels = map[string]string{"zone": "b"}
		h.Spec.Address, h.Spec.Class, h.Spec.MaxRequests, h.Spec.Roles = "10.0.0.1:1", "fast", 7, fleet.Decode
		tt.change(h)
		for what, refuse := range map[string]func() error{
			"MayOpen":    func() error { return o.MayOpen(h) },
			"OpenBlocks": func() error { _, _, err := o.OpenBlocks(h, t0); return err },
		} {
			err := refuse()
			e, ok := err.(*Error) //nolint:errorlint // nobody wraps it
			if !ok || e.Reason != tt.reason || e.Field != tt.field {
				t.Errorf("%s: %s says %v, want %v of %s", name, what, err, tt.reason, tt.field)
			}
			if d := cmp.Diff(before, o.Workers("", t0), cmp.Comparer(func(a, b *fleet.Worker) bool { return a == b })); d != "" {
				t.Errorf("%s: %s was refused and changed something:\n%s", name, what, d)
			}
			select {
			case <-s.Kicked():
				t.Errorf("%s: %s was refused and kicked the stream: %v", name, what, s.Cause())
			default:
			}
		}
		if _, err := s.SnapshotChunk([]Op{{Kind: OpStore, IsRoot: true, IDs: chain(1, 2, 3)}}, t0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if ack, err := s.SnapshotEnd(3, t0); err != nil || ack.Held != 3 || ack.Counters.Snapshots != 1 {
			t.Errorf("%s: the stream goes on with %+v, %v", name, ack, err)
		}
	}
}

// A rank that has not spoken yet may do so in its own way.
func TestRanksNeedNotSpeakAlike(t *testing.T) {
	o := New(Config{}, nil)
	h := &Hello{Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 2}, Incarnation: 5, NextSequence: 1}
	if _, _, err := o.OpenBlocks(h, t0); err != nil {
		t.Fatal(err)
	}
	other := *h
	other.Rank, other.Counted, other.EngineHashes = 1, true, true
	if err := o.MayOpen(&other); err != nil {
		t.Error(err)
	}
	if _, _, err := o.OpenBlocks(&other, t0); err != nil {
		t.Error(err)
	}
}

// TestASnapshotThatNeverBeginsIsAskedForAgain: a reporter that goes on as if it had answered is asked again, a minute after the
// first message since, and each minute after that; one that answers is left in peace.
func TestASnapshotThatNeverBeginsIsAskedForAgain(t *testing.T) {
	o := New(Config{}, nil)
	s, acc := hello(t, o, Hello{Incarnation: 1, NextSequence: 5}, t0)
	if !acc.SnapshotRequired {
		t.Fatalf("accepted %+v, want a snapshot to be required", acc)
	}
	seq := uint64(4)
	batch := func(after time.Duration, want bool) {
		t.Helper()
		seq++
		ack, err := s.Batch(seq, seq, nil, t0.Add(after))
		if err != nil || (ack.Resync != nil) != want || want && ack.Resync.Reason != ResyncBadSnapshot {
			t.Errorf("after %v: %+v, %v, want to be asked again: %v", after, ack.Resync, err, want)
		}
	}
	batch(10*time.Minute, false) // may have been on its way
	batch(10*time.Minute+59*time.Second, false)
	batch(11*time.Minute, true)
	batch(11*time.Minute+time.Second, false)
	digest, err := s.Digest(seq, fleet.Device, index.Digest{}, t0.Add(12*time.Minute+time.Second))
	if err != nil || digest.Resync == nil || digest.Counters.DigestsSkipped != 1 {
		t.Errorf("a digest a minute later: %+v, %v, want to be asked again", digest, err)
	}
	if _, err := s.SnapshotBegin(seq, t0.Add(13*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if ack, err := s.Batch(seq, seq, nil, t0.Add(20*time.Minute)); err != nil || ack.Resync != nil {
		t.Errorf("a slow snapshot: %+v, %v, want to wait for it", ack.Resync, err)
	}
	if ack, err := s.SnapshotEnd(0, t0.Add(20*time.Minute)); err != nil || ack.Awaiting {
		t.Errorf("its end: %+v, %v", ack, err)
	}
	batch(30*time.Minute, false)
}
