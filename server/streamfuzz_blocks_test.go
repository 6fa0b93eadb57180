package server

import (
	"context"
	"errors"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

const goodBlocks = 8

func goodTokens() []uint32 {
	out := make([]uint32, 4*goodBlocks)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

func goodChain() []uint64 {
	ks := block.Identity{Model: "m", BlockSize: 4}.Keyspace()
	var out []uint64
	for _, id := range block.AppendTokenChain(nil, ks, goodTokens(), 4) {
		out = append(out, uint64(id))
	}
	return out
}

// goodWorker holds eight blocks on a stream that stays open.
func goodWorker(f *testing.F, r *rig) {
	f.Helper()
	stream, err := r.route.ReportBlocks(context.Background())
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []*kvoraclev1.ReportBlocksRequest{
		{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
			Worker: &kvoraclev1.WorkerSpec{WorkerId: "good", Model: "m", BlockSize: 4}, Incarnation: 1, NextSequence: 1,
			HashScheme: block.Scheme, Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
		}}},
		{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{Sequence: 1, Ops: []*kvoraclev1.BlockOp{
			{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
				Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
				Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: goodChain()}},
			}}},
		}}}},
	} {
		if err := stream.Send(m); err != nil {
			f.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			f.Fatal(err)
		}
	}
}

// blockPeer is one block stream and what its answers have to be.
type blockPeer struct {
	t        *testing.T
	stream   kvoraclev1.RouteService_ReportBlocksClient
	sent     []*kvoraclev1.ReportBlocksRequest // not answered yet
	hello    *kvoraclev1.BlocksHello           // of an accepted stream
	awaiting bool                              // a snapshot was asked for
	building bool                              // one is under way
	built    uint64                            // its sequence
	isVoid   bool                              // it is, and its end is still to come
	resync   bool                              // a request has to come next
	ack      *kvoraclev1.BlocksAck
	acks     int
	next     uint64 // the sequence that would be right
	begun    uint64 // that of the snapshot being sent
	within   bool   // one is being sent
	isOver   bool
	isWell   bool // it ended without an error
}

func (p *blockPeer) send(m *kvoraclev1.ReportBlocksRequest) {
	p.sent = append(p.sent, m)
	switch x := m.GetMessage().(type) {
	case *kvoraclev1.ReportBlocksRequest_Hello:
		p.next = x.Hello.GetNextSequence()
	case *kvoraclev1.ReportBlocksRequest_Batch:
		if x.Batch.GetSequence() == p.next {
			p.next++
		}
	case *kvoraclev1.ReportBlocksRequest_SnapshotBegin:
		p.begun, p.within = x.SnapshotBegin.GetSequence(), true
	case *kvoraclev1.ReportBlocksRequest_SnapshotEnd:
		p.next, p.within = p.begun+1, false
	}
	if err := p.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		p.t.Errorf("send: %v", err)
	}
}

// settle reads until everything sent is answered, or the end.
func (p *blockPeer) settle() {
	for !p.isOver && (len(p.sent) > 0 || p.resync) {
		p.recv()
	}
}

// finish ends the stream from this side and reads what is left.
func (p *blockPeer) finish() {
	_ = p.stream.CloseSend() // the end says the same
	for !p.isOver {
		p.recv()
	}
}

func (p *blockPeer) recv() {
	m, err := p.stream.Recv()
	if err != nil {
		p.isOver, p.isWell = true, errors.Is(err, io.EOF)
		if !errors.Is(err, io.EOF) {
			refusedRightly(p.t, err)
		} else if len(p.sent) > 0 || p.resync {
			p.t.Errorf("ended well with %d messages unanswered, resync due: %v", len(p.sent), p.resync)
		}
		return
	}
	if r := m.GetResync(); r != nil {
		if !p.resync {
			p.t.Errorf("asked for a snapshot without a cause: %v", r)
		}
		p.resync = false
		return
	}
	if len(p.sent) == 0 || p.resync {
		p.t.Fatalf("%v answers nothing", m)
	}
	about := p.sent[0]
	p.sent = p.sent[1:]
	if a := m.GetAccepted(); a != nil {
		if p.hello = about.GetHello(); p.hello == nil || p.ack != nil {
			p.t.Errorf("%v accepts %v", a, about)
		}
		p.awaiting = a.GetSnapshotRequired()
		p.ack = &kvoraclev1.BlocksAck{AppliedSequence: a.GetResumeFrom() - 1, Counters: &kvoraclev1.BlockCounters{}}
		return
	}
	if m.GetAck() == nil || p.ack == nil {
		p.t.Fatalf("%v answers %v", m, about)
	}
	p.check(about, m.GetAck())
}

