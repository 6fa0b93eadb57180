package snapshot

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

const (
	magic   = "KVOSNAP1"
	version = 1

	frameHead = 8       // length and checksum
	maxFrame  = 1 << 20 // of a payload
	fullFrame = maxFrame / 2
	maxRun    = 16_384 // ids; a quarter of what is left of a frame that is not full
)

// kind is the first byte of a payload.
type kind byte

const (
	kindHeader kind = iota + 1
	kindWorker
	kindRank
	kindRuns
	kindRankEnd
	kindEnd
	kindGuess
)

// Flags of a worker.
const (
	flagDraining = 1 << iota
	flagLost
)

// Flags of a rank.
const (
	flagCounted = 1 << iota
	flagEngineHashes
	flagAwaiting
	flagDoubtful
	flagGroup // the attention group follows; files of former versions do not say it

	allFlags = 1<<iota - 1
)

// Totals are what a file holds.
type Totals struct {
	Workers, Ranks int
	Blocks         int // reported by each rank, once in whatever tiers they lie
	Guessed        int // blocks guessed of each rank
}

// encoder writes one file's contents. It implements oracle.SaveSink. The first error of the writer ends it.
type encoder struct {
	w      io.Writer
	sum    uint32
	buf    []byte // frame head and payload
	totals Totals
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // a constant of the standard library's

func newEncoder(w io.Writer, fingerprint uint64, now time.Time) (*encoder, error) {
	e := &encoder{w: w}
	if _, err := io.WriteString(w, magic); err != nil {
		return nil, err
	}
	e.begin(kindHeader)
	e.uvarint(version)
	e.u64(uint64(now.UnixNano()))
	e.u64(fingerprint)
	if err := e.flush(); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *encoder) begin(k kind) {
	e.buf = append(append(e.buf[:0], make([]byte, frameHead)...), byte(k))
}

func (e *encoder) uvarint(v uint64) { e.buf = binary.AppendUvarint(e.buf, v) }
func (e *encoder) u64(v uint64)     { e.buf = binary.LittleEndian.AppendUint64(e.buf, v) }

func (e *encoder) text(s string) {
	e.uvarint(uint64(len(s)))
	e.buf = append(e.buf, s...)
}

func (e *encoder) digests(all *[fleet.NumTiers]oracle.Digest) {
	for _, d := range all {
		for _, v := range [...]uint64{d.Count, d.XOR, d.Sum, d.Copies, d.CopySum} {
			e.u64(v)
		}
	}
}

// flush writes the frame that was begun.
func (e *encoder) flush() error {
	payload := e.buf[frameHead:]
	if len(payload) > maxFrame {
		return fmt.Errorf("snapshot: a frame of %d bytes, the limit is %d", len(payload), maxFrame)
	}
	e.sum = crc32.Update(e.sum, castagnoli(), payload)
	binary.LittleEndian.PutUint32(e.buf, uint32(len(payload)))
	binary.LittleEndian.PutUint32(e.buf[4:], e.sum)
	_, err := e.w.Write(e.buf)
	return err
}

// Worker implements oracle.SaveSink.
func (e *encoder) Worker(w *oracle.SavedWorker) error {
	s := &w.Spec
	e.begin(kindWorker)
	e.text(s.Worker)
	e.text(s.Address)
	e.text(s.Model)
	e.text(s.Class)
	for _, v := range [...]int{s.BlockSize, s.DPSize, int(s.Roles), s.MaxRunning, s.MaxRequests} {
		e.uvarint(uint64(v))
	}
	for _, v := range s.Capacity {
		e.uvarint(v)
	}
	e.uvarint(uint64(len(s.Labels)))
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		e.text(k)
		e.text(s.Labels[k])
	}
	e.uvarint(w.Incarnation)
	e.buf = append(e.buf, bit(w.IsDraining, flagDraining)|bit(w.IsLost, flagLost))
	e.totals.Workers++
	return e.flush()
}

func bit(is bool, f byte) byte {
	if is {
		return f
	}
	return 0
}

// Rank implements oracle.SaveSink.
func (e *encoder) Rank(r *oracle.SavedRank, c *oracle.Contents) error {
	e.begin(kindRank)
	e.uvarint(uint64(r.Rank))
	e.uvarint(r.Incarnation)
	e.uvarint(r.Applied)
	e.buf = append(e.buf, bit(r.Counted, flagCounted)|bit(r.EngineHashes, flagEngineHashes)|
		bit(r.IsAwaiting, flagAwaiting)|bit(r.IsDoubtful, flagDoubtful)|bit(r.HasGroup, flagGroup))
	if r.HasGroup {
		e.uvarint(uint64(r.PrefixGroup))
	}
	e.digests(&c.Lost)
	e.totals.Ranks++
	e.totals.Blocks += c.Blocks()
	return e.contents(c)
}

// Guess implements oracle.SaveSink.
func (e *encoder) Guess(g *oracle.SavedGuess, c *oracle.Contents) error {
	e.begin(kindGuess)
	e.uvarint(uint64(g.Rank))
	e.buf = append(e.buf, bit(g.IsText, 1))
	e.uvarint(uint64(g.Capacity))
	e.uvarint(uint64(g.Limit))
	e.u64(math.Float64bits(g.Credit))
	e.totals.Guessed += c.Blocks()
	return e.contents(c)
}

// contents flushes the frame that was begun, and writes what a rank holds after it.
func (e *encoder) contents(c *oracle.Contents) error {
	if err := e.flush(); err != nil {
		return err
	}
	if err := e.runs(c); err != nil {
		return err
	}
	e.begin(kindRankEnd)
	e.digests(&c.Digests)
	return e.flush()
}

func (e *encoder) runs(c *oracle.Contents) error {
	var err error
	e.begin(kindRuns)
	c.Each(func(r oracle.BlockRun) bool {
		for len(r.IDs) > 0 {
			part := r
			part.IDs = r.IDs[:min(len(r.IDs), maxRun)]
			e.run(&part)
			r.Parent = oracle.BlockParent{ID: part.IDs[len(part.IDs)-1]}
			r.IDs = r.IDs[len(part.IDs):]
			if len(e.buf) > fullFrame {
				if err = e.flush(); err != nil {
					return false
				}
				e.begin(kindRuns)
			}
		}
		return true
	})
	if err == nil && len(e.buf) > frameHead+1 {
		err = e.flush()
	}
	return err
}

func (e *encoder) run(r *oracle.BlockRun) {
	e.buf = append(e.buf, bit(r.Parent.IsRoot, 1))
	if !r.Parent.IsRoot {
		e.u64(uint64(r.Parent.ID))
	}
	for _, n := range r.Copies {
		e.uvarint(uint64(n))
	}
	e.uvarint(uint64(len(r.IDs)))
	for _, id := range r.IDs {
		e.u64(uint64(id))
	}
}

// end writes the last frame.
func (e *encoder) end() error {
	e.begin(kindEnd)
	e.uvarint(uint64(e.totals.Workers))
	e.uvarint(uint64(e.totals.Ranks))
	e.uvarint(uint64(e.totals.Blocks))
	e.uvarint(uint64(e.totals.Guessed))
	return e.flush()
}
