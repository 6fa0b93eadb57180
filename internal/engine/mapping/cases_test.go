package mapping

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// stored is a chain of blocks of two tokens each; block i of hash h has the tokens h, h.
func stored(parent uint64, hashes ...uint64) kvevents.Event {
	e := kvevents.Event{
		Kind: kvevents.Stored, Parent: parent, ParentKind: kvevents.ParentBlock, Hashes: hashes, BlockSize: 2, Group: -1, Rank: -1,
	}
	for _, h := range hashes {
		e.Tokens = append(e.Tokens, uint32(h), uint32(h))
	}
	return e
}

func root(hashes ...uint64) kvevents.Event {
	e := stored(0, hashes...)
	e.ParentKind = kvevents.ParentRoot
	return e
}

func removed(hashes ...uint64) kvevents.Event {
	return kvevents.Event{Kind: kvevents.Removed, Hashes: hashes, Group: -1, Rank: -1}
}

func with(e kvevents.Event, change func(*kvevents.Event)) kvevents.Event { change(&e); return e }

func in(medium kvevents.Medium, e kvevents.Event) kvevents.Event { e.Medium = medium; return e }

func copyOf(medium kvevents.Medium, hashes ...uint64) kvevents.Event {
	return kvevents.Event{Kind: kvevents.Stored, Hashes: hashes, Medium: medium, Group: -1, Rank: -1}
}

// chain is the ids of such blocks.
func chain(lora, salt string, hashes ...uint64) []block.ID {
	k := block.Identity{Model: "m", BlockSize: 2, LoRAName: lora, CacheSalt: salt}.Keyspace()
	var locals []block.Local
	for _, h := range hashes {
		locals = append(locals, block.LocalHash([]uint32{uint32(h), uint32(h)}))
	}
	return block.AppendChain(nil, k, locals)
}

func at(tier fleet.Tier, ids ...block.ID) map[place]int {
	out := make(map[place]int)
	for _, id := range ids {
		out[place{id, tier}]++
	}
	return out
}

