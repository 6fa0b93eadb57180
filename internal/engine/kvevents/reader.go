package kvevents

import (
	"encoding/binary"
	"math"
)

// reader reads msgpack from a slice. A length that is claimed is never believed beyond the bytes that are there. Its
// methods return false and leave the position anywhere if the next value is not what they read; callers go back.
type reader struct {
	b []byte
	i int
}

// peek is the next value's first byte; nil's at the end, which nothing that wants a value accepts.
func (r *reader) peek() byte {
	if r.i < len(r.b) {
		return r.b[r.i]
	}
	return 0xc1 // never used by msgpack
}

// take reads n bytes.
func (r *reader) take(n int) ([]byte, bool) {
	if n < 0 || len(r.b)-r.i < n {
		return nil, false
	}
	p := r.b[r.i : r.i+n : r.i+n]
	r.i += n
	return p, true
}

// uint reads n bytes as a big-endian number.
func (r *reader) uint(n int) (uint64, bool) {
	p, ok := r.take(n)
	if !ok {
		return 0, false
	}
	switch n {
	case 1:
		return uint64(p[0]), true
	case 2:
		return uint64(binary.BigEndian.Uint16(p)), true
	case 4:
		return uint64(binary.BigEndian.Uint32(p)), true
	default:
		return binary.BigEndian.Uint64(p), true
	}
}

func (r *reader) isNil() bool {
	if r.peek() != 0xc0 {
		return false
	}
	r.i++
	return true
}

// length reads a header of one of three widths, whose elements take at least each bytes.
func (r *reader) length(fix, mask, first byte, each int) (int, bool) {
	c := r.peek()
	var n uint64
	switch {
	case c&^mask == fix:
		n = uint64(c & mask)
		r.i++
	case c == first || c == first+1:
		r.i++
		var ok bool
		if n, ok = r.uint(2 << (c - first)); !ok {
			return 0, false
		}
	default:
		return 0, false
	}
	return int(n), n <= uint64(len(r.b)-r.i)/uint64(each)
}

func (r *reader) array() (int, bool)   { return r.length(0x90, 0x0f, 0xdc, 1) }
func (r *reader) mapping() (int, bool) { return r.length(0x80, 0x0f, 0xde, 2) }

func (r *reader) isArray() bool { c := r.peek(); return c&0xf0 == 0x90 || c == 0xdc || c == 0xdd }
func (r *reader) isMap() bool   { c := r.peek(); return c&0xf0 == 0x80 || c == 0xde || c == 0xdf }
func (r *reader) isText() bool  { c := r.peek(); return c&0xe0 == 0xa0 || c >= 0xd9 && c <= 0xdb }
func (r *reader) isBin() bool   { c := r.peek(); return c >= 0xc4 && c <= 0xc6 }

// text reads a str.
func (r *reader) text() ([]byte, bool) {
	c := r.peek()
	r.i++
	switch {
	case c&0xe0 == 0xa0:
		return r.take(int(c & 0x1f))
	case c >= 0xd9 && c <= 0xdb:
		n, ok := r.uint(1 << (c - 0xd9))
		if !ok {
			return nil, false
		}
		return r.take(int(n))
	default:
		return nil, false
	}
}

// bin reads bytes.
func (r *reader) bin() ([]byte, bool) {
	c := r.peek()
	if c < 0xc4 || c > 0xc6 {
		return nil, false
	}
	r.i++
	n, ok := r.uint(1 << (c - 0xc4))
	if !ok {
		return nil, false
	}
	return r.take(int(n))
}

// integer reads an integer of any width as its two's complement.
func (r *reader) integer() (v uint64, isNegative, ok bool) {
	c := r.peek()
	r.i++
	switch {
	case c <= 0x7f:
		return uint64(c), false, true
	case c >= 0xe0:
		return uint64(int64(int8(c))), true, true
	case c >= 0xcc && c <= 0xcf:
		v, ok = r.uint(1 << (c - 0xcc))
		return v, false, ok
	case c >= 0xd0 && c <= 0xd3:
		n := 1 << (c - 0xd0)
		if v, ok = r.uint(n); !ok {
			return 0, false, false
		}
		shift := 64 - 8*n
		v = uint64(int64(v<<shift) >> shift)
		return v, int64(v) < 0, true
	default:
		return 0, false, false
	}
}

// number reads an integer or a float.
func (r *reader) number() (float64, bool) {
	switch r.peek() {
	case 0xca:
		r.i++
		v, ok := r.uint(4)
		return float64(math.Float32frombits(uint32(v))), ok
	case 0xcb:
		r.i++
		v, ok := r.uint(8)
		return math.Float64frombits(v), ok
	default:
		v, isNegative, ok := r.integer()
		if isNegative {
			return float64(int64(v)), ok
		}
		return float64(v), ok
	}
}

// skip passes over one value of any depth without recursion: owed counts the values that must still come, each of at
// least a byte.
func (r *reader) skip() bool {
	for owed := 1; owed > 0; {
		owed--
		c := r.peek()
		n, ok := 0, true
		switch {
		case r.isArray():
			n, ok = r.array()
			owed += n
		case r.isMap():
			n, ok = r.mapping()
			owed += 2 * n
		case r.isText():
			_, ok = r.text()
		case r.isBin():
			_, ok = r.bin()
		case c == 0xc1:
			ok = false
		case c == 0xca || c == 0xcb:
			_, ok = r.number()
		case c == 0xc0 || c == 0xc2 || c == 0xc3:
			r.i++
		case c >= 0xd4 && c <= 0xd8: // ext of 1 to 16 bytes, after its type
			r.i++
			_, ok = r.take(1 + 1<<(c-0xd4))
		case c >= 0xc7 && c <= 0xc9:
			r.i++
			var size uint64
			if size, ok = r.uint(1 << (c - 0xc7)); ok {
				_, ok = r.take(int(size) + 1)
			}
		default:
			_, _, ok = r.integer()
		}
		if !ok || owed > len(r.b)-r.i {
			return false
		}
	}
	return true
}
