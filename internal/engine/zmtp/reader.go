package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"slices"
)

const (
	// readBuffer is what one read of a connection asks for.
	readBuffer = 32 << 10
	// largeFrames and more bytes in a message are read into the memory that is delivered; less is collected in a buffer of
	// the reader and copied once its size is known, which costs one exact allocation instead of one a frame.
	largeFrames = 64 << 10
)

// frameReader cuts a stream into messages and commands. It allocates in proportion to what has come, not to what a header
// announces: memory for a frame doubles as it fills.
type frameReader struct {
	in        *bufio.Reader
	maxBytes  int // of a message
	maxFrame  int
	maxFrames int

	body []byte // frames of the message begun
	ends []int  // where each of them ends in body
	cmd  []byte // the last command
}

func newFrameReader(r io.Reader, c *Config) *frameReader {
	return &frameReader{
		in: bufio.NewReaderSize(r, readBuffer), maxBytes: c.MaxMessage, maxFrame: c.MaxFrame, maxFrames: c.MaxFrames,
		cmd: make([]byte, 0, 64), // an empty command is one, too, and not nil
	}
}

// greeting reads the peer's greeting and returns its minor version.
func (r *frameReader) greeting() (minor byte, err error) {
	first, err := r.in.Peek(1)
	if err != nil {
		return 0, err
	}
	if err := checkSignature(first[0]); err != nil {
		return 0, err
	}
	var g [greetingSize]byte
	if _, err := io.ReadFull(r.in, g[:]); err != nil {
		return 0, err
	}
	return parseGreeting(&g)
}

// next returns the next message, or the next command's body, which is good until the next call. Commands may lie between
// the frames of a message: libzmq sends its heartbeats there.
func (r *frameReader) next() (message [][]byte, size int, command []byte, err error) {
	for {
		flags, n, err := r.header()
		if err != nil {
			return nil, 0, nil, err
		}
		if flags&flagCommand != 0 {
			if n > maxCommand {
				return nil, 0, nil, violation("command of %d bytes, want at most %d", n, maxCommand)
			}
			r.cmd = slices.Grow(r.cmd[:0], int(n))[:n]
			if err := r.full(r.cmd); err != nil {
				return nil, 0, nil, err
			}
			return nil, 0, r.cmd, nil
		}
		if err := r.frame(n); err != nil {
			return nil, 0, nil, err
		}
		if flags&flagMore == 0 {
			message, size := r.take()
			return message, size, nil, nil
		}
	}
}

// header reads flags and length of a frame. io.EOF is returned only between messages.
func (r *frameReader) header() (flags byte, n uint64, err error) {
	flags, err = r.in.ReadByte()
	if err != nil {
		if len(r.ends) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, 0, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&(flagMore|flagCommand) == flagMore|flagCommand {
		return 0, 0, violation("frame flags %#x", flags)
	}
	if flags&flagLong == 0 {
		size, err := r.in.ReadByte()
		return flags, uint64(size), cut(err)
	}
	size, err := r.in.Peek(8)
	if err != nil {
		return 0, 0, cut(err)
	}
	n = binary.BigEndian.Uint64(size)
	_, err = r.in.Discard(8)
	return flags, n, cut(err)
}

// frame adds a frame's body to the message begun.
func (r *frameReader) frame(n uint64) error {
	if len(r.ends) >= r.maxFrames {
		return violation("message of more than %d frames", r.maxFrames)
	}
	if n > uint64(r.maxFrame) {
		return violation("frame of %d bytes, want at most %d", n, r.maxFrame)
	}
	if n > uint64(r.maxBytes-len(r.body)) {
		return violation("message of more than %d bytes", r.maxBytes)
	}
	for left := int(n); left > 0; {
		// No more at once than there is already, so that the announcement alone allocates nothing.
		step := min(left, max(largeFrames, len(r.body)))
		at := len(r.body)
		if need := at + step; need > cap(r.body) {
			// Not append, which would reserve up to a quarter more.
			r.body = append(make([]byte, 0, max(need, min(2*cap(r.body), largeFrames))), r.body...)
		}
		r.body = r.body[:at+step]
		if err := r.full(r.body[at:]); err != nil {
			return err
		}
		left -= step
	}
	r.ends = append(r.ends, len(r.body))
	return nil
}

// take ends a message and returns its frames.
func (r *frameReader) take() (message [][]byte, size int) {
	body := r.body
	if len(body) > largeFrames {
		r.body = nil
	} else {
		body = append(make([]byte, 0, len(body)), body...)
		r.body = r.body[:0]
	}
	message = make([][]byte, len(r.ends))
	at := 0
	for i, end := range r.ends {
		message[i] = body[at:end:end]
		at = end
	}
	r.ends = r.ends[:0]
	return message, len(body)
}

func (r *frameReader) full(b []byte) error {
	_, err := io.ReadFull(r.in, b)
	return cut(err)
}

// cut is an error within a frame: there the end is never a good one.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
