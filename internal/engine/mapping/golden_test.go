package mapping

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// place is a block in a tier.
type place struct {
	ID   block.ID
	Tier fleet.Tier
}

// shelf is a Sink that remembers.
type shelf struct {
	copies map[place]int
	wrong  string // what no picture would stand for
}

func newShelf() *shelf { return &shelf{copies: make(map[place]int)} }

func (s *shelf) Store(_ block.ID, _ bool, ids []block.ID, tier fleet.Tier) int {
	for _, id := range ids {
		s.copies[place{id, tier}]++
	}
	return len(ids)
}

func (s *shelf) Remove(ids []block.ID, tier fleet.Tier) {
	for _, id := range ids {
		at := place{id, tier}
		if s.copies[at] == 0 {
			s.wrong = "a removal of what is not there"
		}
		if s.copies[at]--; s.copies[at] == 0 {
			delete(s.copies, at)
		}
	}
}

func (s *shelf) Clear(tier fleet.Tier) {
	for at := range s.copies {
		if at.Tier == tier {
			delete(s.copies, at)
		}
	}
}

func (s *shelf) ClearAll() { clear(s.copies) }

// golden is one line of the decoder's golden messages, with what should become of it.
type golden struct {
	Name, Engine, Channel, Scenario string
	Frames                          []string
	Neutral                         []struct {
		Op, Tier, Lora, Salt, Scope, Hash, From, To string
		Parent                                      *string
		Hashes                                      []string
		Blocks                                      []struct {
			Hash   string
			Tokens []uint32
			MM     [][]any
		}
	}
}

// truth is the slow and obvious way from neutral operations to contents.
type truth struct {
	names     map[string]*truthName
	isCounted bool
}

type truthName struct {
	parent     *string // nil: root
	tokens     []uint32
	mm         [][]any
	lora, salt string
	isKnown    bool
	copies     [fleet.NumTiers]int
}

var tiers = map[string]fleet.Tier{"device": fleet.Device, "host": fleet.Host}

func (w *truth) apply(g *golden) {
	for _, op := range g.Neutral {
		switch op.Op {
		case "stored":
			parent := op.Parent
			for _, b := range op.Blocks {
				n := w.names[b.Hash]
				if n == nil {
					n = &truthName{}
					w.names[b.Hash] = n
				}
				if len(b.Tokens) > 0 && !n.isKnown {
					n.parent, n.tokens, n.mm, n.lora, n.salt, n.isKnown = parent, b.Tokens, b.MM, op.Lora, op.Salt, true
				}
				if w.isCounted || n.copies[tiers[op.Tier]] == 0 {
					n.copies[tiers[op.Tier]]++
				}
				parent = &b.Hash
			}
		case "removed":
			for _, h := range op.Hashes {
				for t := range fleet.Tier(fleet.NumTiers) {
					if n := w.names[h]; n != nil && (op.Tier == "all" || tiers[op.Tier] == t) && n.copies[t] > 0 {
						n.copies[t]--
					}
				}
			}
		case "moved":
			if n := w.names[op.Hash]; n != nil {
				n.copies[tiers[op.From]]--
				n.copies[tiers[op.To]]++
			}
		case "cleared", "reset":
			clear(w.names)
		}
	}
}

// id is the block's id, if it is known up to the prompt's start.
func (w *truth) id(h string) (block.ID, bool) {
	n := w.names[h]
	if n == nil || !n.isKnown {
		return 0, false
	}
	locals := []block.Local{block.LocalHash(n.tokens)}
	var items []block.Item
	for _, x := range n.mm {
		items = append(items, block.Item{First: int(x[1].(float64)), Count: 1000, Digest: block.Sum([]byte(x[0].(string)))})
	}
	block.MixItems(locals, len(n.tokens), items)
	if n.parent == nil {
		k := block.Identity{Model: "m", BlockSize: 4, LoRAName: n.lora, CacheSalt: n.salt}.Keyspace()
		return k.Root(locals[0]), true
	}
	p, ok := w.id(*n.parent)
	return p.Child(locals[0]), ok
}

func (w *truth) contents() map[place]int {
	out := make(map[place]int)
	for h, n := range w.names {
		for t, c := range n.copies {
			if id, ok := w.id(h); ok && c > 0 {
				out[place{id, fleet.Tier(t)}] += c
			}
		}
	}
	return out
}

// Every golden message that says what should become of it becomes that, each engine's messages one after the other, and
// alone.
func TestGoldenNeutral(t *testing.T) {
	f, err := os.Open("../kvevents/testdata/engine-events.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	var m *Mapper
	var sink *shelf
	var w *truth
	last := ""
	limits := kvevents.DefaultLimits()
	compared := 0
	for lines.Scan() {
		var g golden
		if err := json.NewDecoder(bytes.NewReader(lines.Bytes())).Decode(&g); err != nil {
			t.Fatal(err)
		}
		engine, _ := kvevents.ParseEngine(g.Engine)
		switch {
		case g.Neutral == nil, g.Name == "trtllm-json-stored-mm": // see testdata/README.md there
			continue
		case g.Name == "lmcache-through-vllm":
			g.Neutral = nil // blocks of another size than the worker's
		case g.Name == "vllm-0.9.0-stored-root":
			// The chain of this line goes on in the next ones.
			g.Scenario = "0.9"
		case g.Name == "vllm-0.9.0-stored-child-lora-id", g.Name == "vllm-0.9.0-removed":
			g.Scenario = "0.9"
		}
		if g.Scenario == "" || g.Scenario != last {
			sink = newShelf()
			m = New(Config{Engine: engine, Model: "m", BlockSize: 4, LoRANames: map[int64]string{3: "id:3"}}, sink)
			w = &truth{names: make(map[string]*truthName), isCounted: engine != kvevents.EngineTRTLLM}
		}
		last = g.Scenario
		var b kvevents.Batch
		payload, err := hex.DecodeString(g.Frames[len(g.Frames)-1])
		if err != nil {
			t.Fatal(err)
		}
		decode := b.Decode
		if g.Channel != "pub" {
			decode = b.DecodeJSON
		}
		if err := decode(payload, &limits); err != nil {
			t.Fatalf("%s: %v", g.Name, err)
		}
		if len(g.Neutral) > 0 && g.Neutral[0].Op == "reset" {
			m.Reset()
		}
		if g.Name == "trtllm-json-small-window" {
			m.window = 4096
		}
		m.Apply(0, &b)
		w.apply(&g)
		compared++
		if diff := cmp.Diff(w.contents(), sink.copies); diff != "" || sink.wrong != "" {
			t.Errorf("%s: %s (-want +got)\n%s\n%+v", g.Name, sink.wrong, diff, m.Stats())
		}
		skips := 0
		for _, op := range g.Neutral {
			if op.Op == "skip" && len(op.Hashes) > 0 {
				skips += len(op.Hashes)
			}
		}
		got := uint64(0)
		for _, n := range m.Stats().LeftOut {
			got += n
		}
		if got < uint64(skips) {
			t.Errorf("%s: %d blocks left out, want at least "+strconv.Itoa(skips), g.Name, got)
		}
	}
	if compared < 65 {
		t.Errorf("only %d messages were compared", compared)
	}
}
