package mapping

import (
	"encoding/binary"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

type nowhere struct{}

func (nowhere) Store(_ block.ID, _ bool, ids []block.ID, _ fleet.Tier) int { return len(ids) }
func (nowhere) Remove([]block.ID, fleet.Tier)                              {}
func (nowhere) Clear(fleet.Tier)                                           {}
func (nowhere) ClearAll()                                                  {}

// payloads are what an engine at its memory's limit publishes: a chain of blocks of 16 tokens is stored, then evicted block
// by block. places are where the hashes are, so that each round can have others.
func payloads(blocks int) (store, remove []byte, places [][2]int) {
	hash := func(b []byte, which int) []byte {
		places = append(places, [2]int{which, len(b) + 1})
		return append(b, 0xcf, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	text := func(b []byte, s string) []byte { return append(append(b, 0xa0|byte(len(s))), s...) }
	list := func(b []byte, n int) []byte { return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n)) }
	begin := append([]byte{0x93, 0xcb}, make([]byte, 8)...)
	store = append(append([]byte(nil), begin...), 0x91, 0x98)
	store = list(text(store, "BlockStored"), blocks)
	for range blocks {
		store = hash(store, 0)
	}
	store = list(append(store, 0xc0), 16*blocks)
	for i := range 16 * blocks {
		store = append(store, 0xcd, byte(i>>8), byte(i))
	}
	store = append(text(append(store, 16, 0xc0), "GPU"), 0xc0, 0)
	remove = list(append([]byte(nil), begin...), blocks)
	for range blocks {
		remove = append(remove, 0x93)
		remove = hash(append(text(remove, "BlockRemoved"), 0x91), 1)
		remove = text(remove, "GPU")
	}
	return store, append(remove, 0), places
}

// What a block costs from the payload to the sink and back: read, hashed, named, handed on, and removed by an event of its
// own.
func BenchmarkDecodeAndApply(b *testing.B) {
	for _, c := range []struct {
		name   string
		blocks int
	}{{"1", 1}, {"16", 16}, {"128", 128}} {
		b.Run(c.name, func(b *testing.B) {
			store, remove, places := payloads(c.blocks)
			both := [2][]byte{store, remove}
			m := New(Config{Engine: kvevents.EngineVLLM, Model: "m", BlockSize: 16}, nowhere{})
			limits := kvevents.DefaultLimits()
			var batch kvevents.Batch
			n := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				n++
				for i, p := range places {
					binary.BigEndian.PutUint64(both[p[0]][p[1]:], (n<<16|uint64(i%c.blocks))*0x9E3779B97F4A7C15)
				}
				for _, payload := range both {
					if err := batch.Decode(payload, &limits); err != nil {
						b.Fatal(err)
					}
					m.Apply(n, &batch)
				}
			}
			if s := m.Stats(); m.Pairs() != 0 || s.Stored != n*uint64(c.blocks) || s.UnknownRemovals != 0 {
				b.Fatalf("%+v, %d left", s, m.Pairs())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(c.blocks+1), "ns/event")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(c.blocks), "ns/block")
		})
	}
}
