package enginetest

import (
	"encoding/binary"
	"math"

	"github.com/kvoracle/kvoracle/internal/block"
)

// record is a protobuf message on its way.
type record []byte

func (r record) number(field int, v uint64) record {
	return binary.AppendUvarint(binary.AppendUvarint(r, uint64(field)<<3), v)
}

func (r record) double(field int, v float64) record {
	return binary.LittleEndian.AppendUint64(binary.AppendUvarint(r, uint64(field)<<3|1), math.Float64bits(v))
}

func (r record) part(field int, m []byte) record {
	r = binary.AppendUvarint(r, uint64(field)<<3|2)
	return append(binary.AppendUvarint(r, uint64(len(m))), m...)
}

func (r record) text(field int, s string) record {
	if s == "" {
		return r
	}
	return r.part(field, []byte(s))
}

// batchRecord is a smg.grpc.common.KvEventBatch without its load.
func batchRecord(events []event, size, rank int, sequence uint64) record {
	b := record{}.number(1, sequence).number(4, uint64(rank))
	for i := range events {
		b = b.part(3, eventRecord(&events[i], size))
	}
	return b
}

func eventRecord(e *event, size int) record {
	switch {
	case e.cleared:
		return record{}.part(4, nil)
	case e.removed != nil:
		var all []byte
		for _, h := range e.removed {
			all = binary.AppendUvarint(all, uint64(h))
		}
		return record{}.part(3, record{}.part(1, all).number(3, 1).text(4, "GPU").number(6, 1))
	}
	var stored record
	for i, h := range e.stored {
		var tokens []byte
		for _, t := range e.tokens[i*size : (i+1)*size] {
			tokens = binary.AppendUvarint(tokens, uint64(t))
		}
		b := record{}.number(1, uint64(h)).part(2, tokens).number(3, uint64(size))
		if e.variant.LoRA != "" {
			b = b.number(4, 1)
			b = b.part(6, record{}.text(1, e.variant.LoRA))
		}
		if e.variant.Salt != "" && i == 0 && e.isRoot {
			b = b.part(6, record{}.text(1, e.variant.Salt))
		}
		stored = stored.part(1, b)
	}
	if !e.isRoot {
		stored = stored.number(2, uint64(e.parent))
	}
	stored = stored.number(3, 1).text(4, "GPU").number(5, 0).text(6, "full_attention").number(8, 1)
	return record{}.part(2, stored.text(11, e.variant.LoRA).text(12, e.variant.Salt))
}

// held is a block as a servicer has recorded it.
type held struct {
	event  event // of it alone
	copies int
}

// ledger is what a rank holds, as its events say.
type ledger map[block.ID]*held

func (l ledger) take(events []event, size int) {
	for i := range events {
		e := &events[i]
		switch {
		case e.cleared:
			clear(l)
		case e.removed != nil:
			for _, h := range e.removed {
				if x := l[h]; x != nil {
					if x.copies--; x.copies == 0 {
						delete(l, h)
					}
				}
			}
		default:
			parent, isRoot := e.parent, e.isRoot
			for j, h := range e.stored {
				if x := l[h]; x != nil {
					x.copies++
				} else {
					l[h] = &held{copies: 1, event: event{
						stored: e.stored[j : j+1], tokens: append([]uint32(nil), e.tokens[j*size:(j+1)*size]...), parent: parent, isRoot: isRoot, variant: e.variant,
					}}
				}
				parent, isRoot = h, false
			}
		}
	}
}

// all lists everything, a copy after the other and parents first.
func (l ledger) all() []event {
	var out []event
	done := make(map[block.ID]bool)
	var tell func(h block.ID)
	tell = func(h block.ID) {
		x := l[h]
		if x == nil || done[h] {
			return
		}
		done[h] = true
		if !x.event.isRoot {
			tell(x.event.parent)
		}
		for range x.copies {
			out = append(out, x.event)
		}
	}
	for h := range l {
		tell(h)
	}
	return out
}
