package kvevents

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func same(a, b said) bool { return cmp.Equal(a, b) }

// pack writes msgpack as msgspec does, or wider than it need be.
type pack struct {
	b    []byte
	wide *rand.Rand // nil: the smallest width
}

func (p *pack) isWide() bool { return p.wide != nil && p.wide.IntN(8) == 0 }

func (p *pack) nul() { p.b = append(p.b, 0xc0) }

func (p *pack) header(n int, fix byte, fixMost int, first byte) {
	switch {
	case n <= fixMost && !p.isWide():
		p.b = append(p.b, fix|byte(n))
	case n < 1<<16 && !p.isWide():
		p.b = binary.BigEndian.AppendUint16(append(p.b, first), uint16(n))
	default:
		p.b = binary.BigEndian.AppendUint32(append(p.b, first+1), uint32(n))
	}
}

func (p *pack) array(n int)   { p.header(n, 0x90, 15, 0xdc) }
func (p *pack) mapping(n int) { p.header(n, 0x80, 15, 0xde) }

func (p *pack) text(s string) {
	if len(s) < 32 && !p.isWide() {
		p.b = append(p.b, 0xa0|byte(len(s)))
	} else {
		p.b = append(p.b, 0xd9, byte(len(s)))
	}
	p.b = append(p.b, s...)
}

func (p *pack) bin(v []byte) { p.b = append(append(p.b, 0xc4, byte(len(v))), v...) }

func (p *pack) float(v float64) {
	p.b = binary.BigEndian.AppendUint64(append(p.b, 0xcb), math.Float64bits(v))
}

func (p *pack) uint(v uint64) {
	switch {
	case v < 128 && !p.isWide():
		p.b = append(p.b, byte(v))
	case v < 1<<8 && !p.isWide():
		p.b = append(p.b, 0xcc, byte(v))
	case v < 1<<16 && !p.isWide():
		p.b = binary.BigEndian.AppendUint16(append(p.b, 0xcd), uint16(v))
	case v < 1<<32 && !p.isWide():
		p.b = binary.BigEndian.AppendUint32(append(p.b, 0xce), uint32(v))
	default:
		p.b = binary.BigEndian.AppendUint64(append(p.b, 0xcf), v)
	}
}

func (p *pack) int(v int64) {
	switch {
	case v >= 0 && !p.isWide():
		p.uint(uint64(v))
	case v >= -32 && v < 0 && !p.isWide():
		p.b = append(p.b, byte(v))
	case v >= math.MinInt8 && v <= math.MaxInt8:
		p.b = append(p.b, 0xd0, byte(v))
	case v >= math.MinInt16 && v <= math.MaxInt16:
		p.b = binary.BigEndian.AppendUint16(append(p.b, 0xd1), uint16(v))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		p.b = binary.BigEndian.AppendUint32(append(p.b, 0xd2), uint32(v))
	default:
		p.b = binary.BigEndian.AppendUint64(append(p.b, 0xd3), uint64(v))
	}
}

// hash writes a hash in one of the forms engines use.
func (p *pack) hash(h uint64, r *rand.Rand) {
	switch r.IntN(3) {
	case 0:
		p.uint(h)
	case 1:
		p.int(int64(h))
	default:
		digest := make([]byte, 8*(1+r.IntN(4)))
		binary.BigEndian.PutUint64(digest[len(digest)-8:], h)
		p.bin(digest)
	}
}

var (
	mediumNames = map[Medium]string{MediumUnsaid: "", MediumDevice: "GPU", MediumHost: "cpu_pinned", MediumDisk: "STORAGE", MediumShared: "External", MediumUnknown: "tape"}
	groupNames  = map[GroupKind]string{GroupUnsaid: "", GroupFull: "mla_attention", GroupWindow: "chunked_local_attention", GroupState: "mamba", GroupOther: "cross_attention"}
)

