package kvevents

import (
	"math"
	"slices"
)

// Decode reads a msgpack payload of any engine into b, which keeps nothing of before. The error is ErrMalformed or
// ErrLimit; then b has no events.
func (b *Batch) Decode(payload []byte, l *Limits) error {
	b.reset()
	if len(payload) > l.PayloadBytes {
		return ErrLimit
	}
	d := decoder{reader: reader{b: payload}, batch: b, limits: l}
	err := d.batchOf()
	if err == nil && d.i != len(payload) {
		err = ErrMalformed
	}
	if err != nil {
		b.reset()
	}
	return err
}

// decoder is one Decode under way.
type decoder struct {
	reader

	batch  *Batch
	limits *Limits
	isFull bool // a bound was passed: nothing of this payload counts
}

// batchOf reads [time, events, rank], of which the rank may be missing and anything may follow, or a map of them.
func (d *decoder) batchOf() error {
	if d.isMap() {
		return d.batchMap()
	}
	n, ok := d.array()
	if !ok || n < 2 || !d.time() {
		return ErrMalformed
	}
	if err := d.events(); err != nil {
		return err
	}
	for i := 2; i < n; i++ {
		at := d.i
		if i == 2 && d.rank() {
			continue
		}
		d.i = at
		if !d.skip() {
			return ErrMalformed
		}
		d.batch.Counts.UnknownFields++
	}
	return nil
}

func (d *decoder) batchMap() error {
	n, ok := d.mapping()
	if !ok {
		return ErrMalformed
	}
	hasEvents := false
	for range n {
		key, ok := d.text()
		if !ok {
			return ErrMalformed
		}
		switch string(key) {
		case "ts":
			ok = d.time()
		case "events":
			if hasEvents {
				return ErrMalformed
			}
			hasEvents = true
			if err := d.events(); err != nil {
				return err
			}
		case "data_parallel_rank", "attn_dp_rank":
			ok = d.rank()
		default:
			ok = d.skip()
			d.batch.Counts.UnknownFields++
		}
		if !ok {
			return ErrMalformed
		}
	}
	if !hasEvents {
		return ErrMalformed
	}
	return nil
}

// time reads the engine's clock: seconds as any number, or milliseconds as Mooncake sends them.
func (d *decoder) time() bool {
	v, ok := d.number()
	if !ok {
		return false
	}
	const millis = 1e11 // as seconds it would be the year 5138
	if v >= millis {
		v /= 1e3
	}
	if v > 0 && v < math.MaxInt64/1e9 {
		// Apart, since together they have more digits than a float.
		seconds, rest := math.Modf(v)
		d.batch.At = int64(seconds)*1e9 + int64(rest*1e9)
	}
	return true
}

func (d *decoder) rank() bool {
	if d.isNil() {
		return true
	}
	v, isNegative, ok := d.integer()
	if !ok || isNegative || v > math.MaxInt32 {
		return false
	}
	d.batch.Rank = int(v)
	return true
}

func (d *decoder) events() error {
	n, ok := d.array()
	if !ok {
		return ErrMalformed
	}
	if n > d.limits.Events {
		return ErrLimit
	}
	const least = 18 // ["AllBlocksCleared"]
	d.batch.Events = grow(d.batch.Events, min(n, (len(d.b)-d.i)/least+1))
	for range n {
		if !d.event() {
			return ErrMalformed
		}
		if d.isFull {
			return ErrLimit
		}
	}
	return nil
}

// event reads one event and keeps it if it can. It returns false if it does not even end.
func (d *decoder) event() bool {
	b := d.batch
	hashes, tokens, extras := len(b.hashes), len(b.tokens), len(b.extras)
	p := partly{Event: Event{Rank: -1, Group: -1}}
	var ok bool
	switch {
	case d.isArray():
		ok = d.eventArray(&p)
	case d.isMap():
		ok = d.eventMap(&p)
	default:
		ok = d.skip()
		p.isBad = true
	}
	if !ok {
		return false
	}
	p.Hashes = b.hashes[hashes:len(b.hashes):len(b.hashes)]
	p.Tokens = b.tokens[tokens:len(b.tokens):len(b.tokens)]
	p.Extras = b.extras[extras:len(b.extras):len(b.extras)]
	if p.keep(b) {
		b.Events = append(b.Events, p.Event)
		return true
	}
	b.hashes, b.tokens, b.extras = b.hashes[:hashes], b.tokens[:tokens], b.extras[:extras]
	return true
}

