package wire

import (
	"errors"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

func tokens(ids ...uint32) *kvoraclev1.RouteRequest_Tokens {
	return &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: ids}}
}

func hashes(scheme string, size, count uint32, n int) *kvoraclev1.RouteRequest_BlockHashes {
	return &kvoraclev1.RouteRequest_BlockHashes{BlockHashes: &kvoraclev1.BlockHashPrompt{
		HashScheme: scheme, BlockSize: size, TokenCount: count, LocalHashes: make([]uint64, n),
	}}
}

func item(first, count uint32, digest int) *kvoraclev1.MultimodalItem {
	return &kvoraclev1.MultimodalItem{FirstToken: first, TokenCount: count, Digest: make([]byte, digest)}
}

// badItemOf puts an item behind a good one, in a prompt of nine tokens.
func badItemOf(m *kvoraclev1.MultimodalItem) func(*kvoraclev1.RouteRequest) {
	return func(r *kvoraclev1.RouteRequest) {
		r.Prompt, r.Multimodal = tokens(1, 2, 3, 4, 5, 6, 7, 8, 9), []*kvoraclev1.MultimodalItem{item(8, 1, 64), m}
	}
}

func TestDecodeRouteRefuses(t *testing.T) {
	long := strings.Repeat("x", 300)
	tests := []struct {
		name   string
		change func(*kvoraclev1.RouteRequest)
		kind   oracle.Kind
		reason oracle.Reason
		field  string
	}{
		{"no model", func(m *kvoraclev1.RouteRequest) { m.Model = "" }, oracle.InvalidArgument, oracle.ReasonFieldMissing, "model"},
		{"long model", func(m *kvoraclev1.RouteRequest) { m.Model = long }, oracle.InvalidArgument, oracle.ReasonFieldTooLong, "model"},
		{"bad text", func(m *kvoraclev1.RouteRequest) { m.Model = "\xff" }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "model"},
		{"long id", func(m *kvoraclev1.RouteRequest) { m.RequestId = long }, oracle.InvalidArgument, oracle.ReasonFieldTooLong, "request_id"},
		{"no prompt", func(m *kvoraclev1.RouteRequest) { m.Prompt = nil }, oracle.InvalidArgument, oracle.ReasonPromptEmpty, "prompt"},
		{"empty prompt", func(m *kvoraclev1.RouteRequest) { m.Prompt = tokens() }, oracle.InvalidArgument, oracle.ReasonPromptEmpty, "tokens.token_ids"},
		{"nil token prompt", func(m *kvoraclev1.RouteRequest) { m.Prompt = &kvoraclev1.RouteRequest_Tokens{} }, oracle.InvalidArgument, oracle.ReasonPromptEmpty, "tokens.token_ids"},
		{"long prompt", func(m *kvoraclev1.RouteRequest) { m.Prompt = tokens(make([]uint32, 101)...) }, oracle.InvalidArgument, oracle.ReasonPromptTooLong, "tokens.token_ids"},
		{"empty text", func(m *kvoraclev1.RouteRequest) { m.Prompt = &kvoraclev1.RouteRequest_Text{} }, oracle.InvalidArgument, oracle.ReasonPromptEmpty, "text"},
		{"long text", func(m *kvoraclev1.RouteRequest) {
			m.Prompt = &kvoraclev1.RouteRequest_Text{Text: strings.Repeat("x", 401)}
		}, oracle.InvalidArgument, oracle.ReasonPromptTooLong, "text"},
		{"items and text", func(m *kvoraclev1.RouteRequest) {
			m.Prompt, m.Multimodal = &kvoraclev1.RouteRequest_Text{Text: "x"}, []*kvoraclev1.MultimodalItem{item(0, 1, 8)}
		}, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "multimodal"},
		{"no scheme", func(m *kvoraclev1.RouteRequest) { m.Prompt = hashes("", 4, 4, 1) }, oracle.FailedPrecondition, oracle.ReasonFieldMissing, "block_hashes.hash_scheme"},
		{"other scheme", func(m *kvoraclev1.RouteRequest) { m.Prompt = hashes("md5", 4, 4, 1) }, oracle.FailedPrecondition, oracle.ReasonHashSchemeMismatch, "block_hashes.hash_scheme"},
		{"block size 0", func(m *kvoraclev1.RouteRequest) { m.Prompt = hashes(block.Scheme, 0, 4, 1) }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "block_hashes.block_size"},
		{"no tokens", func(m *kvoraclev1.RouteRequest) { m.Prompt = hashes(block.Scheme, 4, 0, 0) }, oracle.InvalidArgument, oracle.ReasonPromptEmpty, "block_hashes.token_count"},
		{"absurd count", func(m *kvoraclev1.RouteRequest) { m.Prompt = hashes(block.Scheme, 4, math.MaxUint32, 1) }, oracle.InvalidArgument, oracle.ReasonPromptTooLong, "block_hashes.token_count"},
		{"too few tokens", func(m *kvoraclev1.RouteRequest) { m.Prompt = hashes(block.Scheme, 4, 7, 2) }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "block_hashes.token_count"},
		{"too many tokens", func(m *kvoraclev1.RouteRequest) { m.Prompt = hashes(block.Scheme, 4, 12, 2) }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "block_hashes.token_count"},
		{"too many hashes", func(m *kvoraclev1.RouteRequest) { m.Prompt = hashes(block.Scheme, 4, 100, 26) }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "block_hashes.local_hashes"},
		{"revision alone", func(m *kvoraclev1.RouteRequest) { m.Lora = &kvoraclev1.LoraAdapter{Revision: "1"} }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "lora.revision"},
		{"long salt", func(m *kvoraclev1.RouteRequest) { m.CacheSalt = long }, oracle.InvalidArgument, oracle.ReasonFieldTooLong, "cache_salt"},
		{"absurd output", func(m *kvoraclev1.RouteRequest) { m.ExpectedOutputTokens = math.MaxUint32 }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "expected_output_tokens"},
		{"many alternatives", func(m *kvoraclev1.RouteRequest) { m.MaxAlternatives = 17 }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "max_alternatives"},
		{"empty worker name", func(m *kvoraclev1.RouteRequest) { m.DeniedWorkers = []string{"a", ""} }, oracle.InvalidArgument, oracle.ReasonFieldMissing, "denied_workers[1]"},
		{"many workers", func(m *kvoraclev1.RouteRequest) { m.AllowedWorkers = make([]string, maxWorkerList+1) }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "allowed_workers"},
		{"long label", func(m *kvoraclev1.RouteRequest) { m.RequiredLabels = map[string]string{"k": long} }, oracle.InvalidArgument, oracle.ReasonFieldTooLong, `required_labels["k"]`},
		{"unknown phase", func(m *kvoraclev1.RouteRequest) { m.Phase = 77 }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "phase"},
		{"items and hashes", func(m *kvoraclev1.RouteRequest) {
			m.Prompt, m.Multimodal = hashes(block.Scheme, 4, 8, 2), []*kvoraclev1.MultimodalItem{item(0, 1, 8)}
		}, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "multimodal"},
		{"many items", func(m *kvoraclev1.RouteRequest) { m.Multimodal = make([]*kvoraclev1.MultimodalItem, maxItems+1) }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "multimodal"},
		{"items over items", func(m *kvoraclev1.RouteRequest) {
			m.Prompt = tokens(1)
			for range maxOverlap + 1 {
				m.Multimodal = append(m.Multimodal, item(0, 1, 8))
			}
		}, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "multimodal"},
		{"item of nothing", badItemOf(item(0, 0, 8)), oracle.InvalidArgument, oracle.ReasonFieldInvalid, "multimodal[1].token_count"},
		{"item behind the end", badItemOf(item(9, 1, 8)), oracle.InvalidArgument, oracle.ReasonFieldInvalid, "multimodal[1].first_token"},
		{"item over the end", badItemOf(item(8, 2, 8)), oracle.InvalidArgument, oracle.ReasonFieldInvalid, "multimodal[1].token_count"},
		{"item beyond 32 bits", badItemOf(item(8, math.MaxUint32, 8)), oracle.InvalidArgument, oracle.ReasonFieldInvalid, "multimodal[1].token_count"},
		{"short digest", badItemOf(item(8, 1, 7)), oracle.InvalidArgument, oracle.ReasonFieldInvalid, "multimodal[1].digest"},
		{"long digest", badItemOf(item(8, 1, 65)), oracle.InvalidArgument, oracle.ReasonFieldInvalid, "multimodal[1].digest"},
		{"preferred labels", func(m *kvoraclev1.RouteRequest) { m.PreferredLabels = map[string]string{"": "b"} }, oracle.InvalidArgument, oracle.ReasonFieldMissing, "preferred_labels key"},
		{"tenant", func(m *kvoraclev1.RouteRequest) { m.TenantId = strings.Repeat("t", 129) }, oracle.InvalidArgument, oracle.ReasonFieldTooLong, "tenant_id"},
		{"queueing into the past", func(m *kvoraclev1.RouteRequest) { m.MaxQueueSeconds = -1 }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "max_queue_seconds"},
		{"queueing for ever", func(m *kvoraclev1.RouteRequest) { m.MaxQueueSeconds = 3601 }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "max_queue_seconds"},
		{"queueing for no number", func(m *kvoraclev1.RouteRequest) { m.MaxQueueSeconds = math.NaN() }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "max_queue_seconds"},
		{"ttft target", func(m *kvoraclev1.RouteRequest) { m.TtftTargetSeconds = math.NaN() }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "ttft_target_seconds"},
		{"tpot target", func(m *kvoraclev1.RouteRequest) { m.TpotTargetSeconds = -1 }, oracle.InvalidArgument, oracle.ReasonFieldInvalid, "tpot_target_seconds"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := &kvoraclev1.RouteRequest{Model: "m", Prompt: tokens(1, 2, 3)}
			tt.change(m)
			_, err := DecodeRoute(m, Limits{MaxPromptTokens: 100})
			var e *oracle.Error
			if !errors.As(err, &e) {
				t.Fatalf("err = %v, want an oracle.Error", err)
			}
			if e.Kind != tt.kind || e.Reason != tt.reason || e.Field != tt.field {
				t.Errorf("got kind %d %s field %q, want kind %d %s field %q", e.Kind, e.Reason, e.Field, tt.kind, tt.reason, tt.field)
			}
		})
	}
	if _, err := DecodeRoute(nil, Limits{}); err == nil {
		t.Error("a missing request was accepted")
	}
}

