package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// Reader reads a capture.
type Reader struct {
	in      *bufio.Reader
	start   time.Time
	sources []Source
	last    time.Duration
	at      int64 // bytes read, for errors
	err     error // what reading ended with

	ahead   Record // read by NewReader to know the sources before it
	isAhead bool
}

// NewReader reads the header, and ahead as far as the first message.
func NewReader(r io.Reader) (*Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	var h [headerSize]byte
	if _, err := io.ReadFull(in, h[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: it is shorter than a header", ErrNotCapture)
		}
		return nil, err
	}
	if string(h[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: it does not begin with %q", ErrNotCapture, magic)
	}
	rest := h[len(magic):]
	if v := binary.LittleEndian.Uint16(rest); v != version {
		return nil, fmt.Errorf("%w of a version known here: got %d, want %d", ErrNotCapture, v, version)
	}
	if binary.LittleEndian.Uint32(rest[12:]) != checksum(h[:headerSize-4]) {
		return nil, fmt.Errorf("%w: its header's checksum is wrong", ErrCorrupt)
	}
	start := time.Unix(0, int64(binary.LittleEndian.Uint64(rest[4:])))
	reader := &Reader{in: in, start: start, at: int64(headerSize)}
	var err error
	reader.ahead, err = reader.Next()
	reader.isAhead = err == nil // an error stays, and is Next's to tell
	return reader, nil
}

// Start is the wall-clock time at which the capture began.
func (r *Reader) Start() time.Time { return r.start }

// Sources are the publishers named so far; Take names all of them before the first message, so that they are known from
// the beginning. The caller must not change them.
func (r *Reader) Sources() []Source { return r.sources }

// Next returns the next message or event; sources are read on the way. The record's memory is the caller's. At the end it
// returns io.EOF, ErrCut if the last record is not whole, or an error that wraps ErrCorrupt; and so forever after.
func (r *Reader) Next() (Record, error) {
	if r.isAhead {
		rec := r.ahead
		r.ahead, r.isAhead = Record{}, false
		return rec, nil
	}
	for r.err == nil {
		var body []byte
		if body, r.err = r.body(); r.err != nil {
			break
		}
		var rec Record
		var isSource bool
		if rec, isSource, r.err = r.parse(body); r.err == nil && !isSource {
			return rec, nil
		}
	}
	return Record{}, r.err
}

// body reads one record and checks it.
func (r *Reader) body() ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(r.in, head[:]); errors.Is(err, io.EOF) {
		return nil, io.EOF // between records: the end
	} else if err != nil {
		return nil, cut(err)
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size == 0 || size > MaxRecord {
		return nil, r.corrupt("record of %d bytes, want 1 to %d", size, MaxRecord)
	}
	var body []byte
	for left := int(size); left > 0; {
		// No more at once than there is already: a length that lies must not cost memory.
		step := min(left, max(64<<10, len(body)))
		at := len(body)
		body = append(make([]byte, 0, at+step), body...)[:at+step]
		if _, err := io.ReadFull(r.in, body[at:]); err != nil {
			return nil, cut(err)
		}
		left -= step
	}
	if checksum(body) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, r.corrupt("wrong checksum")
	}
	r.at += int64(len(head) + len(body))
	return body, nil
}

// parse takes a body apart. Frames lie in it.
func (r *Reader) parse(b []byte) (rec Record, isSource bool, err error) {
	kind, b := b[0], b[1:]
	if kind == kindSource {
		rank, b, ok := number(b, math.MaxUint32)
		if !ok || len(b) > maxEndpoint || len(r.sources) >= MaxSources {
			return rec, true, r.corrupt("bad source")
		}
		r.sources = append(r.sources, Source{Endpoint: string(b), Rank: uint32(rank)})
		return rec, true, nil
	}
	at, b, ok := number(b, math.MaxInt64)
	if !ok || time.Duration(at) < r.last {
		return rec, false, r.corrupt("bad time")
	}
	source, b, ok := number(b, MaxSources)
	if !ok || int(source) >= len(r.sources) {
		return rec, false, r.corrupt("unknown source")
	}
	rec.At, rec.Source, r.last = time.Duration(at), int(source), time.Duration(at)
	switch kind {
	case kindEvent:
		if len(b) == 0 || b[0] == 0 || EventKind(b[0]) > Dropped {
			return rec, false, r.corrupt("unknown event")
		}
		rec.Event = EventKind(b[0])
		rec.Count, b, ok = number(b[1:], math.MaxUint64)
		if !ok || len(b) > 0 {
			return rec, false, r.corrupt("bad count")
		}
	case kindMessage:
		var n uint64
		n, b, ok = number(b, MaxFrames)
		if !ok || n == 0 {
			return rec, false, r.corrupt("bad number of frames")
		}
		rec.Frames = make([][]byte, 0, n)
		for range n {
			var size uint64
			if size, b, ok = number(b, uint64(len(b))); !ok || size > uint64(len(b)) {
				return rec, false, r.corrupt("bad frame")
			}
			rec.Frames = append(rec.Frames, b[:size:size])
			b = b[size:]
		}
		if len(b) > 0 {
			return rec, false, r.corrupt("%d bytes after the frames", len(b))
		}
	default:
		return rec, false, r.corrupt("unknown kind %d", kind)
	}
	return rec, false, nil
}

// number takes a varint of at most the given value off the front.
func number(b []byte, most uint64) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 || v > most {
		return 0, nil, false
	}
	return v, b[n:], true
}

func (r *Reader) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: at byte %d: %s", ErrCorrupt, r.at, fmt.Sprintf(format, args...))
}

// cut is an error within a record; a compressed file that was cut says so itself.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrCut
	}
	return err
}
