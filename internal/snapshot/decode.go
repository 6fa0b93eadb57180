package snapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// Bounds of what is read, beyond those of a frame.
const (
	maxRanks  = 1024
	maxLabels = 4096
	maxText   = 64 << 10
	maxNumber = 1<<31 - 1
)

// ErrForeign says that a file was written by a deployment with another secret, or hashes blocks in another way.
var ErrForeign = errors.New("of another deployment: its secret differs, or its way of hashing blocks")

// header is the first frame.
type header struct {
	written     time.Time
	fingerprint uint64
}

// target takes what a file tells. The values are valid during the call.
type target interface {
	// Worker begins a worker.
	Worker(w *oracle.SavedWorker) error
	// Rank begins one of its ranks; add takes the runs.
	Rank(r *oracle.SavedRank, lost *[fleet.NumTiers]oracle.Digest) (add func(oracle.BlockRun))
	// Guess is Rank for what is guessed.
	Guess(g *oracle.SavedGuess) (add func(oracle.BlockRun))
}

// decoder reads one file's contents.
type decoder struct {
	r      *bufio.Reader
	sum    uint32
	frame  []byte // memory of payloads
	p      payload
	frames int
	ids    []block.ID
}

// decode reads a file to its end and tells to what is in it. An error names the frame and what is wrong with it; to may have
// been told a part by then.
func decode(r io.Reader, fingerprint uint64, begin func(header) target) (Totals, error) {
	d := &decoder{r: bufio.NewReaderSize(r, 256<<10)}
	t, err := d.file(fingerprint, begin)
	if err != nil {
		return t, fmt.Errorf("frame %d: %w", d.frames, err)
	}
	return t, nil
}

func (d *decoder) file(fingerprint uint64, begin func(header) target) (t Totals, err error) {
	var head [len(magic)]byte
	if _, err := io.ReadFull(d.r, head[:]); !isEnd(err) {
		return t, err
	} else if string(head[:]) != magic {
		return t, fmt.Errorf("it does not begin with %q", magic)
	}
	k, err := d.next()
	if err != nil {
		return t, err
	}
	h, err := d.header(k)
	if err != nil {
		return t, err
	}
	if h.fingerprint != fingerprint {
		return t, ErrForeign
	}
	to := begin(h)
	var w oracle.SavedWorker
	last := -1 // place among what a worker has: of each rank, what it reported, guesses, guesses of text
	for {
		if k, err = d.next(); err != nil {
			return t, err
		}
		switch k {
		case kindWorker:
			if w, err = d.worker(); err != nil {
				return t, err
			}
			t.Workers, last = t.Workers+1, -1
			if err := to.Worker(&w); err != nil {
				return t, err
			}
		case kindRank:
			r, lost, err := d.rank()
			if err != nil {
				return t, err
			}
			if last, err = after(last, 3*r.Rank, &w.Spec); err != nil {
				return t, err
			}
			t.Ranks++
			n, err := d.contents(to.Rank(&r, &lost))
			if err != nil {
				return t, fmt.Errorf("worker %q, rank %d: %w", w.Spec.Worker, r.Rank, err)
			}
			t.Blocks += n
		case kindGuess:
			g, err := d.guess()
			if err != nil {
				return t, err
			}
			at := 3*g.Rank + 1
			if g.IsText {
				at++
			}
			if last, err = after(last, at, &w.Spec); err != nil {
				return t, err
			}
			n, err := d.contents(to.Guess(&g))
			if err != nil {
				return t, fmt.Errorf("worker %q, guesses of rank %d: %w", w.Spec.Worker, g.Rank, err)
			}
			t.Guessed += n
		case kindEnd:
			return t, d.end(t)
		case kindHeader, kindRuns, kindRankEnd:
			return t, fmt.Errorf("a frame of kind %d stands where none may be", k)
		default:
			return t, fmt.Errorf("a frame of an unknown kind, %d", k)
		}
	}
}

// after says whether a place comes after the last one and within a worker's ranks.
func after(last, at int, w *fleet.Spec) (int, error) {
	if at <= last || at >= 3*w.DPSize {
		return last, fmt.Errorf("rank %d is twice there, out of order, or not one of %d", at/3, w.DPSize)
	}
	return at, nil
}

// next reads a frame and checks it.
func (d *decoder) next() (kind, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(d.r, head[:]); err != nil {
		return 0, ended(err)
	}
	d.frames++
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > maxFrame {
		return 0, fmt.Errorf("a length of %d, want 1 to %d", n, maxFrame)
	}
	if cap(d.frame) < int(n) {
		d.frame = make([]byte, max(int(n), 4096))
	}
	d.frame = d.frame[:n]
	if _, err := io.ReadFull(d.r, d.frame); err != nil {
		return 0, ended(err)
	}
	d.sum = crc32.Update(d.sum, castagnoli(), d.frame)
	if d.sum != binary.LittleEndian.Uint32(head[4:]) {
		return 0, errors.New("the checksum does not match: it is damaged, or a frame before it is missing")
	}
	d.p = payload{rest: d.frame[1:]}
	return kind(d.frame[0]), nil
}

// ended says what the end of a file means where there should be more.
func ended(err error) error {
	if isEnd(err) {
		return errors.New("it ends in the middle")
	}
	return err
}