// model makes an event up.
func model(r *rand.Rand) said {
	e := said{Kind: []Kind{Stored, Stored, Removed, Cleared}[r.IntN(4)], Group: -1, Rank: -1}
	if e.Kind == Cleared {
		return e
	}
	n := 1 + r.IntN(5)
	for range n {
		e.Hashes = append(e.Hashes, []uint64{r.Uint64(), r.Uint64N(300), 0}[r.IntN(3)])
	}
	e.Medium = Medium(r.IntN(int(MediumUnknown) + 1))
	e.Group = r.IntN(4) - 1
	if e.Kind == Removed {
		return e
	}
	e.ParentKind = ParentRoot
	if r.IntN(2) == 0 {
		e.ParentKind, e.Parent = ParentBlock, []uint64{0, r.Uint64()}[r.IntN(2)]
	}
	e.BlockSize = 1 + r.IntN(8)
	for range n * e.BlockSize {
		e.Tokens = append(e.Tokens, r.Uint32()>>r.IntN(32))
	}
	if r.IntN(2) == 0 {
		e.HasLoRAID, e.LoRAID, e.LoRA = true, r.Int64N(9)-1, []string{"", "sql", "lora-of-a-name-that-is-longer-than-thirty-two"}[r.IntN(3)]
	}
	e.GroupKind = GroupKind(r.IntN(int(GroupOther) + 1))
	e.Window = r.IntN(3) * 512
	for b := range n {
		for range r.IntN(2) * r.IntN(3) {
			e.Extras = append(e.Extras, saidExtra{ExtraItem, int32(b), int64(r.IntN(100) - 50), fmt.Sprint("image", r.IntN(9))})
		}
		if r.IntN(9) == 0 {
			e.Extras = append(e.Extras, saidExtra{Kind: ExtraEmbeds, Block: int32(b)})
		}
	}
	if e.ParentKind == ParentRoot && r.IntN(2) == 0 {
		e.Salt = "tenant"
	}
	return e
}

// writer knows how to write each field of an event.
func fields(e said, r *rand.Rand) (names []string, write map[string]func(p *pack)) {
	text := func(s string) func(*pack) {
		return func(p *pack) {
			if s == "" {
				p.nul()
			} else {
				p.text(s)
			}
		}
	}
	write = map[string]func(p *pack){
		"block_hashes": func(p *pack) {
			p.array(len(e.Hashes))
			for _, h := range e.Hashes {
				p.hash(h, r)
			}
		},
		"medium":    text(mediumNames[e.Medium]),
		"group_idx": func(p *pack) { p.int(int64(e.Group)) },
	}
	if e.Group < 0 {
		write["group_idx"] = (*pack).nul
	}
	if e.Kind == Removed {
		return []string{"block_hashes", "medium", "group_idx"}, write
	}
	write["parent_block_hash"] = (*pack).nul
	if e.ParentKind == ParentBlock {
		write["parent_block_hash"] = func(p *pack) { p.hash(e.Parent, r) }
	}
	write["token_ids"] = func(p *pack) {
		p.array(len(e.Tokens))
		for _, t := range e.Tokens {
			if r.IntN(50) == 0 {
				p.array(2)
				p.uint(uint64(t))
				p.uint(7)
			} else {
				p.uint(uint64(t))
			}
		}
	}
	write["block_size"] = func(p *pack) { p.int(int64(e.BlockSize)) }
	write["lora_id"] = (*pack).nul
	if e.HasLoRAID {
		write["lora_id"] = func(p *pack) { p.int(e.LoRAID) }
	}
	write["lora_name"] = text(e.LoRA)
	write["kv_cache_spec_kind"] = text(groupNames[e.GroupKind])
	write["kv_cache_spec_sliding_window"] = func(p *pack) { p.int(int64(e.Window)) }
	write["extra_keys"] = func(p *pack) { writeExtras(p, &e) }
	return []string{
		"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
		"kv_cache_spec_kind", "kv_cache_spec_sliding_window",
	}, write
}

func writeExtras(p *pack, e *said) {
	p.array(len(e.Hashes))
	for b := range e.Hashes {
		var items []func()
		if e.LoRA != "" {
			items = append(items, func() { p.text(e.LoRA) })
		}
		for _, x := range e.Extras {
			switch {
			case int(x.Block) != b:
			case x.Kind == ExtraItem:
				items = append(items, func() { p.array(2); p.text(x.ID); p.int(x.Offset) })
			default:
				items = append(items, func() { p.bin(make([]byte, 32)) })
			}
		}
		if b == 0 && e.Salt != "" {
			items = append(items, func() { p.text(e.Salt) })
		}
		if len(items) == 0 {
			p.nul()
			continue
		}
		p.array(len(items))
		for _, f := range items {
			f()
		}
	}
}

var tags = map[Kind]string{Stored: "BlockStored", Removed: "BlockRemoved", Cleared: "AllBlocksCleared"}

// write writes an event as an array of the newest length and longer, or as a map in any order with keys nobody knows.
// unknown is how many of those it has.
func write(p *pack, e said, r *rand.Rand) (unknown int) {
	names, how := fields(e, r)
	if e.Kind == Cleared {
		names = nil
	}
	if r.IntN(2) == 0 {
		p.array(1 + len(names))
		p.text(tags[e.Kind])
		for _, f := range names {
			how[f](p)
		}
		return 0
	}
	names = append(names, "type")
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	unknown = r.IntN(3)
	p.mapping(len(names) + unknown)
	for i := range unknown {
		p.text(fmt.Sprint("future", i))
		p.mapping(1)
		p.array(2)
		p.nul()
		p.bin([]byte("x"))
		p.b = append(p.b, 0xd6, 1, 2, 3, 4, 5) // an extension
	}
	for _, f := range names {
		p.text(f)
		if f == "type" {
			p.text(tags[e.Kind])
		} else {
			how[f](p)
		}
	}
	return unknown
}

