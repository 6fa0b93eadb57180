package kvevents

import "math"

// StreamHead is what a batch of a gRPC stream says besides its events.
type StreamHead struct {
	// Sequence is the batch's number, of its rank.
	Sequence uint64
	// Rank is the data-parallel rank; -1: not said.
	Rank int
	// IsSnapshot: the batch is chunk Chunk of Chunks that tell anew all that the rank holds; nothing of before holds.
	IsSnapshot    bool
	Chunk, Chunks uint64
	// UnknownBefore is how many batches nobody had before that account began; 0: it is complete.
	UnknownBefore uint64
	// Load is the load record, undecoded; nil: none. Part of the payload.
	Load []byte
	// IsLoadOnly: the batch is there for its load record; its number is that of an earlier one.
	IsLoadOnly bool
}

// ParseStream reads a smg.grpc.common.KvEventBatch but for its events; see DecodeProto.
func ParseStream(payload []byte) (StreamHead, error) {
	h := StreamHead{Rank: -1}
	r := protoReader{b: payload}
	for f, ok := r.next(); ok; f, ok = r.next() {
		switch f.number {
		case 1:
			h.Sequence = f.value
		case 4:
			h.Rank = int(int32(f.value))
		case 7:
			h.IsSnapshot = true
			c := protoReader{b: f.bytes}
			for f, ok := c.next(); ok; f, ok = c.next() {
				switch f.number {
				case 1:
					h.Chunk = f.value
				case 2:
					h.Chunks = f.value
				case 4:
					h.UnknownBefore = f.value
				}
			}
			r.isBroken = r.isBroken || c.isBroken
		case 8:
			h.Load = f.bytes
			c := protoReader{b: f.bytes}
			for f, ok := c.next(); ok; f, ok = c.next() {
				if f.number == 9 {
					h.IsLoadOnly = f.value != 0
				}
			}
			r.isBroken = r.isBroken || c.isBroken
		}
	}
	if r.isBroken || h.Rank < -1 {
		return StreamHead{}, ErrMalformed
	}
	return h, nil
}

// DecodeProto reads what SMG's engine servicers stream by SubscribeKvEvents: smg.grpc.common.KvEventBatch, as in
// proto/common.proto of the PyPI package smg-grpc-proto, 0.4.28. It is Decode for that form. A stored event whose last
// blocks have another size, or lie elsewhere, than the first becomes two events.
//
// A known field of another wire type than it has is one that is not known, as protobuf has it.
func (b *Batch) DecodeProto(payload []byte, l *Limits) error {
	b.reset()
	if len(payload) > l.PayloadBytes {
		return ErrLimit
	}
	d := protoDecoder{batch: b, limits: l}
	err := d.decode(payload)
	if err != nil {
		b.reset()
	}
	return err
}

// protoDecoder is one DecodeProto under way.
type protoDecoder struct {
	batch    *Batch
	limits   *Limits
	isFull   bool
	isBroken bool
}

func (d *protoDecoder) decode(payload []byte) error {
	b := d.batch
	n := 0
	count := protoReader{b: payload}
	for f, ok := count.next(); ok; f, ok = count.next() {
		if f.number == 3 {
			n++
		}
	}
	if count.isBroken {
		return ErrMalformed
	}
	if n > d.limits.Events {
		return ErrLimit
	}
	const least = 5 // bytes of an event that is kept, on average
	b.Events = grow(b.Events, min(n, len(payload)/least+1))
	r := protoReader{b: payload}
	for f, ok := r.next(); ok; f, ok = r.next() {
		switch {
		case f.number == 2 && f.kind == protoFixed64:
			if v := math.Float64frombits(f.value); v > 0 && v < math.MaxInt64/1e9 {
				seconds, rest := math.Modf(v)
				b.At = int64(seconds)*1e9 + int64(rest*1e9)
			}
		case f.number == 3 && f.kind == protoBytes:
			d.event(f.bytes)
		case f.number == 4 && f.kind == protoVarint:
			if v := int32(f.value); v >= 0 {
				b.Rank = int(v)
			}
		case f.number == 1 || f.number == 7 || f.number == 8: // ParseStream's
		default:
			b.Counts.UnknownFields++
		}
		switch {
		case d.isBroken:
			return ErrMalformed
		case d.isFull, len(b.hashes) > d.limits.Hashes, len(b.tokens) > d.limits.Tokens, len(b.extras) > d.limits.Extras:
			return ErrLimit
		}
	}
	return nil
}

// fields calls what for each field of a message.
func (d *protoDecoder) fields(m []byte, what func(protoField)) {
	r := protoReader{b: m}
	for f, ok := r.next(); ok; f, ok = r.next() {
		what(f)
	}
	d.isBroken = d.isBroken || r.isBroken
}

