package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var began = time.Date(2026, 11, 29, 12, 0, 0, 5, time.UTC)

// record writes a capture into memory.
func record(t testing.TB, sources []Source, records []Record) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := NewWriter(&file, began)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range sources {
		if n, err := w.AddSource(s); n != i || err != nil {
			t.Fatalf("source %d: %d, %v", i, n, err)
		}
	}
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// readAll reads a capture to its end, which is returned as the error.
func readAll(b []byte) (sources []Source, records []Record, err error) {
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, nil, err
	}
	for {
		rec, err := r.Next()
		if err != nil {
			return r.Sources(), records, err
		}
		records = append(records, rec)
	}
}

// same is cmp.Equal for records, some thousand times as fast under the race detector.
func same(a, b []Record) bool {
	return slices.EqualFunc(a, b, func(a, b Record) bool {
		return a.At == b.At && a.Source == b.Source && a.Event == b.Event && a.Count == b.Count && slices.EqualFunc(a.Frames, b.Frames, bytes.Equal)
	})
}

// random is a capture of everything that can be in one.
func random(rng *rand.Rand) (sources []Source, records []Record) {
	for i := range 1 + rng.IntN(4) {
		sources = append(sources, Source{Endpoint: strings.Repeat("e", rng.IntN(50)), Rank: uint32(i)})
	}
	at := time.Duration(0)
	for range rng.IntN(20) {
		at += time.Duration(rng.Int64N(1 << rng.IntN(40)))
		r := Record{At: at, Source: rng.IntN(len(sources))}
		if rng.IntN(4) == 0 {
			r.Event = EventKind(1 + rng.IntN(3))
			r.Count = rng.Uint64() >> rng.IntN(64)
		} else {
			for range 1 + rng.IntN(5) {
				f := make([]byte, rng.IntN(1<<rng.IntN(8)))
				for i := range f {
					f[i] = byte(rng.Uint32())
				}
				r.Frames = append(r.Frames, f)
			}
		}
		records = append(records, r)
	}
	return sources, records
}

// TestWhatIsWrittenIsRead, on random captures: whole, cut anywhere, and with any one byte changed.
func TestWhatIsWrittenIsRead(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 3))
		sources, records := random(rng)
		file := record(t, sources, records)
		gotSources, got, err := readAll(file)
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if diff := cmp.Diff(sources, gotSources); diff != "" {
			t.Fatal(diff)
		}
		if diff := cmp.Diff(records, got); diff != "" {
			t.Fatal(diff)
		}

		prefix := func(got []Record) bool { return len(got) <= len(records) && same(records[:len(got)], got) }
		whole := 0
		for n := range file {
			_, got, err := readAll(file[:n])
			switch {
			case !prefix(got):
				t.Fatalf("seed %d, cut at %d: other records", seed, n)
			case n < headerSize && !errors.Is(err, ErrNotCapture), n >= headerSize && !errors.Is(err, ErrCut) && !errors.Is(err, io.EOF):
				t.Fatalf("seed %d, cut at %d: %v", seed, n, err)
			case errors.Is(err, io.EOF):
				whole++
			}
		}
		if want := len(sources) + len(records); whole != want {
			t.Errorf("seed %d: %d cuts between records, want %d", seed, whole, want)
		}
		for range 50 {
			n, bit := rng.IntN(len(file)), byte(1)<<rng.IntN(8)
			file[n] ^= bit
			_, got, err := readAll(file)
			if errors.Is(err, io.EOF) || !prefix(got) {
				t.Fatalf("seed %d: byte %d changed: %d records, %v", seed, n, len(got), err)
			}
			file[n] ^= bit
		}
	}
}

func TestStart(t *testing.T) {
	r, err := NewReader(bytes.NewReader(record(t, nil, nil)))
	if err != nil || !r.Start().Equal(began) {
		t.Errorf("start %v, %v, want %v", r.Start(), err, began)
	}
}

func TestWriterRefuses(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, began)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.AddSource(Source{Endpoint: strings.Repeat("x", 1025)}); !errors.Is(err, ErrRecord) {
		t.Errorf("long endpoint: %v", err)
	}
	if _, err := w.AddSource(Source{}); err != nil {
		t.Fatal(err)
	}
	good := Record{At: 5, Frames: [][]byte{{1}}}
	if err := w.Write(good); err != nil {
		t.Fatal(err)
	}
	for what, r := range map[string]Record{
		"before the last":   {At: 4, Frames: [][]byte{{1}}},
		"unknown source":    {At: 6, Source: 1, Frames: [][]byte{{1}}},
		"negative source":   {At: 6, Source: -1, Frames: [][]byte{{1}}},
		"neither":           {At: 6},
		"both":              {At: 6, Event: Connected, Frames: [][]byte{{1}}},
		"unknown event":     {At: 6, Event: 4},
		"too many frames":   {At: 6, Frames: make([][]byte, MaxFrames+1)},
		"too large message": {At: 6, Frames: [][]byte{make([]byte, MaxRecord)}},
	} {
		if err := w.Write(r); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, got, err := readAll(file.Bytes()); !errors.Is(err, io.EOF) || !same(got, []Record{good}) {
		t.Errorf("got %v, %v: refusals must change nothing", got, err)
	}
}