// TestEveryRouteFieldIsServed walks the message: a field that is added to the proto and forgotten here would be
// ignored in silence.
func TestEveryRouteFieldIsServed(t *testing.T) {
	served := map[string]bool{
		"request_id": true, "model": true, "tokens": true, "block_hashes": true, "lora": true, "cache_salt": true,
		"expected_output_tokens": true, "session_id": true, "phase": true, "allowed_workers": true, "denied_workers": true,
		"required_labels": true, "explain": true, "dry_run": true, "max_alternatives": true,
		"multimodal": true, "ttft_target_seconds": true, "tpot_target_seconds": true, "text": true,
		"priority": true, "preferred_labels": true, "max_queue_seconds": true, "tenant_id": true,
	}
	fields := (&kvoraclev1.RouteRequest{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if field := string(fields.Get(i).Name()); !served[field] {
			t.Errorf("field %s: have it served, or refused by name, and say so here", field)
		}
	}
}

func TestDecodeRouteAccepts(t *testing.T) {
	r, err := DecodeRoute(&kvoraclev1.RouteRequest{
		Model: "m", Prompt: hashes(block.Scheme, 4, 11, 2), Phase: kvoraclev1.Phase_PHASE_DECODE,
		Lora: &kvoraclev1.LoraAdapter{Name: "x", Revision: "2"}, CacheSalt: "s",
	}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Prompt.Length != 11 || r.Prompt.LocalsSize != 4 || len(r.Prompt.Locals) != 2 || r.Role != fleet.Decode ||
		r.LoRAName != "x" || r.LoRARevision != "2" || r.CacheSalt != "s" || r.MaxAlternatives != defaultAlternatives {
		t.Errorf("got %+v", r)
	}
	r, err = DecodeRoute(&kvoraclev1.RouteRequest{Model: "m", Prompt: &kvoraclev1.RouteRequest_Text{Text: strings.Repeat("x", 399)}}, Limits{MaxPromptTokens: 100})
	if err != nil || !r.Prompt.IsText || r.Prompt.Length != 100 || len(r.Prompt.PackedTokens) != 1 {
		t.Errorf("text: %v, %+v", err, r)
	}
	// A prompt shorter than one block has no hashes at all.
	if _, err := DecodeRoute(&kvoraclev1.RouteRequest{Model: "m", Prompt: hashes(block.Scheme, 4, 3, 0)}, Limits{}); err != nil {
		t.Errorf("short prompt: %v", err)
	}
}

func helloMessage() *kvoraclev1.BlocksHello {
	return &kvoraclev1.BlocksHello{
		Worker: &kvoraclev1.WorkerSpec{WorkerId: "w", Model: "m", BlockSize: 16}, Incarnation: 1, NextSequence: 1,
		HashScheme: block.Scheme, Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
	}
}

const (
	full   = kvoraclev1.AttentionKind_ATTENTION_KIND_FULL
	window = kvoraclev1.AttentionKind_ATTENTION_KIND_WINDOW
)

func attention(number uint32, kind kvoraclev1.AttentionKind, size uint32) *kvoraclev1.AttentionGroup {
	return &kvoraclev1.AttentionGroup{Number: number, Kind: kind, BlockSize: size}
}

func withGroups(groups ...*kvoraclev1.AttentionGroup) func(*kvoraclev1.BlocksHello) {
	return func(h *kvoraclev1.BlocksHello) { h.Groups = groups }
}

// The lowest number of full attention with the worker's block size, wherever it stands in the list.
func TestThePrefixGroupIsFound(t *testing.T) {
	h := helloMessage()
	h.HashWindow = 16
	h.Groups = []*kvoraclev1.AttentionGroup{
		attention(0, window, 16), attention(1, full, 32), attention(7, full, 16), attention(5, full, 16), attention(3, 3, 16),
	}
	got, err := DecodeHello(h)
	if err != nil || got.PrefixGroup != 5 || !slices.Equal(got.OtherGroups, []uint32{0, 1, 7, 3}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestDecodeHelloNamesEachPrecondition(t *testing.T) {
	tests := []struct {
		field  string
		kind   oracle.Kind
		change func(*kvoraclev1.BlocksHello)
	}{
		{"hello.worker", oracle.FailedPrecondition, func(h *kvoraclev1.BlocksHello) { h.Worker = nil }},
		{"hello.worker.worker_id", oracle.FailedPrecondition, func(h *kvoraclev1.BlocksHello) { h.Worker.WorkerId = "" }},
		{"hello.worker.model", oracle.FailedPrecondition, func(h *kvoraclev1.BlocksHello) { h.Worker.Model = "" }},
		{"hello.worker.block_size", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) { h.Worker.BlockSize = 0 }},
		{"hello.worker.block_size", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) { h.Worker.BlockSize = 1 << 31 }},
		{"hello.worker.dp_size", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) { h.Worker.DpSize = 1 << 31 }},
		{"hello.worker.roles", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) { h.Worker.Roles = []kvoraclev1.Role{9} }},
		{"hello.worker.max_requests", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) { h.Worker.MaxRequests = math.MaxUint32 }},
		{"hello.worker.capacities", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) {
			h.Worker.Capacities = []*kvoraclev1.TierCapacity{{Tier: 1}, {Tier: 1}}
		}},
		{"hello.dp_rank", oracle.FailedPrecondition, func(h *kvoraclev1.BlocksHello) { h.DpRank = 1 }},
		{"hello.incarnation", oracle.FailedPrecondition, func(h *kvoraclev1.BlocksHello) { h.Incarnation = 0 }},
		{"hello.next_sequence", oracle.FailedPrecondition, func(h *kvoraclev1.BlocksHello) { h.NextSequence = 0 }},
		{"hello.hash_scheme", oracle.FailedPrecondition, func(h *kvoraclev1.BlocksHello) { h.HashScheme = "" }},
		{"hello.hash_scheme", oracle.FailedPrecondition, func(h *kvoraclev1.BlocksHello) { h.HashScheme = "v2" }},
		{"hello.repeats", oracle.FailedPrecondition, func(h *kvoraclev1.BlocksHello) { h.Repeats = 0 }},
		{"hello.repeats", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) { h.Repeats = 9 }},
		{"hello.groups", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) { h.Groups = make([]*kvoraclev1.AttentionGroup, maxGroups+1) }},
		{"hello.groups[0].block_size", oracle.InvalidArgument, withGroups(attention(0, full, 0))},
		{"hello.groups[0].kind", oracle.FailedPrecondition, withGroups(attention(0, 0, 16))},
		{"hello.groups[1].kind", oracle.InvalidArgument, withGroups(attention(0, full, 16), attention(1, 99, 16))},
		{"hello.groups[1].number", oracle.InvalidArgument, withGroups(attention(3, full, 16), attention(3, full, 16))},
		{"hello.groups", oracle.FailedPrecondition, withGroups(attention(0, full, 32), attention(1, window, 16))},
		{"hello.hash_window", oracle.Unserved, func(h *kvoraclev1.BlocksHello) { h.HashWindow = 17 }},
		{"hello.root_parents", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) { h.RootParents = make([]uint64, maxRoots+1) }},
		{"hello.root_parent_digests", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) { h.RootParentDigests = [][]byte{{1}} }},
		{"hello.root_parent_digests", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) {
			h.RootParentDigests, h.EngineHashes = make([][]byte, maxRoots+1), true
		}},
		{"hello.root_parent_digests[1]", oracle.InvalidArgument, func(h *kvoraclev1.BlocksHello) {
			h.RootParentDigests, h.EngineHashes = [][]byte{{1}, {}}, true
		}},
	}
	for _, tt := range tests {
		h := helloMessage()
		tt.change(h)
		_, err := DecodeHello(h)
		var e *oracle.Error
		if !errors.As(err, &e) || e.Kind != tt.kind || e.Field != tt.field {
			t.Errorf("%s: err = %#v, want kind %d", tt.field, err, tt.kind)
		}
	}
	if _, err := DecodeHello(nil); err == nil {
		t.Error("an empty hello was accepted")
	}
	h, err := DecodeHello(helloMessage())
	if err != nil || h.Spec.DPSize != 1 || h.Counted {
		t.Errorf("a good hello: %+v, %v", h, err)
	}
}

