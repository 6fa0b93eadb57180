package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// cut makes pieces that end where the bytes of cuts say, empty ones among them.
func cut(raw, cuts []byte) [][]byte {
	var out [][]byte
	for _, c := range cuts {
		n := min(int(c), len(raw))
		out = append(out, raw[:n])
		raw = raw[n:]
	}
	return append(out, raw)
}

// restored is the question as one message.
func restored(q *Question) *kvoraclev1.RouteRequest {
	m := q.message()
	if m == nil {
		return nil
	}
	m = proto.CloneOf(m)
	switch q.form {
	case tokenIDs:
		m.Prompt = tokens(unpack32(q.packed)...)
		if len(q.packed) == 0 {
			m.Prompt = tokens()
		}
	case localHashes:
		all := bytes.Join(q.packed, nil)
		for ; len(all) > 0; all = all[8:] {
			m.GetBlockHashes().LocalHashes = append(m.GetBlockHashes().LocalHashes, binary.LittleEndian.Uint64(all))
		}
	case nothing, text:
	}
	return m
}

// compareQuestion holds a Question against protobuf-go, on the same bytes.
func compareQuestion(t *testing.T, q *Question, data, cuts []byte) {
	t.Helper()
	want, got := &kvoraclev1.RouteRequest{}, q.Read(cut(data, cuts))
	if err := proto.Unmarshal(data, want); (err == nil) != (got == nil) {
		t.Fatalf("%x: read says %v, protobuf %v", data, got, err)
	} else if err == nil {
		compareMessages(t, q, want)
	}
	envelope, got := &kvoraclev1.RouteStreamRequest{}, q.ReadStreamed(cut(data, cuts))
	if err := proto.Unmarshal(data, envelope); (err == nil) != (got == nil) {
		t.Fatalf("%x as a stream's: read says %v, protobuf %v", data, got, err)
	} else if err == nil {
		if q.Tag() != envelope.GetTag() || q.Traceparent() != envelope.GetTraceparent() || q.Timeout().Milliseconds() != int64(envelope.GetTimeoutMs()) {
			t.Fatalf("%x: envelope %v became %v", data, envelope, &q.envelope)
		}
		compareMessages(t, q, envelope.GetRequest())
	}
}

func compareMessages(t *testing.T, q *Question, want *kvoraclev1.RouteRequest) {
	t.Helper()
	// Fields that nobody knows are left out: a scan writes their numbers in the shortest form, protobuf-go as they came.
	if d := cmp.Diff(want, restored(q), protocmp.Transform(), protocmp.IgnoreUnknown()); d != "" {
		t.Fatalf("question (-protobuf +read):\n%s", d)
	}
	limits := Limits{MaxPromptTokens: 1000}
	r, err := DecodeRoute(want, limits)
	got, gotErr := q.Request(limits)
	if names := q.forms.names(); len(names) > 1 {
		var e *oracle.Error
		if !errors.As(gotErr, &e) || e.Kind != oracle.InvalidArgument || e.Field != names[0] {
			t.Fatalf("a prompt as %q: %v", names, gotErr)
		}
		return
	}
	if err != nil || gotErr != nil {
		var a, b *oracle.Error
		if !errors.As(err, &a) || !errors.As(gotErr, &b) || *a != *b {
			t.Fatalf("decoding says %v, of the message %v", gotErr, err)
		}
		return
	}
	if x, y := chain(got), chain(r); !cmp.Equal(x, y) {
		t.Fatalf("chains differ: %x, want %x", x, y)
	}
	a, b := *got, *r
	a.Prompt.Tokens, a.Prompt.Locals, a.Prompt.PackedTokens, a.Prompt.PackedLocals = nil, nil, nil, nil
	b.Prompt.Tokens, b.Prompt.Locals, b.Prompt.PackedTokens = nil, nil, nil
	if d := cmp.Diff(b, a); d != "" {
		t.Fatalf("request (-of the message +read):\n%s", d)
	}
}

// chain is what the oracle makes of a prompt.
func chain(r *oracle.RouteRequest) []block.ID {
	p := &r.Prompt
	switch {
	case p.PackedLocals != nil:
		return block.AppendChain([]block.ID{}, 1, block.AppendPackedLocals(nil, p.PackedLocals))
	case p.LocalsSize != 0:
		return block.AppendChain([]block.ID{}, 1, p.Locals)
	case p.PackedTokens != nil:
		return block.AppendPackedChain([]block.ID{}, 1, p.PackedTokens, 2)
	default:
		return block.AppendTokenChain([]block.ID{}, 1, p.Tokens, 2)
	}
}

