package kvevents

import (
	"encoding/binary"
	"math"
	"strings"
)

// field is a field of an event.
type field uint8

const (
	fieldUnknown field = iota
	fieldIgnored       // known, and nothing we need
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRAName
	fieldExtras
	fieldGroup
	fieldGroupKind
	fieldWindow
	fieldLocality
	fieldOwnership
	fieldSalt
	fieldPool
)

// arrayFields is the order of an array's fields after the tag. Every release ends somewhere in it.
func arrayFields(k Kind) []field {
	stored := [...]field{
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium, fieldLoRAName, fieldExtras,
		fieldGroup, fieldGroupKind, fieldWindow, fieldLocality, fieldOwnership, fieldIgnored,
	}
	removed := [...]field{fieldHashes, fieldMedium, fieldGroup, fieldLocality, fieldOwnership}
	switch k {
	case Stored:
		return stored[:]
	case Removed:
		return removed[:]
	case Unsaid, Cleared, Moved, Created, numKinds:
	}
	return nil
}

// mapField is the field of a key.
func mapField(key []byte) field {
	switch string(key) {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoRAID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoRAName
	case "extra_keys":
		return fieldExtras
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldGroupKind
	case "kv_cache_spec_sliding_window":
		return fieldWindow
	case "locality":
		return fieldLocality
	case "ownership":
		return fieldOwnership
	case "cache_salt":
		return fieldSalt
	case "backend_id":
		return fieldPool
	case "session_id", "event_id", "timestamp", "event_type", "model_name", "additional_salt", "tenant_id", "group_id",
		"dp_rank", "object_key", "seq_hashes", "base_block_idx", "parent_hash":
		return fieldIgnored
	default:
		return fieldUnknown
	}
}

// read reads a field's value; false if it is of a type that it cannot be.
func (d *decoder) read(p *partly, f field) bool {
	isNil := d.peek() == 0xc0
	switch f {
	case fieldHashes:
		return d.hashList(p)
	case fieldTokens:
		return d.tokenList()
	case fieldParent:
		if p.ParentKind = ParentRoot; !isNil {
			var ok bool
			p.ParentKind = ParentBlock
			p.Parent, ok = d.hash(p)
			return ok
		}
	case fieldPool:
		p.IsPool = true
		return d.skip()
	case fieldExtras:
		if !isNil {
			return d.extraLists()
		}
	case fieldBlockSize:
		if !isNil {
			return d.count(&p.BlockSize)
		}
	case fieldGroup:
		if !isNil {
			return d.count(&p.Group)
		}
	case fieldWindow:
		if !isNil {
			return d.count(&p.Window)
		}
	case fieldLoRAID:
		if !isNil {
			v, _, ok := d.integer()
			p.LoRAID, p.HasLoRAID = int64(v), true
			return ok
		}
	case fieldLoRAName:
		if d.isMap() {
			return d.metadata(p)
		}
		fallthrough
	case fieldMedium, fieldGroupKind, fieldLocality, fieldOwnership, fieldSalt:
		if !isNil {
			return d.readText(p, f)
		}
	case fieldUnknown, fieldIgnored:
	}
	return d.skip()
}

func (d *decoder) readText(p *partly, f field) bool {
	t, ok := d.text()
	if len(t) > d.limits.TextBytes {
		d.isFull = true
	}
	switch {
	case f == fieldMedium:
		p.Medium = mediumOf(t)
	case f == fieldGroupKind:
		p.GroupKind = groupKindOf(t)
	case f == fieldLocality:
		p.IsRemote = !strings.EqualFold(string(t), "LOCAL")
	case f == fieldOwnership:
		p.IsOwned = true
	case f == fieldSalt:
		p.Salt = t
	default:
		p.LoRAName = t
	}
	return ok
}

// metadata is the map that SGLang puts behind the medium of a salted block, where vLLM has the adapter's name.
func (d *decoder) metadata(p *partly) bool {
	n, ok := d.mapping()
	if !ok {
		return false
	}
	d.batch.Signs |= signSGLang
	for range n {
		key, ok := d.text()
		if !ok {
			return false
		}
		if string(key) == "cache_salt" && d.isText() {
			if p.Salt, ok = d.name(); !ok {
				return false
			}
			continue
		}
		d.batch.Counts.UnknownFields++
		if !d.skip() {
			return false
		}
	}
	return true
}

