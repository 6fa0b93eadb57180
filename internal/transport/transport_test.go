package transport

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// counted counts the buffers that are out.
type counted struct {
	Pool

	out int
}

// Get implements mem.BufferPool.
func (c *counted) Get(n int) *[]byte {
	c.out++
	return c.Pool.Get(n)
}

// Put implements mem.BufferPool. What comes back is made unreadable, so that a late reader is seen.
func (c *counted) Put(b *[]byte) {
	c.out--
	all := (*b)[:cap(*b)]
	for i := range all {
		all[i] = 0xee
	}
	c.Pool.Put(b)
}

func TestPoolGivesWhatWasAskedFor(t *testing.T) {
	var p Pool
	for _, n := range []int{0, 1, 2047, 2048, 2049, 32 << 10, 32<<10 + 1, 1 << 20, 1<<23 - 1, 1 << 23, 1<<23 + 1} {
		for range 3 {
			b := p.Get(n)
			if len(*b) != n {
				t.Fatalf("asked for %d, got %d", n, len(*b))
			}
			if n > 0 && n <= 1<<largestBuffer && cap(*b) >= 2*max(n, 1<<smallestBuffer) {
				t.Errorf("%d bytes take %d", n, cap(*b))
			}
			*b = (*b)[:n/2] // a prefix comes back
			p.Put(b)
		}
	}
	odd := make([]byte, 3000) // of nobody's size
	p.Put(&odd)
	if b := p.Get(4096); len(*b) != 4096 {
		t.Errorf("got %d", len(*b))
	}
}

// question is a message in buffers of the pool, as gRPC hands it over.
func question(t *testing.T, pool mem.BufferPool, m proto.Message, r *rand.Rand) mem.BufferSlice {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out mem.BufferSlice
	for len(raw) > 0 {
		n := min(len(raw), 1500+r.IntN(4000))
		out = append(out, mem.Copy(raw[:n], pool))
		raw = raw[n:]
	}
	return out
}

// TestQuestionsHoldTheirBuffers fills one question again and again, frees the buffers as gRPC does, and reads it then.
func TestQuestionsHoldTheirBuffers(t *testing.T) {
	pool := &counted{}
	c := NewCodec(pool)
	r := rand.New(rand.NewPCG(1, 1))
	var q Question
	for i := range 200 {
		ids := make([]uint32, 1+r.IntN(9000))
		for j := range ids {
			ids[j] = r.Uint32()
		}
		m := &kvoraclev1.RouteRequest{Model: "m", Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: ids}}}
		want, err := wire.DecodeRoute(m, wire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		q.IsStreamed = i%2 == 0
		var data mem.BufferSlice
		if q.IsStreamed {
			data = question(t, pool, &kvoraclev1.RouteStreamRequest{Tag: uint64(i), Request: m}, r)
		} else {
			data = question(t, pool, m, r)
		}
		err = c.Unmarshal(data, &q)
		data.Free()
		if err != nil {
			t.Fatal(err)
		}
		got, err := q.Request(wire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := proto.Marshal(&kvoraclev1.TokenPrompt{TokenIds: want.Prompt.Tokens})
		if err != nil {
			t.Fatal(err)
		}
		if packed := bytes.Join(got.Prompt.PackedTokens, nil); !bytes.HasSuffix(raw, packed) || len(packed) != 4*len(ids) {
			t.Fatalf("%d tokens came out as other ones", len(ids))
		}
		if r.IntN(2) == 0 {
			q.Free()
		}
	}
	q.Free()
	q.Free() // harmless
	if pool.out != 0 {
		t.Errorf("%d buffers were not given back", pool.out)
	}
}

func TestCodecWritesAnswersAndMessages(t *testing.T) {
	pool := &counted{}
	c := NewCodec(pool)
	a := &oracle.Answer{Decision: 7, Target: oracle.TargetRef{Worker: "w", Address: "a:1"}, PromptTokens: 9}
	long := &kvoraclev1.RouteRequest{Model: "m", Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: make([]uint32, 20_000)}}}
	for _, x := range []struct {
		v    any
		want proto.Message
	}{
		{a, wire.EncodeAnswer(a, false)},
		{&StreamAnswer{Tag: 3, Answer: a}, &kvoraclev1.RouteStreamResponse{Tag: 3, Result: &kvoraclev1.RouteStreamResponse_Response{Response: wire.EncodeAnswer(a, false)}}},
		{long, long},
		{
			&oracle.Ack{Applied: 3, Confidence: oracle.Fresh, Held: 2, Refusals: []oracle.Refusal{{Sequence: 3, Op: 1, Reason: oracle.RefusalTier, Detail: "store.tier"}}},
			&kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_Ack{Ack: &kvoraclev1.BlocksAck{
				AppliedSequence: 3, Confidence: kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH, HeldBlocks: 2, Counters: &kvoraclev1.BlockCounters{},
				Refusals: []*kvoraclev1.Refusal{{Sequence: 3, Op: 1, Reason: kvoraclev1.RefusalReason_REFUSAL_REASON_TIER, Detail: "store.tier"}},
			}}},
		},
		{&kvoraclev1.RouteRequest{}, &kvoraclev1.RouteRequest{}},
	} {
		data, err := c.Marshal(x.v)
		if err != nil {
			t.Fatal(err)
		}
		got := x.want.ProtoReflect().New().Interface()
		if err := c.Unmarshal(data, got); err != nil {
			t.Fatal(err)
		}
		data.Free()
		if d := cmp.Diff(x.want, got, protocmp.Transform()); d != "" {
			t.Errorf("%T (-want +got):\n%s", x.v, d)
		}
	}
	if pool.out != 0 {
		t.Errorf("%d buffers were not given back", pool.out)
	}
	if _, err := c.Marshal(5); err == nil {
		t.Error("a number was taken for a message")
	}
	if err := c.Unmarshal(nil, new(int)); err == nil {
		t.Error("a number took a message")
	}
}

// TestSmallMessagesTakeNoMoreThanTheirSize: what a peer does not read waits in memory as large as it is.
func TestSmallMessagesTakeNoMoreThanTheirSize(t *testing.T) {
	pool := &counted{}
	c := NewCodec(pool)
	for _, n := range []int{0, 1, 100, smallMessage - 10, smallMessage, 3000} {
		m := &kvoraclev1.GoAway{Reason: strings.Repeat("x", n)}
		data, err := c.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		size := proto.Size(m)
		if got := cap(data[0].ReadOnlyData()); size <= smallMessage && got > size+16 || (pool.out == 0) != (size <= smallMessage) {
			t.Errorf("%d bytes take %d, %d of the pool", size, got, pool.out)
		}
		back := &kvoraclev1.GoAway{}
		if err := c.Unmarshal(data, back); err != nil || back.GetReason() != m.GetReason() {
			t.Errorf("%d bytes came back as %d: %v", n, len(back.GetReason()), err)
		}
		data.Free()
	}
}
