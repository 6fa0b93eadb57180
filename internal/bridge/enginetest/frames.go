package enginetest

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
)

// payload is a batch as vLLM writes it: maps since 0.24, arrays of 12 and 4 fields before. rank below 0 is nil.
func payload(events []event, size, rank int, asMaps bool, at time.Time) []byte {
	p := packer{b: make([]byte, 0, 256)}
	p.list(3)
	p.b = binary.BigEndian.AppendUint64(append(p.b, 0xcb), math.Float64bits(float64(at.UnixNano())/1e9))
	p.list(len(events))
	for i := range events {
		if asMaps {
			p.asMap(&events[i], size)
		} else {
			p.asArray(&events[i], size)
		}
	}
	if rank < 0 {
		p.nothing()
	} else {
		p.number(uint64(rank))
	}
	return p.b
}

// packer writes msgpack.
type packer struct{ b []byte }

func (p *packer) nothing() { p.b = append(p.b, 0xc0) }

func (p *packer) list(n int) {
	if n < 16 {
		p.b = append(p.b, 0x90|byte(n))
	} else {
		p.b = binary.BigEndian.AppendUint32(append(p.b, 0xdd), uint32(n))
	}
}

func (p *packer) text(s string) {
	if len(s) < 32 {
		p.b = append(p.b, 0xa0|byte(len(s)))
	} else {
		p.b = append(p.b, 0xd9, byte(len(s)))
	}
	p.b = append(p.b, s...)
}

func (p *packer) textOrNothing(s string) {
	if s == "" {
		p.nothing()
	} else {
		p.text(s)
	}
}

func (p *packer) number(v uint64) {
	switch {
	case v < 128:
		p.b = append(p.b, byte(v))
	case v < 1<<32:
		p.b = binary.BigEndian.AppendUint32(append(p.b, 0xce), uint32(v))
	default:
		p.b = binary.BigEndian.AppendUint64(append(p.b, 0xcf), v)
	}
}

func (p *packer) hashes(ids []block.ID) {
	p.list(len(ids))
	for _, id := range ids {
		p.number(uint64(id))
	}
}

func (p *packer) parent(e *event) {
	if e.isRoot {
		p.nothing()
	} else {
		p.number(uint64(e.parent))
	}
}

func (p *packer) tokens(tokens []uint32) {
	p.list(len(tokens))
	for _, t := range tokens {
		p.number(uint64(t))
	}
}

// extras has the adapter's name with every block and the salt with the prompt's first.
func (p *packer) extras(e *event) {
	p.list(len(e.stored))
	for i := range e.stored {
		salt := e.variant.Salt
		if i > 0 || !e.isRoot {
			salt = ""
		}
		switch {
		case e.variant.LoRA != "" && salt != "":
			p.list(2)
			p.text(e.variant.LoRA)
			p.text(salt)
		case e.variant.LoRA != "" || salt != "":
			p.list(1)
			p.text(e.variant.LoRA + salt)
		default:
			p.nothing()
		}
	}
}

func (p *packer) adapter(e *event) {
	if e.variant.LoRA == "" {
		p.nothing()
	} else {
		p.number(1)
	}
}

func (p *packer) asArray(e *event, size int) {
	switch {
	case e.cleared:
		p.list(1)
		p.text("AllBlocksCleared")
	case e.removed != nil:
		p.list(4)
		p.text("BlockRemoved")
		p.hashes(e.removed)
		p.text("GPU")
		p.number(0)
	default:
		p.list(12)
		p.text("BlockStored")
		p.hashes(e.stored)
		p.parent(e)
		p.tokens(e.tokens)
		p.number(uint64(size))
		p.adapter(e)
		p.text("GPU")
		p.textOrNothing(e.variant.LoRA)
		p.extras(e)
		p.number(0)
		p.text("full_attention")
		p.nothing()
	}
}

func (p *packer) asMap(e *event, size int) {
	switch {
	case e.cleared:
		p.b = append(p.b, 0x81)
		p.text("type")
		p.text("AllBlocksCleared")
	case e.removed != nil:
		p.b = append(p.b, 0x84)
		p.text("type")
		p.text("BlockRemoved")
		p.text("block_hashes")
		p.hashes(e.removed)
		p.text("medium")
		p.text("GPU")
		p.text("group_idx")
		p.number(0)
	default:
		p.b = append(p.b, 0x8b)
		p.text("type")
		p.text("BlockStored")
		p.text("block_hashes")
		p.hashes(e.stored)
		p.text("parent_block_hash")
		p.parent(e)
		p.text("token_ids")
		p.tokens(e.tokens)
		p.text("block_size")
		p.number(uint64(size))
		p.text("lora_id")
		p.adapter(e)
		p.text("medium")
		p.text("GPU")
		p.text("lora_name")
		p.textOrNothing(e.variant.LoRA)
		p.text("extra_keys")
		p.extras(e)
		p.text("group_idx")
		p.number(0)
		p.text("kv_cache_spec_kind")
		p.text("full_attention")
	}
}