// questionBytes are messages in the shapes that a scanner may stumble over.
func questionBytes(t testing.TB) [][]byte {
	t.Helper()
	marshal := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	full := &kvoraclev1.RouteRequest{
		RequestId: "r", Model: "m", Prompt: tokens(1, 2, 300_000, 1<<32-1), Lora: &kvoraclev1.LoraAdapter{Name: "l"}, CacheSalt: "s",
		ExpectedOutputTokens: 300, SessionId: "c", Phase: kvoraclev1.Phase_PHASE_PREFILL, AllowedWorkers: []string{"a", "b"},
		DeniedWorkers: []string{"c"}, RequiredLabels: map[string]string{"k": "v"}, Explain: true, DryRun: true, MaxAlternatives: 3,
		Priority: -7, TenantId: "t", MaxQueueSeconds: 1.5, TtftTargetSeconds: 2, TpotTargetSeconds: math.Inf(1), PreferredLabels: map[string]string{"p": "q"},
	}
	hashed := proto.CloneOf(full)
	hashed.Prompt = hashes(block.Scheme, 4, 9, 2)
	images := proto.CloneOf(full)
	images.Multimodal = []*kvoraclev1.MultimodalItem{{FirstToken: 1, TokenCount: 2, Digest: []byte("12345678")}}
	written := &kvoraclev1.RouteRequest{Model: "m", Prompt: &kvoraclev1.RouteRequest_Text{Text: "x"}}
	model := marshal(&kvoraclev1.RouteRequest{Model: "m"})
	part := marshal(&kvoraclev1.RouteRequest{Prompt: tokens(7, 8)})
	unpacked := protowire.AppendBytes(protowire.AppendTag(nil, fieldTokens, protowire.BytesType),
		protowire.AppendFixed32(protowire.AppendTag(nil, fieldTokenIDs, protowire.Fixed32Type), 9))
	odd := protowire.AppendBytes(protowire.AppendTag(nil, fieldTokens, protowire.BytesType),
		protowire.AppendBytes(protowire.AppendTag(nil, fieldTokenIDs, protowire.BytesType), []byte("12345")))
	stranger := protowire.AppendBytes(protowire.AppendTag(nil, fieldTokens, protowire.BytesType),
		append(marshal(&kvoraclev1.TokenPrompt{TokenIds: []uint32{1}}), protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)...))
	asNumber := protowire.AppendVarint(protowire.AppendTag(nil, fieldTokens, protowire.VarintType), 5)
	group := append(protowire.AppendTag(nil, 50, protowire.StartGroupType), protowire.AppendTag(nil, 50, protowire.EndGroupType)...)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	envelope := marshal(&kvoraclev1.RouteStreamRequest{Tag: 1 << 40, Request: full, TimeoutMs: 7, Traceparent: "00-ab"})
	return [][]byte{
		nil, marshal(full), marshal(hashed), marshal(images), marshal(written), model, part,
		marshal(&kvoraclev1.RouteRequest{Model: "m", Prompt: tokens()}),
		marshal(&kvoraclev1.RouteRequest{Model: "m", Prompt: hashes(block.Scheme, 4, 3, 0)}),
		join(part, model), join(part, model, part), join(unpacked, model), join(part, unpacked, model), join(odd, model), join(stranger, model),
		join(asNumber, part, model), join(marshal(hashed), part), join(part, marshal(written)), join(marshal(written), part),
		join(marshal(hashed), marshal(hashed)), join(group, part, model), join(part, model, []byte{0x0a, 0xff}),
		{0x1a, 0xff, 0xff, 0xff, 0xff, 0x7f},
		{0x0a, 1, 0xff},
		{0},
		{0x1a, 5, 0x0a, 9, 1, 2, 3},
		{0x22, 2, 0x1a, 8},
		join(part, []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02}),
		envelope, join(envelope, envelope), marshal(&kvoraclev1.RouteStreamRequest{Tag: 3}), marshal(&kvoraclev1.RouteStreamRequest{Request: hashed}),
		{0x12, 0},
		{0x12, 1, 0xff},
		{0x5a, 1, 0xff},
		{0xba, 1, 1, 0x80},
		join([]byte{0x12, byte(len(part))}, part, []byte{8, 5}), join([]byte{0x12, byte(len(part) + 1)}, part),
	}
}

func TestQuestionIsWhatProtobufReads(t *testing.T) {
	var q Question // one for all: nothing of a question may be left in the next
	for _, data := range questionBytes(t) {
		for _, cuts := range [][]byte{nil, {1}, {2, 0, 3}, {5, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}} {
			compareQuestion(t, &q, data, cuts)
		}
	}
}

