package server

import (
	"errors"
	"io"
	"maps"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// blockReporter is a block stream that waits for every acknowledgement.
type blockReporter struct {
	t      *testing.T
	stream kvoraclev1.RouteService_ReportBlocksClient
	next   uint64
}

func (r *rig) reporter(worker string) *blockReporter {
	r.t.Helper()
	t, ok := r.t.(*testing.T)
	if !ok {
		r.t.Fatal("not in a test")
	}
	s, err := r.route.ReportBlocks(r.t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hello := &kvoraclev1.BlocksHello{
		Worker: &kvoraclev1.WorkerSpec{WorkerId: worker, Model: "demo", BlockSize: 16}, Incarnation: 1, NextSequence: 1,
		HashScheme: block.Scheme, Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
	}
	if err := s.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: hello}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	return &blockReporter{t, s, 1}
}

func (b *blockReporter) batch(op *kvoraclev1.BlockOp) {
	b.t.Helper()
	m := &kvoraclev1.BlockBatch{Sequence: b.next, Ops: []*kvoraclev1.BlockOp{op}}
	b.next++
	if err := b.stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: m}}); err != nil {
		b.t.Fatal(err)
	}
	ack, err := b.stream.Recv()
	if err != nil || ack.GetAck().GetAppliedSequence() != m.Sequence || ack.GetAck().GetCounters().GetRefusedOps() > 0 {
		b.t.Fatalf("%v, %v", ack, err)
	}
}

// store tells a chain from the start of a prompt.
func (b *blockReporter) store(tier kvoraclev1.Tier, ids []uint64) {
	b.t.Helper()
	b.batch(&kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
		Tier: tier, Parent: &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
		Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids}},
	}}})
}

func (b *blockReporter) remove(tier kvoraclev1.Tier, ids []uint64) {
	b.t.Helper()
	b.batch(&kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: &kvoraclev1.RemoveBlocks{Tier: tier, BlockIds: ids}}})
}

func numbersFrom(first uint64, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out
}

// verified reads a view to its end, calling meanwhile after the first part. All parts must be of batch applied.
func (r *rig) verified(worker string, applied uint64, meanwhile func()) (parts int, held map[kvoraclev1.Tier][]uint64) {
	r.t.Helper()
	s, err := r.fleet.VerifyWorker(r.t.Context(), &kvoraclev1.VerifyWorkerRequest{Target: &kvoraclev1.Target{WorkerId: worker}})
	if err != nil {
		r.t.Fatal(err)
	}
	held = make(map[kvoraclev1.Tier][]uint64)
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.t.Fatal(err)
		}
		if n := len(m.GetBlockIds()); m.GetAppliedSequence() != applied || n > 32_768 || m.GetConfidence() != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH {
			r.t.Errorf("part %d: %d ids of batch %d, %v; want batch %d", parts, n, m.GetAppliedSequence(), m.GetConfidence(), applied)
		}
		held[m.GetTier()] = append(held[m.GetTier()], m.GetBlockIds()...)
		if parts++; parts == 1 && meanwhile != nil {
			meanwhile()
		}
	}
	for t := range held {
		slices.Sort(held[t])
	}
	return parts, held
}

// TestVerifyWorkerInParts: a view of more than fits into one message is all of one moment, whatever is reported, or done to
// the worker, while it is being read.
func TestVerifyWorkerInParts(t *testing.T) {
	const device, host = kvoraclev1.Tier_TIER_DEVICE, kvoraclev1.Tier_TIER_HOST
	r := up(t, Config{})
	b := r.reporter("w1")
	all := numbersFrom(1_000_000, 33_000)
	more := numbersFrom(2_000_000, 100)
	b.store(device, all)
	b.store(device, more)
	b.store(host, all[:500])
	before := map[kvoraclev1.Tier][]uint64{device: slices.Concat(all, more), host: all[:500]}
	after := map[kvoraclev1.Tier][]uint64{device: slices.Concat(all[:100], more[:20]), host: all[:500]}

	// Blocks are removed while it is read: they are in it, and not in the next one.
	parts, got := r.verified("w1", 3, func() {
		b.remove(device, all[100:])
		b.remove(device, more[20:])
	})
	if parts != 3 || !maps.EqualFunc(got, before, slices.Equal) {
		t.Errorf("%d parts; %d and %d blocks, want %d and %d", parts, len(got[device]), len(got[host]), len(before[device]), len(before[host]))
	}
	// So is the worker.
	parts, got = r.verified("w1", 5, func() {
		if _, err := r.fleet.RemoveWorker(t.Context(), &kvoraclev1.RemoveWorkerRequest{WorkerId: "w1"}); err != nil {
			t.Error(err)
		}
	})
	if parts != 2 || !maps.EqualFunc(got, after, slices.Equal) {
		t.Errorf("%d parts; %d and %d blocks, want %d and %d", parts, len(got[device]), len(got[host]), len(after[device]), len(after[host]))
	}
	s, err := r.fleet.VerifyWorker(t.Context(), &kvoraclev1.VerifyWorkerRequest{Target: &kvoraclev1.Target{WorkerId: "w1"}})
	if err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.NotFound {
		t.Errorf("a worker that was removed: %v", err)
	}
}
