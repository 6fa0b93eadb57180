package kvevents

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden is one line of testdata/engine-events.jsonl.
type golden struct {
	Name, Engine, Channel string
	Frames                []string
	Decoded               any
}

func (g *golden) parts(t testing.TB) [][]byte {
	t.Helper()
	var out [][]byte
	for _, f := range g.Frames {
		b, err := hex.DecodeString(f)
		if err != nil {
			t.Fatalf("%s: %v", g.Name, err)
		}
		out = append(out, b)
	}
	return out
}

func goldens(t testing.TB) []golden {
	t.Helper()
	f, err := os.Open("testdata/engine-events.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []golden
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.UseNumber()
		var g golden
		if err := d.Decode(&g); err != nil {
			t.Fatal(err)
		}
		out = append(out, g)
	}
	if lines.Err() != nil || len(out) != 90 {
		t.Fatalf("%d golden messages, %v", len(out), lines.Err())
	}
	return out
}

// said is an event in a form that both sides of a comparison can be brought into.
type said struct {
	Kind                      Kind
	Hashes                    []uint64
	Parent                    uint64
	ParentKind                ParentKind
	Tokens                    []uint32
	BlockSize                 int
	Medium                    Medium
	Group, Window, Rank       int
	GroupKind                 GroupKind
	LoRA, Salt                string
	LoRAID                    int64
	HasLoRAID                 bool
	Extras                    []saidExtra
	IsRemote, IsOwned, IsPool bool
}

type saidExtra struct {
	Kind   ExtraKind
	Block  int32
	Offset int64
	ID     string
}

func saidBy(e *Event) said {
	s := said{
		Kind: e.Kind, Hashes: append([]uint64(nil), e.Hashes...), Parent: e.Parent, ParentKind: e.ParentKind,
		Tokens: append([]uint32(nil), e.Tokens...), BlockSize: e.BlockSize, Medium: e.Medium, Group: e.Group, Window: e.Window, Rank: e.Rank,
		GroupKind: e.GroupKind, LoRA: string(e.LoRAName), Salt: string(e.Salt), LoRAID: e.LoRAID, HasLoRAID: e.HasLoRAID,
		IsRemote: e.IsRemote, IsOwned: e.IsOwned, IsPool: e.IsPool,
	}
	for _, x := range e.Extras {
		s.Extras = append(s.Extras, saidExtra{x.Kind, x.Block, x.Offset, string(x.ID)})
	}
	return s
}

func number(v any) uint64 {
	n, ok := new(big.Int).SetString(v.(json.Number).String(), 10)
	if !ok {
		return 0
	}
	return new(big.Int).And(n, new(big.Int).SetUint64(1<<64-1)).Uint64()
}

func hashOf(v any) uint64 {
	if m, ok := v.(map[string]any); ok {
		b, _ := hex.DecodeString(m["$hex"].(string))
		return new(big.Int).SetBytes(b[len(b)-8:]).Uint64()
	}
	return number(v)
}

