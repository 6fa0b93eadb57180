package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// piece is a message or a command.
type piece struct {
	Message [][]byte
	Command []byte
}

// twin is the frame reader written the naive way: over the whole stream, a frame at a time, without a thought of memory. It
// returns what comes before the first fault and whether the fault is the peer's, or the stream's end: a good one or not.
func twin(b []byte, c *Config) (all []piece, err error) {
	var frames [][]byte
	total := 0
	for {
		if len(b) == 0 {
			if len(frames) > 0 {
				return all, io.ErrUnexpectedEOF
			}
			return all, io.EOF
		}
		flags := b[0]
		if flags > 7 || flags&5 == 5 {
			return all, errProtocol
		}
		var n uint64
		if flags&2 == 0 {
			if len(b) < 2 {
				return all, io.ErrUnexpectedEOF
			}
			n, b = uint64(b[1]), b[2:]
		} else {
			if len(b) < 9 {
				return all, io.ErrUnexpectedEOF
			}
			n, b = binary.BigEndian.Uint64(b[1:]), b[9:]
		}
		if flags&4 != 0 {
			if n > maxCommand {
				return all, errProtocol
			}
		} else if len(frames) == c.MaxFrames || n > uint64(c.MaxFrame) || uint64(total)+n > uint64(c.MaxMessage) {
			return all, errProtocol
		}
		if uint64(len(b)) < n {
			return all, io.ErrUnexpectedEOF
		}
		body := b[:n]
		b = b[n:]
		if flags&4 != 0 {
			all = append(all, piece{Command: body})
			continue
		}
		frames = append(frames, body)
		total += len(body)
		if flags&1 == 0 {
			all = append(all, piece{Message: frames})
			frames, total = nil, 0
		}
	}
}

// readAll is what the frame reader makes of a stream.
func readAll(r io.Reader, c *Config) (all []piece, err error) {
	fr := newFrameReader(r, c)
	for {
		m, size, command, err := fr.next()
		if err != nil {
			return all, err
		}
		if command != nil {
			all = append(all, piece{Command: bytes.Clone(command)})
			continue
		}
		for _, f := range m {
			size -= len(f)
		}
		if size != 0 {
			return all, errors.New("size is not that of the frames")
		}
		all = append(all, piece{Message: m})
	}
}

// crumbs returns a stream in pieces of random size.
type crumbs struct {
	r   io.Reader
	rng *rand.Rand
}

func (c crumbs) Read(p []byte) (int, error) {
	return c.r.Read(p[:min(len(p), 1+c.rng.IntN(1+c.rng.IntN(5000)))])
}

func sameAsTwin(t *testing.T, stream []byte, r io.Reader, c *Config) {
	t.Helper()
	want, wantErr := twin(stream, c)
	got, gotErr := readAll(r, c)
	if !errors.Is(gotErr, wantErr) {
		t.Fatalf("ends with %v, want %v", gotErr, wantErr)
	}
	if len(got) != len(want) {
		t.Fatalf("%d pieces, want %d", len(got), len(want))
	}
	for i := range got {
		if (got[i].Command == nil) != (want[i].Command == nil) || !bytes.Equal(got[i].Command, want[i].Command) ||
			len(got[i].Message) != len(want[i].Message) {
			t.Fatalf("piece %d: got %v, want %v", i, got[i], want[i])
		}
		for j, f := range got[i].Message {
			if !bytes.Equal(f, want[i].Message[j]) {
				t.Fatalf("piece %d, frame %d of %d differs", i, j, len(got[i].Message))
			}
		}
	}
}

// TestFramesEqualTwin sends random messages and commands, often with a fault or a cut, in random crumbs.
func TestFramesEqualTwin(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 7))
		cfg := Config{MaxMessage: 300_000, MaxFrame: 200_000, MaxFrames: 5}
		var b []byte
		for range rng.IntN(12) {
			if rng.IntN(4) == 0 {
				b = append(b, encodeCommand("PING", make([]byte, rng.IntN(300)))...)
				continue
			}
			for k, more := 0, true; more; k++ {
				size := []int{0, rng.IntN(10), 250 + rng.IntN(10), rng.IntN(3000), rng.IntN(150_000)}[rng.IntN(5)]
				body := make([]byte, size)
				for i := 0; i < len(body); i += 1 + rng.IntN(100) {
					body[i] = byte(rng.Uint32())
				}
				more = rng.IntN(3) > 0 && k < 5
				flags := byte(0)
				if more {
					flags = flagMore
				}
				if more && rng.IntN(10) == 0 {
					body, flags = []byte{4, 'P', 'O', 'N', 'G'}, flagCommand // between frames
				}
				b = appendFrame(b, flags, body)
			}
		}
		if len(b) > 0 && rng.IntN(3) == 0 {
			b[rng.IntN(len(b))] ^= byte(1 << rng.IntN(8))
		}
		if rng.IntN(3) == 0 {
			b = b[:rng.IntN(len(b)+1)]
		}
		sameAsTwin(t, b, crumbs{bytes.NewReader(b), rng}, &cfg)
	}
}

// FuzzFrames compares the frame reader with its twin on anything.
func FuzzFrames(f *testing.F) {
	f.Add(encodeMessage([][]byte{[]byte("kv"), make([]byte, 8), make([]byte, 300)}))
	f.Add(append(encodePing(1), 1, 0, 4, 5, 4, 'P', 'O', 'N', 'G', 0, 0))
	f.Add([]byte{2, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		cfg := Config{MaxMessage: 4000, MaxFrame: 3000, MaxFrames: 4}
		sameAsTwin(t, b, bytes.NewReader(b), &cfg)
	})
}

// TestAllocationFollowsBytes proves that a header allocates nothing: memory is at most 4 times what has come, and the
// reader's buffers.
func TestAllocationFollowsBytes(t *testing.T) {
	const buffers = readBuffer + 2*largeFrames + 4096
	for _, size := range []int{0, 100, 65_000, 200_000, 1_000_000, 9_000_000} {
		stream := append(binary.BigEndian.AppendUint64([]byte{flagLong}, 3<<30), make([]byte, size)...)
		cfg := Config{MaxMessage: math.MaxInt, MaxFrame: math.MaxInt, MaxFrames: 3}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		_, err := readAll(bytes.NewReader(stream), &cfg)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(4*size+buffers); got > limit {
			t.Errorf("%d bytes of an announced 3 GiB: %d allocated, want at most %d", size, got, limit)
		}
	}
}

// TestFramesAreTheReceivers proves that nothing is shared: frames of a small message can be kept, changed and appended to.
func TestFramesAreTheReceivers(t *testing.T) {
	stream := encodeMessage([][]byte{{1}, {2}, {3}})
	got, err := readAll(bytes.NewReader(append(stream, encodeMessage([][]byte{{4}, {5}})...)), &Config{MaxMessage: 9, MaxFrame: 9, MaxFrames: 9})
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	first := got[0].Message
	_ = append(first[0], 9)
	_ = append(first[1], 9)
	if diff := cmp.Diff([]piece{{Message: [][]byte{{1}, {2}, {3}}}, {Message: [][]byte{{4}, {5}}}}, got); diff != "" {
		t.Error(diff)
	}
}
