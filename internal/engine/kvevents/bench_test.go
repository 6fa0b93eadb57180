package kvevents

import (
	"math/rand/v2"
	"testing"
)

// typical is a batch of stored events in vLLM's newest form: chains of blocks of 16 tokens of a large vocabulary.
func typical(events, blocks int) []byte {
	r := rand.New(rand.NewPCG(1, 1))
	p := &pack{}
	p.array(3)
	p.float(1767225600.25)
	p.array(events)
	for range events {
		p.mapping(10)
		p.text("type")
		p.text("BlockStored")
		p.text("block_hashes")
		p.array(blocks)
		for range blocks {
			p.uint(r.Uint64())
		}
		p.text("parent_block_hash")
		p.uint(r.Uint64())
		p.text("token_ids")
		p.array(16 * blocks)
		for range 16 * blocks {
			p.uint(uint64(r.Uint32N(150_000)))
		}
		p.text("block_size")
		p.uint(16)
		p.text("lora_id")
		p.nul()
		p.text("medium")
		p.text("GPU")
		p.text("lora_name")
		p.nul()
		p.text("group_idx")
		p.uint(0)
		p.text("kv_cache_spec_kind")
		p.text("full_attention")
	}
	p.uint(0)
	return p.b
}

// What reading costs per event and per block of 16 tokens: one event of one block, as a decoding request makes them, and
// prompts.
func BenchmarkDecode(b *testing.B) {
	for _, c := range []struct {
		name           string
		events, blocks int
	}{{"1x1", 1, 1}, {"64x1", 64, 1}, {"4x128", 4, 128}} {
		b.Run(c.name, func(b *testing.B) {
			payload := typical(c.events, c.blocks)
			limits := DefaultLimits()
			var batch Batch
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			for b.Loop() {
				if err := batch.Decode(payload, &limits); err != nil || len(batch.Events) != c.events {
					b.Fatal(err)
				}
			}
			perOp := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			b.ReportMetric(perOp/float64(c.events), "ns/event")
			b.ReportMetric(perOp/float64(c.events*c.blocks), "ns/block")
		})
	}
}

// Reading allocates nothing once there is memory.
func TestDecodeAllocatesNothing(t *testing.T) {
	payload := typical(8, 8)
	limits := DefaultLimits()
	var batch Batch
	if n := testing.AllocsPerRun(100, func() {
		if batch.Decode(payload, &limits) != nil || len(batch.Events) != 8 {
			t.Fatal("not decoded")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
