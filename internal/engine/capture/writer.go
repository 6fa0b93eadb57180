package capture

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// keepBody is how much room for a record is kept for the next one.
const keepBody = 1 << 20

// Writer writes a capture. After an error of the file's every call fails with it; an ErrRecord changes nothing.
type Writer struct {
	out     *bufio.Writer
	sources int
	last    time.Duration
	body    []byte
	err     error // of the file
}

// NewWriter begins a capture that started at the given time.
func NewWriter(w io.Writer, start time.Time) (*Writer, error) {
	out := bufio.NewWriterSize(w, 64<<10)
	h := append(make([]byte, 0, headerSize), magic...)
	h = binary.LittleEndian.AppendUint16(h, version)
	h = binary.LittleEndian.AppendUint16(h, 0)
	h = binary.LittleEndian.AppendUint64(h, uint64(start.UnixNano()))
	h = binary.LittleEndian.AppendUint32(h, checksum(h))
	if _, err := out.Write(h); err != nil {
		return nil, err
	}
	return &Writer{out: out}, nil
}

// AddSource names a publisher and returns its number.
func (w *Writer) AddSource(s Source) (int, error) {
	if w.sources >= MaxSources {
		return 0, fmt.Errorf("%w: source %d, want at most %d", ErrRecord, w.sources+1, MaxSources)
	}
	if len(s.Endpoint) > maxEndpoint {
		return 0, fmt.Errorf("%w: endpoint of %d bytes, want at most %d", ErrRecord, len(s.Endpoint), maxEndpoint)
	}
	w.body = append(w.body[:0], kindSource)
	w.body = binary.AppendUvarint(w.body, uint64(s.Rank))
	w.body = append(w.body, s.Endpoint...)
	w.sources++
	return w.sources - 1, w.record()
}

// Write adds a record. Its time is not allowed to be before that of the record before.
func (w *Writer) Write(r Record) error {
	switch {
	case r.At < w.last:
		return fmt.Errorf("%w: time %v after %v", ErrRecord, r.At, w.last)
	case r.Source < 0 || r.Source >= w.sources:
		return fmt.Errorf("%w: source %d of %d", ErrRecord, r.Source, w.sources)
	case r.Event > Dropped:
		return fmt.Errorf("%w: event %d", ErrRecord, r.Event)
	case (r.Event == 0) == (len(r.Frames) == 0):
		return fmt.Errorf("%w: event %d and %d frames, want one or the other", ErrRecord, r.Event, len(r.Frames))
	case len(r.Frames) > MaxFrames:
		return fmt.Errorf("%w: %d frames, want at most %d", ErrRecord, len(r.Frames), MaxFrames)
	}
	room := len(r.Frames) * binary.MaxVarintLen64
	for _, f := range r.Frames {
		room += len(f)
	}
	if room > MaxRecord-64 {
		return fmt.Errorf("%w: message of about %d bytes, want at most %d", ErrRecord, room, MaxRecord-64)
	}
	w.last = r.At
	if r.Event != 0 {
		w.begin(kindEvent, r)
		w.body = append(w.body, byte(r.Event))
		w.body = binary.AppendUvarint(w.body, r.Count)
		return w.record()
	}
	w.begin(kindMessage, r)
	w.body = binary.AppendUvarint(w.body, uint64(len(r.Frames)))
	for _, f := range r.Frames {
		w.body = binary.AppendUvarint(w.body, uint64(len(f)))
		w.body = append(w.body, f...)
	}
	return w.record()
}

// begin begins a record with what all but sources have in common.
func (w *Writer) begin(kind byte, r Record) {
	w.body = append(w.body[:0], kind)
	w.body = binary.AppendUvarint(w.body, uint64(r.At))
	w.body = binary.AppendUvarint(w.body, uint64(r.Source))
}

// record writes what is in body.
func (w *Writer) record() error {
	var head [8]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(w.body)))
	binary.LittleEndian.PutUint32(head[4:], checksum(w.body))
	if w.err == nil {
		_, w.err = w.out.Write(head[:])
	}
	if w.err == nil {
		_, w.err = w.out.Write(w.body)
	}
	if cap(w.body) > keepBody {
		w.body = nil // one large message is no reason to hold its room for good
	}
	return w.err
}

// Flush hands everything to the file.
func (w *Writer) Flush() error {
	if w.err == nil {
		w.err = w.out.Flush()
	}
	return w.err
}