// expect reads one of decoded.batch.events the slow and obvious way. It returns false for what must be skipped.
func expect(v map[string]any) (said, bool) {
	s := said{Group: -1, Rank: -1}
	for key, v := range v {
		if v == nil {
			if key == "parent_block_hash" {
				s.ParentKind = ParentRoot
			}
			continue
		}
		switch key {
		case "type":
			s.Kind = map[string]Kind{"BlockStored": Stored, "BlockRemoved": Removed, "AllBlocksCleared": Cleared}[v.(string)]
		case "block_hashes":
			for _, h := range v.([]any) {
				s.Hashes = append(s.Hashes, hashOf(h))
			}
		case "parent_block_hash":
			s.Parent, s.ParentKind = hashOf(v), ParentBlock
		case "token_ids":
			for _, x := range v.([]any) {
				if pair, ok := x.([]any); ok {
					x = pair[0]
				}
				s.Tokens = append(s.Tokens, uint32(number(x)))
			}
		case "block_size":
			s.BlockSize = int(number(v))
		case "lora_id":
			s.LoRAID, s.HasLoRAID = int64(number(v)), true
		case "medium":
			s.Medium = map[string]Medium{
				"GPU": MediumDevice, "CPU": MediumHost, "CPU_PINNED": MediumHost, "STORAGE": MediumDisk, "cpu": MediumHost,
			}[v.(string)]
		case "lora_name":
			s.LoRA = v.(string)
		case "metadata":
			s.Salt = v.(map[string]any)["cache_salt"].(string)
		case "cache_salt":
			s.Salt = v.(string)
		case "group_idx":
			s.Group = int(number(v))
		case "kv_cache_spec_kind":
			s.GroupKind = map[string]GroupKind{"full_attention": GroupFull, "sliding_window": GroupWindow, "mamba": GroupState}[v.(string)]
		case "kv_cache_spec_sliding_window":
			s.Window = int(number(v))
		case "locality":
			s.IsRemote = v.(string) == "REMOTE"
		case "ownership":
			s.IsOwned = true
		case "backend_id":
			s.IsPool = true
		case "extra_keys":
			for block, list := range v.([]any) {
				items, _ := list.([]any)
				for i, x := range items {
					switch x := x.(type) {
					case string:
						if i == len(items)-1 && x == "tenant-a" {
							s.Salt = x
						}
					case []any:
						s.Extras = append(s.Extras, saidExtra{ExtraItem, int32(block), int64(number(x[1])), x[0].(string)})
					case map[string]any:
						if x["type"] == "cache_salt" {
							s.Salt = x["salt"].(string)
						} else {
							s.Extras = append(s.Extras, saidExtra{Kind: ExtraEmbeds, Block: int32(block)})
						}
					}
				}
			}
		}
	}
	if s.Kind == Stored && (s.IsPool || s.ParentKind == ParentRoot && len(s.Tokens) == 0) {
		s.ParentKind = ParentUnknown
	}
	if _, ok := v["parent_block_hash"]; !ok {
		s.ParentKind = ParentUnknown
	}
	return s, s.Kind != Unsaid
}

