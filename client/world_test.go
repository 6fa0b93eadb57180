package client

import (
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// oracleFeed is the oracle's end of a block stream as the protocol describes it, without a network: what the reporter's
// state machine is tried against.
type oracleFeed struct {
	incarnation uint64
	applied     uint64
	awaiting    bool
	view        mirror
	building    *mirror
	buildingSeq uint64
	known       bool

	snapshots, duplicates, gaps, mismatches, causes int
	refuseSnapshots                                 bool
}

func (f *oracleFeed) hello(h *kvoraclev1.BlocksHello) *kvoraclev1.BlocksAccepted {
	f.building = nil
	counted := h.GetRepeats() == RepeatsCounted
	switch {
	case !f.known || f.incarnation != h.GetIncarnation():
		f.known, f.incarnation, f.applied = true, h.GetIncarnation(), h.GetNextSequence()-1
		f.view = newMirror(counted)
		f.awaiting = h.GetNextSequence() != 1
		if f.awaiting {
			f.causes++
		}
	case f.awaiting:
	case h.GetNextSequence() <= f.applied:
		f.awaiting = true
		f.causes++
	}
	return &kvoraclev1.BlocksAccepted{ResumeFrom: f.applied + 1, SnapshotRequired: f.awaiting, MaxMessageBytes: 2048}
}

// take applies a message and answers.
func (f *oracleFeed) take(m *kvoraclev1.ReportBlocksRequest) []*kvoraclev1.ReportBlocksResponse {
	resync := kvoraclev1.ResyncReason_RESYNC_REASON_UNSPECIFIED
	var received uint64
	switch x := m.GetMessage().(type) {
	case *kvoraclev1.ReportBlocksRequest_Batch:
		received = x.Batch.GetSequence()
		switch {
		case f.awaiting || f.building != nil:
		case received == f.applied+1:
			for _, op := range x.Batch.GetOps() {
				f.apply(&f.view, op)
			}
			f.applied = received
		case received <= f.applied:
			f.duplicates++
		default:
			f.gaps++
			resync = kvoraclev1.ResyncReason_RESYNC_REASON_GAP
		}
	case *kvoraclev1.ReportBlocksRequest_SnapshotBegin:
		m := newMirror(f.view.counted)
		f.building, f.buildingSeq = &m, x.SnapshotBegin.GetSequence()
	case *kvoraclev1.ReportBlocksRequest_SnapshotChunk:
		for _, s := range x.SnapshotChunk.GetStores() {
			if f.building != nil {
				f.apply(f.building, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: s}})
			}
		}
	case *kvoraclev1.ReportBlocksRequest_SnapshotEnd:
		if f.building == nil {
			break
		}
		received = f.buildingSeq
		if n := x.SnapshotEnd.GetBlockCount(); n != 0 && n != f.building.total() || f.refuseSnapshots {
			f.building = nil
			resync = kvoraclev1.ResyncReason_RESYNC_REASON_BAD_SNAPSHOT
			break
		}
		f.view, f.applied, f.awaiting, f.building = *f.building, f.buildingSeq, false, nil
		f.snapshots++
	case *kvoraclev1.ReportBlocksRequest_Digest:
		d := x.Digest
		received = d.GetSequence()
		if f.awaiting || f.building != nil || received < f.applied {
			break
		}
		if received > f.applied {
			f.gaps++
			resync = kvoraclev1.ResyncReason_RESYNC_REASON_GAP
			break
		}
		want := f.view.digests[d.GetTier()-TierDevice]
		if !f.view.counted {
			want.copies, want.copySum = 0, 0 // left out
		}
		if (digest{d.GetCount(), d.GetXor(), d.GetSum(), d.GetCopies(), d.GetCopySum()}) != want {
			f.mismatches++
			resync = kvoraclev1.ResyncReason_RESYNC_REASON_DIGEST_MISMATCH
		}
	}
	out := []*kvoraclev1.ReportBlocksResponse{{Message: &kvoraclev1.ReportBlocksResponse_Ack{
		Ack: &kvoraclev1.BlocksAck{AppliedSequence: f.applied},
	}}}
	if resync != kvoraclev1.ResyncReason_RESYNC_REASON_UNSPECIFIED {
		f.awaiting = true
		f.causes++
		out = append(out, resyncMessage(resync, f.applied+1, received))
	}
	return out
}

