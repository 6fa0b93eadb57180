package mapping

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

const size = 2 // tokens in a block

// image lies behind tokens of a prompt; first counts from its start.
type image struct {
	first, count int
	id           string
}

// prompt is all that a block depends on: itself and everything before it.
type prompt struct {
	tokens     []uint32
	images     []image
	lora, salt string
}

// hash is what the engine calls a prompt's last block. Like an engine's, it depends on an image only where it overlaps.
func (p *prompt) hash() uint64 {
	var s strings.Builder
	s.WriteString(fmt.Sprint(p.tokens, p.lora, p.salt))
	for i := range len(p.tokens) / size {
		for _, x := range p.over(i) {
			s.WriteString(fmt.Sprint(i, x.id, x.first))
		}
	}
	return block.Sum([]byte(s.String()))
}

// over is the images over block i.
func (p *prompt) over(i int) []image {
	return slices.DeleteFunc(slices.Clone(p.images), func(x image) bool { return x.first >= (i+1)*size || x.first+x.count <= i*size })
}

// blockID is the block's id, from the whole prompt as a gateway hashes it.
func (p *prompt) blockID() block.ID {
	locals := block.AppendLocals(nil, p.tokens, size)
	var items []block.Item
	for _, x := range p.images {
		items = append(items, block.Item{First: x.first, Count: x.count, Digest: block.Sum([]byte(x.id))})
	}
	block.MixItems(locals, size, items)
	k := block.Identity{Model: "m", BlockSize: size, LoRAName: p.lora, CacheSalt: p.salt}.Keyspace()
	ids := block.AppendChain(nil, k, locals)
	return ids[len(ids)-1]
}

// held is a block that the engine has somewhere.
type held struct {
	prompt

	id     block.ID
	copies [fleet.NumTiers]int
}

// cache is an engine's.
type cache struct {
	r    *rand.Rand
	held map[uint64]*held
}

// some is a block that is held, or nil.
func (c *cache) some() *held {
	if len(c.held) == 0 {
		return nil
	}
	all := slices.Sorted(maps.Keys(c.held))
	return c.held[all[c.r.IntN(len(all))]]
}

// store computes a chain of blocks behind a held one, or from the start, and tells it.
func (c *cache) store() kvevents.Event {
	e := kvevents.Event{Kind: kvevents.Stored, ParentKind: kvevents.ParentRoot, BlockSize: size, Group: 0, GroupKind: kvevents.GroupFull, Rank: -1}
	var p prompt
	if parent := c.some(); parent != nil && parent.copies[fleet.Device] > 0 && c.r.IntN(3) > 0 {
		p = parent.prompt
		e.ParentKind, e.Parent = kvevents.ParentBlock, p.hash()
	} else {
		p.lora, p.salt = []string{"", "sql"}[c.r.IntN(2)], []string{"", "tenant"}[c.r.IntN(2)]
		e.Salt = []byte(p.salt)
	}
	e.LoRAName = []byte(p.lora)
	first := len(p.tokens) / size
	n := 1 + c.r.IntN(3)
	for range n * size {
		p.tokens = append(slices.Clip(p.tokens), c.r.Uint32N(2))
	}
	if c.r.IntN(3) == 0 {
		p.images = append(slices.Clip(p.images), image{size*first + c.r.IntN(n*size), 1 + c.r.IntN(6), fmt.Sprint("image", c.r.IntN(2))})
	}
	for i := first; i < first+n; i++ {
		// The images behind this block are no part of it.
		b := prompt{tokens: slices.Clip(p.tokens[:size*(i+1)]), lora: p.lora, salt: p.salt}
		for _, x := range p.images {
			if x.first < size*(i+1) {
				b.images = append(b.images, x)
			}
		}
		h := b.hash()
		e.Hashes = append(e.Hashes, h)
		e.Tokens = append(e.Tokens, b.tokens[size*i:]...)
		for _, x := range b.over(i) {
			e.Extras = append(e.Extras, kvevents.Extra{Block: int32(i - first), Offset: int64(x.first - size*i), ID: []byte(x.id)})
		}
		if c.held[h] == nil {
			c.held[h] = &held{prompt: b, id: b.blockID()}
		}
		c.held[h].copies[fleet.Device]++
	}
	return e
}