// check compares an ack with the rules of the stream. Which operations apply is other tests' business.
func (p *blockPeer) check(about *kvoraclev1.ReportBlocksRequest, ack *kvoraclev1.BlocksAck) {
	was, is := p.ack.GetCounters(), ack.GetCounters()
	var want string
	var got uint64
	switch x := about.GetMessage().(type) {
	case *kvoraclev1.ReportBlocksRequest_Batch:
		ignored, gaps, repeats := is.GetIgnoredBatches()-was.GetIgnoredBatches(), is.GetGaps()-was.GetGaps(), is.GetDuplicateBatches()-was.GetDuplicateBatches()
		switch {
		case p.awaiting || p.building:
			want, got = "ignored", ignored
			if p.building && x.Batch.GetSequence() > p.built {
				p.building, p.isVoid, p.awaiting, p.resync = false, true, true, true // it voids the snapshot
			}
		case x.Batch.GetSequence() == p.ack.GetAppliedSequence()+1:
			want, got = "applied", 0
			if ack.GetAppliedSequence() == x.Batch.GetSequence() && ignored+gaps+repeats == 0 {
				got = 1
			}
		case x.Batch.GetSequence() > p.ack.GetAppliedSequence():
			want, got = "gap", gaps
		case ack.GetSnapshotRequired():
			want, got = "renumbered", 1-ignored-repeats
		default:
			want, got = "repeat", repeats
		}
	case *kvoraclev1.ReportBlocksRequest_SnapshotBegin:
		p.building, p.built, p.isVoid = true, x.SnapshotBegin.GetSequence(), false
		want, got = "begun", 1
	case *kvoraclev1.ReportBlocksRequest_SnapshotChunk:
		want, got = "chunk", 1
		if !p.building {
			want, got = "chunk refused", is.GetRefusedOps()-was.GetRefusedOps()
		}
	case *kvoraclev1.ReportBlocksRequest_SnapshotEnd:
		want, got = "end refused", is.GetRefusedOps()-was.GetRefusedOps()
		wasVoid := p.isVoid
		p.isVoid = p.building && got > 0
		if p.building && got == 0 {
			want, got = "snapshot", is.GetSnapshots()-was.GetSnapshots()
			p.awaiting = false
		} else if p.building || !wasVoid {
			p.awaiting, p.resync = true, true // a cause of its own
		}
		p.building = false
	case *kvoraclev1.ReportBlocksRequest_Digest:
		want = "digest"
		got = is.GetDigestsMatched() - was.GetDigestsMatched() + is.GetDigestsMismatched() - was.GetDigestsMismatched() +
			is.GetDigestsSkipped() - was.GetDigestsSkipped() + is.GetGaps() - was.GetGaps()
	default:
		p.t.Errorf("%v was answered with %v", about, ack)
	}
	if got != 1 {
		p.t.Errorf("%v: want one %s more, counters %v, then %v", about, want, was, is)
	}
	if ack.GetSnapshotRequired() && !p.awaiting {
		p.awaiting, p.resync = true, true
	}
	if ack.GetSnapshotRequired() != p.awaiting {
		p.t.Errorf("%v: snapshot_required is %v", about, ack.GetSnapshotRequired())
	}
	p.ack = ack
	p.acks++
}

