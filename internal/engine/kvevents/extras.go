package kvevents

import "bytes"

// extraLists reads vLLM's extra_keys: for each block nil or a list of what its hash was made of besides the tokens, in the
// order adapter's name, multimodal items, salt, digest of embeddings; all but items without a tag.
func (d *decoder) extraLists() bool {
	n, ok := d.array()
	if !ok {
		return false
	}
	for block := range n {
		if d.isNil() {
			continue
		}
		m, ok := d.array()
		if !ok {
			return false
		}
		for range m {
			x := Extra{Block: int32(block)}
			isKept, ok := d.extra(&x)
			if !ok {
				return false
			}
			if !isKept {
				continue
			}
			if d.beyond(len(d.batch.extras)+1, d.limits.Extras) {
				return false
			}
			d.batch.extras = append(grow(d.batch.extras, 1), x)
		}
	}
	return true
}

// extra reads one of them. isKept is false for one that says nothing.
func (d *decoder) extra(x *Extra) (isKept, ok bool) {
	switch {
	case d.isNil():
		return false, true
	case d.isText():
		x.Kind = extraText
		x.ID, ok = d.name()
		return len(x.ID) > 0, ok
	case d.isBin():
		x.Kind = ExtraEmbeds
		_, ok = d.bin()
		return true, ok
	case d.isArray():
		n, ok := d.array()
		if !ok || n < 1 {
			return false, false
		}
		if x.ID, ok = d.name(); !ok {
			return false, false
		}
		if n == 1 {
			x.Kind = ExtraBareItem
			return true, true
		}
		ok = d.offset(x)
		for i := 2; ok && i < n; i++ {
			ok = d.skip()
		}
		return true, ok
	case d.isMap():
		return true, d.typedExtra(x)
	default:
		x.Kind = ExtraUnknown
		return true, d.skip()
	}
}

func (d *decoder) offset(x *Extra) bool {
	v, isNegative, ok := d.integer()
	x.Kind, x.Offset = ExtraItem, int64(v)
	// A distance no prompt has would overflow in sums.
	return ok && isNegative == (x.Offset < 0) && x.Offset > -1<<31 && x.Offset < 1<<31
}

// typedExtra reads a tagged map, a form that vLLM has considered.
func (d *decoder) typedExtra(x *Extra) bool {
	n, ok := d.mapping()
	if !ok {
		return false
	}
	var kind, value []byte
	hasOffset := false
	for range n {
		key, ok := d.text()
		if !ok {
			return false
		}
		switch string(key) {
		case "type":
			kind, ok = d.name()
		case "name", "salt", "hash", "value":
			if d.isText() {
				value, ok = d.name()
			} else {
				ok = d.skip()
			}
		case "block_offset":
			hasOffset, ok = true, d.offset(x)
		default:
			ok = d.skip()
		}
		if !ok {
			return false
		}
	}
	x.ID = value
	switch string(kind) {
	case "lora":
		x.Kind, x.Block, x.ID = extraText, -1, nil
	case "cache_salt":
		x.Kind, x.Offset = extraText, typedSalt
	case "legacy":
		x.Kind = extraText
	case "prompt_embeds":
		x.Kind = ExtraEmbeds
	case "mm":
		x.Kind = ExtraBareItem
		if hasOffset && len(value) > 0 {
			x.Kind = ExtraItem
		}
	default:
		x.Kind = ExtraUnknown
	}
	return true
}

// typedSalt marks a text that says it is a salt.
const typedSalt = 1 << 40

// settle says what the texts among the extras are: first in a block the adapter's name, which the event has anyway; in a
// prompt's first block the last one is the salt; any other is an item of an age that did not say where it begins. The
// extras that stay are returned.
func settle(e *Event) []Extra {
	kept := e.Extras[:0]
	for i := range e.Extras {
		x := e.Extras[i]
		if x.Kind != extraText {
			kept = append(kept, x)
			continue
		}
		isFirst := i == 0 || e.Extras[i-1].Block != x.Block
		switch {
		case x.Block < 0:
		case isFirst && x.Offset != typedSalt && len(e.LoRAName) > 0 && bytes.Equal(x.ID, e.LoRAName):
		case x.Offset == typedSalt, x.Block == 0 && e.ParentKind == ParentRoot && isLastText(e.Extras, i):
			e.Salt = x.ID
		default:
			kept = append(kept, Extra{Kind: ExtraBareItem, Block: x.Block, ID: x.ID})
		}
	}
	return kept
}

// isLastText reports whether no other text of the block follows.
func isLastText(all []Extra, i int) bool {
	for _, x := range all[i+1:] {
		if x.Block != all[i].Block {
			return true
		}
		if x.Kind == extraText {
			return false
		}
	}
	return true
}