func resyncMessage(why kvoraclev1.ResyncReason, expected, received uint64) *kvoraclev1.ReportBlocksResponse {
	return &kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_Resync{
		Resync: &kvoraclev1.ResyncRequest{Reason: why, ExpectedSequence: expected, ReceivedSequence: received},
	}}
}

func (f *oracleFeed) apply(m *mirror, op *kvoraclev1.BlockOp) {
	switch x := op.GetOp().(type) {
	case *kvoraclev1.BlockOp_Store:
		if _, err := m.store(parentOf(x.Store), asBlockIDs(x.Store.GetBlockIds().GetIds()), int(x.Store.GetTier()-TierDevice)); err != nil {
			panic(err) // the mirror has let it pass
		}
	case *kvoraclev1.BlockOp_Remove:
		m.remove(asBlockIDs(x.Remove.GetBlockIds()), int(x.Remove.GetTier()-TierDevice))
	case *kvoraclev1.BlockOp_Clear:
		if x.Clear.GetTier() == kvoraclev1.Tier_TIER_UNSPECIFIED {
			m.clearAll()
		} else {
			m.clear(int(x.Clear.GetTier() - TierDevice))
		}
	}
}

// world joins a reporter and a feed by two queues that can be cut.
type world struct {
	t    *testing.T
	rng  *rand.Rand
	now  time.Time
	r    *Reporter
	feed *oracleFeed
	s    *blockStream // nil: disconnected
	up   []*kvoraclev1.ReportBlocksRequest
	down []*kvoraclev1.ReportBlocksResponse
	seen struct{ restarts, cuts, losses, operator int }
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 4)), now: time.Unix(1_000_000, 0), feed: &oracleFeed{}}
	repeats := RepeatsSet
	if seed%2 == 1 {
		repeats = RepeatsCounted
	}
	r, err := NewReporter(nil, Worker{ID: "w", Model: "m", BlockSize: 4, Incarnation: 7, Repeats: repeats},
		WithOutbox(4_000), WithDigests(3, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	w.r = r
	return w
}

// change makes the engine do something.
func (w *world) change() {
	tier := tierAt(w.rng.IntN(2))
	switch n := w.rng.IntN(40); {
	case n == 0:
		_ = w.r.Clear(tier)
	case n == 1:
		_ = w.r.Clear()
	case n == 2: // a burst
		chain := make([]block.ID, 300)
		for i := range chain {
			chain[i] = block.ID(w.rng.Uint64())
		}
		_ = w.r.Store(Root(), chain, tier)
	case n < 16:
		_, ids := randomChain(w.rng)
		_ = w.r.Remove(ids, tier)
	default:
		p, ids := randomChain(w.rng)
		_ = w.r.Store(p, ids, tier) // conflicts included
	}
}

func (w *world) connect() {
	if w.s == nil {
		w.s = &blockStream{r: w.r, known: func() {}}
		accepted := w.feed.hello(w.r.hello().GetHello())
		w.down = append(w.down, &kvoraclev1.ReportBlocksResponse{
			Message: &kvoraclev1.ReportBlocksResponse_Accepted{Accepted: accepted},
		})
	}
}

func (w *world) cut() {
	if w.s != nil {
		w.seen.cuts++
	}
	w.s, w.up, w.down = nil, nil, nil
}

// write lets the reporter send what is next. False: nothing is due.
func (w *world) write() bool {
	if w.s == nil || w.s.maxBytes == 0 {
		return false
	}
	todo := w.r.next(w.s, w.now)
	send := func(m *kvoraclev1.ReportBlocksRequest) {
		if n := proto.Size(m); n > w.s.maxBytes {
			w.t.Fatalf("message of %d bytes, want at most %d", n, w.s.maxBytes)
		}
		w.up = append(w.up, m)
	}
	if b := todo.batch; b != nil {
		send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: b}})
	}
	if s := todo.snapshot; s != nil {
		send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotBegin{
			SnapshotBegin: &kvoraclev1.SnapshotBegin{Sequence: s.sequence},
		}})
		s.chunks(w.s.maxBytes-messageBytes, func(c *kvoraclev1.SnapshotChunk) bool {
			send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotChunk{SnapshotChunk: c}})
			return true
		})
		send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotEnd{
			SnapshotEnd: &kvoraclev1.SnapshotEnd{BlockCount: s.count},
		}})
		todo.digests = s.digests
	}
	for _, d := range todo.digests {
		send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Digest{Digest: d}})
	}
	return todo.batch != nil || todo.snapshot != nil || len(todo.digests) > 0
}