func TestCases(t *testing.T) {
	const gpu, cpu = kvevents.MediumDevice, kvevents.MediumHost
	abc := chain("", "", 1, 2, 3)
	cleared := kvevents.Event{Kind: kvevents.Cleared, Group: -1}
	grouped := func(g int, kind kvevents.GroupKind, e kvevents.Event) kvevents.Event {
		e.Group, e.GroupKind = g, kind
		return e
	}
	lora := func(name string, e kvevents.Event) kvevents.Event { e.LoRAName = []byte(name); return e }
	cases := []struct {
		name   string
		engine kvevents.Engine
		events []kvevents.Event
		want   map[place]int
		left   map[Reason]uint64
	}{
		{"a hash of 0 is a parent like any other", kvevents.EngineVLLM, []kvevents.Event{root(0), stored(0, 2)}, at(fleet.Device, chain("", "", 0, 2)...), nil},
		{"an unknown parent is no start", kvevents.EngineVLLM, []kvevents.Event{stored(9, 1)}, nil, nil},
		{"a parent that comes later", kvevents.EngineVLLM, []kvevents.Event{stored(1, 2, 3), root(1)}, at(fleet.Device, abc...), nil},
		{"two copies, one removal", kvevents.EngineVLLM, []kvevents.Event{root(1), root(1), removed(1)}, at(fleet.Device, abc[0]), nil},
		{"two copies, two removals", kvevents.EngineVLLM, []kvevents.Event{root(1), root(1), removed(1, 1), removed(1)}, nil, nil},
		{"told twice by an engine that has one copy", kvevents.EngineTRTLLM, []kvevents.Event{root(1), root(1), in(gpu, removed(1))}, nil, nil},
		{"a tier of its own", kvevents.EngineVLLM, []kvevents.Event{root(1), copyOf(cpu, 1), removed(1)}, at(fleet.Host, abc[0]), nil},
		{"a copy told before anybody said of what", kvevents.EngineVLLM, []kvevents.Event{copyOf(cpu, 2), root(1, 2), removed(2, 1)}, at(fleet.Host, abc[1]), nil},
		{"gone from all tiers", kvevents.EngineTRTLLM, []kvevents.Event{root(1), copyOf(cpu, 1), removed(1)}, nil, nil},
		{
			"moved", kvevents.EngineTRTLLM,
			[]kvevents.Event{root(1), {Kind: kvevents.Moved, Hashes: []uint64{1}, From: gpu, Medium: cpu, Group: -1}},
			at(fleet.Host, abc[0]), nil,
		},
		{"vLLM clears its device", kvevents.EngineVLLM, []kvevents.Event{root(1), copyOf(cpu, 1), cleared}, at(fleet.Host, abc[0]), nil},
		{"SGLang clears everything", kvevents.EngineSGLang, []kvevents.Event{root(1), in(cpu, root(1)), cleared}, nil, nil},
		{"so does an engine nobody knows", kvevents.EngineUnknown, []kvevents.Event{root(1), in(cpu, root(1)), cleared}, nil, nil},
		{
			"a window is no prefix", kvevents.EngineVLLM,
			[]kvevents.Event{
				grouped(1, kvevents.GroupWindow, root(1, 2)), grouped(0, kvevents.GroupFull, root(1)), grouped(1, 0, removed(1)), grouped(2, 0, removed(1)),
				grouped(3, kvevents.GroupFull, root(1, 2)),
			},
			at(fleet.Device, abc[0]),
			map[Reason]uint64{OtherGroup: 5, UnknownGroup: 1},
		},
		{
			"a group that turns out to be no prefix", kvevents.EngineVLLM,
			[]kvevents.Event{grouped(0, 0, root(1)), grouped(0, kvevents.GroupState, root(2)), grouped(2, kvevents.GroupFull, root(3))},
			at(fleet.Device, chain("", "", 3)...),
			map[Reason]uint64{OtherGroup: 1},
		},
		{
			"a larger window is the prefix", kvevents.EngineTRTLLM,
			[]kvevents.Event{
				with(root(1), func(e *kvevents.Event) { e.Window = 512 }), with(root(2), func(e *kvevents.Event) { e.Window = 4096 }),
				with(root(3), func(e *kvevents.Event) { e.Window = 512 }),
			},
			at(fleet.Device, chain("", "", 2)...),
			map[Reason]uint64{SmallWindow: 1},
		},
		{"an adapter by name, inherited", kvevents.EngineVLLM, []kvevents.Event{lora("sql", root(1)), stored(1, 2)}, at(fleet.Device, chain("sql", "", 1, 2)...), nil},
		{
			"an adapter by number", kvevents.EngineVLLM,
			[]kvevents.Event{with(root(1), func(e *kvevents.Event) { e.HasLoRAID, e.LoRAID = true, 7 }), with(root(2), func(e *kvevents.Event) { e.HasLoRAID, e.LoRAID = true, 8 })},
			at(fleet.Device, chain("seven", "", 1)...),
			map[Reason]uint64{NamelessLoRA: 1},
		},
		{
			"a salt, inherited", kvevents.EngineSGLang,
			[]kvevents.Event{with(root(1), func(e *kvevents.Event) { e.Salt = []byte("s") }), stored(1, 2)},
			at(fleet.Device, chain("", "s", 1, 2)...), nil,
		},
		{"blocks of another size", kvevents.EngineVLLM, []kvevents.Event{with(root(1), func(e *kvevents.Event) { e.BlockSize = 1 }), removed(1)}, nil, map[Reason]uint64{OtherSize: 1}},
		{"tokens that do not fit", kvevents.EngineVLLM, []kvevents.Event{with(root(1, 2), func(e *kvevents.Event) { e.Tokens = e.Tokens[:3] })}, nil, map[Reason]uint64{Uneven: 2}},
		{"its own parent", kvevents.EngineVLLM, []kvevents.Event{stored(1, 1), root(2, 2)}, nil, map[Reason]uint64{Conflict: 3}},
		{"one hash, two contents", kvevents.EngineVLLM, []kvevents.Event{root(1), with(root(1), func(e *kvevents.Event) { e.Tokens[0] = 5 })}, at(fleet.Device, abc[0]), map[Reason]uint64{Conflict: 1}},
		{
			"not its own", kvevents.EngineVLLM,
			[]kvevents.Event{
				with(root(1), func(e *kvevents.Event) { e.IsRemote = true }), with(root(1), func(e *kvevents.Event) { e.IsOwned = true }),
				with(root(1), func(e *kvevents.Event) { e.IsPool = true }), in(kvevents.MediumShared, root(1)), in(kvevents.MediumUnknown, root(1)),
				in(kvevents.MediumDisk, root(1)),
			},
			nil,
			map[Reason]uint64{NotOwn: 4, OtherMedium: 1, Endless: 1},
		},
		{
			"what cannot be told cuts the chain", kvevents.EngineVLLM,
			[]kvevents.Event{
				with(root(1, 2, 3), func(e *kvevents.Event) { e.Extras = []kvevents.Extra{{Kind: kvevents.ExtraBareItem, Block: 1}} }),
				stored(3, 4), with(root(5), func(e *kvevents.Event) { e.Extras = []kvevents.Extra{{Kind: kvevents.ExtraEmbeds}} }),
			},
			at(fleet.Device, abc[0]),
			map[Reason]uint64{PlacelessItem: 2, Embeds: 1},
		},
		{"a declared constant is the start", kvevents.EngineVLLM, []kvevents.Event{stored(42, 1)}, at(fleet.Device, abc[0]), nil},
	}
	for _, c := range cases {
		sink := newShelf()
		m := New(Config{Engine: c.engine, Model: "m", BlockSize: 2, LoRANames: map[int64]string{7: "seven"}, RootParents: []uint64{42}}, sink)
		for i := range c.events {
			m.Apply(uint64(i), &kvevents.Batch{Rank: -1, Events: c.events[i : i+1]})
		}
		if c.want == nil {
			c.want = map[place]int{}
		}
		if diff := cmp.Diff(c.want, sink.copies); diff != "" || sink.wrong != "" {
			t.Errorf("%s: %s (-want +got)\n%s", c.name, sink.wrong, diff)
		}
		var left [NumReasons]uint64
		for r, n := range c.left {
			left[r] = n
		}
		if diff := cmp.Diff(left, m.Stats().LeftOut); diff != "" {
			t.Errorf("%s: left out (-want +got)\n%s", c.name, diff)
		}
	}
}

