package server

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	spb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// The fuzz targets below say arbitrary things, right and wrong, on real streams. One server lives as long as the process:
// what one input leaves behind would be found by the next.

// fuzzServer starts a quiet server. The rig's own methods must not be called inside a fuzz target.
func fuzzServer(f *testing.F) *rig {
	f.Helper()
	clearEnv(f)
	s, err := New(Config{})
	if err != nil {
		f.Fatal(err)
	}
	r := &rig{t: f, s: s, ended: make(chan error, 1)}
	r.serve()
	return r
}

// addSeeds adds no bytes, and many of a fixed sequence.
func addSeeds(f *testing.F, n, length int) {
	f.Helper()
	f.Add([]byte(nil))
	for i := range n {
		rnd := rand.New(rand.NewPCG(uint64(i), 1))
		seed := make([]byte, length)
		for j := range seed {
			seed[j] = byte(rnd.Uint32())
		}
		f.Add(seed)
	}
}

// source spells values out of fuzz bytes. An empty one gives zeros.
type source struct {
	data   []byte
	byHash bool // the newest block stream names its blocks by engine hashes
}

func (s *source) byte() byte {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

// n is in [0, k); one is true once in k.
func (s *source) n(k int) int          { return int(s.byte()) % k }
func (s *source) one(k int) bool       { return s.n(k) == k-1 }
func pick[T any](s *source, of ...T) T { return of[s.n(len(of))] }

// number is small, zero, huge or anything.
func (s *source) number() uint64 {
	switch s.n(4) {
	case 0:
		return uint64(s.n(8))
	case 1:
		return 0
	case 2:
		return math.MaxUint64 - uint64(s.n(3))
	default:
		var b [8]byte
		s.data = s.data[copy(b[:], s.data):]
		return binary.LittleEndian.Uint64(b[:])
	}
}

// refusedRightly fails on ends that a peer's mistake must not cause.
func refusedRightly(t *testing.T, err error) {
	t.Helper()
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.Aborted, codes.Unimplemented, codes.NotFound, codes.Unavailable,
		codes.DeadlineExceeded:
		if !slices.ContainsFunc(status.Convert(err).Details(), func(d any) bool { _, ok := d.(*errdetails.ErrorInfo); return ok }) {
			t.Errorf("refused without a reason: %v", err)
		}
	default:
		t.Errorf("ended with %v", err)
	}
}

func (s *source) routeRequest() *kvoraclev1.RouteRequest {
	m := &kvoraclev1.RouteRequest{Model: pick(s, "m", "m", "m", "m", "n", ""), RequestId: pick(s, "", "", "r1", "r2", strings.Repeat("r", 200))}
	switch s.n(8) {
	case 0, 1, 2, 3:
		m.Prompt = &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: goodTokens()[:s.n(4*goodBlocks+1)]}}
	case 4, 5:
		h := &kvoraclev1.BlockHashPrompt{HashScheme: pick(s, block.Scheme, block.Scheme, "", "sha"), BlockSize: pick(s, uint32(4), 4, 8, 0, math.MaxUint32)}
		h.LocalHashes = make([]uint64, s.n(5))
		h.TokenCount = h.BlockSize*uint32(len(h.LocalHashes)) + uint32(s.n(6))
		m.Prompt = &kvoraclev1.RouteRequest_BlockHashes{BlockHashes: h}
	case 6:
		m.Prompt = &kvoraclev1.RouteRequest_Text{Text: "text"}
	}
	switch s.n(10) {
	case 0:
		m.DeniedWorkers, m.AllowedWorkers = pick(s, nil, []string{"good"}, []string{"hand"}), pick(s, nil, []string{"good", "ghost"}, []string{""})
	case 1:
		m.Lora, m.CacheSalt = &kvoraclev1.LoraAdapter{Name: pick(s, "", "x"), Revision: pick(s, "", "v")}, pick(s, "", "salt")
	case 2:
		m.Phase, m.Priority, m.MaxQueueSeconds = kvoraclev1.Phase(s.n(5)), int32(s.n(2)), pick(s, 0, 0.001, -1)
	case 3:
		m.TtftTargetSeconds, m.TpotTargetSeconds = pick(s, 0, math.NaN(), -1), pick(s, 0, math.Inf(1))
	case 4:
		m.ExpectedOutputTokens, m.MaxAlternatives = uint32(s.number()), uint32(s.n(20))
	case 5:
		m.RequiredLabels = map[string]string{pick(s, "", "zone"): "a"}
	case 6:
		for range s.n(3) {
			m.Multimodal = append(m.Multimodal, &kvoraclev1.MultimodalItem{
				FirstToken: uint32(s.n(8)), TokenCount: uint32(s.n(4)), Digest: make([]byte, pick(s, 8, 8, 0, 65)),
			})
		}
	}
	m.SessionId, m.DryRun, m.Explain = pick(s, "", "s1"), s.one(3), s.one(2)
	return m
}