// deliver moves one message in each direction. False: there was none.
func (w *world) deliver() bool {
	moved := false
	if len(w.up) > 0 {
		w.down = append(w.down, w.feed.take(w.up[0])...)
		w.up, moved = w.up[1:], true
	}
	if len(w.down) > 0 {
		m := w.down[0]
		w.down, moved = w.down[1:], true
		switch x := m.GetMessage().(type) {
		case *kvoraclev1.ReportBlocksResponse_Accepted:
			w.r.accepted(w.s, x.Accepted)
		case *kvoraclev1.ReportBlocksResponse_Ack:
			w.r.acknowledged(w.s, x.Ack)
		case *kvoraclev1.ReportBlocksResponse_Resync:
			w.r.resync(w.s, x.Resync)
		}
	}
	return moved
}

// trouble makes something go wrong.
func (w *world) trouble() {
	switch w.rng.IntN(8) {
	case 0:
		w.cut()
		former := w.feed
		w.feed = &oracleFeed{
			snapshots: former.snapshots, duplicates: former.duplicates, gaps: former.gaps, mismatches: former.mismatches, causes: former.causes,
		}
		w.seen.restarts++
	case 1: // a removal is lost
		if !w.feed.known {
			break
		}
		tier := w.rng.IntN(numTiers)
		if changed, _ := w.feed.view.store(Root(), []block.ID{block.ID(w.rng.Uint64())}, tier); changed {
			w.seen.losses++
		}
	case 2: // a block is lost without a trace; the next digest has to find it (one copy of several it cannot see)
		for id := range w.feed.view.blocks {
			for len(w.feed.view.remove([]block.ID{id}, 0)) > 0 {
			}
			w.seen.losses++
			break
		}
	case 3: // an operator
		if w.s != nil && w.s.maxBytes != 0 {
			w.feed.view = newMirror(w.feed.view.counted)
			w.feed.awaiting, w.feed.building = true, nil
			w.feed.causes++
			w.seen.operator++
			w.down = append(w.down, resyncMessage(kvoraclev1.ResyncReason_RESYNC_REASON_OPERATOR, w.feed.applied+1, 0))
		}
	default:
		w.cut()
	}
}

// settle connects and lets everything run to its end.
func (w *world) settle() {
	w.connect()
	w.r.mu.Lock()
	w.r.out.mark++ // as Flush does
	w.r.out.barrier = true
	want := w.r.out.mark
	w.r.mu.Unlock()
	digested := w.now.Add(3 * time.Minute)
	for range 100_000 {
		if !w.write() && !w.deliver() {
			w.now = w.now.Add(time.Second)
			if w.r.out.acked >= want && !w.r.out.needSnapshot && w.now.After(digested) {
				return
			}
		}
	}
	w.t.Fatalf("does not settle: acked %d, want %d, needs snapshot %t, awaiting %t", w.r.out.acked, want, w.r.out.needSnapshot, w.feed.awaiting)
}
