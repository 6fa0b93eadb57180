package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
)

const testKeyspace = block.Keyspace(7)

// readLines reads a trace of these lines.
func readLines(t testing.TB, o ReadOptions, lines ...string) *Trace {
	t.Helper()
	tr, err := ReadTrace(strings.NewReader(strings.Join(lines, "\n")), o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// row is a line of a trace.
func row(millis float64, input, output int, hashes ...uint32) string {
	ids := strings.ReplaceAll(strings.Trim(fmt.Sprint(hashes), "[]"), " ", ",")
	return fmt.Sprintf(`{"timestamp":%v,"input_length":%d,"output_length":%d,"hash_ids":[%s]}`, millis, input, output, ids)
}

// randomTrace makes n requests, many of which go on where another one's prompt has been.
func randomTrace(t testing.TB, rnd *rand.Rand, n, blockSize, mostBlocks int) *Trace {
	t.Helper()
	lines := []string{}
	prompts := [][]uint32{nil}
	next, millis := uint32(0), 0.0
	for range n {
		old := prompts[rnd.IntN(len(prompts))]
		p := append([]uint32(nil), old[:rnd.IntN(len(old)+1)]...)
		for range 1 + rnd.IntN(max(1, mostBlocks-len(p))) {
			if len(p) < mostBlocks {
				p = append(p, next)
				next++
			}
		}
		prompts = append(prompts, p)
		millis += rnd.ExpFloat64() * 400
		lines = append(lines, row(millis, len(p)*blockSize-rnd.IntN(blockSize), 1+rnd.IntN(30), p...))
	}
	return readLines(t, ReadOptions{BlockSize: blockSize}, lines...)
}

// randomModel is small enough for memory, batch and chunk all to bind.
func randomModel(rnd *rand.Rand, blockSize, longest int) Model {
	chunk := 1 + rnd.IntN(200)
	if rnd.IntN(3) == 0 {
		chunk = 1 + rnd.IntN(12) // no more than the batch
	}
	return Model{
		PrefillPerToken:        0.001 + 0.01*rnd.Float64(),
		PrefillPerTokenContext: 1e-5 * rnd.Float64(),
		IterationFixed:         0.01 * rnd.Float64(),
		IterationBase:          0.01 + 0.05*rnd.Float64(),
		DecodePerKVToken:       1e-5 * rnd.Float64(),
		KVTokens:               longest + blockSize + rnd.IntN(4*longest),
		MaxBatch:               1 + rnd.IntN(8),
		ChunkTokens:            chunk,
	}
}

// longest is the most tokens a request of the trace takes.
func longest(tr *Trace) int {
	n := 0
	for _, r := range tr.Requests {
		n = max(n, r.Input+r.Output)
	}
	return n
}

func newTestFleet(t testing.TB, o Options) *Fleet {
	t.Helper()
	f, err := NewFleet(o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func submit(t testing.TB, f *Fleet, engine int, r *Request, at float64) *Job {
	t.Helper()
	j, err := f.Submit(engine, r, at)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// drain runs the fleet until nothing is in flight.
func drain(t testing.TB, f *Fleet) {
	t.Helper()
	for f.Unfinished() > 0 {
		at, ok := f.Next()
		if !ok {
			t.Fatalf("%d requests are stuck", f.Unfinished())
		}
		f.Advance(at)
	}
}