// FuzzRouteStream asks anything on a stream: each question is answered once, in order, with its tag; a refused one as Route
// would have refused it; and the stream goes on.
func FuzzRouteStream(f *testing.F) {
	r := fuzzServer(f)
	goodWorker(f, r)
	if _, err := r.fleet.RegisterWorker(context.Background(), &kvoraclev1.RegisterWorkerRequest{
		Spec: &kvoraclev1.WorkerSpec{WorkerId: "hand", Model: "m", BlockSize: 4, MaxRequests: 3},
	}); err != nil {
		f.Fatal(err)
	}
	addSeeds(f, 80, 160)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &source{data: data}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		stream, err := r.route.RouteStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var asked []*kvoraclev1.RouteStreamRequest
		for i := 0; i < 16 && len(s.data) > 0; i++ {
			m := &kvoraclev1.RouteStreamRequest{Tag: s.number(), Request: s.routeRequest(), Traceparent: pick(s, "", "", "00-zz", sampled, unsampled)}
			switch s.n(12) {
			case 0:
				m.Request = nil
			case 1:
				m.TimeoutMs = 1
			}
			asked = append(asked, m)
		}
		asked = append(asked, &kvoraclev1.RouteStreamRequest{Tag: 42, Request: &kvoraclev1.RouteRequest{
			Model: "m", Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: append(goodTokens(), 1)}},
			AllowedWorkers: []string{"good"}, DryRun: true,
		}})
		for _, m := range asked {
			if err := stream.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		booked := make(map[string]bool)
		compared := false
		for i, m := range asked {
			a, err := stream.Recv()
			if err != nil || a.GetTag() != m.GetTag() {
				t.Fatalf("answer %d to %v: %v, %v", i, m, a, err)
			}
			if st := a.GetStatus(); st != nil {
				err := status.FromProto(statusProto(st)).Err()
				refusedRightly(t, err)
				if !compared && m.GetRequest() != nil && m.GetTimeoutMs() == 0 && status.Code(err) != codes.Unavailable {
					compared = true
					if _, direct := r.route.Route(ctx, m.GetRequest()); !sameStatus(status.Convert(direct), status.Convert(err)) {
						t.Errorf("%v: %v on the stream, %v as a call", m, err, direct)
					}
				}
				continue
			}
			d := a.GetResponse()
			if d == nil || !slices.Contains([]string{"good", "hand"}, d.GetTarget().GetWorkerId()) || !(d.GetPredictedTtftSeconds() >= 0) ||
				(d.GetDecisionId() == "") != m.GetRequest().GetDryRun() || (len(d.GetCandidates()) == 2) != m.GetRequest().GetExplain() {
				t.Errorf("%v was answered with %v", m, a)
			}
			if id := d.GetDecisionId(); id != "" {
				if booked[id] != d.GetRepeatedDecision() {
					t.Errorf("%v: decision %s repeated: %v", m, id, d.GetRepeatedDecision())
				}
				booked[id] = true
			}
			if i == len(asked)-1 && d.GetMatched().GetDevice() != 4*goodBlocks {
				t.Errorf("the last question was answered with %v", d)
			}
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v", err)
		}
		release(ctx, t, r, booked)
	})
}

func statusProto(m *kvoraclev1.ErrorStatus) *spb.Status {
	return &spb.Status{Code: m.GetCode(), Message: m.GetMessage(), Details: m.GetDetails()}
}

// sameStatus compares what the details say: maps inside have no one encoding.
func sameStatus(a, b *status.Status) bool {
	return a.Code() == b.Code() && a.Message() == b.Message() && slices.EqualFunc(a.Details(), b.Details(), func(x, y any) bool {
		m, ok := x.(proto.Message)
		n, also := y.(proto.Message)
		return ok && also && proto.Equal(m, n)
	})
}