// event reads {event_id, stored | removed | cleared}.
func (d *protoDecoder) event(m []byte) {
	b := d.batch
	e := Event{Rank: -1, Group: -1}
	var data []byte
	isOther := false
	d.fields(m, func(f protoField) {
		switch {
		case f.number == 1 && f.kind == protoVarint:
			e.ID = f.value
		case f.number >= 2 && f.number <= 4 && f.kind == protoBytes:
			e.Kind, data = [...]Kind{Stored, Removed, Cleared}[f.number-2], f.bytes
		default:
			isOther = true
		}
	})
	hashes, tokens, extras := len(b.hashes), len(b.tokens), len(b.extras)
	isGood := true
	switch e.Kind {
	case Stored:
		isGood = d.stored(data, &e)
	case Removed:
		isGood = d.removed(data, &e)
	case Cleared:
		d.fields(data, func(f protoField) {
			e.IsOwned = e.IsOwned || f.number == 1 && len(f.bytes) > 0
		})
		last := len(b.Events) - 1
		if !e.IsOwned && (last < 0 || b.Events[last].Kind != Cleared) { // else there is nothing that it could clear
			b.Events = append(grow(b.Events, 1), e)
		}
	case Unsaid, Moved, Created, numKinds: // that is Unsaid
		if isOther {
			b.Counts.UnknownEvents++
		} else {
			b.Counts.BadEvents++
			b.Counts.LostRemovals++
		}
	}
	if isOther && e.Kind != Unsaid {
		b.Counts.UnknownFields++
	}
	if !isGood {
		b.hashes, b.tokens, b.extras = b.hashes[:hashes], b.tokens[:tokens], b.extras[:extras]
		b.Counts.BadEvents++
		if e.Kind == Removed {
			b.Counts.LostRemovals++
		}
	}
}

// removed reads {block_hashes, cache_level, tier, medium, group_idx, locality, ownership}.
func (d *protoDecoder) removed(m []byte, e *Event) bool {
	b := d.batch
	start := len(b.hashes)
	isGood := true
	var w where
	d.fields(m, func(f protoField) {
		switch f.number {
		case 1:
			isGood = d.numbers(f, func(v uint64) { b.hashes = append(grow(b.hashes, 1), v) }) && isGood
		case 2:
			w.level(f)
		case 3:
			w.tier(f)
		case 4:
			w.medium(f)
		case 5:
			isGood = group(f, &e.Group) && isGood
		case 6:
			e.IsRemote = e.IsRemote || f.value == localityRemote
		case 7:
			e.IsOwned = e.IsOwned || len(f.bytes) > 0
		default:
			b.Counts.UnknownFields++
		}
	})
	e.Medium = w.said()
	e.Hashes = b.hashes[start:len(b.hashes):len(b.hashes)]
	if isGood && len(e.Hashes) > 0 {
		b.Events = append(grow(b.Events, 1), *e)
	}
	return isGood
}

// numbers reads a repeated number, in either of its encodings.
func (d *protoDecoder) numbers(f protoField, take func(uint64)) bool {
	switch f.kind {
	case protoVarint:
		take(f.value)
		return true
	case protoBytes:
		r := protoReader{b: f.bytes}
		for r.i < len(r.b) {
			v, ok := r.varint()
			if !ok {
				d.isBroken = true
				return false
			}
			take(v)
		}
		return true
	case protoFixed32, protoFixed64:
	}
	return false
}

// group reads an attention group's number.
func group(f protoField, into *int) bool {
	*into = int(f.value)
	return f.kind == protoVarint && f.value <= math.MaxInt32
}

// localityRemote is KV_CACHE_LOCALITY_REMOTE.
const localityRemote = 2

// where collects what a message says of where its blocks lie: by a tier, by a name, or by a level. The most exact counts.
type where struct {
	byTier, byName, byLevel Medium
}

func (w *where) tier(f protoField) {
	if f.kind == protoVarint && f.value > 0 { // 0 is not said
		w.byTier = tierMedium(f.value - 1)
	}
}

func (w *where) medium(f protoField) {
	if f.kind == protoBytes && len(f.bytes) > 0 {
		w.byName = mediumOf(f.bytes)
	}
}

func (w *where) level(f protoField) {
	if f.kind == protoVarint {
		w.byLevel = tierMedium(f.value)
	}
}

func (w *where) said() Medium {
	switch {
	case w.byTier != MediumUnsaid && w.byTier != MediumUnknown:
		return w.byTier
	case w.byName != MediumUnsaid:
		return w.byName
	case w.byTier != MediumUnsaid:
		return w.byTier
	default:
		return w.byLevel
	}
}

// tierMedium is the medium of a level: TensorRT-LLM's three, and what others put behind them.
func tierMedium(level uint64) Medium {
	if level == 3 {
		return MediumShared
	}
	return levelMedium(level)
}
