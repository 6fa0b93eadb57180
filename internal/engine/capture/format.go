package capture

import (
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

// Bounds of a capture. They are far above what engines send, and keep a damaged file from costing memory.
const (
	// MaxRecord is the greatest number of bytes in one record, so also of a message and its bookkeeping.
	MaxRecord = 256 << 20
	// MaxSources is the greatest number of publishers in one capture.
	MaxSources = 4096
	// MaxFrames is the greatest number of frames in a message.
	MaxFrames = 64

	maxEndpoint = 1024
)

const (
	magic      = "kvoracle capture"
	version    = 1
	headerSize = len(magic) + 2 + 2 + 8 + 4
)

// Kinds of records.
const (
	kindSource  = 1
	kindMessage = 2
	kindEvent   = 3
)

var (
	// ErrNotCapture is wrapped by NewReader's errors about a file that is none, or of a later version.
	ErrNotCapture = errors.New("not a capture")
	// ErrCut is returned at the end of a capture whose last record is not whole.
	ErrCut = errors.New("the capture ends within a record; its writer was killed, or the file is not complete")
	// ErrCorrupt is wrapped by errors about a record that is damaged.
	ErrCorrupt = errors.New("damaged capture")
	// ErrRecord is wrapped by a Writer's errors about what it was given.
	ErrRecord = errors.New("bad record")
)

// EventKind is what happened to the connection to a publisher.
type EventKind uint8

// The events.
const (
	// Connected means that the publisher was there from now on.
	Connected EventKind = iota + 1
	// Disconnected means that it no longer was: what it sent until the next Connected is missing.
	Disconnected
	// Dropped means that messages came and were not written, Count of them.
	Dropped
)

// String names the event.
func (k EventKind) String() string {
	switch k {
	case Connected:
		return "connected"
	case Disconnected:
		return "disconnected"
	case Dropped:
		return "dropped"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Source is one publisher: one data-parallel rank of one engine.
type Source struct {
	// Endpoint is where it was listened to, in ZeroMQ's notation; at most 1,024 bytes.
	Endpoint string
	// Rank is its data-parallel rank.
	Rank uint32
}

// Record is one message of a source, or an event.
type Record struct {
	// At is the time since the capture's start; not negative.
	At time.Duration
	// Source is the number of a source that was added before.
	Source int
	// Frames are the message; nil: an event.
	Frames [][]byte
	// Event is what happened; 0: this is a message.
	Event EventKind
	// Count is the number of messages of a Dropped event; 0 otherwise.
	Count uint64
}

func checksum(b []byte) uint32 {
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) // the table is made once, by the library
}
