package kvevents

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// relayed is one line of testdata/smg-batches.jsonl: what SMG's own relay makes of a golden message.
type relayed struct {
	Name      string
	Batch     string
	Forwarded int
}

func relays(t testing.TB) map[string]relayed {
	t.Helper()
	f, err := os.Open("testdata/smg-batches.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := make(map[string]relayed)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r relayed
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		out[r.Name] = r
	}
	if len(out) != 60 {
		t.Fatalf("%d batches", len(out))
	}
	return out
}

func (r *relayed) bytes(t testing.TB) []byte {
	t.Helper()
	b, err := hex.DecodeString(r.Batch)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// plain brings an event into the form in which the relay's and the engine's own must agree. The relay says of every block
// where it lies, and repeats what a child has from its parent.
func plain(e *Event) said {
	s := saidBy(e)
	if s.Medium == MediumUnsaid && s.Kind != Cleared {
		s.Medium = MediumDevice
	}
	if s.ParentKind != ParentRoot {
		s.LoRA, s.Salt = "", ""
	}
	return s
}

// TestRelayedIsAsPublished: a batch that went through SMG's relay says what the engine's own message says, as far as the
// relay passes it on.
func TestRelayedIsAsPublished(t *testing.T) {
	limits := DefaultLimits()
	all := relays(t)
	compared := 0
	// Salts that this relay loses: in the draft of tagged extra keys, and in the map that SGLang put behind the medium for some
	// months. Who hears such an engine through it cannot know.
	loses := map[string]bool{"compat-map16-unknown-key-and-events": true, "sglang-array-salt-metadata": true}
	for _, g := range goldens(t) {
		r, ok := all[g.Name]
		if !ok {
			continue
		}
		parts := g.parts(t)
		var direct, streamed Batch
		if err := direct.Decode(parts[len(parts)-1], &limits); err != nil {
			t.Fatal(err)
		}
		payload := r.bytes(t)
		head, err := ParseStream(payload)
		if err != nil || head.Sequence != binary.BigEndian.Uint64(parts[len(parts)-2]) || head.Rank != direct.Rank || head.IsSnapshot || head.Load != nil {
			t.Errorf("%s: %+v, %v", g.Name, head, err)
		}
		if err := streamed.DecodeProto(payload, &limits); err != nil {
			t.Fatalf("%s: %v", g.Name, err)
		}
		var want, got []said
		for i := range direct.Events {
			e := &direct.Events[i]
			isMain := e.GroupKind == GroupUnsaid || e.GroupKind == GroupFull
			if e.Kind == Stored && len(e.Tokens) == 0 || e.IsRemote || e.IsOwned || !isMain {
				continue // of owners it drops some
			}
			want = append(want, plain(e))
		}
		for i := range streamed.Events {
			if !streamed.Events[i].IsOwned {
				got = append(got, plain(&streamed.Events[i]))
			}
		}
		if len(streamed.Events) != r.Forwarded {
			t.Errorf("%s: %d events, %d were passed on", g.Name, len(streamed.Events), r.Forwarded)
		}
		if loses[g.Name] {
			if want[0].Salt == "" || got[0].Salt != "" {
				t.Errorf("%s: it does not lose the salt any more", g.Name)
			}
			want[0].Salt = ""
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -direct +relayed:\n%s", g.Name, diff)
		}
		if streamed.At != direct.At || streamed.Rank != direct.Rank || streamed.Counts != (Counts{}) {
			t.Errorf("%s: %d %d %+v", g.Name, streamed.At, streamed.Rank, streamed.Counts)
		}
		compared += len(got)
	}
	if compared < 40 {
		t.Errorf("only %d events", compared)
	}
}

// pb writes messages as protobuf's encoding says, in no hurry.
type pb []byte

func (p pb) num(field int, v uint64) pb {
	return binary.AppendUvarint(binary.AppendUvarint(p, uint64(field)<<3), v)
}

func (p pb) sub(field int, m []byte) pb {
	p = binary.AppendUvarint(p, uint64(field)<<3|2)
	return append(binary.AppendUvarint(p, uint64(len(m))), m...)
}

func (p pb) list(field int, packed bool, all ...uint64) pb {
	if !packed {
		for _, v := range all {
			p = p.num(field, v)
		}
		return p
	}
	var m []byte
	for _, v := range all {
		m = binary.AppendUvarint(m, v)
	}
	return p.sub(field, m)
}

// TestStreamOfAnyShape writes random batches and reads them again.
func TestStreamOfAnyShape(t *testing.T) {
	limits := DefaultLimits()
	r := rand.New(rand.NewPCG(5, 7))
	var b Batch
	for round := range 3000 {
		var want []said
		batch := pb{}.num(1, r.Uint64())
		for range r.IntN(5) {
			e := said{Rank: -1, Group: -1, Window: 0}
			var data pb
			kind := r.IntN(3)
			switch kind {
			case 0:
				e.Kind, e.ParentKind = Stored, ParentRoot
				e.BlockSize = 1 + r.IntN(4)
				hasSalt := r.IntN(3) == 0
				if r.IntN(2) == 0 {
					e.ParentKind, e.Parent = ParentBlock, r.Uint64()
					data = data.num(2, e.Parent)
				}
				for range 1 + r.IntN(4) {
					hash := r.Uint64()
					e.Hashes = append(e.Hashes, hash)
					var tokens []uint64
					for range e.BlockSize {
						v := r.Uint32() >> r.IntN(32)
						e.Tokens = append(e.Tokens, v)
						tokens = append(tokens, uint64(v))
					}
					m := pb{}.list(2, r.IntN(3) > 0, tokens...).num(1, hash).num(3, uint64(e.BlockSize))
					if r.IntN(4) == 0 {
						e.HasLoRAID, e.LoRAID = true, int64(r.IntN(9))
						m = m.num(4, uint64(e.LoRAID))
					}
					if r.IntN(4) == 0 {
						item := pb{}.sub(1, []byte("img")).num(2, uint64(1<<64-3))
						m = m.sub(6, pb{}.sub(4, item))
						e.Extras = append(e.Extras, saidExtra{ExtraItem, int32(len(e.Hashes) - 1), -3, "img"})
					}
					data = data.sub(1, m)
				}
				if hasSalt {
					data = data.sub(12, []byte("tenant"))
					if e.ParentKind == ParentRoot && len(e.Extras) == 0 {
						e.Salt = "tenant"
					}
				}
				if r.IntN(3) == 0 {
					e.LoRA = "sql"
					data = data.sub(11, []byte("sql"))
				}
				if r.IntN(3) == 0 {
					e.GroupKind, e.Window = GroupWindow, 512
					data = data.sub(6, []byte("sliding_window")).num(7, 512)
				}
			case 1:
				e.Kind = Removed
				for range 1 + r.IntN(4) {
					e.Hashes = append(e.Hashes, r.Uint64())
				}
				data = data.list(1, r.IntN(2) == 0, e.Hashes...)
			case 2:
				if len(want) > 0 && want[len(want)-1].Kind == Cleared {
					continue
				}
				e.Kind = Cleared
			}
			if kind < 2 {
				switch r.IntN(5) {
				case 0:
					e.Medium = MediumHost
					data = data.num(3, 2).sub(4, []byte("CPU"))
				case 1:
					e.Medium = MediumDisk
					data = data.sub(4, []byte("storage"))
				case 2:
					e.Medium = MediumShared
					data = data.num(3, 4)
				}
				if r.IntN(3) == 0 {
					e.Group = r.IntN(4)
					data = data.num([]int{5, 5}[kind], uint64(e.Group))
				}
				if r.IntN(6) == 0 {
					e.IsRemote = true
					data = data.num([]int{8, 6}[kind], 2)
				}
			}
			batch = batch.sub(3, pb{}.num(1, 9).sub(2+kind, data))
			want = append(want, e)
		}
		if err := b.DecodeProto(batch, &limits); err != nil || b.Counts != (Counts{}) {
			t.Fatalf("round %d: %v, %+v", round, err, b.Counts)
		}
		var got []said
		for i := range b.Events {
			got = append(got, saidBy(&b.Events[i]))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("round %d: -written +read:\n%s", round, diff)
		}
	}
}

// TestStreamFaults: one event that cannot be read costs itself, and a message that is not protobuf costs all.
func TestStreamFaults(t *testing.T) {
	limits := DefaultLimits()
	good := pb{}.sub(3, pb{}.sub(3, pb{}.list(1, true, 7)))
	block := func(size uint64, tokens ...uint64) []byte {
		return pb{}.num(1, 5).list(2, true, tokens...).num(3, size)
	}
	stored := func(blocks ...[]byte) pb {
		var m pb
		for _, b := range blocks {
			m = m.sub(1, b)
		}
		return pb{}.sub(3, pb{}.sub(2, m))
	}
	for name, tt := range map[string]struct {
		batch  []byte
		counts Counts
		events int
	}{
		"size that is not the tokens'":   {stored(block(3, 1, 2)), Counts{BadEvents: 1}, 0},
		"no tokens":                      {stored(block(0)), Counts{BadEvents: 1}, 0},
		"token of 33 bits":               {stored(block(1, 1<<32)), Counts{BadEvents: 1}, 0},
		"partial block at the end":       {stored(block(2, 1, 2), block(1, 3)), Counts{}, 2},
		"sizes that go on changing":      {stored(block(2, 1, 2), block(1, 3), block(2, 4, 5)), Counts{BadEvents: 1}, 0},
		"no blocks":                      {stored(), Counts{}, 0},
		"hashes of another type":         {pb{}.sub(3, pb{}.sub(3, binary.LittleEndian.AppendUint32(pb{1<<3 | 5}, 1))), Counts{BadEvents: 1, LostRemovals: 1}, 0},
		"neither of the three":           {pb{}.sub(3, pb{}.num(1, 3)), Counts{BadEvents: 1, LostRemovals: 1}, 0},
		"a kind of event to come":        {pb{}.sub(3, pb{}.num(1, 3).sub(9, nil)), Counts{UnknownEvents: 1}, 0},
		"a field to come":                {pb{}.num(99, 3), Counts{UnknownFields: 1}, 0},
		"cleared, of somebody else":      {pb{}.sub(3, pb{}.sub(4, pb{}.sub(1, []byte("kvcr")))), Counts{}, 0},
		"cleared twice":                  {pb{}.sub(3, pb{}.sub(4, nil)).sub(3, pb{}.sub(4, nil)), Counts{}, 1},
		"an item at an impossible place": {stored(pb(block(1, 1)).sub(6, pb{}.sub(4, pb{}.num(2, 1<<40)))), Counts{BadEvents: 1}, 0},
	} {
		var b Batch
		err := b.DecodeProto(append(append(pb{}, tt.batch...), good...), &limits)
		if err != nil || b.Counts != tt.counts || len(b.Events) != tt.events+1 || b.Events[len(b.Events)-1].Hashes[0] != 7 {
			t.Errorf("%s: %v, %+v, %d events", name, err, b.Counts, len(b.Events))
		}
		for n := range len(good) - 1 {
			if err := b.DecodeProto(good[:n+1], &limits); !errors.Is(err, ErrMalformed) {
				t.Errorf("%d of %d bytes: %v", n+1, len(good), err)
			}
		}
	}
	var b Batch
	if err := b.DecodeProto(stored(pb(block(1, 1)).sub(6, pb{}.sub(1, make([]byte, limits.TextBytes+1)))), &limits); !errors.Is(err, ErrLimit) {
		t.Errorf("a long text: %v", err)
	}
	small := limits
	small.Events = 1
	if err := b.DecodeProto(append(append(pb{}, good...), good...), &small); !errors.Is(err, ErrLimit) {
		t.Errorf("many events: %v", err)
	}
	small = limits
	small.PayloadBytes = len(good) - 1
	if err := b.DecodeProto(good, &small); !errors.Is(err, ErrLimit) {
		t.Errorf("a large payload: %v", err)
	}
}

func TestStreamHead(t *testing.T) {
	load := pb{}.num(1, 3).num(9, 1)
	snapshot := pb{}.num(1, 2).num(2, 5).num(3, 77).num(4, 6)
	h, err := ParseStream(pb{}.num(1, math.MaxUint64).num(4, 3).sub(7, snapshot).sub(8, load))
	want := StreamHead{Sequence: math.MaxUint64, Rank: 3, IsSnapshot: true, Chunk: 2, Chunks: 5, UnknownBefore: 6, Load: load, IsLoadOnly: true}
	if diff := cmp.Diff(want, h, cmp.Transformer("bytes", func(b []byte) string { return string(b) })); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if _, err := ParseStream(pb{}.num(4, 1<<64-2)); !errors.Is(err, ErrMalformed) {
		t.Errorf("rank -2: %v", err)
	}
	if _, err := ParseStream(pb{}.sub(8, []byte{9})); !errors.Is(err, ErrMalformed) {
		t.Errorf("a broken record: %v", err)
	}
}

func FuzzDecodeProto(f *testing.F) {
	for _, r := range relays(f) {
		f.Add(r.bytes(f))
	}
	limits := DefaultLimits()
	var used Batch
	f.Fuzz(func(t *testing.T, payload []byte) {
		var b Batch
		err := b.DecodeProto(payload, &limits)
		check(t, &b, payload)
		if again := used.DecodeProto(payload, &limits); !errors.Is(again, err) || !equal(t, &b, &used) {
			t.Errorf("in used memory: %v, %+v; in new: %v, %+v", again, used, err, b)
		}
		for i := range b.Events {
			if e := &b.Events[i]; e.Kind == Stored && (len(e.Hashes) == 0 || len(e.Tokens) != len(e.Hashes)*e.BlockSize) {
				t.Errorf("event %d: %d hashes, %d tokens, size %d", i, len(e.Hashes), len(e.Tokens), e.BlockSize)
			}
		}
		if h, headErr := ParseStream(payload); headErr == nil && (h.Rank < -1 || err != nil && errors.Is(err, ErrMalformed) && len(payload) == 0) {
			t.Errorf("%+v", h)
		}
	})
}
