// Package kvops reads and writes operation files: a stream of block reports and the questions asked afterwards, so that
// indexes written in any language can be driven with the same input.
//
// # Format
//
// All integers are little-endian.
//
//	file   = "kvops/1\n" || u32 holders || record* || end
//	record = header || body
//	header = u8 kind || u8 flag || u16 n || u32 holder
//
//	kind 1, store:  flag 1: the blocks begin a prompt, 0: they follow a parent.  body = u64 parent || n * (u64 id || u64 local)
//	kind 2, remove: flag 0.                                                      body = n * (u64 id)
//	kind 3, query:  flag: which group of questions it belongs to; holder 0.      body = n * (u64 local)
//	kind 0, end:    all else 0, no body, and nothing follows.
//
// n is at least 1, holder less than holders; parent is 0 where flag is 1. A batch that is sent twice is there twice. Stores
// and removals come before the first query. Ids are chained as Dynamo does it, so that indexes which compute ids themselves
// can be among the readers: with H(x) the XXH3-64 of x with seed 1337,
//
//	id[0] = local[0]        id[i] = H(u64(id[i-1]) || u64(local[i]))
package kvops

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/kvoracle/kvoracle/internal/block"
)

const (
	magic     = "kvops/1\n"
	headerLen = 8
	// MaxHolders bounds what a reader has to keep for holders.
	MaxHolders = 1 << 20
	// MaxBlocks is the most that one record can carry.
	MaxBlocks = 1<<16 - 1
)

// Kind says what a record is.
type Kind uint8

const (
	end Kind = iota
	Store
	Remove
	Query
)

// Record is one operation or question.
type Record struct {
	Kind   Kind
	Holder int
	IsRoot bool          // Store: the blocks begin a prompt
	Parent block.ID      // Store
	IDs    []block.ID    // Store, Remove
	Locals []block.Local // Store, Query
	Group  uint8         // Query
}

// Chain appends the ids of a prompt with these local hashes, as the format has them.
func Chain(dst []block.ID, locals []block.Local) []block.ID {
	if len(locals) == 0 {
		return dst
	}
	first := block.ID(locals[0])
	return block.AppendChainAfter(append(dst, first), first, locals[1:])
}

// Writer writes a file. Its methods keep the first error, which Close returns.
type Writer struct {
	w       *bufio.Writer
	holders int
	buf     []byte
	err     error
}

// NewWriter begins a file for so many holders.
func NewWriter(w io.Writer, holders int) *Writer {
	out := &Writer{w: bufio.NewWriterSize(w, 1<<20), holders: holders}
	if holders < 1 || holders > MaxHolders {
		out.err = fmt.Errorf("kvops: %d holders, want 1 to %d", holders, MaxHolders)
	}
	out.put(binary.LittleEndian.AppendUint32([]byte(magic), uint32(holders)))
	return out
}

func (w *Writer) put(b []byte) {
	if w.err == nil {
		_, w.err = w.w.Write(b)
	}
}

// Write adds a record.
func (w *Writer) Write(r *Record) {
	n := len(r.IDs)
	if r.Kind == Query {
		n = len(r.Locals)
	}
	if w.err == nil {
		switch {
		case r.Kind < Store || r.Kind > Query:
			w.err = fmt.Errorf("kvops: no kind %d", r.Kind)
		case n < 1 || n > MaxBlocks:
			w.err = fmt.Errorf("kvops: a record of %d blocks, want 1 to %d", n, MaxBlocks)
		case r.Holder < 0 || r.Holder >= w.holders:
			w.err = fmt.Errorf("kvops: holder %d of %d", r.Holder, w.holders)
		case r.Kind == Store && len(r.Locals) != n:
			w.err = fmt.Errorf("kvops: %d ids with %d local hashes", n, len(r.Locals))
		}
	}
	if w.err != nil {
		return
	}
	flag := byte(0)
	if r.Kind == Query {
		flag = r.Group
	} else if r.Kind == Store && r.IsRoot {
		flag = 1
	}
	b := append(w.buf[:0], byte(r.Kind), flag)
	b = binary.LittleEndian.AppendUint16(b, uint16(n))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Holder))
	switch r.Kind {
	case Store:
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Parent))
		for i := range r.IDs {
			b = binary.LittleEndian.AppendUint64(b, uint64(r.IDs[i]))
			b = binary.LittleEndian.AppendUint64(b, uint64(r.Locals[i]))
		}
	case Remove:
		for _, id := range r.IDs {
			b = binary.LittleEndian.AppendUint64(b, uint64(id))
		}
	case Query:
		for _, l := range r.Locals {
			b = binary.LittleEndian.AppendUint64(b, uint64(l))
		}
	}
	w.buf = b
	w.put(b)
}