// release ends what is booked, exactly, and looks that nothing else is.
func release(ctx context.Context, t *testing.T, r *rig, booked map[string]bool) {
	t.Helper()
	m := &kvoraclev1.RecordProgressRequest{}
	for id := range booked {
		m.Events = append(m.Events, &kvoraclev1.ProgressEvent{DecisionId: id, Step: &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}}})
	}
	if len(m.GetEvents()) > 0 {
		if out, err := r.route.RecordProgress(ctx, m); err != nil || int(out.GetApplied()) != len(booked) {
			t.Errorf("%d bookings were left: %v, %v", len(booked), out, err)
		}
	}
	list, err := r.fleet.ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range list.GetWorkers() {
		for _, k := range w.GetRanks() {
			if k.GetInFlight() != 0 || k.GetBookedRequests() != 0 || k.GetPendingPrefillSeconds() != 0 {
				t.Errorf("%s: %v", w.GetSpec().GetWorkerId(), k)
			}
		}
	}
}

// requestTwin is one routed request as the rules of progress have it.
type requestTwin struct {
	worker, gateway string
	rank            uint32
	stage, output   uint32
}

// progressTwin expects what becomes of events.
type progressTwin struct {
	living                 map[string]*requestTwin
	unknown, late, refused uint64
}

func (p *progressTwin) apply(e *kvoraclev1.ProgressEvent, gateway string) {
	x := p.living[e.GetDecisionId()]
	to := e.GetDispatched().GetTarget()
	ranks := map[string]uint32{"hand": 1, "ranks": 2}
	ttft := e.GetFirstToken().GetTtftSeconds()
	switch {
	case e.GetDecisionId() == "" || e.GetStep() == nil || !(ttft >= 0 && ttft <= 86_400) || len(e.GetFailed().GetReason()) > 256,
		to != nil && to.GetDpRank() >= ranks[to.GetWorkerId()]:
		p.refused++
		return
	case x == nil:
		p.unknown++
		return
	}
	isLate := false
	switch s := e.GetStep().(type) {
	case *kvoraclev1.ProgressEvent_Dispatched:
		moves := to != nil && (to.GetWorkerId() != x.worker || to.GetDpRank() != x.rank)
		if isLate = x.stage == 2 || (x.stage == 1 && !moves); !isLate {
			x.stage, x.gateway = 1, gateway
			if moves {
				x.worker, x.rank = to.GetWorkerId(), to.GetDpRank()
			}
		}
	case *kvoraclev1.ProgressEvent_FirstToken:
		isLate = x.stage == 2
		x.stage = 2
	case *kvoraclev1.ProgressEvent_Generating:
		if isLate = s.Generating.GetOutputTokens() < x.output; !isLate {
			if x.output = s.Generating.GetOutputTokens(); x.output > 0 {
				x.stage = 2
			}
		}
	default:
		delete(p.living, e.GetDecisionId())
	}
	if isLate {
		p.late++
	}
}

func (s *source) event(ids []string) *kvoraclev1.ProgressEvent {
	e := &kvoraclev1.ProgressEvent{DecisionId: pick(s, ids[0], ids[1], ids[2], ids[0], ids[1], ids[2], "", "0000000000000000", "no id")}
	switch s.n(8) {
	case 0, 1:
		d := &kvoraclev1.Dispatched{}
		if s.one(2) {
			d.Target = &kvoraclev1.Target{WorkerId: pick(s, "hand", "ranks", "ranks", "ghost", ""), DpRank: pick(s, uint32(0), 0, 1, 1, 2, math.MaxUint32)}
		}
		e.Step = &kvoraclev1.ProgressEvent_Dispatched{Dispatched: d}
	case 2:
		e.Step = &kvoraclev1.ProgressEvent_FirstToken{FirstToken: &kvoraclev1.FirstToken{TtftSeconds: pick(s, 0, 0, 0.1, math.NaN(), -1, math.Inf(1), 1e300)}}
	case 3, 4:
		e.Step = &kvoraclev1.ProgressEvent_Generating{Generating: &kvoraclev1.Generating{OutputTokens: pick(s, uint32(s.n(4)), uint32(s.n(4)), uint32(s.n(4)), math.MaxUint32)}}
	case 5:
		e.Step = &kvoraclev1.ProgressEvent_Finished{Finished: &kvoraclev1.Finished{OutputTokens: uint32(s.number()), CachedTokens: pick(s, nil, new(uint64), new(s.number()))}}
	case 6:
		if s.one(2) {
			e.Step = &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}}
		} else {
			e.Step = &kvoraclev1.ProgressEvent_Failed{Failed: &kvoraclev1.Failed{Reason: strings.Repeat("r", 100*s.n(4))}}
		}
	}
	return e
}

