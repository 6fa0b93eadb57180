package kvevents

import (
	"encoding/json"
	"math"
)

// DecodeJSON reads what TensorRT-LLM's /kv_cache_events answers: a list of events, each with a number and perhaps a rank of
// its own. It is Decode for that form. A stored event whose blocks lie in different levels, or are not all full, becomes
// one event for each run of equal ones.
func (b *Batch) DecodeJSON(body []byte, l *Limits) error {
	b.reset()
	if len(body) > l.PayloadBytes {
		return ErrLimit
	}
	if !json.Valid(body) {
		return ErrMalformed
	}
	d := jsonDecoder{scanner: scanner{b: body}, batch: b, limits: l}
	b.Signs |= signNamed | signNegative
	if !d.enter('[') {
		return ErrMalformed
	}
	for d.more(']') {
		d.event()
		if d.isFull || len(b.Events) > l.Events || len(b.hashes) > l.Hashes || len(b.tokens) > l.Tokens || len(b.extras) > l.Extras {
			b.reset()
			return ErrLimit
		}
	}
	return nil
}

// jsonDecoder is one DecodeJSON under way.
type jsonDecoder struct {
	scanner

	batch  *Batch
	limits *Limits
	isFull bool
}

// spot is where a value begins; 0 is none, since a list or an object is around each.
type spot int

// event reads {"event_id", "data", "window_size", "attention_dp_rank"}. Keys may come in any order, so it notes where the
// data are first.
func (d *jsonDecoder) event() {
	e := Event{Rank: -1, Group: -1}
	var data spot
	isGood := d.enter('{')
	if !isGood {
		d.skip()
	}
	for isGood && d.more('}') {
		key := d.key()
		at := spot(d.i)
		ok := true
		switch string(key) {
		case "event_id":
			e.ID, ok = d.integer()
		case "window_size":
			e.Window, ok = d.count()
		case "attention_dp_rank":
			if !d.isNull() {
				e.Rank, ok = d.count()
			}
		case "data":
			data = at
		case "hash_algo", "layer_group_id":
		default:
			d.batch.Counts.UnknownFields++
		}
		if !ok {
			e.Kind, isGood = Unsaid, false
		}
		d.i = int(at)
		d.skip()
		if !isGood {
			d.leave()
		}
	}
	end := d.i
	b := d.batch
	events, hashes, tokens, extras := len(b.Events), len(b.hashes), len(b.tokens), len(b.extras)
	kind, isGood := Unsaid, isGood && data != 0
	if isGood {
		d.i = int(data)
		kind, isGood = d.data(&e)
	}
	d.i = end
	if isGood {
		return
	}
	b.Events, b.hashes, b.tokens, b.extras = b.Events[:events], b.hashes[:hashes], b.tokens[:tokens], b.extras[:extras]
	if kind == numKinds {
		b.Counts.UnknownEvents++
		return
	}
	b.Counts.BadEvents++
	if kind != Stored && kind != Created {
		b.Counts.LostRemovals++
	}
}

// count reads a number that a rank or a window may be.
func (d *jsonDecoder) count() (int, bool) {
	v, ok := d.integer()
	return int(min(v, math.MaxInt32)), ok
}

// data reads what an event says and keeps it.
func (d *jsonDecoder) data(e *Event) (Kind, bool) {
	if !d.enter('{') {
		return Unsaid, false
	}
	var kind, parent, blocks, hashes, hash, level, sizes spot
	for d.more('}') {
		key := d.key()
		at := spot(d.i)
		switch string(key) {
		case "type":
			kind = at
		case "parent_hash":
			parent = at
		case "blocks":
			blocks = at
		case "block_hashes":
			hashes = at
		case "block_hash":
			hash = at
		case "cache_level":
			level = at
		case "num_blocks_per_cache_level":
			sizes = at
		case "lora_name":
			if !d.isNull() {
				e.LoRAName, _ = d.text()
				d.checkText(e.LoRAName)
			}
			d.i = int(at)
		case "priority":
		default:
			d.batch.Counts.UnknownFields++
		}
		d.skip()
	}
	d.i = int(kind)
	name, ok := d.text()
	if kind == 0 || !ok {
		return Unsaid, false
	}
	need := func(at spot) bool { d.i = int(at); return at != 0 }
	switch string(name) {
	case "stored":
		e.Kind = Stored
		if need(parent) && !d.isNull() {
			if e.Parent, ok = d.integer(); !ok {
				return Stored, false
			}
			e.ParentKind = ParentBlock
		} else if parent != 0 {
			e.ParentKind = ParentRoot
		}
		return Stored, need(blocks) && d.blocks(e)
	case "removed":
		e.Kind = Removed
		start := len(d.batch.hashes)
		ok := need(hashes) && d.numbers(&d.batch.hashes)
		e.Hashes = d.batch.hashes[start:len(d.batch.hashes):len(d.batch.hashes)]
		d.keep(e)
		return Removed, ok
	case "updated":
		if !need(level) || d.isNull() {
			return Created, true // a priority: nothing that we keep
		}
		e.Kind = Moved
		ok := d.levels(e) && need(hash)
		v, isNumber := d.integer()
		start := len(d.batch.hashes)
		d.batch.hashes = append(grow(d.batch.hashes, 1), v)
		e.Hashes = d.batch.hashes[start : start+1 : start+1]
		d.keep(e)
		return Moved, ok && isNumber
	case "created":
		e.Kind = Created
		ok := need(sizes) && d.numbers(&e.Capacities)
		d.keep(e)
		return Created, ok
	default:
		return numKinds, false
	}
}

func (d *jsonDecoder) keep(e *Event) { d.batch.Events = append(grow(d.batch.Events, 1), *e) }