// Items are told apart by what they are and where they begin, as a gateway hashes the same prompt.
func TestItems(t *testing.T) {
	sink := newShelf()
	m := New(Config{Engine: kvevents.EngineVLLM, Model: "m", BlockSize: 2}, sink)
	e := root(1, 2, 3)
	image, sound := []byte("image-0123"), []byte("sound-0123")
	e.Extras = []kvevents.Extra{
		{Block: 0, Offset: 1, ID: image}, {Block: 1, Offset: -1, ID: image}, {Block: 1, Offset: 1, ID: sound}, {Block: 2, Offset: -1, ID: sound},
	}
	m.Apply(0, &kvevents.Batch{Rank: -1, Events: []kvevents.Event{e}})
	locals := block.AppendLocals(nil, e.Tokens, 2)
	block.MixItems(locals, 2, []block.Item{{First: 1, Count: 2, Digest: block.Sum(image)}, {First: 3, Count: 2, Digest: block.Sum(sound)}})
	ids := block.AppendChain(nil, block.Identity{Model: "m", BlockSize: 2}.Keyspace(), locals)
	if diff := cmp.Diff(at(fleet.Device, ids...), sink.copies); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Nothing waits or is named without bound, and a new life has nothing of the former one.
func TestBoundsAndLives(t *testing.T) {
	sink := newShelf()
	m := New(Config{Engine: kvevents.EngineVLLM, Model: "m", BlockSize: 2, Names: 4, Waiting: 2}, sink)
	apply := func(e kvevents.Event) Outcome {
		return m.Apply(0, &kvevents.Batch{Rank: -1, Events: []kvevents.Event{e}})
	}
	apply(root(1, 2))
	apply(stored(90, 91, 92))
	apply(stored(80, 81))
	apply(stored(2, 3))
	if s := m.Stats(); s.LeftOut[WaitingFull] != 1 || s.LeftOut[NamesFull] != 1 || s.Orphans != 2 || m.Pairs() != 4 {
		t.Errorf("%+v, %d pairs", s, m.Pairs())
	}
	if out := apply(kvevents.Event{Kind: kvevents.Cleared, Group: -1}); !out.IsWhole {
		t.Error("a clear of the only tier makes nothing whole")
	}
	apply(copyOf(kvevents.MediumHost, 1))
	if out := apply(kvevents.Event{Kind: kvevents.Cleared, Group: -1}); out.IsWhole || m.Pairs() != 1 {
		t.Errorf("a clear of one of two tiers: %+v, %d pairs", out, m.Pairs())
	}
	m.Reset()
	if m.Pairs() != 0 || len(sink.copies) != 0 || m.Stats().Resets != 1 {
		t.Errorf("a new life with %d pairs and %v", m.Pairs(), sink.copies)
	}
	if out := m.Apply(0, &kvevents.Batch{Rank: -1, Counts: kvevents.Counts{LostRemovals: 1}}); !out.IsDoubtful {
		t.Error("a removal was lost without doubt")
	}
}