// FuzzReportProgress tells any story of three requests on up to three streams of two gateways: each message is
// acknowledged, with what a plain twin says became of it, until the stream ends with a reason; in the end exactly what the
// twin has living is booked.
func FuzzReportProgress(f *testing.F) {
	r := fuzzServer(f)
	for name, ranks := range map[string]uint32{"hand": 1, "ranks": 2} {
		if _, err := r.fleet.RegisterWorker(context.Background(), &kvoraclev1.RegisterWorkerRequest{
			Spec: &kvoraclev1.WorkerSpec{WorkerId: name, Model: "m", BlockSize: 4, DpSize: ranks},
		}); err != nil {
			f.Fatal(err)
		}
	}
	addSeeds(f, 80, 160)
	life := uint64(2)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &source{data: data}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		twin := &progressTwin{living: make(map[string]*requestTwin)}
		var ids []string
		for i := range 3 {
			d, err := r.route.Route(ctx, &kvoraclev1.RouteRequest{
				Model: "m", Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: goodTokens()[:8*i+3]}},
			})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, d.GetDecisionId())
			twin.living[d.GetDecisionId()] = &requestTwin{worker: d.GetTarget().GetWorkerId(), rank: d.GetTarget().GetDpRank()}
		}
		life += 4 // above whatever an earlier input said
		said := make(map[string]uint64)
		for i := 0; i < 3 && (i == 0 || len(s.data) > 0); i++ {
			h := &kvoraclev1.ProgressHello{GatewayId: pick(s, "g1", "g2"), Incarnation: life}
			known := said[h.GetGatewayId()]
			if known != 0 {
				h.Incarnation = known + uint64(s.n(3)) - 1
			}
			isRefused := h.GetIncarnation() < known
			if s.one(12) {
				h.GatewayId, isRefused = pick(s, "", strings.Repeat("g", 300)), true
			}
			if !isRefused {
				said[h.GetGatewayId()] = h.GetIncarnation()
				if known != 0 && h.GetIncarnation() > known {
					maps.DeleteFunc(twin.living, func(_ string, x *requestTwin) bool { return x.gateway == h.GetGatewayId() })
				}
			}
			twin.stream(ctx, t, r, s, ids, h, isRefused)
		}
		booked := make(map[string]bool)
		for id := range twin.living {
			booked[id] = true
		}
		release(ctx, t, r, booked)
	})
}

// stream tells a part of the story on a stream of its own.
func (p *progressTwin) stream(ctx context.Context, t *testing.T, r *rig, s *source, ids []string, h *kvoraclev1.ProgressHello, isRefused bool) {
	t.Helper()
	stream, err := r.route.ReportProgress(ctx)
	if err != nil {
		t.Fatal(err)
	}
	seq := pick(s, 1, 1, 1, s.number())
	first := &kvoraclev1.ReportProgressRequest{Sequence: seq, Message: &kvoraclev1.ReportProgressRequest_Hello{Hello: h}}
	want := []*kvoraclev1.ReportProgressResponse{{AckedSequence: seq}}
	if isRefused {
		want = nil
	}
	send := func(m *kvoraclev1.ReportProgressRequest) {
		if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("send: %v", err)
		}
	}
	send(first)
	p.unknown, p.late, p.refused = 0, 0, 0
	isBroken := isRefused
	for range s.n(12) {
		m := &kvoraclev1.ReportProgressRequest{Sequence: seq + 1}
		if s.one(16) {
			m.Sequence = pick(s, seq, seq+2, s.number())
		}
		isBroken = isBroken || m.GetSequence() != seq+1
		seq++
		if s.one(16) {
			m.Message = first.GetMessage()
		} else {
			m.Message = &kvoraclev1.ReportProgressRequest_Event{Event: s.event(ids)}
		}
		send(m)
		if !isBroken {
			p.apply(m.GetEvent(), h.GetGatewayId())
			want = append(want, &kvoraclev1.ReportProgressResponse{
				AckedSequence: seq, UnknownDecisions: p.unknown, LateEvents: p.late, RefusedEvents: p.refused,
			})
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got, err := stream.Recv(); err != nil || !proto.Equal(got, want[i]) {
			t.Errorf("ack %d of %v: got %v, %v; want %v", i, h, got, err, want[i]) // and not Fatal: the bookings must end
			return
		}
	}
	if _, err := stream.Recv(); errors.Is(err, io.EOF) == isBroken {
		t.Errorf("%v: ended with %v, broken: %v", h, err, isBroken)
	} else if isBroken {
		refusedRightly(t, err)
	}
}