func (s *source) hello() *kvoraclev1.BlocksHello {
	h := &kvoraclev1.BlocksHello{
		Worker:      &kvoraclev1.WorkerSpec{WorkerId: pick(s, "fuzzed", "fuzzed", "fuzzed", "other"), Model: pick(s, "m", "m", "m", "n"), BlockSize: pick(s, uint32(4), 4, 4, 1)},
		Incarnation: 1, NextSequence: 1, HashScheme: block.Scheme, Repeats: pick(s, kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET, kvoraclev1.RepeatMeaning_REPEAT_MEANING_COUNTED),
	}
	switch s.n(12) {
	case 0:
		h.Incarnation = s.number()
	case 1:
		h.NextSequence = s.number()
	case 2:
		h.Incarnation, h.NextSequence = s.number(), s.number()
	case 3:
		h.DpRank, h.Worker.DpSize = uint32(s.n(4)), uint32(s.n(4))
	case 4:
		h.Worker = pick[*kvoraclev1.WorkerSpec](s, nil, &kvoraclev1.WorkerSpec{}, &kvoraclev1.WorkerSpec{WorkerId: strings.Repeat("x", 300), Model: "m", BlockSize: 4})
	case 5:
		h.HashScheme, h.Repeats = pick(s, "", "sha", block.Scheme), kvoraclev1.RepeatMeaning(s.n(5))
	case 6:
		h.Worker.Roles, h.Worker.BlockSize = []kvoraclev1.Role{kvoraclev1.Role(s.n(6))}, uint32(s.number())
	case 7:
		h.RootParents = make([]uint64, s.n(20))
		h.RootParentDigests = make([][]byte, s.n(2))
	}
	h.EngineHashes = s.one(3)
	s.byHash = h.GetEngineHashes()
	if s.one(6) {
		h.Groups = []*kvoraclev1.AttentionGroup{
			{Number: uint32(s.n(2)), Kind: kvoraclev1.AttentionKind(s.n(3)), BlockSize: pick(s, uint32(4), 4, 16)}, {Number: 1, Kind: 1, BlockSize: 4},
		}
	}
	return h
}

func (s *source) ids() []uint64 {
	chain := goodChain()
	from := s.n(goodBlocks)
	out := slices.Clone(chain[from : from+s.n(goodBlocks-from)+1])
	for range s.n(3) {
		out = append(out, pick(s, s.number(), chain[s.n(goodBlocks)], out[0]))
	}
	return out
}

func (s *source) store() *kvoraclev1.StoreBlocks {
	m := &kvoraclev1.StoreBlocks{Parent: &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}}}
	switch s.n(4) {
	case 0:
		m.Parent = &kvoraclev1.StoreBlocks_ParentBlockId{ParentBlockId: pick(s, goodChain()[s.n(goodBlocks)], s.number())}
	case 1:
		m.Parent = pick(s, m.Parent, nil)
	}
	switch s.n(5) {
	case 0, 1:
		m.Content = &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: s.ids()}}
	case 2:
		m.Content = &kvoraclev1.StoreBlocks_LocalHashes{LocalHashes: &kvoraclev1.LocalHashes{Hashes: make([]uint64, s.n(4))}}
	case 3:
		m.Content = &kvoraclev1.StoreBlocks_Tokens{Tokens: &kvoraclev1.BlockTokens{TokenIds: goodTokens()[:s.n(4*goodBlocks+1)]}}
	}
	m.Tier = kvoraclev1.Tier(s.n(7))
	if s.byHash != s.one(6) { // seldom the wrong way
		m.EngineHashes = s.hashes()
		if s.one(2) {
			m.Parent = &kvoraclev1.StoreBlocks_ParentEngineHash{ParentEngineHash: uint64(s.n(6))}
		}
		switch s.n(3) {
		case 0:
			m.Content = nil
		case 1:
			m.Content = &kvoraclev1.StoreBlocks_LocalHashes{LocalHashes: &kvoraclev1.LocalHashes{
				Hashes: make([]uint64, len(m.GetEngineHashes().GetNumbers())),
			}}
		}
	}
	if s.one(6) {
		m.Group, m.CacheSalt = uint32(s.n(2)), pick(s, "", "salt", strings.Repeat("s", 300))
		m.Lora = &kvoraclev1.LoraAdapter{Name: pick(s, "", "x"), Revision: pick(s, "", "v1")}
		for range s.n(3) {
			m.Multimodal = append(m.Multimodal, &kvoraclev1.BlockMultimodal{
				FirstToken: uint32(s.n(8)), TokenCount: uint32(s.n(4)), SkippedTokens: uint32(s.n(2)), Digest: make([]byte, pick(s, 8, 8, 0, 65)),
			})
		}
	}
	return m
}

// hashes are few, so that they meet again.
func (s *source) hashes() *kvoraclev1.EngineHashes {
	m := &kvoraclev1.EngineHashes{}
	for range s.n(4) {
		m.Numbers = append(m.Numbers, uint64(s.n(6)))
	}
	if s.one(8) {
		m.Digests = [][]byte{make([]byte, s.n(70))}
	}
	return m
}