// count reads an integer that is no larger than the protocols' own fields.
func (d *decoder) count(into *int) bool {
	v, isNegative, ok := d.integer()
	if !ok || isNegative || v > math.MaxInt32 {
		return false
	}
	*into = int(v)
	return true
}

// name reads a text that is kept.
func (d *decoder) name() ([]byte, bool) {
	t, ok := d.text()
	if len(t) > d.limits.TextBytes {
		d.isFull = true
	}
	return t, ok
}

// hash reads a name of a block; see the package comment.
func (d *decoder) hash(p *partly) (uint64, bool) {
	if !d.isBin() {
		v, isNegative, ok := d.integer()
		switch {
		case isNegative && (p.isMap || p.fields > 6):
			// vLLM's hashes were signed only before its events had a medium.
			d.batch.Signs |= signNegative
		case int64(v) < 0 && !isNegative:
			d.batch.Signs |= signVLLM
		}
		return v, ok
	}
	t, ok := d.bin()
	if !ok || len(t) == 0 || len(t) > 64 {
		return 0, false
	}
	d.batch.Signs |= signVLLM
	return lastBytes(t), true
}

// lastBytes is the number in the last eight bytes.
func lastBytes(t []byte) uint64 {
	if len(t) >= 8 {
		return binary.BigEndian.Uint64(t[len(t)-8:])
	}
	v := uint64(0)
	for _, c := range t {
		v = v<<8 | uint64(c)
	}
	return v
}

func (d *decoder) hashList(p *partly) bool {
	n, ok := d.array()
	if !ok || d.beyond(len(d.batch.hashes)+n, d.limits.Hashes) {
		return false
	}
	d.batch.hashes = grow(d.batch.hashes, n)
	for range n {
		h, ok := d.hash(p)
		if !ok {
			return false
		}
		d.batch.hashes = append(d.batch.hashes, h)
	}
	return true
}

// tokenList reads token ids, or pairs of a token and the next one, as SGLang's draft models hash them.
func (d *decoder) tokenList() bool {
	if d.isNil() {
		return true
	}
	n, ok := d.array()
	if !ok || d.beyond(len(d.batch.tokens)+n, d.limits.Tokens) {
		return false
	}
	tokens := grow(d.batch.tokens, n)
	b, i := d.b, d.i
	for range n {
		// The widths that token ids have, without a call: most of a payload is this.
		if i+3 <= len(b) {
			if c := b[i]; c <= 0x7f {
				tokens = append(tokens, uint32(c))
				i++
				continue
			} else if c == 0xcd {
				tokens = append(tokens, uint32(b[i+1])<<8|uint32(b[i+2]))
				i += 3
				continue
			} else if c == 0xce && i+5 <= len(b) {
				tokens = append(tokens, binary.BigEndian.Uint32(b[i+1:]))
				i += 5
				continue
			}
		}
		d.i = i
		t, ok := d.token()
		if !ok {
			return false
		}
		i = d.i
		tokens = append(tokens, t)
	}
	d.batch.tokens, d.i = tokens, i
	return true
}

func (d *decoder) token() (uint32, bool) {
	isPair := d.isArray()
	if isPair {
		d.batch.Signs |= signSGLang
		if n, ok := d.array(); !ok || n != 2 {
			return 0, false
		}
	}
	v, isNegative, ok := d.integer()
	if !ok || isNegative || v > math.MaxUint32 {
		return 0, false
	}
	if isPair {
		if next, isNegative, ok := d.integer(); !ok || isNegative || next > math.MaxUint32 {
			return 0, false
		}
	}
	return uint32(v), true
}

// beyond notes that a bound was passed.
func (d *decoder) beyond(n, most int) bool {
	if n > most {
		d.isFull = true
	}
	return n > most
}

func mediumOf(name []byte) Medium {
	var upper [16]byte
	if len(name) > len(upper) {
		return MediumUnknown
	}
	for i, c := range name {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	switch string(upper[:len(name)]) {
	case "GPU", "DEVICE", "HBM":
		return MediumDevice
	case "CPU", "CPU_PINNED", "CPU_TIER1", "HOST":
		return MediumHost
	case "DISK", "NVME", "SSD", "STORAGE", "FS", "CPU_TIER2":
		return MediumDisk
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED", "OBJ":
		return MediumShared
	default:
		return MediumUnknown
	}
}

func groupKindOf(name []byte) GroupKind {
	switch string(name) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return GroupFull
	case "sliding_window", "sliding_window_mla", "chunked_local_attention":
		return GroupWindow
	case "mamba":
		return GroupState
	default:
		return GroupOther
	}
}
