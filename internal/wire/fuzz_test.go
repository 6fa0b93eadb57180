package wire

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// seeds adds messages as bytes.
func seeds(f *testing.F, ms ...proto.Message) {
	f.Helper()
	for _, m := range ms {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}

// named checks that an error is one a caller can act on.
func named(t *testing.T, err error) {
	t.Helper()
	var e *oracle.Error
	if !errors.As(err, &e) || e.Reason == "" || e.Message == "" || e.Kind == oracle.Internal {
		t.Fatalf("error without a name: %#v", err)
	}
}

func FuzzDecodeRoute(f *testing.F) {
	seeds(f,
		&kvoraclev1.RouteRequest{Model: "m", Prompt: tokens(1, 2, 3)},
		&kvoraclev1.RouteRequest{Model: "m", Prompt: hashes(block.Scheme, 4, 9, 2), RequiredLabels: map[string]string{"a": "b"}},
		&kvoraclev1.RouteRequest{Model: "m", Prompt: &kvoraclev1.RouteRequest_Text{Text: "x"}},
		&kvoraclev1.RouteRequest{Model: "m", Prompt: tokens(1, 2, 3), Multimodal: []*kvoraclev1.MultimodalItem{item(1, 2, 8)}},
	)
	limits := Limits{MaxPromptTokens: 1000}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &kvoraclev1.RouteRequest{}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		r, err := DecodeRoute(m, limits)
		if err != nil {
			named(t, err)
			return
		}
		p := &r.Prompt
		if p.Length < 1 || p.Length > limits.MaxPromptTokens || r.Model == "" || r.MaxAlternatives > maxAlternatives {
			t.Fatalf("out of bounds: %+v", r)
		}
		for _, it := range p.Items {
			if it.First < 0 || it.Count < 1 || it.First+it.Count > p.Length {
				t.Fatalf("item %+v in a prompt of %d", it, p.Length)
			}
		}
		if p.IsText {
			if n := block.PackedLen(p.PackedTokens); n < 1 || p.Length != (n+3)/4 || len(p.Items) > 0 {
				t.Fatalf("%d bytes of text, length %d", n, p.Length)
			}
			return
		}
		if p.LocalsSize == 0 && len(p.Tokens) != p.Length {
			t.Fatalf("%d tokens, length %d", len(p.Tokens), p.Length)
		}
		if p.LocalsSize != 0 && p.Length/p.LocalsSize != len(p.Locals) {
			t.Fatalf("%d hashes of %d tokens for a prompt of %d", len(p.Locals), p.LocalsSize, p.Length)
		}
	})
}

func FuzzDecodeBatch(f *testing.F) {
	seeds(f, &kvoraclev1.BlockBatch{Sequence: 1, Ops: []*kvoraclev1.BlockOp{
		store(func(*kvoraclev1.StoreBlocks) {}),
		store(func(s *kvoraclev1.StoreBlocks) {
			s.Parent = &kvoraclev1.StoreBlocks_ParentBlockId{ParentBlockId: 7}
			s.Content = &kvoraclev1.StoreBlocks_Tokens{Tokens: &kvoraclev1.BlockTokens{TokenIds: make([]uint32, 8)}}
		}),
		remove(func(*kvoraclev1.RemoveBlocks) {}),
		{Op: &kvoraclev1.BlockOp_Clear{Clear: &kvoraclev1.ClearBlocks{}}},
		store(func(s *kvoraclev1.StoreBlocks) {
			s.Parent = &kvoraclev1.StoreBlocks_ParentEngineHash{ParentEngineHash: 7}
			s.Content, s.EngineHashes = locals(2), numbers(2)
		}),
		withItems(part(0, 3, 5, 8), part(6, 2, 0, 64)),
		store(func(s *kvoraclev1.StoreBlocks) { s.Content, s.Parent, s.EngineHashes = nil, nil, bytesOf(8, 32) }),
		remove(func(r *kvoraclev1.RemoveBlocks) { r.BlockIds, r.EngineHashes = nil, numbers(1) }),
	}})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &kvoraclev1.BlockBatch{}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		ops, err := DecodeBatch(m, Shape{BlockSize: 4}, nil)
		if err != nil {
			named(t, err)
			return
		}
		if len(ops) != len(m.GetOps()) {
			t.Fatalf("%d operations became %d", len(m.GetOps()), len(ops))
		}
		for i, op := range ops {
			n := len(op.IDs) + len(op.Locals)
			if h := len(op.Hashes); h > 0 && op.Kind != oracle.OpRefused {
				if n != 0 && n != h || h > maxBlocksPerOp {
					t.Fatalf("operation %d has %d hashes of %d blocks", i, h, n)
				}
				n = h
			}
			switch op.Kind {
			case oracle.OpRefused:
				if op.Refusal.Reason == oracle.RefusalNone || op.Refusal.Detail == "" {
					t.Fatalf("operation %d is refused without a reason", i)
				}
			case oracle.OpStore, oracle.OpRemove:
				if n == 0 || n > maxBlocksPerOp {
					t.Fatalf("operation %d has %d blocks", i, n)
				}
			case oracle.OpClear:
			case oracle.OpOther:
				t.Fatalf("operation %d is of a group that nobody has declared", i)
			}
		}
	})
}

func FuzzDecodeHello(f *testing.F) {
	seeds(f, helloMessage())
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &kvoraclev1.BlocksHello{}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		h, err := DecodeHello(m)
		if err != nil {
			named(t, err)
			return
		}
		if h.Spec.BlockSize < 1 || h.Spec.BlockSize > block.MaxSize || h.Rank >= h.Spec.DPSize || h.Incarnation == 0 || h.NextSequence == 0 {
			t.Fatalf("out of bounds: %+v", h)
		}
	})
}

func FuzzDecodeProgress(f *testing.F) {
	seeds(f,
		&kvoraclev1.ProgressEvent{DecisionId: "00000000000000ff", Step: &kvoraclev1.ProgressEvent_Finished{Finished: &kvoraclev1.Finished{OutputTokens: 3, CachedTokens: proto.Uint64(1 << 63)}}},
		&kvoraclev1.ProgressEvent{DecisionId: "x", Step: &kvoraclev1.ProgressEvent_FirstToken{FirstToken: &kvoraclev1.FirstToken{TtftSeconds: 1}}},
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &kvoraclev1.ProgressEvent{}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		e, err := DecodeEvent(m, "g", "event")
		if err != nil {
			named(t, err)
			return
		}
		if e.OutputTokens < 0 || !(e.TTFT >= 0 && e.TTFT <= maxSeconds) || e.Cached < -1 {
			t.Fatalf("out of bounds: %+v", e)
		}
	})
}

func FuzzDecodeSample(f *testing.F) {
	seeds(f, &kvoraclev1.LoadSample{RunningRequests: proto.Uint32(1), TotalBlocks: proto.Uint64(1 << 63), SampledAtUnixNanos: 1 << 63})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &kvoraclev1.LoadSample{}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		s := DecodeSample(m)
		for _, g := range []oracle.Gauge{s.Running, s.Waiting, s.WaitingPrefillTokens, s.UsedBlocks, s.TotalBlocks} {
			if g.Value < 0 || (!g.Known && g.Value != 0) {
				t.Fatalf("out of bounds: %+v", s)
			}
		}
		if s.SampledAt < 0 {
			t.Fatalf("stamp %d", s.SampledAt)
		}
	})
}