// TestAnyFieldsAreWhatProtobufReads reads random fields of all numbers and kinds, in any order, repeated, and cut anywhere.
func TestAnyFieldsAreWhatProtobufReads(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	var q Question
	for range 1000 {
		var data []byte
		for range r.IntN(6) {
			num := protowire.Number(1 + r.IntN(25))
			switch r.IntN(8) {
			case 0:
				data = protowire.AppendFixed32(protowire.AppendTag(data, num, protowire.Fixed32Type), r.Uint32())
			case 1, 2:
				data = protowire.AppendFixed64(protowire.AppendTag(data, num, protowire.Fixed64Type), math.Float64bits(float64(r.IntN(4))))
			case 3, 4, 5:
				data = protowire.AppendVarint(protowire.AppendTag(data, num, protowire.VarintType), r.Uint64()>>r.IntN(64))
			default:
				text := []string{"", "m", "another", "\xff", string(data)}[r.IntN(5)]
				data = protowire.AppendString(protowire.AppendTag(data, num, protowire.BytesType), text)
			}
		}
		if r.IntN(8) == 0 {
			data = data[:r.IntN(len(data)+1)]
		}
		compareQuestion(t, &q, data, []byte{byte(r.IntN(4)), byte(r.IntN(4)), byte(r.IntN(8))})
	}
}

// TestQuestionLeavesTheArrayWhereItWas: the usual messages are scanned, not handed to protobuf-go.
func TestQuestionLeavesTheArrayWhereItWas(t *testing.T) {
	all := questionBytes(t)
	for i, want := range map[int]form{1: tokenIDs, 2: localHashes, 3: tokenIDs, 4: text, 5: nothing, 9: tokenIDs, 11: nothing} {
		var q Question
		if err := q.Read([][]byte{all[i]}); err != nil || q.form != want {
			t.Errorf("message %d: %v, form %d, want %d", i, err, q.form, want)
		}
	}
}

// TestQuestionInTwoForms: what a oneof would forget is refused, with the names of both.
func TestQuestionInTwoForms(t *testing.T) {
	model := &kvoraclev1.RouteRequest{Model: "m"}
	asTokens, asText := &kvoraclev1.RouteRequest{Prompt: tokens(7)}, &kvoraclev1.RouteRequest{Prompt: &kvoraclev1.RouteRequest_Text{Text: "x"}}
	asHashes := &kvoraclev1.RouteRequest{Prompt: hashes(block.Scheme, 4, 9, 2)}
	for name, tt := range map[string]struct {
		parts []*kvoraclev1.RouteRequest
		also  string // beside tokens; empty: it is one form
	}{
		"merged":       {[]*kvoraclev1.RouteRequest{model, asTokens, asTokens}, ""},
		"text last":    {[]*kvoraclev1.RouteRequest{asTokens, model, asText}, "text"},
		"text first":   {[]*kvoraclev1.RouteRequest{asText, model, asTokens}, "text"},
		"hashes":       {[]*kvoraclev1.RouteRequest{model, asTokens, asHashes}, "block_hashes"},
		"all of three": {[]*kvoraclev1.RouteRequest{model, asTokens, asHashes, asText}, "block_hashes and text"},
	} {
		var alone, streamed []byte
		for _, m := range tt.parts {
			one, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			alone = append(alone, one...)
			streamed = protowire.AppendBytes(protowire.AppendTag(streamed, fieldRequest, protowire.BytesType), one)
		}
		for way, read := range map[string]func(*Question) error{
			"Route":       func(q *Question) error { return q.Read([][]byte{alone}) },
			"RouteStream": func(q *Question) error { return q.ReadStreamed([][]byte{streamed}) },
		} {
			var q Question
			if err := read(&q); err != nil {
				t.Fatal(err)
			}
			_, err := q.Request(Limits{})
			var e *oracle.Error
			if tt.also == "" {
				if err != nil {
					t.Errorf("%s, %s: %v", name, way, err)
				}
			} else if !errors.As(err, &e) || e.Kind != oracle.InvalidArgument || e.Field != "tokens" || e.Value != "given together with "+tt.also {
				t.Errorf("%s, %s: %v", name, way, err)
			}
		}
	}
}

func FuzzQuestion(f *testing.F) {
	for i, data := range questionBytes(f) {
		f.Add(data, []byte{byte(i), 3})
	}
	f.Fuzz(func(t *testing.T, data, cuts []byte) {
		var q Question
		compareQuestion(t, &q, data, cuts)
	})
}