// Close ends the file; it does not close what is written to.
func (w *Writer) Close() error {
	w.put(make([]byte, headerLen))
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

// Reader reads a file.
type Reader struct {
	r       *bufio.Reader
	holders int
	buf     []byte
	queried bool
}

// NewReader begins to read.
func NewReader(r io.Reader) (*Reader, error) {
	in := &Reader{r: bufio.NewReaderSize(r, 1<<20)}
	head, err := in.take(len(magic) + 4)
	if err != nil {
		return nil, err
	}
	if string(head[:len(magic)]) != magic {
		return nil, errors.New("kvops: not an operation file")
	}
	n := binary.LittleEndian.Uint32(head[len(magic):])
	if n < 1 || n > MaxHolders {
		return nil, fmt.Errorf("kvops: %d holders, want 1 to %d", n, MaxHolders)
	}
	in.holders = int(n)
	return in, nil
}

// Holders is how many there are.
func (r *Reader) Holders() int { return r.holders }

// take gives the next n bytes, good until the next call.
func (r *Reader) take(n int) ([]byte, error) {
	if cap(r.buf) < n {
		r.buf = make([]byte, n)
	}
	b := r.buf[:n]
	if _, err := io.ReadFull(r.r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("kvops: %w", err)
	}
	return b, nil
}

// Next reads a record into rec, with slices of its own. It is io.EOF after the last one.
func (r *Reader) Next(rec *Record) error {
	h, err := r.take(headerLen)
	if err != nil {
		return err
	}
	*rec = Record{Kind: Kind(h[0]), Holder: int(binary.LittleEndian.Uint32(h[4:]))}
	flag, n := h[1], int(binary.LittleEndian.Uint16(h[2:]))
	switch {
	case rec.Kind > Query:
		return fmt.Errorf("kvops: no kind %d", rec.Kind)
	case rec.Kind == end:
		if flag != 0 || n != 0 || rec.Holder != 0 {
			return errors.New("kvops: an end with contents")
		}
		if _, err := r.r.ReadByte(); err == nil {
			return errors.New("kvops: something follows the end")
		}
		return io.EOF
	case n == 0:
		return errors.New("kvops: a record of no blocks")
	case rec.Holder >= r.holders, rec.Kind == Query && rec.Holder != 0:
		return fmt.Errorf("kvops: holder %d of %d", rec.Holder, r.holders)
	case rec.Kind == Store && flag > 1, rec.Kind == Remove && flag != 0:
		return fmt.Errorf("kvops: no flag %d", flag)
	case rec.Kind != Query && r.queried:
		return errors.New("kvops: an operation after a query")
	}
	switch rec.Kind {
	case Store:
		return r.store(rec, flag == 1, n)
	case Remove:
		b, err := r.take(8 * n)
		if err != nil {
			return err
		}
		rec.IDs = make([]block.ID, n)
		for i := range rec.IDs {
			rec.IDs[i] = block.ID(binary.LittleEndian.Uint64(b[8*i:]))
		}
	default:
		r.queried = true
		b, err := r.take(8 * n)
		if err != nil {
			return err
		}
		rec.Group = flag
		rec.Locals = make([]block.Local, n)
		for i := range rec.Locals {
			rec.Locals[i] = block.Local(binary.LittleEndian.Uint64(b[8*i:]))
		}
	}
	return nil
}

func (r *Reader) store(rec *Record, isRoot bool, n int) error {
	b, err := r.take(8 + 16*n)
	if err != nil {
		return err
	}
	rec.IsRoot, rec.Parent = isRoot, block.ID(binary.LittleEndian.Uint64(b))
	if isRoot && rec.Parent != 0 {
		return errors.New("kvops: a first block with a parent")
	}
	rec.IDs, rec.Locals = make([]block.ID, n), make([]block.Local, n)
	for i := range n {
		rec.IDs[i] = block.ID(binary.LittleEndian.Uint64(b[8+16*i:]))
		rec.Locals[i] = block.Local(binary.LittleEndian.Uint64(b[16+16*i:]))
	}
	return nil
}