// Every golden message says what it is documented to say.
func TestGoldenEvents(t *testing.T) {
	var b Batch
	limits := DefaultLimits()
	checked := 0
	for _, g := range goldens(t) {
		decoded, _ := g.Decoded.(map[string]any)
		var f Frame
		var isEnd bool
		var err error
		switch g.Channel {
		case "pub":
			f, err = ParseLive(g.parts(t))
		case "replay-reply":
			f, isEnd, err = ParseReplay(g.parts(t))
		default:
			continue
		}
		checked++
		if want, _ := decoded["end"].(bool); want != isEnd {
			t.Errorf("%s: end %v, want %v", g.Name, isEnd, want)
		}
		if isEnd {
			continue
		}
		if err == nil {
			err = b.Decode(f.Payload, &limits)
		}
		wrong, hasWrong := decoded["error"]
		if hasWrong && g.Name != "bad-one-event-of-two" {
			if err == nil {
				t.Errorf("%s: decoded, want an error: %v", g.Name, wrong)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", g.Name, err)
			continue
		}
		if g.Name == "bad-one-event-of-two" {
			want := Counts{BadEvents: 1}
			if len(b.Events) != 1 || b.Events[0].Hashes[0] != 0x84b146b151d55111 || b.Counts != want {
				t.Errorf("%s: %+v", g.Name, b)
			}
			continue
		}
		if want := number(decoded["seq"]); f.Sequence != want {
			t.Errorf("%s: sequence %d, want %d", g.Name, f.Sequence, want)
		}
		topic, _ := decoded["topic"].(string)
		epoch, _ := decoded["epoch"].(string)
		if string(f.Topic) != topic || string(f.Epoch) != epoch {
			t.Errorf("%s: topic %q, epoch %q", g.Name, f.Topic, f.Epoch)
		}
		batch := decoded["batch"].(map[string]any)
		at := big.NewFloat(0)
		if v, ok := batch["ts"]; ok {
			at, _, _ = big.ParseFloat(v.(json.Number).String(), 10, 80, big.ToNearestEven)
			at.Mul(at, big.NewFloat(1e9))
		} else {
			at.SetUint64(number(batch["ts_ms"]) * 1e6)
		}
		if want, _ := at.Int64(); max(b.At-want, want-b.At) > 1000 {
			t.Errorf("%s: at %d, want %d", g.Name, b.At, want)
		}
		wantRank := -1
		for _, key := range []string{"data_parallel_rank", "attn_dp_rank", "dp_rank"} {
			if v := batch[key]; v != nil {
				wantRank = int(number(v))
			}
		}
		if b.Rank != wantRank {
			t.Errorf("%s: rank %d, want %d", g.Name, b.Rank, wantRank)
		}
		var want, got []said
		unknown := 0
		for _, v := range batch["events"].([]any) {
			if s, ok := expect(v.(map[string]any)); ok {
				want = append(want, s)
			} else {
				unknown++
			}
		}
		for i := range b.Events {
			got = append(got, saidBy(&b.Events[i]))
		}
		if diff := cmp.Diff(want, got); diff != "" || b.Counts.UnknownEvents != unknown || b.Counts.BadEvents != 0 {
			t.Errorf("%s: counts %+v, (-want +got)\n%s", g.Name, b.Counts, diff)
		}
	}
	if checked < 75 {
		t.Errorf("only %d messages were compared", checked)
	}
}

func TestReplayRequest(t *testing.T) {
	for _, g := range goldens(t) {
		if g.Channel == "replay-request" && !cmp.Equal(g.parts(t), ReplayRequest(11)) {
			t.Errorf("got %x, want %v", ReplayRequest(11), g.Frames)
		}
	}
}

func TestLoadStat(t *testing.T) {
	for _, g := range goldens(t) {
		if g.Channel != "load-pub" {
			continue
		}
		f, err := ParseLive(g.parts(t))
		if err != nil {
			t.Fatal(err)
		}
		s, err := DecodeLoadStat(f.Payload)
		if want := (LoadStat{7, 2, 15360, 131072, 0, -1, 0}); s != want || err != nil {
			t.Errorf("got %+v, %v, want %+v", s, err, want)
		}
		for n := range f.Payload {
			if _, err := DecodeLoadStat(f.Payload[:n]); err == nil {
				t.Errorf("the first %d bytes were taken for a load", n)
			}
		}
	}
}

// TensorRT-LLM's JSON, line by line: written out, since its form shares nothing with the others.
func TestGoldenJSON(t *testing.T) {
	const first, second = 9622824665191806685, 1234567890123456789
	device := func(s said) said { s.Kind, s.Group, s.Window = Stored, -1, 4096; return s }
	want := map[string][]said{
		"trtllm-json-created": {{Kind: Created, Group: -1, Rank: -1, Window: 4096}},
		"trtllm-json-stored": {
			device(said{Hashes: []uint64{first, second}, ParentKind: ParentRoot, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}, BlockSize: 4, Medium: MediumDevice, Rank: -1}),
			device(said{Hashes: []uint64{555}, Parent: second, ParentKind: ParentBlock, Tokens: []uint32{9}, BlockSize: 1, Medium: MediumDevice, Rank: -1}),
		},
		"trtllm-json-stored-salt": {
			device(said{Hashes: []uint64{888, 889}, ParentKind: ParentRoot, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}, BlockSize: 4, Medium: MediumDevice, Rank: -1, Salt: "tenant-a"}),
		},
		"trtllm-json-stored-mm": {device(said{
			Hashes: []uint64{777}, Parent: second, ParentKind: ParentBlock, Tokens: []uint32{9, 151655, 151655, 151655}, BlockSize: 4, Medium: MediumDevice, Rank: 1,
			Extras: []saidExtra{{ExtraItem, 0, -1, "0102030400000000000000000000000000000000000000000000000000000000"}},
		})},
		"trtllm-json-updated":          {{Kind: Moved, Group: -1, Rank: -1, Window: 4096, Hashes: []uint64{second}, Medium: MediumHost}},
		"trtllm-json-updated-priority": nil,
		"trtllm-json-removed":          {{Kind: Removed, Group: -1, Rank: -1, Window: 4096, Hashes: []uint64{second, first}}},
		"trtllm-json-small-window":     {{Kind: Removed, Group: -1, Rank: -1, Window: 512, Hashes: []uint64{first}}},
	}
	var b Batch
	limits := DefaultLimits()
	seen := 0
	for _, g := range goldens(t) {
		if g.Channel != "http-json /kv_cache_events" {
			continue
		}
		seen++
		if err := b.DecodeJSON(g.parts(t)[0], &limits); err != nil {
			t.Errorf("%s: %v", g.Name, err)
		}
		var got []said
		for i := range b.Events {
			got = append(got, saidBy(&b.Events[i]))
			e := g.Decoded.([]any)[0].(map[string]any)
			if b.Events[i].ID != number(e["event_id"]) {
				t.Errorf("%s: event %d", g.Name, b.Events[i].ID)
			}
		}
		expected, ok := want[g.Name]
		if diff := cmp.Diff(expected, got); diff != "" || !ok || b.Counts != (Counts{}) {
			t.Errorf("%s: counts %+v (-want +got)\n%s", g.Name, b.Counts, diff)
		}
		if g.Name == "trtllm-json-created" && !cmp.Equal(b.Events[0].Capacities, []uint64{1024, 4096}) {
			t.Errorf("capacities %v", b.Events[0].Capacities)
		}
		if g.Name == "trtllm-json-updated" && b.Events[0].From != MediumDevice {
			t.Errorf("moved from %v", b.Events[0].From)
		}
	}
	if seen != len(want) {
		t.Errorf("%d messages, want %d", seen, len(want))
	}
}