func (s *source) op() *kvoraclev1.BlockOp {
	switch s.n(6) {
	case 0, 1, 2:
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: s.store()}}
	case 3:
		if s.byHash != s.one(6) {
			return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: &kvoraclev1.RemoveBlocks{EngineHashes: s.hashes()}}}
		}
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: &kvoraclev1.RemoveBlocks{BlockIds: s.ids(), Tier: kvoraclev1.Tier(s.n(6)), Group: uint32(s.n(2))}}}
	case 4:
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Clear{Clear: &kvoraclev1.ClearBlocks{Tier: kvoraclev1.Tier(s.n(6))}}}
	default:
		return pick(s, &kvoraclev1.BlockOp{}, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: &kvoraclev1.RemoveBlocks{}}},
			&kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{}}})
	}
}

// message is anything but a stream's first; next is the sequence that would be right. Within a snapshot most are parts.
func (s *source) message(next uint64, within bool) *kvoraclev1.ReportBlocksRequest {
	seq := next
	if s.one(5) {
		seq = pick(s, next-1, next+1, s.number())
	}
	kind := s.n(10)
	if within && kind < 4 {
		kind = 6
	}
	switch kind {
	case 0, 1, 2, 3:
		b := &kvoraclev1.BlockBatch{Sequence: seq}
		for range s.n(4) {
			b.Ops = append(b.Ops, s.op())
		}
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: b}}
	case 4, 5:
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotBegin{SnapshotBegin: &kvoraclev1.SnapshotBegin{Sequence: seq}}}
	case 6:
		c := &kvoraclev1.SnapshotChunk{}
		for range s.n(3) {
			c.Stores = append(c.Stores, s.store())
		}
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotChunk{SnapshotChunk: c}}
	case 7:
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotEnd{SnapshotEnd: &kvoraclev1.SnapshotEnd{BlockCount: uint64(s.n(4))}}}
	case 8:
		return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Digest{Digest: &kvoraclev1.BlockDigest{
			Sequence: pick(s, next-1, next-1, next-1, next), Count: uint64(s.n(3)), Tier: kvoraclev1.Tier(s.n(5)), Sum: s.number(),
		}}}
	default:
		return pick(s, &kvoraclev1.ReportBlocksRequest{}, &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: s.hello()}})
	}
}

// FuzzReportBlocksStream says anything on block streams of two workers: several hellos, sequences without order or
// reason, parts of snapshots, broken operations, in step with the answers or all at once. Every message is answered in its
// turn until the stream ends with a reason, what a third worker holds stays as it is, and when the two are removed nothing
// of them is left: no block, no engine hash, no goroutine.
func FuzzReportBlocksStream(f *testing.F) {
	r := fuzzServer(f)
	goodWorker(f, r)
	addSeeds(f, 80, 120)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &source{data: data}
		goroutines := runtime.NumGoroutine()
		inStep, isAbrupt := s.one(2), s.one(4)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		var peers []*blockPeer
		var p *blockPeer
		for i := 0; i < 24 && len(s.data) > 0; i++ {
			switch {
			case p == nil || p.isOver || (len(peers) < 4 && s.one(12)):
				if len(peers) == 4 {
					s.data = nil
					continue
				}
				stream, err := r.route.ReportBlocks(ctx)
				if err != nil {
					t.Fatal(err)
				}
				p = &blockPeer{t: t, stream: stream}
				peers = append(peers, p)
				first := &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: s.hello()}}
				if s.one(10) {
					first = s.message(1, false)
				}
				p.send(first)
			default:
				p.send(s.message(p.next, p.within))
			}
			if inStep {
				p.settle()
			}
		}
		if isAbrupt { // while streams are open and snapshots under way
			removeFuzzed(ctx, t, r)
			p = nil
		}
		for _, p := range peers {
			p.finish()
		}
		checkFleet(ctx, t, r, p)
		removeFuzzed(ctx, t, r) // those whose hello came after the first time, too
		checkNothingLeft(t, r)
		cancel()
		checkGoroutines(t, goroutines)
	})
}

// checkGoroutines waits for the streams' goroutines to end.
func checkGoroutines(t *testing.T, most int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > most; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), most, stacks())
		}
	}
}

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