func store(change func(*kvoraclev1.StoreBlocks)) *kvoraclev1.BlockOp {
	s := &kvoraclev1.StoreBlocks{
		Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
		Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: []uint64{1}}},
	}
	change(s)
	return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: s}}
}

func remove(change func(*kvoraclev1.RemoveBlocks)) *kvoraclev1.BlockOp {
	r := &kvoraclev1.RemoveBlocks{BlockIds: []uint64{1}}
	change(r)
	return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: r}}
}

func numbers(n int) *kvoraclev1.EngineHashes {
	return &kvoraclev1.EngineHashes{Numbers: make([]uint64, n)}
}

// bytesOf makes names of so many bytes each.
func bytesOf(lengths ...int) *kvoraclev1.EngineHashes {
	m := &kvoraclev1.EngineHashes{}
	for _, n := range lengths {
		m.Digests = append(m.Digests, make([]byte, n))
	}
	return m
}

func locals(n int) *kvoraclev1.StoreBlocks_LocalHashes {
	return &kvoraclev1.StoreBlocks_LocalHashes{LocalHashes: &kvoraclev1.LocalHashes{Hashes: make([]uint64, n)}}
}

func part(first, count, skipped uint32, digest int) *kvoraclev1.BlockMultimodal {
	return &kvoraclev1.BlockMultimodal{FirstToken: first, TokenCount: count, SkippedTokens: skipped, Digest: make([]byte, digest)}
}

