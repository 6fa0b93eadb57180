package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestStalledReporterIsHeldBack is case B34: a reporter that goes on sending and does not read is held back by flow
// control, with a few messages on their way and no more; decisions go on meanwhile; and when it reads again every batch
// is acknowledged.
func TestStalledReporterIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setStage(t)
		stream, err := kvoraclev1.NewRouteServiceClient(s.oracle.Conn()).ReportBlocks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
			Worker: &kvoraclev1.WorkerSpec{WorkerId: "w1", Model: "m", BlockSize: 4}, Incarnation: 1, NextSequence: 1,
			HashScheme: block.Scheme, Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
		}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		ids := make([]uint64, 50)
		for i := range ids {
			ids[i] = uint64(i + 1)
		}
		store := &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
			Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
			Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids}},
		}}}
		var sent atomic.Uint64
		var isEnough atomic.Bool
		go func() {
			for !isEnough.Load() {
				m := &kvoraclev1.BlockBatch{Sequence: sent.Load() + 1, Ops: []*kvoraclev1.BlockOp{store}}
				if stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: m}}) != nil {
					break
				}
				sent.Add(1)
			}
			_ = stream.CloseSend() // the end of the stream tells the same
		}()
		synctest.Wait() // everybody waits for somebody: the sender is held back
		const most = 4 << 20
		if n := sent.Load(); n == 0 || n*8*uint64(len(ids)) > most {
			t.Errorf("%d batches are on their way, %d bytes", n, n*8*uint64(len(ids)))
		}
		s.says("RT AB as=r1", "-> w1(0) only_candidate")
		s.says("cancel r1", "applied")
		isEnough.Store(true)
		acked := uint64(0)
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || m.GetResync() != nil {
				t.Fatalf("after batch %d: %v, %v", acked, m, err)
			}
			acked = m.GetAck().GetAppliedSequence()
		}
		if n := sent.Load(); acked != n {
			t.Errorf("%d of %d batches were acknowledged", acked, n)
		}
		s.says("list", fmt.Sprintf("w1 e1 ready r0:fresh,s%d,held=50,in_flight=0", acked))
	})
}

// TestMillionsOfBlocksAreRemovedAtOnce is case B08: a worker with five million blocks is no candidate from the moment it
// is removed; its memory is freed behind that, a bounded piece at each tick.
func TestMillionsOfBlocksAreRemovedAtOnce(t *testing.T) {
	if testing.Short() || isRace {
		t.Skip("single-threaded and long")
	}
	const blocks = 5_000_000
	o := oracle.New(oracle.Config{}, nil)
	now := time.Unix(1_800_000_000, 0)
	s, _, err := o.OpenBlocks(hello("w1", 1), now)
	if err != nil {
		t.Fatal(err)
	}
	const each = 50_000
	ids, parent := make([]block.ID, each), block.ID(0)
	for seq := range uint64(blocks / each) {
		for i := range ids {
			ids[i] = block.ID(1 + seq*each + uint64(i)).Child(1)
		}
		op := oracle.Op{Kind: oracle.OpStore, IsRoot: seq == 0, Parent: parent, IDs: ids}
		if ack, err := s.Batch(seq+1, seq, []oracle.Op{op}, now); err != nil || ack.Counters.Stored != (seq+1)*each {
			t.Fatalf("batch %d: %+v, %v", seq+1, ack, err)
		}
		parent = ids[each-1]
	}
	if dropped, _, err := o.Remove("w1"); dropped != blocks || err != nil {
		t.Errorf("removed %d blocks: %v", dropped, err)
	}
	ask := &oracle.RouteRequest{Model: "m", Prompt: oracle.Prompt{Tokens: []uint32{1}, Length: 1}}
	var e *oracle.Error
	if _, err := o.Route(context.Background(), ask, now); !errors.As(err, &e) || e.Reason != oracle.ReasonModelUnknown {
		t.Errorf("Route at once: %v, want model unknown", err)
	}
	ticks := 0
	for left := o.Stats(now).Index.Reclaimable; left > 0; ticks++ {
		o.Tick(now)
		next := o.Stats(now).Index.Reclaimable
		if freed := left - next; freed <= 0 || freed > 250_000 {
			t.Fatalf("tick %d frees %d of %d", ticks, freed, left)
		}
		left = next
	}
	if ticks < 2 {
		t.Errorf("freed in %d ticks: this was no clean-up behind the removal", ticks)
	}
	if st := o.Stats(now).Index; st.Entries != 0 || st.HolderBlocks != 0 {
		t.Errorf("left behind: %+v", st)
	}
}
