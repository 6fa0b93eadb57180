package sim

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// zip compresses text as a trace file may be.
func zip(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestReadTraceReadsAllFields(t *testing.T) {
	const file = `
{"timestamp": 1000, "input_length": 513, "output_length": 2, "hash_ids": [18446744073709551615, 5], "session_id": "a", "delay": 250, "model": {"x": [1]}}

{"hash_ids":[5],"timestamp":400.5,"input_length":512,"output_length":1}
{"timestamp":1000,"input_length":1,"output_length":9,"hash_ids":[0],"session_id":"a"}`
	for name, in := range map[string]io.Reader{"plain": strings.NewReader(file), "gzip": strings.NewReader(zip(t, file))} {
		tr, err := ReadTrace(in, ReadOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		type flat struct {
			Index, Input, Output int
			Arrival, Delay       float64
			Session              string
			Hashes               []uint32
		}
		var got []flat
		for _, r := range tr.Requests {
			got = append(got, flat{r.Index, r.Input, r.Output, r.Arrival, r.Delay, r.Session, r.hashes})
		}
		want := []flat{
			{0, 512, 1, 0, 0, "", []uint32{1}},
			{1, 513, 2, 0.5995, 0.25, "a", []uint32{0, 1}},
			{2, 1, 9, 0.5995, 0, "a", []uint32{2}},
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if tr.BlockSize != 512 {
			t.Errorf("%s: block size %d", name, tr.BlockSize)
		}
	}
}

func TestReadTraceTakesTheLastOfRepeatedFields(t *testing.T) {
	const line = `{"timestamp":0,"input_length":9,"hash_ids":[7,8],"output_length":1,"hash_ids":[9],"input_length":2}`
	if r := readLines(t, ReadOptions{}, line).Requests[0]; r.Input != 2 || len(r.hashes) != 1 {
		t.Errorf("input %d, %d hashes", r.Input, len(r.hashes))
	}
}

func TestReadTraceNamesLineAndField(t *testing.T) {
	good := row(0, 1, 1, 0)
	for _, tt := range []struct{ line, want string }{
		{`{"input_length":1,"output_length":1,"hash_ids":[0]}`, "line 2: timestamp: missing"},
		{`{"timestamp":0,"output_length":1,"hash_ids":[0]}`, "line 2: input_length: missing"},
		{`{"timestamp":0,"input_length":1,"hash_ids":[0]}`, "line 2: output_length: missing"},
		{`{"timestamp":0,"input_length":1,"output_length":1}`, "line 2: hash_ids: got 0 ids, want 1"},
		{`{"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[0]}`, "line 2: timestamp: got -1, want 0 to"},
		{`{"timestamp":1e14,"input_length":1,"output_length":1,"hash_ids":[0]}`, "line 2: timestamp: got 1e+14, want"},
		{`{"timestamp":"0","input_length":1,"output_length":1,"hash_ids":[0]}`, "line 2: timestamp: got string, want float64"},
		{`{"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[]}`, "line 2: input_length: got 0, want 1 to 4194304"},
		{`{"timestamp":0,"input_length":4194305,"output_length":1,"hash_ids":[0]}`, "line 2: input_length: got 4194305, want"},
		{`{"timestamp":0,"input_length":1.5,"output_length":1,"hash_ids":[0]}`, "line 2: input_length: got number 1.5, want int"},
		{`{"timestamp":0,"input_length":1,"output_length":0,"hash_ids":[0]}`, "line 2: output_length: got 0, want 1 to 1048576"},
		{`{"timestamp":0,"input_length":1,"output_length":1048577,"hash_ids":[0]}`, "line 2: output_length: got 1048577, want"},
		{`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0,1]}`, "line 2: hash_ids: got 2 ids, want 1 for 1 tokens"},
		{`{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[0]}`, "line 2: hash_ids: got 1 ids, want 2 for 513"},
		{`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[-1]}`, "line 2: hash_ids: want an array"},
		{`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[null]}`, "line 2: hash_ids: want an array"},
		{`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1.0]}`, "line 2: hash_ids: want an array"},
		{`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[[1]]}`, "line 2: hash_ids: want an array"},
		{`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":"1"}`, "line 2: hash_ids: want an array"},
		{`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[18446744073709551616]}`, "line 2: hash_ids: want an array"},
		{`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[99999999999999999999]}`, "line 2: hash_ids: want an array"},
		{`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0],"delay":-5}`, "line 2: delay: got -5, want 0 to"},
		{`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0],"session_id":7}`, "line 2: session_id: got number, want string"},
		{
			`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0],"session_id":"` + strings.Repeat("x", 257) + `"}`,
			"line 2: session_id: got 257 bytes, want at most 256",
		},
		{`{"timestamp":0`, "line 2: unexpected end of JSON input"},
		{good + good, "line 2: invalid character"},
		{`null`, "line 2: timestamp: missing"},
		{strings.Repeat(" ", MaxLineBytes), "line 2: want less than 8388608 bytes"},
	} {
		_, err := ReadTrace(strings.NewReader(good+"\n"+tt.line+"\n"), ReadOptions{})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.100s: got %v, want %q", tt.line, err, tt.want)
		}
	}
}

func TestReadTraceRefusesBrokenFiles(t *testing.T) {
	zipped := zip(t, row(0, 1, 1, 0))
	for name, in := range map[string]string{
		"empty": "", "blank": "\n \n", "cut gzip": zipped[:len(zipped)-6], "no gzip": "\x1f\x8b..........",
	} {
		if tr, err := ReadTrace(strings.NewReader(in), ReadOptions{}); err == nil {
			t.Errorf("%s: got %d requests", name, len(tr.Requests))
		}
	}
	want := errors.New("disk on fire")
	if _, err := ReadTrace(io.MultiReader(strings.NewReader(row(0, 1, 1, 0)+"\n"), errorReader{want}), ReadOptions{}); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	for _, o := range []ReadOptions{
		{BlockSize: -1}, {BlockSize: 65537}, {First: -1}, {First: MaxRequests + 1}, {Spread: -1}, {Spread: math.NaN()}, {Spread: math.Inf(1)},
	} {
		if _, err := ReadTrace(strings.NewReader(row(0, 1, 1, 0)), o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

func TestReadTraceBoundsDifferentHashes(t *testing.T) {
	// At 65,536 tokens a block, 65,536 hashes use up all token ids.
	var b strings.Builder
	for i := range uint32(1 << 16) {
		b.WriteString(row(0, 1, 1, i) + "\n")
	}
	o := ReadOptions{BlockSize: 1 << 16}
	if _, err := ReadTrace(strings.NewReader(b.String()), o); err != nil {
		t.Fatal(err)
	}
	b.WriteString(row(0, 1, 1, 1<<16))
	if _, err := ReadTrace(strings.NewReader(b.String()), o); err == nil || !strings.Contains(err.Error(), "line 65537: hash_ids") {
		t.Errorf("got %v", err)
	}
}

func TestReadTraceBoundsTotals(t *testing.T) {
	for want, change := range map[string]func(*parser){
		"more than 1048576 requests": func(p *parser) { p.requests = make([]*Request, MaxRequests) },
		"hash_ids: got more than":    func(p *parser) { p.hashes = MaxHashes },
	} {
		p, err := newParser(ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(p)
		if err := p.add([]byte(row(0, 1, 1, 0))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestReadTraceFirstStopsReading(t *testing.T) {
	in := io.MultiReader(strings.NewReader(row(0, 1, 1, 0)+"\n"+row(0, 1, 1, 0)+"\n"), errorReader{errors.New("read too far")})
	tr, err := ReadTrace(in, ReadOptions{First: 2})
	if err != nil || len(tr.Requests) != 2 {
		t.Errorf("got %v, %v", tr, err)
	}
}

func TestReadTraceSpread(t *testing.T) {
	var lines []string
	for i := range 300 {
		lines = append(lines, row(float64(i/100)*3000, 1, 1, uint32(i)))
	}
	lines = append(lines, row(6010, 1, 1, 300)) // 10 ms after the last hundred
	read := func(lines []string, spread float64) (at []float64) {
		for i, r := range readLines(t, ReadOptions{Spread: spread}, lines...).Requests {
			if r.hashes[0] != uint32(i) {
				t.Fatal("order changed")
			}
			at = append(at, r.Arrival)
		}
		return at
	}
	at := read(lines, 3)
	if !slices.IsSorted(at) {
		t.Error("not in order of arrival")
	}
	for i := range 300 {
		begin := float64(i/100) * 3
		end := begin + 3
		if i >= 200 {
			end = 6.010
		}
		if at[i] < begin || at[i] > end {
			t.Errorf("request %d at %v, want %v to %v", i, at[i], begin, end)
		}
	}
	if span := at[99] - at[0]; span < 2 {
		t.Errorf("100 requests spread over %v s only", span)
	}
	if d := cmp.Diff(at, read(lines, 3)); d != "" {
		t.Errorf("not the same again:\n%s", d)
	}
	if d := cmp.Diff(at[:200], read(lines[:200], 3)); d != "" {
		t.Errorf("a cut changes what is left:\n%s", d)
	}
	if at := read(lines, 0); at[0] != 0 || at[99] != 0 || at[100] != 3 {
		t.Error("spread without being asked")
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(row(0, 1, 1, 0)), uint16(512), uint8(0))
	f.Add([]byte(row(5, 40, 3, 0, 1, 2)+"\n"+row(5, 33, 3, 0, 1, 7)), uint16(16), uint8(3))
	f.Add([]byte(`{"timestamp":1e3,"session_id":"s","delay":1,"input_length":1,"output_length":1,"hash_ids":[ 1 ]}`), uint16(0), uint8(1))
	f.Add([]byte(`{"timestamp":0,"token_ids":[1,2,3],"output_length":3}`), uint16(2), uint8(0))
	f.Add([]byte(`{"timestamp":1e3,"messages":[{"role":"user","content":"hello"}],"max_tokens":3,"block_size":2}`), uint16(0), uint8(0))
	f.Add([]byte(`{"timestamp":0,"prompt":"text","output_length":1}`+"\n\n"), uint16(0), uint8(0))
	f.Add([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00"), uint16(1), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, blockSize uint16, spread uint8) {
		tr, err := ReadTrace(bytes.NewReader(data), ReadOptions{BlockSize: int(blockSize), Spread: float64(spread)})
		if err != nil {
			return
		}
		var again strings.Builder
		last := 0.0
		for i, r := range tr.Requests {
			if r.Index != i || r.Arrival < last || r.Arrival > maxSeconds+float64(spread) || r.Input < 1 || r.Output < 1 || r.Delay < 0 {
				t.Fatalf("request %d: %+v", i, r)
			}
			last = r.Arrival
			if r.Input <= 1<<14 {
				if n := len(r.AppendTokens(nil)); n != r.Input {
					t.Fatalf("request %d: %d tokens, want %d", i, n, r.Input)
				}
			}
			fmt.Fprintln(&again, row(float64(i), r.Input, r.Output, r.hashes...))
		}
		back, err := ReadTrace(strings.NewReader(again.String()), ReadOptions{BlockSize: tr.BlockSize})
		if err != nil || len(back.Requests) != len(tr.Requests) {
			t.Fatalf("written and read again: %v", err)
		}
	})
}
