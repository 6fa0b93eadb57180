package client

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestNothingIsLost is the protocol as a state machine: random changes, cuts at any message, restarts, silent losses and
// operators; whatever happened, once the two have talked to the end, the oracle has exactly what the reporter holds.
func TestNothingIsLost(t *testing.T) {
	var total struct{ restarts, cuts, losses, operator, overflows, snapshots int }
	for seed := range uint64(400) {
		w := newWorld(t, seed)
		for range 1 + w.rng.IntN(400) {
			switch n := w.rng.IntN(100); {
			case n < 30:
				w.change()
			case n < 50:
				w.write()
			case n < 90:
				w.deliver()
			case n < 97:
				w.connect()
			default:
				w.trouble()
			}
			w.now = w.now.Add(time.Duration(w.rng.IntN(300)) * time.Millisecond)
			if w.r.out.bytes > w.r.out.limit {
				t.Fatalf("seed %d: outbox of %d bytes, limit %d", seed, w.r.out.bytes, w.r.out.limit)
			}
		}
		w.settle()
		if d := cmp.Diff(w.r.mirror.state(), w.feed.view.state(), compareTwins); d != "" {
			t.Fatalf("seed %d: the oracle's view (-want +got)\n%s", seed, d)
		}
		if w.feed.duplicates > 0 || w.feed.gaps > 0 || w.feed.mismatches > w.seen.losses {
			t.Fatalf("seed %d: %d batches sent twice, %d left out, %d digests that did not match after %d losses",
				seed, w.feed.duplicates, w.feed.gaps, w.feed.mismatches, w.seen.losses)
		}
		if got, most := w.r.stats.Snapshots, uint64(w.feed.causes+w.seen.cuts+w.seen.restarts)+w.r.out.overflows; got > most {
			t.Fatalf("seed %d: %d snapshots for at most %d causes", seed, got, most)
		}
		if w.r.out.bytes != 0 {
			t.Fatalf("seed %d: empty outbox counts %d bytes", seed, w.r.out.bytes)
		}
		total.restarts += w.seen.restarts
		total.cuts += w.seen.cuts
		total.losses += w.seen.losses
		total.operator += w.seen.operator
		total.overflows += int(w.r.out.overflows)
		total.snapshots += w.feed.snapshots
	}
	if s := fmt.Sprint(total); total.restarts == 0 || total.cuts == 0 || total.losses == 0 || total.operator == 0 || total.overflows == 0 || total.snapshots == 0 {
		t.Errorf("something was never tried: %s", s)
	}
}

// A second reporter of one incarnation begins its numbering anew; the oracle counts further than it.
func TestNumberingStaysAboveTheOracles(t *testing.T) {
	w := newWorld(t, 0)
	w.feed = &oracleFeed{known: true, incarnation: 7, applied: 1000, view: newMirror(false)}
	if err := w.r.Store(Root(), []block.ID{1, 2, 3}, TierDevice); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if d := cmp.Diff(w.r.mirror.state(), w.feed.view.state(), compareTwins); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if w.feed.applied <= 1000 {
		t.Errorf("applied %d, want above 1000", w.feed.applied)
	}
}