// What is written in any layout and any width is what is read, whatever stands beside it.
func TestDecodeEqualsModel(t *testing.T) {
	limits := DefaultLimits()
	var b Batch
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := &pack{}
		if seed%2 == 1 {
			p.wide = r
		}
		var want []said
		var counts Counts
		n := r.IntN(6)
		p.array(3)
		p.float(1767225600.25)
		p.array(n)
		for range n {
			e := model(r)
			switch r.IntN(8) {
			case 0: // one that nobody knows
				p.array(2)
				p.text("BlockRested")
				p.array(0)
				counts.UnknownEvents++
				counts.UnknownFields++
			case 1: // a bad one
				p.mapping(2)
				p.text("block_hashes")
				p.text("none")
				p.text("type")
				p.text("BlockRemoved")
				counts.BadEvents++
				counts.LostRemovals++
			default:
				counts.UnknownFields += write(p, e, r)
				want = append(want, e)
			}
		}
		p.uint(seed % 5)
		if err := b.Decode(p.b, &limits); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		var got []said
		for i := range b.Events {
			got = append(got, saidBy(&b.Events[i]))
		}
		if diff := cmp.Diff(want, got); diff != "" || b.Counts != counts || b.Rank != int(seed%5) {
			t.Fatalf("seed %d: counts %+v, want %+v; rank %d (-want +got)\n%s", seed, b.Counts, counts, b.Rank, diff)
		}
		// Bytes that are missing or too many leave nothing.
		if cut := r.IntN(len(p.b)); b.Decode(p.b[:cut], &limits) == nil || len(b.Events) != 0 {
			t.Fatalf("seed %d: cut at %d it is a batch", seed, cut)
		}
		if b.Decode(append(p.b, 0), &limits) == nil {
			t.Fatalf("seed %d: a byte more is a batch", seed)
		}
	}
}

// Each bound refuses what is beyond it, and nothing at it.
func TestLimits(t *testing.T) {
	p := &pack{}
	p.array(2)
	p.float(1)
	p.array(2)
	e := said{
		Kind: Stored, Hashes: []uint64{1, 2}, ParentKind: ParentRoot, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2, Group: -1, Salt: "abcd",
		Extras: []saidExtra{{ExtraItem, 0, 0, "i"}, {ExtraItem, 1, 0, "j"}},
	}
	for range 2 {
		names, how := fields(e, rand.New(rand.NewPCG(1, 1)))
		p.array(1 + len(names))
		p.text("BlockStored")
		for _, f := range names {
			how[f](p)
		}
	}
	exact := Limits{PayloadBytes: len(p.b), Events: 2, Tokens: 8, Hashes: 4, Extras: 6, TextBytes: 4}
	var b Batch
	if err := b.Decode(p.b, &exact); err != nil {
		t.Fatalf("at the limits: %v", err)
	}
	for name, less := range map[string]func(*Limits){
		"payload": func(l *Limits) { l.PayloadBytes-- }, "events": func(l *Limits) { l.Events-- }, "tokens": func(l *Limits) { l.Tokens-- },
		"hashes": func(l *Limits) { l.Hashes-- }, "extras": func(l *Limits) { l.Extras-- }, "text": func(l *Limits) { l.TextBytes-- },
	} {
		l := exact
		less(&l)
		if err := b.Decode(p.b, &l); !errors.Is(err, ErrLimit) || len(b.Events) != 0 {
			t.Errorf("%s: %v, %d events", name, err, len(b.Events))
		}
	}
}

// A header that claims more than there is costs nothing, however deep it lies.
func TestClaims(t *testing.T) {
	limits := DefaultLimits()
	claims := [][]byte{
		{0xdd, 0xff, 0xff, 0xff, 0xff},
		{0xdf, 0xff, 0xff, 0xff, 0xff},
		{0xdb, 0xff, 0xff, 0xff, 0xff},
		{0xc6, 0xff, 0xff, 0xff, 0xff},
		{0xc9, 0xff, 0xff, 0xff, 0xff, 1},
		bytes.Repeat([]byte{0x91}, 1<<16), bytes.Repeat([]byte{0xdc, 0xff, 0xff}, 1<<10),
		{0xc1},
	}
	begin := &pack{}
	begin.array(2)
	begin.float(1)
	begin.array(1)
	for i, c := range claims {
		var b Batch
		payload := append(slices.Clone(begin.b), c...)
		if err := b.Decode(payload, &limits); err == nil {
			t.Errorf("claim %d was decoded", i)
		}
		if b.footprint() > 64*len(payload)+4096 {
			t.Errorf("claim %d: %d bytes for %d", i, b.footprint(), len(payload))
		}
	}
	deep := slices.Concat(begin.b, bytes.Repeat([]byte{0x91}, 1<<20), []byte{0xc0})
	var b Batch
	if err := b.Decode(deep, &limits); err != nil || b.Counts.BadEvents != 1 {
		t.Errorf("a million nested lists: %v, %+v", err, b.Counts)
	}
}