func removeFuzzed(ctx context.Context, t *testing.T, r *rig) {
	t.Helper()
	for _, name := range []string{"fuzzed", "other"} {
		if _, err := r.fleet.RemoveWorker(ctx, &kvoraclev1.RemoveWorkerRequest{WorkerId: name}); err != nil && status.Code(err) != codes.NotFound {
			t.Errorf("remove %s: %v", name, err)
		}
	}
}

// checkFleet looks at all workers; last is the stream that ended last, or nil.
func checkFleet(ctx context.Context, t *testing.T, r *rig, last *blockPeer) {
	t.Helper()
	m, err := r.route.Route(ctx, &kvoraclev1.RouteRequest{
		Model: "m", Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: append(goodTokens(), 7)}},
		DryRun: true, Explain: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	good := 0
	for _, c := range m.GetCandidates() {
		held := c.GetMatched()
		total := held.GetDevice() + held.GetHost() + held.GetDisk() + held.GetShared()
		if total > m.GetPromptTokens() || math.IsNaN(c.GetTotalCostSeconds()) || math.IsInf(c.GetTotalCostSeconds(), 0) {
			t.Errorf("candidate %v", c)
		}
		if c.GetTarget().GetWorkerId() == "good" {
			good++
			if held.GetDevice() != 4*goodBlocks || total != 4*goodBlocks || c.GetConfidence().GetBlocks() != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH {
				t.Errorf("the other worker: %v", c)
			}
		}
	}
	if good != 1 {
		t.Errorf("the other worker is %d candidates", good)
	}
	if v, err := r.s.oracle.Verify("good", 0, time.Now()); err != nil || v.Applied != 1 ||
		!slices.Equal(slices.Sorted(slices.Values(v.IDs[fleet.Device])), sortedIDs(goodChain())) || len(v.IDs[fleet.Host])+len(v.IDs[fleet.Disk])+len(v.IDs[fleet.Shared]) > 0 {
		t.Errorf("the other worker holds %v, %v", v, err)
	}
	list, err := r.fleet.ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range list.GetWorkers() {
		name := w.GetSpec().GetWorkerId()
		if !slices.Contains([]string{"good", "fuzzed", "other"}, name) || w.GetState() != kvoraclev1.WorkerState_WORKER_STATE_READY {
			t.Errorf("listed: %v", w)
		}
		if len(w.GetRanks()) != int(w.GetSpec().GetDpSize()) || w.GetIncarnation() == 0 {
			t.Errorf("listed: %v", w)
		}
		for i, k := range w.GetRanks() {
			held := k.GetDeviceBlocks() + k.GetHostBlocks() + k.GetDiskBlocks() + k.GetSharedBlocks()
			if int(k.GetDpRank()) != i || held > 10_000 || k.GetInFlight() != 0 {
				t.Errorf("%s: %v", name, k)
			}
			if last != nil && last.isWell && last.hello.GetWorker().GetWorkerId() == name && int(last.hello.GetDpRank()) == i &&
				(held != last.ack.GetHeldBlocks() || k.GetAppliedSequence() != last.ack.GetAppliedSequence()) && last.acks > 0 {
				t.Errorf("%s/%d: %v, but its last ack was %v", name, i, k, last.ack)
			}
		}
	}
}

func sortedIDs(ids []uint64) []block.ID {
	out := make([]block.ID, len(ids))
	for i, id := range ids {
		out[i] = block.ID(id)
	}
	slices.Sort(out)
	return out
}

// checkNothingLeft looks for what belongs to nobody. The janitor may be at it too, so it is waited for.
func checkNothingLeft(t *testing.T, r *rig) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; <-time.After(time.Millisecond) {
		r.s.oracle.Tick(time.Now())
		st := r.s.oracle.Stats(time.Now())
		x := &st.Index
		if x.Ledgers == 1 && x.HolderBlocks == goodBlocks && x.DistinctBlocks == goodBlocks && x.Entries == goodBlocks &&
			x.Orphans+x.Reclaimable+st.Names+st.Guesses == 0 && st.Load.Targets == 1 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("left behind: %+v, %d engine hashes, %d guesses, %d targets", *x, st.Names, st.Guesses, st.Load.Targets)
			return
		}
	}
}