// partly is an event on its way.
type partly struct {
	Event

	seen    uint32 // fields, by their bits
	isBad   bool   // something had a wrong type
	isOther bool   // its type is none we know
	isMap   bool
	fields  int // of an array
}

// keep says whether the event counts, after it has counted what is left out, and settles what its texts mean.
func (p *partly) keep(b *Batch) bool {
	has := func(f field) bool { return p.seen&(1<<f) != 0 }
	switch {
	case p.isOther:
		b.Counts.UnknownEvents++
		return false
	case p.Kind == Stored && !has(fieldHashes), p.Kind == Removed && !has(fieldHashes), p.Kind == Unsaid:
		p.isBad = true
	}
	if p.isBad {
		b.Counts.BadEvents++
		if p.Kind == Removed || p.Kind == Cleared || p.Kind == Unsaid {
			b.Counts.LostRemovals++
		}
		return false
	}
	if p.Kind == Stored {
		switch {
		case p.IsPool, p.ParentKind == ParentRoot && len(p.Tokens) == 0:
			// A copy told without what it is: its parent is nil because nobody looked.
			p.ParentKind = ParentUnknown
		case !has(fieldParent):
			p.ParentKind = ParentUnknown
		}
		p.Extras = settle(&p.Event)
	}
	p.sign(b)
	return true
}

// eventArray reads [tag, field, field, ...].
func (d *decoder) eventArray(p *partly) bool {
	n, ok := d.array()
	if !ok {
		return false
	}
	p.fields = n
	if n == 0 {
		p.isBad = true
		return true
	}
	at := d.i
	tag, ok := d.text()
	if !ok {
		p.isBad = true
		d.i = at
		if !d.skip() {
			return false
		}
	} else {
		p.tag(tag)
	}
	places := arrayFields(p.Kind)
	for i := 1; i < n; i++ {
		f := fieldUnknown
		if i <= len(places) {
			f = places[i-1]
		}
		if !d.fieldOf(p, f) {
			return false
		}
	}
	return true
}

// eventMap reads {"type": tag, name: value, ...} in any order.
func (d *decoder) eventMap(p *partly) bool {
	n, ok := d.mapping()
	if !ok {
		return false
	}
	p.isMap = true
	for range n {
		at := d.i
		key, ok := d.text()
		if !ok {
			p.isBad = true
			d.i = at
			if !d.skip() {
				return false
			}
			if !d.skip() {
				return false
			}
			continue
		}
		if string(key) == "type" {
			at := d.i
			tag, ok := d.text()
			if ok {
				p.tag(tag)
				continue
			}
			p.isBad = true
			d.i = at
			if !d.skip() {
				return false
			}
			continue
		}
		if !d.fieldOf(p, mapField(key)) {
			return false
		}
	}
	return true
}

func (p *partly) tag(tag []byte) {
	if p.Kind != Unsaid || p.isOther {
		p.isBad = true
		return
	}
	switch string(tag) {
	case "BlockStored":
		p.Kind = Stored
	case "BlockRemoved":
		p.Kind = Removed
	case "AllBlocksCleared":
		p.Kind = Cleared
	default:
		p.isOther = true
	}
}

// fieldOf reads one field's value, or passes over it. It returns false only if the value does not end.
func (d *decoder) fieldOf(p *partly, f field) bool {
	at := d.i
	if f == fieldUnknown {
		d.batch.Counts.UnknownFields++
		return d.skip()
	}
	if f != fieldIgnored {
		isAgain := p.seen&(1<<f) != 0
		p.seen |= 1 << f
		if !isAgain && d.read(p, f) {
			return true
		}
		p.isBad = true
		d.i = at
	}
	return d.skip()
}

// grow makes room for n more elements, at least doubling: the sum of what is allocated stays below twice the last.
func grow[T any](s []T, n int) []T {
	if cap(s)-len(s) >= n {
		return s
	}
	return slices.Grow(s, max(n, len(s)))
}