// The JSON form says what is written, whatever the order of keys and the runs of levels and sizes.
func TestDecodeJSONEqualsModel(t *testing.T) {
	limits := DefaultLimits()
	var b Batch
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		var events []any
		var want []said
		for id := range r.IntN(4) {
			window, rank := 512*(1+r.IntN(3)), r.IntN(3)-1
			data := map[string]any{}
			base := said{Group: -1, Window: window, Rank: rank}
			switch r.IntN(4) {
			case 0:
				h := []uint64{r.Uint64(), 0}
				data["type"], data["block_hashes"] = "removed", h
				base.Kind, base.Hashes = Removed, h
				want = append(want, base)
			case 1:
				h := r.Uint64()
				data["type"], data["block_hash"], data["priority"] = "updated", h, nil
				data["cache_level"] = map[string]any{"type": "event_diff", "new_value": 1, "old_value": 0}
				base.Kind, base.Hashes, base.Medium = Moved, []uint64{h}, MediumHost
				want = append(want, base)
			default:
				want = append(want, storedJSON(r, data, base)...)
			}
			e := map[string]any{"event_id": id, "data": data, "window_size": window}
			if rank >= 0 {
				e["attention_dp_rank"] = rank
			}
			events = append(events, e)
		}
		if events == nil {
			events = []any{}
		}
		body, err := json.Marshal(events)
		if err != nil {
			t.Fatal(err)
		}
		if seed%2 == 1 {
			var spaced bytes.Buffer
			if err := json.Indent(&spaced, body, " ", "\t"); err != nil {
				t.Fatal(err)
			}
			body = spaced.Bytes()
		}
		if err := b.DecodeJSON(body, &limits); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		var got []said
		for i := range b.Events {
			got = append(got, saidBy(&b.Events[i]))
		}
		if diff := cmp.Diff(want, got); diff != "" || b.Counts != (Counts{}) {
			t.Fatalf("seed %d: %+v (-want +got)\n%s\n%s", seed, b.Counts, diff, body)
		}
	}
}

func storedJSON(r *rand.Rand, data map[string]any, base said) (want []said) {
	base.Kind = Stored
	base.ParentKind, data["parent_hash"] = ParentRoot, nil
	if r.IntN(2) == 0 {
		base.Parent = r.Uint64()
		base.ParentKind, data["parent_hash"] = ParentBlock, base.Parent
	}
	var blocks []any
	for i := range 1 + r.IntN(5) {
		hash, size, level := r.Uint64(), 2-r.IntN(5)/4, r.IntN(4)/3
		salt := any(nil)
		if i == 0 && r.IntN(2) == 0 {
			salt = "a \"salt\" \u00e9"
		}
		var tokens []any
		var ids []uint32
		for range size {
			ids = append(ids, r.Uint32())
			tokens = append(tokens, map[string]any{"type": "unique_token", "token_id": ids[len(ids)-1], "token_extra_id": 0})
		}
		items := []any{}
		var extras []saidExtra
		if r.IntN(4) == 0 {
			offset := r.IntN(3)
			items = append(items, map[string]any{"type": "mm_key", "hash": "00ff", "start_offset": offset})
			x := saidExtra{ExtraItem, 0, -int64(offset), "00ff"}
			if offset == 0 {
				x.Kind = ExtraBareItem
			}
			extras = append(extras, x)
		}
		blocks = append(blocks, map[string]any{
			"type": "stored_block", "block_hash": hash, "tokens": tokens, "cache_level": level, "priority": 35, "mm_keys": items, "cache_salt": salt,
		})
		medium := levelMedium(uint64(level))
		if n := len(want); n == 0 || want[n-1].BlockSize != size || want[n-1].Medium != medium {
			e := base
			e.BlockSize, e.Medium, e.Salt = size, medium, ""
			if n > 0 {
				e.ParentKind, e.Parent = ParentBlock, want[n-1].Hashes[len(want[n-1].Hashes)-1]
			}
			if salt != nil {
				e.Salt = salt.(string)
			}
			want = append(want, e)
		}
		e := &want[len(want)-1]
		for _, x := range extras {
			x.Block = int32(len(e.Hashes))
			e.Extras = append(e.Extras, x)
		}
		e.Hashes = append(e.Hashes, hash)
		e.Tokens = append(e.Tokens, ids...)
	}
	data["type"], data["blocks"] = "stored", blocks
	return want
}