// isEnd says whether that is all that stopped a reader, if anything did.
func isEnd(err error) bool {
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func (d *decoder) header(k kind) (h header, err error) {
	if k != kindHeader {
		return h, errors.New("no header")
	}
	if v := d.p.uvarint(); v != version {
		return h, fmt.Errorf("of version %d, want %d", v, version)
	}
	h.written = time.Unix(0, int64(d.p.u64()))
	h.fingerprint = d.p.u64()
	return h, d.p.done()
}

func (d *decoder) worker() (w oracle.SavedWorker, err error) {
	p, s := &d.p, &w.Spec
	s.Worker, s.Address, s.Model, s.Class = p.text(), p.text(), p.text(), p.text()
	s.BlockSize, s.DPSize = p.number(block.MaxSize), p.number(maxRanks)
	s.Roles = fleet.Roles(p.number(1<<8 - 1))
	s.MaxRunning, s.MaxRequests = p.number(maxNumber), p.number(maxNumber)
	for t := range s.Capacity {
		s.Capacity[t] = p.uvarint()
	}
	if n := p.number(maxLabels); n > 0 && p.err == nil {
		s.Labels = make(map[string]string)
		for range n {
			k := p.text()
			s.Labels[k] = p.text()
		}
		if len(s.Labels) != n {
			p.fail("a label stands twice")
		}
	}
	w.Incarnation = p.uvarint()
	f := p.flags(flagDraining | flagLost)
	w.IsDraining, w.IsLost = f&flagDraining != 0, f&flagLost != 0
	if s.Worker == "" || s.Model == "" || s.BlockSize == 0 || s.DPSize == 0 {
		p.fail("a worker without a name, model, block size or ranks")
	}
	return w, p.done()
}

func (d *decoder) rank() (r oracle.SavedRank, lost [fleet.NumTiers]oracle.Digest, err error) {
	p := &d.p
	r.Rank, r.Incarnation, r.Applied = p.number(maxRanks), p.uvarint(), p.uvarint()
	f := p.flags(allFlags)
	r.Counted, r.EngineHashes = f&flagCounted != 0, f&flagEngineHashes != 0
	r.IsAwaiting, r.IsDoubtful = f&flagAwaiting != 0, f&flagDoubtful != 0
	if r.HasGroup = f&flagGroup != 0; r.HasGroup {
		r.PrefixGroup = uint32(p.number(math.MaxUint32))
	}
	lost = p.digests()
	if r.Incarnation == 0 {
		p.fail("a rank without an incarnation")
	}
	return r, lost, p.done()
}

func (d *decoder) guess() (g oracle.SavedGuess, err error) {
	p := &d.p
	g.Rank, g.IsText = p.number(maxRanks), p.flags(1) != 0
	g.Capacity, g.Limit = p.number(maxNumber), p.number(maxNumber)
	g.Credit = math.Float64frombits(p.u64())
	if !(g.Credit > 0 && g.Credit <= 1) {
		p.fail("a credit that is not above 0, to 1")
	}
	return g, p.done()
}

// contents reads a rank's runs up to its end, and compares what they come to with what was written down.
func (d *decoder) contents(add func(oracle.BlockRun)) (blocks int, err error) {
	var sum [fleet.NumTiers]oracle.Digest
	for {
		k, err := d.next()
		switch {
		case err != nil:
			return blocks, err
		case k == kindRuns:
			for len(d.p.rest) > 0 && d.p.err == nil {
				r := d.run()
				if d.p.err != nil {
					break
				}
				oracle.SumUp(&sum, r)
				blocks += len(r.IDs)
				add(r)
			}
			if err := d.p.done(); err != nil {
				return blocks, err
			}
		case k == kindRankEnd:
			want := d.p.digests()
			if err := d.p.done(); err != nil {
				return blocks, err
			}
			if sum != want {
				return blocks, errors.New("its blocks do not sum up to its digests")
			}
			return blocks, nil
		default:
			return blocks, fmt.Errorf("a frame of kind %d inside a rank", k)
		}
	}
}

func (d *decoder) run() oracle.BlockRun {
	p := &d.p
	var r oracle.BlockRun
	if r.Parent.IsRoot = p.flags(1) != 0; !r.Parent.IsRoot {
		r.Parent.ID = block.ID(p.u64())
	}
	held := 0
	for t := range r.Copies {
		n := p.number(1<<16 - 1)
		r.Copies[t] = uint16(n)
		held |= n
	}
	n := p.number(maxRun)
	if held == 0 || n == 0 || 8*n > len(p.rest) {
		p.fail("a run of blocks that nobody holds, or of none, or that does not fit")
		return r
	}
	d.ids = d.ids[:0]
	for range n {
		d.ids = append(d.ids, block.ID(p.u64()))
	}
	r.IDs = d.ids
	return r
}

// end compares what was read with what was written.
func (d *decoder) end(t Totals) error {
	p := &d.p
	want := Totals{p.number(maxNumber), p.number(maxNumber), p.number(maxNumber), p.number(maxNumber)}
	if err := p.done(); err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("it holds %+v and should hold %+v", t, want)
	}
	if _, err := d.r.ReadByte(); err == nil {
		return errors.New("it goes on after its end")
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