// withItems is a store of two blocks of four tokens.
func withItems(items ...*kvoraclev1.BlockMultimodal) *kvoraclev1.BlockOp {
	return store(func(s *kvoraclev1.StoreBlocks) {
		s.Content = &kvoraclev1.StoreBlocks_Tokens{Tokens: &kvoraclev1.BlockTokens{TokenIds: make([]uint32, 8)}}
		s.Multimodal = items
	})
}

// TestItemsMeanTheSameOnBothSides: what a gateway says of a whole prompt, and what a worker says of its blocks one by one.
func TestItemsMeanTheSameOnBothSides(t *testing.T) {
	const size = 4
	r, err := DecodeRoute(&kvoraclev1.RouteRequest{
		Model: "m", Prompt: tokens(make([]uint32, 16)...), Multimodal: []*kvoraclev1.MultimodalItem{item(6, 7, 8), item(0, 3, 32)},
	}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := block.AppendLocals(nil, r.Prompt.Tokens, size)
	block.MixItems(want, size, r.Prompt.Items)
	stored := func(tokens int, items ...*kvoraclev1.BlockMultimodal) []block.Local {
		t.Helper()
		op := store(func(s *kvoraclev1.StoreBlocks) {
			s.Content = &kvoraclev1.StoreBlocks_Tokens{Tokens: &kvoraclev1.BlockTokens{TokenIds: make([]uint32, tokens)}}
			s.Multimodal = items
		})
		ops, err := DecodeBatch(&kvoraclev1.BlockBatch{Ops: []*kvoraclev1.BlockOp{op}}, Shape{BlockSize: size}, nil)
		if err != nil || ops[0].Kind != oracle.OpStore {
			t.Fatalf("%+v, %v", ops, err)
		}
		return ops[0].Locals
	}
	for name, got := range map[string][]block.Local{
		"at once":   stored(16, part(6, 7, 0, 8), part(0, 3, 0, 32)),
		"in halves": append(stored(8, part(0, 3, 0, 32), part(6, 2, 0, 8)), stored(8, part(0, 5, 2, 8))...),
		"one by one": slices.Concat(stored(4, part(0, 3, 0, 32)), stored(4, part(2, 2, 0, 8)), stored(4, part(0, 4, 2, 8)),
			stored(4, part(0, 4, 6, 8))), // its end unknown
	} {
		if !slices.Equal(got, want) {
			t.Errorf("%s: %x, want %x", name, got, want)
		}
	}
	if plain := stored(16); plain[0] == want[0] || plain[1] == want[1] || plain[2] == want[2] || plain[3] == want[3] {
		t.Error("a covered block has the hash of its tokens")
	}
}

func TestEngineHashesAreRead(t *testing.T) {
	batch := &kvoraclev1.BlockBatch{Ops: []*kvoraclev1.BlockOp{
		store(func(s *kvoraclev1.StoreBlocks) {
			s.Parent = &kvoraclev1.StoreBlocks_ParentEngineHash{ParentEngineHash: math.MaxUint64}
			s.Content, s.EngineHashes = locals(2), &kvoraclev1.EngineHashes{Numbers: []uint64{1 << 63, 2}}
		}),
		store(func(s *kvoraclev1.StoreBlocks) {
			s.Parent = &kvoraclev1.StoreBlocks_ParentEngineDigest{ParentEngineDigest: []byte("up")}
			s.Content, s.EngineHashes = locals(1), &kvoraclev1.EngineHashes{Digests: [][]byte{[]byte("down")}}
		}),
		store(func(s *kvoraclev1.StoreBlocks) { s.Content, s.Parent, s.EngineHashes = nil, nil, numbers(3) }),
		remove(func(r *kvoraclev1.RemoveBlocks) { r.BlockIds, r.EngineHashes = nil, bytesOf(1, 64) }),
	}}
	got, err := DecodeBatch(batch, Shape{BlockSize: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []oracle.Op{
		{
			Kind: oracle.OpStore, Content: oracle.ContentLocals, Locals: make([]block.Local, 2),
			Hashes: []oracle.EngineHash{1 << 63, 2}, ParentHash: math.MaxUint64, HasParentHash: true,
		},
		{
			Kind: oracle.OpStore, Content: oracle.ContentLocals, Locals: make([]block.Local, 1),
			Hashes: []oracle.EngineHash{oracle.EngineHash(block.Sum([]byte("down")))}, ParentHash: oracle.EngineHash(block.Sum([]byte("up"))), HasParentHash: true,
		},
		{Kind: oracle.OpStore, Content: oracle.ContentNone, Hashes: make([]oracle.EngineHash, 3)},
		{Kind: oracle.OpRemove, IDs: []block.ID{}, Hashes: []oracle.EngineHash{
			oracle.EngineHash(block.Sum(make([]byte, 1))), oracle.EngineHash(block.Sum(make([]byte, 64))),
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	h := helloMessage()
	h.EngineHashes, h.RootParents, h.RootParentDigests = true, []uint64{5}, [][]byte{[]byte("up")}
	hello, err := DecodeHello(h)
	if err != nil || !hello.EngineHashes || !slices.Equal(hello.Roots, []uint64{5, block.Sum([]byte("up"))}) {
		t.Errorf("hello: %+v, %v", hello, err)
	}
}

// TestReasonsAreTheProtos: both sides count and name alike.
func TestReasonsAreTheProtos(t *testing.T) {
	names := kvoraclev1.RefusalReason_name
	for _, r := range oracle.RefusalReasons() {
		if want := "REFUSAL_REASON_" + strings.ToUpper(r.String()); names[int32(r)] != want {
			t.Errorf("reason %d is %s here and %q in the proto", r, want, names[int32(r)])
		}
	}
	if n := len(oracle.RefusalReasons()); n != len(names)-1 {
		t.Errorf("%d reasons here, %d in the proto", n, len(names)-1)
	}
}

func TestBadOperationsAreRefusedAlone(t *testing.T) {
	bad := []struct {
		op   *kvoraclev1.BlockOp
		want oracle.RefusalReason
	}{
		{nil, oracle.RefusalMalformed},
		{&kvoraclev1.BlockOp{}, oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Parent = nil }), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Content = nil }), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Content = &kvoraclev1.StoreBlocks_BlockIds{} }), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) {
			s.Content = &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: make([]uint64, maxBlocksPerOp+1)}}
		}), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) {
			s.Content = &kvoraclev1.StoreBlocks_Tokens{Tokens: &kvoraclev1.BlockTokens{TokenIds: make([]uint32, 6)}}
		}), oracle.RefusalPartialBlock},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Tier = 9 }), oracle.RefusalTier},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Group = 1 }), oracle.RefusalGroup},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Multimodal = []*kvoraclev1.BlockMultimodal{part(0, 1, 0, 8)} }), oracle.RefusalMalformed}, // of ids
		{withItems(part(0, 1, 0, 8), part(0, 0, 0, 8)), oracle.RefusalMalformed},
		{withItems(part(8, 1, 0, 8)), oracle.RefusalMalformed},
		{withItems(part(7, 2, 0, 8)), oracle.RefusalMalformed},
		{withItems(part(1, 1, 1, 8)), oracle.RefusalMalformed},
		{withItems(part(0, 1, 0, 7)), oracle.RefusalMalformed},
		{withItems(part(0, 1, 0, 65)), oracle.RefusalMalformed},
		{withItems(part(0, 8, 0, 8), part(0, 8, 0, 8), part(0, 8, 0, 8), part(0, 8, 0, 8), part(0, 1, 0, 8)), oracle.RefusalMalformed},
		{withItems(make([]*kvoraclev1.BlockMultimodal, maxItems+1)...), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Lora = &kvoraclev1.LoraAdapter{Revision: "x"} }), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) { s.CacheSalt = strings.Repeat("x", 300) }), oracle.RefusalMalformed},
		{remove(func(r *kvoraclev1.RemoveBlocks) { r.BlockIds = nil }), oracle.RefusalMalformed},
		{remove(func(r *kvoraclev1.RemoveBlocks) { r.Tier = 9 }), oracle.RefusalTier},
		{remove(func(r *kvoraclev1.RemoveBlocks) { r.Group = 2 }), oracle.RefusalGroup},
		{&kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Clear{Clear: &kvoraclev1.ClearBlocks{Tier: 9}}}, oracle.RefusalTier},
		{store(func(s *kvoraclev1.StoreBlocks) { s.EngineHashes = numbers(1) }), oracle.RefusalMalformed}, // beside ids
		{store(func(s *kvoraclev1.StoreBlocks) { s.Content, s.EngineHashes = locals(2), numbers(1) }), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Content, s.EngineHashes = locals(1), &kvoraclev1.EngineHashes{} }), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Content, s.EngineHashes = nil, numbers(maxBlocksPerOp+1) }), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Content, s.Parent, s.EngineHashes = locals(1), nil, numbers(1) }), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Content, s.EngineHashes = locals(1), bytesOf(0) }), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) { s.Content, s.EngineHashes = locals(1), bytesOf(65) }), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) {
			s.Content, s.EngineHashes = locals(2), &kvoraclev1.EngineHashes{Numbers: []uint64{1}, Digests: [][]byte{{1}}}
		}), oracle.RefusalMalformed},
		{store(func(s *kvoraclev1.StoreBlocks) {
			s.Content, s.EngineHashes = locals(1), numbers(1)
			s.Parent = &kvoraclev1.StoreBlocks_ParentEngineDigest{}
		}), oracle.RefusalMalformed},
		{remove(func(r *kvoraclev1.RemoveBlocks) { r.EngineHashes = numbers(1) }), oracle.RefusalMalformed}, // beside ids
		{remove(func(r *kvoraclev1.RemoveBlocks) { r.BlockIds, r.EngineHashes = nil, bytesOf(3, 0) }), oracle.RefusalMalformed},
	}
	batch := &kvoraclev1.BlockBatch{}
	for _, b := range bad {
		batch.Ops = append(batch.Ops, b.op)
	}
	good := store(func(*kvoraclev1.StoreBlocks) {})
	batch.Ops = append(batch.Ops, good)
	ops, err := DecodeBatch(batch, Shape{BlockSize: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range bad {
		if ops[i].Kind != oracle.OpRefused || ops[i].Refusal.Reason != b.want {
			t.Errorf("operation %d: kind %d reason %d (%s), want refused with %d", i, ops[i].Kind, ops[i].Refusal.Reason, ops[i].Refusal.Detail, b.want)
		}
	}
	if last := ops[len(ops)-1]; last.Kind != oracle.OpStore || len(last.IDs) != 1 {
		t.Errorf("the good operation behind them: %+v", last)
	}
	if _, err := DecodeBatch(&kvoraclev1.BlockBatch{Ops: make([]*kvoraclev1.BlockOp, maxOps+1)}, Shape{BlockSize: 4}, nil); err == nil {
		t.Error("a batch beyond the limit was accepted")
	}
}

func TestFingerprintTellsBatchesApart(t *testing.T) {
	f := NewFingerprinter(maphash.MakeSeed())
	a := &kvoraclev1.BlockBatch{Sequence: 7, Ops: []*kvoraclev1.BlockOp{store(func(*kvoraclev1.StoreBlocks) {})}}
	b := &kvoraclev1.BlockBatch{Sequence: 7, Ops: []*kvoraclev1.BlockOp{remove(func(*kvoraclev1.RemoveBlocks) {})}}
	again, ok := proto.Clone(a).(*kvoraclev1.BlockBatch)
	if !ok || f.Batch(a) != f.Batch(again) {
		t.Error("equal batches have different fingerprints")
	}
	if f.Batch(a) == f.Batch(b) {
		t.Error("different batches have one fingerprint")
	}
}

func TestDecisionIDRoundTrip(t *testing.T) {
	for _, id := range []oracle.DecisionID{1, 1 << 40, math.MaxUint64} {
		if got, ok := ParseDecisionID(DecisionID(id)); !ok || got != id {
			t.Errorf("%d came back as %d, %v", id, got, ok)
		}
	}
	for _, s := range []string{"", "0000000000000000", "xyz", "00000000000000001", "+000000000000001"} {
		if id, ok := ParseDecisionID(s); ok {
			t.Errorf("%q was read as decision %d", s, id)
		}
	}
}

func TestDecodeEventRefuses(t *testing.T) {
	tests := []struct {
		field string
		event *kvoraclev1.ProgressEvent
	}{
		{"event.decision_id", nil},
		{"event.step", &kvoraclev1.ProgressEvent{DecisionId: "x"}},
		{"event.first_token.ttft_seconds", &kvoraclev1.ProgressEvent{DecisionId: "x", Step: &kvoraclev1.ProgressEvent_FirstToken{FirstToken: &kvoraclev1.FirstToken{TtftSeconds: math.NaN()}}}},
		{"event.first_token.ttft_seconds", &kvoraclev1.ProgressEvent{DecisionId: "x", Step: &kvoraclev1.ProgressEvent_FirstToken{FirstToken: &kvoraclev1.FirstToken{TtftSeconds: -1}}}},
		{"event.dispatched.target.worker_id", &kvoraclev1.ProgressEvent{DecisionId: "x", Step: &kvoraclev1.ProgressEvent_Dispatched{Dispatched: &kvoraclev1.Dispatched{Target: &kvoraclev1.Target{}}}}},
	}
	for _, tt := range tests {
		_, err := DecodeEvent(tt.event, "g", "event")
		var e *oracle.Error
		if !errors.As(err, &e) || e.Field != tt.field || e.Kind != oracle.InvalidArgument {
			t.Errorf("%s: err = %v", tt.field, err)
		}
	}
}

func TestDecodeEventFinished(t *testing.T) {
	none := uint64(0)
	for _, tt := range []struct {
		in             *kvoraclev1.Finished
		cached, prompt int
	}{
		{&kvoraclev1.Finished{OutputTokens: 7}, -1, 0},
		{&kvoraclev1.Finished{OutputTokens: 7, CachedTokens: &none, PromptTokens: 9}, 0, 9},
		{&kvoraclev1.Finished{OutputTokens: 7, PromptTokens: math.MaxUint64}, -1, math.MaxInt32},
	} {
		e, err := DecodeEvent(&kvoraclev1.ProgressEvent{
			DecisionId: "000000000000000a", Step: &kvoraclev1.ProgressEvent_Finished{Finished: tt.in},
		}, "g", "event")
		if err != nil || e.Decision != 10 || e.OutputTokens != 7 || e.Cached != tt.cached || e.PromptTokens != tt.prompt {
			t.Errorf("%v became %+v, %v", tt.in, e, err)
		}
	}
}