// offload copies a block to another tier without saying what it is.
func (c *cache) offload() (e kvevents.Event, ok bool) {
	b := c.some()
	if b == nil {
		return e, false
	}
	b.copies[fleet.Host]++
	return kvevents.Event{Kind: kvevents.Stored, Hashes: []uint64{b.hash()}, Medium: kvevents.MediumHost, Group: 0, Rank: -1}, true
}

// evict takes a copy of a block.
func (c *cache) evict() (e kvevents.Event, ok bool) {
	b := c.some()
	if b == nil {
		return e, false
	}
	tier := fleet.Device
	if b.copies[tier] == 0 || b.copies[fleet.Host] > 0 && c.r.IntN(2) == 0 {
		tier = fleet.Host
	}
	b.copies[tier]--
	h := b.hash()
	if b.copies == [fleet.NumTiers]int{} {
		delete(c.held, h)
	}
	return kvevents.Event{Kind: kvevents.Removed, Hashes: []uint64{h}, Medium: kvevents.Medium(tier) + kvevents.MediumDevice, Group: 0, Rank: -1}, true
}

// reset drops the device's blocks.
func (c *cache) reset() kvevents.Event {
	for h, b := range c.held {
		b.copies[fleet.Device] = 0
		if b.copies[fleet.Host] == 0 {
			delete(c.held, h)
		}
	}
	return kvevents.Event{Kind: kvevents.Cleared, Group: -1, Rank: -1}
}

func (c *cache) contents() map[place]int {
	out := make(map[place]int)
	for _, b := range c.held {
		for t, n := range b.copies {
			if n > 0 {
				out[place{b.id, fleet.Tier(t)}] += n
			}
		}
	}
	return out
}

// What the sink is told is at every moment what the engine holds, hashed from whole prompts; whatever other groups do with
// the same hashes.
func TestEqualsEngine(t *testing.T) {
	for seed := range uint64(25) {
		c := &cache{r: rand.New(rand.NewPCG(seed, 7)), held: make(map[uint64]*held)}
		sink := newShelf()
		m := New(Config{Engine: kvevents.EngineVLLM, Model: "m", BlockSize: size}, sink)
		for step := range 150 {
			var e kvevents.Event
			ok := true
			switch n := c.r.IntN(100); {
			case n < 45:
				e = c.store()
			case n < 60:
				e, ok = c.offload()
			case n < 94:
				e, ok = c.evict()
			case n < 98: // another group, with hashes that this one has too
				if b := c.some(); b != nil {
					e = removed(b.hash())
					e.Group, e.GroupKind = 1, kvevents.GroupWindow
				}
			default:
				e = c.reset()
			}
			if !ok {
				continue
			}
			m.Apply(uint64(step), &kvevents.Batch{Rank: -1, Events: []kvevents.Event{e}})
			if want := c.contents(); !maps.Equal(want, sink.copies) || sink.wrong != "" {
				t.Fatalf("seed %d, step %d: %s (-want +got)\n%s\n%+v", seed, step, sink.wrong, cmp.Diff(want, sink.copies), m.Stats())
			}
		}
		if s := m.Stats(); s.LeftOut[Conflict]+s.LeftOut[PlacelessItem]+s.LeftOut[Uneven]+s.UnknownRemovals+s.Orphans != 0 {
			t.Errorf("seed %d: %+v", seed, s)
		}
	}
}

// Whatever comes, nothing is removed that is not there, and nothing stays when everything is cleared.
func FuzzApply(f *testing.F) {
	store, remove, _ := payloads(2)
	for engine := range uint8(5) {
		f.Add(store, remove, engine)
	}
	limits := kvevents.DefaultLimits()
	f.Fuzz(func(t *testing.T, first, second []byte, engine uint8) {
		sink := newShelf()
		m := New(Config{Engine: kvevents.Engine(engine % 5), Model: "m", BlockSize: 16, Names: 64, Waiting: 16}, sink)
		var b kvevents.Batch
		for i, payload := range [][]byte{first, second, first, second} {
			decode := b.Decode
			if i >= 2 && len(payload) > 0 && payload[0] == '[' {
				decode = b.DecodeJSON
			}
			if decode(payload, &limits) == nil {
				m.Apply(uint64(i), &b)
			}
		}
		if sink.wrong != "" || m.Pairs() > 64*fleet.NumTiers {
			t.Errorf("%s, %d pairs", sink.wrong, m.Pairs())
		}
		m.Reset()
		if len(sink.copies) != 0 || m.Pairs() != 0 {
			t.Errorf("after a reset: %v", sink.copies)
		}
	})
}