// raw is a capture with bodies of the test's own.
func raw(bodies ...string) []byte {
	var file bytes.Buffer
	w, _ := NewWriter(&file, began)
	_ = w.Flush()
	for _, b := range bodies {
		file.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(b))))
		file.Write(binary.LittleEndian.AppendUint32(nil, checksum([]byte(b))))
		file.WriteString(b)
	}
	return file.Bytes()
}

func TestReaderRefuses(t *testing.T) {
	const source = "\x01\x00tcp://h:1"
	later := record(t, nil, nil)
	later[len(magic)] = 2
	damaged := record(t, nil, nil)
	damaged[len(magic)+5] ^= 1
	for what, tt := range map[string]struct {
		file []byte
		want error
	}{
		"empty":              {nil, ErrNotCapture},
		"another file":       {[]byte(strings.Repeat("{\"a\":1}\n", 10)), ErrNotCapture},
		"a later version":    {later, ErrNotCapture},
		"a damaged header":   {damaged, ErrCorrupt},
		"empty body":         {raw(""), ErrCorrupt},
		"unknown kind":       {raw(source, "\x04\x01\x00"), ErrCorrupt},
		"a time that falls":  {raw(source, "\x03\x05\x00\x01\x00", "\x03\x04\x00\x01\x00"), ErrCorrupt},
		"unknown source":     {raw(source, "\x03\x05\x01\x01\x00"), ErrCorrupt},
		"unknown event":      {raw(source, "\x03\x05\x00\x04\x00"), ErrCorrupt},
		"no event":           {raw(source, "\x03\x05\x00"), ErrCorrupt},
		"more after event":   {raw(source, "\x03\x05\x00\x01\x00x"), ErrCorrupt},
		"no frames":          {raw(source, "\x02\x05\x00\x00"), ErrCorrupt},
		"65 frames":          {raw(source, "\x02\x05\x00\x41"+strings.Repeat("\x00", 65)), ErrCorrupt},
		"frame too long":     {raw(source, "\x02\x05\x00\x01\x02x"), ErrCorrupt},
		"more after frames":  {raw(source, "\x02\x05\x00\x01\x01xy"), ErrCorrupt},
		"rank above 32 bits": {raw("\x01\xff\xff\xff\xff\x1f"), ErrCorrupt},
		"record of 2 GiB":    {append(raw(source), 0, 0, 0, 0x80, 0, 0, 0, 0), ErrCorrupt},
	} {
		if _, got, err := readAll(tt.file); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, %v, want %v", what, got, err, tt.want)
		}
	}
}

// TestReaderAllocatesWhatIsThere, not what a length claims.
func TestReaderAllocatesWhatIsThere(t *testing.T) {
	for _, size := range []int{0, 70_000, 3_000_000} {
		file := append(record(t, nil, nil), 0, 0, 0, 0x10, 0, 0, 0, 0) // 256 MiB
		file = append(file, make([]byte, size)...)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		_, _, err := readAll(file)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrCut) {
			t.Fatal(err)
		}
		if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(4*size+256<<10); got > limit {
			t.Errorf("%d of 256 MiB: allocated %d, want at most %d", size, got, limit)
		}
	}
}

// FuzzReader reads anything; what it makes of it can be written and read again.
func FuzzReader(f *testing.F) {
	sources, records := random(rand.New(rand.NewPCG(1, 2)))
	f.Add(record(f, sources, records))
	f.Add(raw("\x01\x00x", "\x02\x05\x00\x02\x01x\x00", "\x03\x05\x00\x03\x07"))
	f.Fuzz(func(t *testing.T, b []byte) {
		sources, records, _ := readAll(b)
		if len(sources) == 0 {
			return
		}
		gotSources, got, err := readAll(record(t, sources, records))
		if !errors.Is(err, io.EOF) || !slices.Equal(sources, gotSources) || !same(records, got) {
			t.Errorf("%v, %v, %v, want %v, %v", gotSources, got, err, sources, records)
		}
	})
}
