package kvevents

import "math"

// chain is a stored event on its way: a run of blocks of one size in one place.
type chain struct {
	Event

	hashes, tokens, extras int // where its own begin in the batch
	runs                   int // that were kept before it
	hasExtras              bool
	salt                   []byte
}

// stored reads {blocks, parent_block_hash, tier, medium, group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window,
// locality, ownership, session_id, lora_name, cache_salt}, in two rounds: what is said of all blocks may stand behind them.
func (d *protoDecoder) stored(m []byte, e *Event) bool {
	b := d.batch
	isGood := true
	var w where
	c := chain{Event: *e, hashes: len(b.hashes), tokens: len(b.tokens), extras: len(b.extras)}
	c.ParentKind = ParentRoot
	d.fields(m, func(f protoField) {
		switch f.number {
		case 1, 10:
		case 2:
			c.ParentKind, c.Parent = ParentBlock, f.value
			isGood = isGood && f.kind == protoVarint
		case 3:
			w.tier(f)
		case 4:
			w.medium(f)
		case 5:
			isGood = group(f, &c.Group) && isGood
		case 6:
			c.GroupKind = groupKindOf(f.bytes)
		case 7:
			isGood = group(f, &c.Window) && isGood
		case 8:
			c.IsRemote = f.value == localityRemote
		case 9:
			c.IsOwned = len(f.bytes) > 0
		case 11:
			c.LoRAName = d.text(f)
		case 12:
			c.salt = d.text(f)
		default:
			b.Counts.UnknownFields++
		}
	})
	events := len(b.Events)
	d.fields(m, func(f protoField) {
		if f.number == 1 && isGood && !d.isFull {
			isGood = f.kind == protoBytes && d.block(f.bytes, &c, w)
		}
	})
	if isGood {
		d.flush(&c)
	} else {
		b.Events = b.Events[:events]
	}
	return isGood
}

// block reads {block_hash, token_ids, block_size, lora_id, cache_level, extra_keys}.
func (d *protoDecoder) block(m []byte, c *chain, w where) bool {
	b := d.batch
	hash, size := uint64(0), uint64(0)
	firstToken, firstExtra := len(b.tokens), len(b.extras)
	isGood := true
	d.fields(m, func(f protoField) {
		switch f.number {
		case 1:
			hash = f.value
			isGood = isGood && f.kind == protoVarint
		case 2:
			isGood = d.numbers(f, func(v uint64) {
				isGood = isGood && v <= math.MaxUint32
				b.tokens = append(grow(b.tokens, 1), uint32(v))
			}) && isGood
		case 3:
			size = f.value
		case 4:
			c.LoRAID, c.HasLoRAID = int64(f.value), true
		case 5:
			w.level(f)
		case 6:
			x := Extra{Kind: ExtraUnknown}
			if isKept := d.extra(f.bytes, &x); isKept {
				b.extras = append(grow(b.extras, 1), x)
			}
			isGood = isGood && x.Block == 0
		default:
			b.Counts.UnknownFields++
		}
	})
	n := len(b.tokens) - firstToken
	// A servicer cuts tokens into blocks by itself: what does not fit has been cut wrongly.
	if !isGood || n == 0 || size != uint64(n) {
		return false
	}
	medium := w.said()
	if len(b.hashes) == c.hashes {
		c.BlockSize, c.Medium = n, medium
	} else if n != c.BlockSize || medium != c.Medium {
		if c.runs > 0 {
			return false
		}
		tokens, extras, last := b.tokens, b.extras, b.hashes[len(b.hashes)-1]
		b.tokens, b.extras = b.tokens[:firstToken], b.extras[:firstExtra]
		d.flush(c)
		b.tokens, b.extras = tokens, extras
		c.Parent, c.ParentKind, c.Salt, c.runs = last, ParentBlock, nil, 1
		c.BlockSize, c.Medium = n, medium
		c.hashes, c.tokens, c.extras, c.hasExtras = len(b.hashes), firstToken, firstExtra, false
	}
	for i := firstExtra; i < len(b.extras); i++ {
		b.extras[i].Block = int32(len(b.hashes) - c.hashes)
		c.hasExtras = true
	}
	b.hashes = append(grow(b.hashes, 1), hash)
	return true
}

// flush keeps a run.
func (d *protoDecoder) flush(c *chain) {
	b := d.batch
	if len(b.hashes) == c.hashes {
		return
	}
	e := c.Event
	e.Hashes = b.hashes[c.hashes:len(b.hashes):len(b.hashes)]
	e.Tokens = b.tokens[c.tokens:len(b.tokens):len(b.tokens)]
	e.Extras = b.extras[c.extras:len(b.extras):len(b.extras)]
	if e.ParentKind == ParentRoot && !c.hasExtras {
		e.Salt = c.salt // with extra keys the servicer has guessed it from them, and so can we
	}
	e.Extras = settle(&e)
	b.Events = append(grow(b.Events, 1), e)
}

// extra reads {text | blob | number | multimodal}; false: it says nothing. An item that cannot be gets Block -1.
func (d *protoDecoder) extra(m []byte, x *Extra) (isKept bool) {
	isKept = true
	d.fields(m, func(f protoField) {
		switch {
		case f.number == 1:
			x.Kind, x.ID = extraText, d.text(f)
			isKept = len(x.ID) > 0
		case f.number == 2:
			x.Kind, isKept = ExtraEmbeds, true
		case f.number == 4 && f.kind == protoBytes:
			x.Kind, isKept = ExtraItem, true
			d.fields(f.bytes, func(f protoField) {
				switch f.number {
				case 1:
					x.ID = d.text(f)
				case 2:
					x.Offset = int64(f.value)
				}
			})
			if x.Offset <= -1<<31 || x.Offset >= 1<<31 { // no prompt has such a distance, and sums of it would overflow
				x.Block = -1
			}
		default:
			x.Kind, isKept = ExtraUnknown, true
		}
	})
	return isKept
}

// text is a text that is kept.
func (d *protoDecoder) text(f protoField) []byte {
	if len(f.bytes) > d.limits.TextBytes {
		d.isFull = true
	}
	return f.bytes
}