// Who publishes is concluded from the first message, wherever that alone can tell.
func TestDetectGolden(t *testing.T) {
	limits := DefaultLimits()
	ambiguous := map[string]bool{
		"vllm-0.9.0-stored-root": true, "vllm-0.9.0-stored-child-lora-id": true, "vllm-0.9.0-removed": true, "vllm-0.9.0-cleared": true,
		"vllm-0.9.2-stored-rank": true, "vllm-0.11.2-removed-cleared": true, "vllm-0.26.0-map-removed": false, "vllm-0.26.0-map-cleared": true,
		"vllm-0.26.0-map-rank-nil": true, "sglang-old-stored": true, "sglang-0.5.11-removed": false, "sglang-map-removed-cleared": true,
	}
	for _, g := range goldens(t) {
		want, ok := ParseEngine(g.Engine)
		if g.Channel != "pub" || !ok {
			continue
		}
		f, err := ParseLive(g.parts(t))
		if err != nil {
			continue
		}
		var b Batch
		if b.Decode(f.Payload, &limits) != nil {
			continue
		}
		var d Detector
		got := d.Observe(f.Sequence, &b)
		if got == EngineUnknown && (ambiguous[g.Name] || len(b.Events) == 0 || b.Events[0].Kind != Stored) {
			continue
		}
		if got != want {
			t.Errorf("%s: %v, want %v", g.Name, got, want)
		}
	}
}

// An adapter's name is no sign of vLLM any more: SGLang sends it too. That there is none is said by vLLM alone.
func TestDetectByAdapter(t *testing.T) {
	limits := DefaultLimits()
	stored := func(more string, n byte) []byte {
		const event = "\xa4type\xabBlockStored\xacblock_hashes\x91\x05\xb1parent_block_hash\xc0\xa9token_ids\x91\x07\xaablock_size\x01"
		return append([]byte{0x92, 1, 0x91, 0x80 + 5 + n}, event+more...)
	}
	for _, tt := range []struct {
		more string
		n    byte
		want Engine
	}{
		{"\xa9lora_name\xa3sql", 1, EngineUnknown},
		{"\xa9lora_name\xa3sql\xaacache_salt\xa1t", 2, EngineSGLang},
		{"\xa9lora_name\xa3sql\xa9group_idx\x00", 2, EngineVLLM},
		{"\xa9lora_name\xc0", 1, EngineVLLM},
		{"", 0, EngineSGLang},
	} {
		var b Batch
		if err := b.Decode(stored(tt.more, tt.n), &limits); err != nil || len(b.Events) != 1 {
			t.Fatalf("%q: %v, %+v", tt.more, err, b.Counts)
		}
		var d Detector
		if got := d.Observe(0, &b); got != tt.want {
			t.Errorf("%q: %v, want %v", tt.more, got, tt.want)
		}
	}
}