// numbers reads a list of integers.
func (d *jsonDecoder) numbers(into *[]uint64) bool {
	if !d.enter('[') {
		return false
	}
	for d.more(']') {
		v, ok := d.integer()
		if !ok {
			return false
		}
		*into = append(grow(*into, 1), v)
	}
	return true
}

// levels reads where a block was and is: {"new_value", "old_value"}.
func (d *jsonDecoder) levels(e *Event) bool {
	if !d.enter('{') {
		return false
	}
	seen := 0
	for d.more('}') {
		key := d.key()
		at := d.i
		switch string(key) {
		case "new_value", "old_value":
			v, ok := d.integer()
			if !ok {
				return false
			}
			seen++
			if key[0] == 'n' {
				e.Medium = levelMedium(v)
			} else {
				e.From = levelMedium(v)
			}
		}
		d.i = at
		d.skip()
	}
	return seen == 2
}

func levelMedium(level uint64) Medium {
	switch level {
	case 0:
		return MediumDevice
	case 1:
		return MediumHost
	case 2:
		return MediumDisk
	default:
		return MediumUnknown
	}
}

// blocks reads a stored event's chain and keeps it in runs.
func (d *jsonDecoder) blocks(e *Event) bool {
	if !d.enter('[') {
		return false
	}
	b := d.batch
	run := *e
	hashes, tokens, extras := len(b.hashes), len(b.tokens), len(b.extras)
	flush := func() {
		if hashes == len(b.hashes) {
			return
		}
		run.Hashes = b.hashes[hashes:len(b.hashes):len(b.hashes)]
		run.Tokens = b.tokens[tokens:len(b.tokens):len(b.tokens)]
		run.Extras = b.extras[extras:len(b.extras):len(b.extras)]
		if len(run.Tokens) == 0 {
			run.ParentKind = ParentUnknown
		}
		d.keep(&run)
	}
	for d.more(']') {
		var x storedBlock
		firstToken, firstExtra := len(b.tokens), len(b.extras)
		if !d.block(&x) {
			return false
		}
		size := len(b.tokens) - firstToken
		if hashes == len(b.hashes) {
			run.BlockSize, run.Medium, run.Salt = size, x.medium, x.salt
		} else if size != run.BlockSize || x.medium != run.Medium {
			all, more := b.tokens, b.extras
			b.tokens, b.extras = b.tokens[:firstToken], b.extras[:firstExtra]
			flush()
			b.tokens, b.extras = all, more
			run = *e
			run.Parent, run.ParentKind = b.hashes[len(b.hashes)-1], ParentBlock
			run.BlockSize, run.Medium, run.Salt = size, x.medium, x.salt
			hashes, tokens, extras = len(b.hashes), firstToken, firstExtra
		}
		for i := firstExtra; i < len(b.extras); i++ {
			b.extras[i].Block = int32(len(b.hashes) - hashes)
		}
		b.hashes = append(grow(b.hashes, 1), x.hash)
	}
	flush()
	return true
}

type storedBlock struct {
	hash   uint64
	medium Medium
	salt   []byte
}

// block reads one stored block; its tokens and items go to the batch.
func (d *jsonDecoder) block(x *storedBlock) bool {
	if !d.enter('{') {
		return false
	}
	hasHash, hasTokens := false, false
	for d.more('}') {
		key := d.key()
		at := d.i
		ok := true
		switch string(key) {
		case "block_hash":
			x.hash, ok = d.integer()
			ok = ok && !hasHash
			hasHash = true
		case "tokens":
			ok = !hasTokens && d.tokens()
			hasTokens = true
		case "cache_level":
			if !d.isNull() {
				var v uint64
				v, ok = d.integer()
				x.medium = levelMedium(v)
			}
		case "cache_salt":
			if !d.isNull() {
				x.salt, ok = d.text()
				d.checkText(x.salt)
			}
		case "mm_keys":
			ok = d.isNull() || d.items()
		}
		if !ok {
			return false
		}
		d.i = at
		d.skip()
	}
	return hasHash
}

// tokens reads [{"token_id", "token_extra_id"}, ...].
func (d *jsonDecoder) tokens() bool {
	if !d.enter('[') {
		return false
	}
	for d.more(']') {
		if !d.enter('{') {
			return false
		}
		has := false
		for d.more('}') {
			key := d.key()
			at := d.i
			if string(key) == "token_id" {
				v, ok := d.integer()
				if !ok || v > math.MaxUint32 || has {
					return false
				}
				has = true
				d.batch.tokens = append(grow(d.batch.tokens, 1), uint32(v))
			}
			d.i = at
			d.skip()
		}
		if !has {
			return false
		}
	}
	return true
}

// items reads [{"hash", "start_offset"}, ...]. The offset counts the item's tokens before the block; 0 is an item that
// begins in the block, and where is not said.
func (d *jsonDecoder) items() bool {
	if !d.enter('[') {
		return false
	}
	for d.more(']') {
		x := Extra{Kind: ExtraBareItem}
		if !d.enter('{') {
			return false
		}
		for d.more('}') {
			key := d.key()
			at := d.i
			ok := true
			switch string(key) {
			case "hash":
				x.ID, ok = d.text()
				d.checkText(x.ID)
			case "start_offset":
				var v uint64
				v, ok = d.integer()
				if ok = ok && v < 1<<31; v > 0 {
					x.Kind, x.Offset = ExtraItem, -int64(v)
				}
			}
			if !ok {
				return false
			}
			d.i = at
			d.skip()
		}
		d.batch.extras = append(grow(d.batch.extras, 1), x)
	}
	return true
}

func (d *jsonDecoder) checkText(t []byte) {
	if len(t) > d.limits.TextBytes {
		d.isFull = true
	}
}