// An oracle that refuses every snapshot must not be sent one after the other.
func TestRefusedSnapshotsBackOff(t *testing.T) {
	w := newWorld(t, 0)
	w.feed = &oracleFeed{refuseSnapshots: true, known: true, incarnation: 7, awaiting: true, view: newMirror(false)}
	if err := w.r.Store(Root(), []block.ID{1, 2, 3}, TierDevice); err != nil {
		t.Fatal(err)
	}
	w.connect()
	for end := w.now.Add(time.Hour); w.now.Before(end); w.now = w.now.Add(100 * time.Millisecond) {
		for w.write() || w.deliver() {
		}
	}
	// At least half of 30 s apart, once the steps have grown.
	if n := w.r.stats.Snapshots; n < 100 || n > 260 {
		t.Errorf("%d snapshots in an hour, want one each 15 to 30 s", n)
	}
	w.feed.refuseSnapshots = false
	w.settle()
	if d := cmp.Diff(w.r.mirror.state(), w.feed.view.state(), compareTwins); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// A resync whose cause lies before a snapshot that is on its way has its answer.
func TestOneSnapshotPerCause(t *testing.T) {
	w := newWorld(t, 0)
	w.connect()
	w.deliver()
	if err := w.r.Store(Root(), []block.ID{1, 2, 3}, TierDevice); err != nil {
		t.Fatal(err)
	}
	w.write() // batch 1 and a digest are on the way
	w.feed.view.digests[0].count = 99
	w.r.mu.Lock()
	w.r.out.giveUp() // as an overflow does
	w.r.mu.Unlock()
	w.settle()
	if w.r.stats.Resyncs != 1 || w.feed.snapshots != 1 {
		t.Errorf("%d resyncs, %d snapshots; want 1 and 1", w.r.stats.Resyncs, w.feed.snapshots)
	}
}

// A snapshot that has arrived is no answer to what happened after it: a batch from before it that comes once more looks
// like another numbering, and its number is below the snapshot's.
func TestStaleRepeatBehindASnapshot(t *testing.T) {
	w := newWorld(t, 0)
	if err := w.r.Store(Root(), []block.ID{1, 2, 3}, TierDevice); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.r.mu.Lock()
	w.r.out.giveUp()
	w.r.mu.Unlock()
	w.settle()
	if w.feed.snapshots != 1 || w.r.out.needSnapshot {
		t.Fatalf("%d snapshots, another needed: %t", w.feed.snapshots, w.r.out.needSnapshot)
	}
	w.feed.awaiting = true
	w.down = append(w.down, resyncMessage(kvoraclev1.ResyncReason_RESYNC_REASON_RENUMBERED, w.feed.applied+1, 1))
	w.settle()
	if w.feed.snapshots != 2 || w.feed.awaiting {
		t.Errorf("%d snapshots, one still awaited: %t", w.feed.snapshots, w.feed.awaiting)
	}
}

// Changes lost before the oracle has ever heard of the worker must not look like an empty cache.
func TestOverflowBeforeTheFirstStream(t *testing.T) {
	w := newWorld(t, 0)
	for i := range block.ID(1000) {
		if err := w.r.Store(Root(), []block.ID{i}, TierDevice); err != nil {
			t.Fatal(err)
		}
	}
	if w.r.out.overflows != 1 {
		t.Fatalf("%d overflows", w.r.out.overflows)
	}
	w.connect()
	if !w.feed.awaiting {
		t.Error("the oracle takes the worker for an empty one")
	}
	w.settle()
	if d := cmp.Diff(w.r.mirror.state(), w.feed.view.state(), compareTwins); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// What does not fit into one batch is acknowledged when its last part is.
func TestFlushWaitsForTheLastPart(t *testing.T) {
	w := newWorld(t, 0)
	w.connect()
	w.deliver()
	chain := make([]block.ID, 450) // some 3,600 bytes, for messages of 2,048
	for i := range chain {
		chain[i] = block.ID(i + 1)
	}
	if err := w.r.Store(Root(), chain, TierDevice); err != nil {
		t.Fatal(err)
	}
	want, parts := w.r.out.mark, 0
	for w.r.out.acked < want {
		if w.feed.view.total() == uint64(len(chain)) && len(w.down) == 0 {
			t.Fatal("everything is there and nothing is acknowledged")
		}
		if !w.write() {
			t.Fatal("nothing more is sent")
		}
		parts++
		for w.deliver() {
		}
	}
	if n := w.feed.view.total(); parts != 2 || n != uint64(len(chain)) {
		t.Errorf("acknowledged after %d parts with %d of %d blocks", parts, n, len(chain))
	}
}

func TestAckOfANumberNeverGivenIsIgnored(t *testing.T) {
	o := outbox{limit: 1000, next: 5}
	o.put(changeStore, Root(), []uint64{1}, TierDevice)
	o.seal(maxMessage)
	o.ack(6)
	if o.acked != 0 || o.sealed.len() != 1 {
		t.Errorf("acked up to mark %d", o.acked)
	}
	o.ack(5)
	if o.acked != 1 || o.sealed.len() != 0 || o.bytes != 0 {
		t.Errorf("acked up to mark %d, %d bytes left", o.acked, o.bytes)
	}
}

// FuzzNothingIsLost lets the fuzzer choose what happens in which order.
func FuzzNothingIsLost(f *testing.F) {
	f.Add(uint64(0), []byte("cwdwdxcwdwdwd"))
	f.Add(uint64(1), []byte("eeecwdeetcwdwdwdtcwdwd"))
	f.Fuzz(func(t *testing.T, seed uint64, script []byte) {
		w := newWorld(t, seed)
		for _, b := range script[:min(len(script), 2000)] {
			switch b % 8 {
			case 0, 1:
				w.change()
			case 2, 3:
				w.write()
			case 4, 5:
				w.deliver()
			case 6:
				w.connect()
			default:
				w.trouble()
			}
			w.now = w.now.Add(time.Duration(b) * time.Millisecond)
		}
		w.settle()
		if d := cmp.Diff(w.r.mirror.state(), w.feed.view.state(), compareTwins); d != "" {
			t.Fatalf("the oracle's view (-want +got)\n%s", d)
		}
	})
}
