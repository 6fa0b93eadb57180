package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
)

// diary writes down everything that is reported, with names for blocks.
type diary struct {
	names map[block.ID]string
	lines []string
}

func (d *diary) add(t float64, format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf("%v ", t)+fmt.Sprintf(format, args...))
}

func (d *diary) list(ids []block.ID) string {
	var b []string
	for _, id := range ids {
		b = append(b, d.names[id])
	}
	return strings.Join(b, " ")
}

func (d *diary) Stored(t float64, parent block.ID, isRoot bool, ids []block.ID) {
	after := "the start"
	if !isRoot {
		after = d.names[parent]
	}
	d.add(t, "stored %s after %s", d.list(ids), after)
}

func (d *diary) Removed(t float64, ids []block.ID) { d.add(t, "removed %s", d.list(ids)) }

func (d *diary) Load(t float64, s LoadSample) {
	d.add(t, "load %d running %d waiting %d to prefill %d/%d blocks",
		s.Running, s.Waiting, s.WaitingPrefillTokens, s.UsedBlocks, s.TotalBlocks)
}

func (d *diary) FirstToken(t float64, j *Job) {
	d.add(t, "request %d: first token, %d cached", j.Request.Index, j.Cached)
}

func (d *diary) Finished(t float64, j *Job) { d.add(t, "request %d: finished", j.Request.Index) }

// dyadic is a model whose times have no rounding errors.
func dyadic() Model {
	return Model{
		PrefillPerToken: 1.0 / 4, PrefillPerTokenContext: 1.0 / 1024, IterationFixed: 1, IterationBase: 2,
		DecodePerKVToken: 1.0 / 64, KVTokens: 64, MaxBatch: 8, ChunkTokens: 8,
	}
}

// keepDiary gives a fleet of one engine, and its diary. Engine and trace have blocks of 4 tokens; the block of the
// trace's hash 7 is called b7.
func keepDiary(t *testing.T, m Model, tr *Trace, loadEvery float64) (*Fleet, *diary) {
	d := &diary{names: map[block.ID]string{}}
	for _, r := range tr.Requests {
		for i, id := range r.Chain(testKeyspace, 4) {
			d.names[id] = fmt.Sprintf("b%d", r.hashes[i])
		}
	}
	f := newTestFleet(t, Options{
		Engines: 1, Model: m, BlockSize: 4, Keyspace: testKeyspace, Sinks: []Sink{d}, Observer: d, LoadEvery: loadEvery,
	})
	return f, d
}

func TestScheduleByHand(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4},
		row(0, 12, 3, 0, 1, 2),
		row(1000, 10, 1, 0, 1, 3),
		row(6000, 4, 2, 4),
	)
	f, d := keepDiary(t, dyadic(), tr, 0)
	for _, r := range tr.Requests {
		submit(t, f, 0, r, r.Arrival)
	}
	drain(t, f)
	want := []string{
		// 0: 8 of request 0's 12 tokens: max(2, 1 + 8/4) + 8*4/1024 = 3.03125
		"3.03125 stored b0 b1 after the start",
		// its other 4 tokens, which attend to 10 on average, and 2 of request 1, after 8 cached ones, attending to 9:
		// max(2, 1 + 6/4) + (40+18)/1024 = 2.556640625
		"5.587890625 stored b2 after b1",
		"5.587890625 request 0: first token, 0 cached",
		"5.587890625 request 1: first token, 8 cached",
		"5.587890625 request 1: finished",
		// Request 0 alone was to decode its last two tokens: 2*2 + (13+14)/64. Request 2 comes at 6 and joins after the
		// first: 2 + 13/64 = 2.203125, so at 7.791015625. Both: max(2, 1 + 5/4) + 4*2/1024 + 14/64 = 2.4765625
		"10.267578125 request 0: finished",
		"10.267578125 stored b4 after the start",
		"10.267578125 request 2: first token, 0 cached",
		// 2 + 5/64
		"12.345703125 request 2: finished",
	}
	if diff := cmp.Diff(want, d.lines); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDecodeRunByHand(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 4, 5, 0))
	f, d := keepDiary(t, dyadic(), tr, 4)
	j := submit(t, f, 0, tr.Requests[0], 0)
	var generated []int
	for at := 0.0; at <= 12; at++ {
		f.Advance(at)
		generated = append(generated, f.Generated(j))
	}
	// First token after max(2, 1 + 4/4) + 4*2/1024 = 2.0078125. Then four more by 2 + (5, 6, 7, 8)/64: at 4.0859375,
	// 6.1796875, 8.2890625 and 10.4140625.
	if want := []int{0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}; !slices.Equal(generated, want) {
		t.Errorf("generated %v, want %v", generated, want)
	}
	want := []string{
		"2.0078125 stored b0 after the start",
		"2.0078125 request 0: first token, 0 cached",
		"4 load 1 running 0 waiting 0 to prefill 2/16 blocks",
		"8 load 1 running 0 waiting 0 to prefill 2/16 blocks", // 4 + 3 tokens
		"10.4140625 request 0: finished",
		"12 load 0 running 0 waiting 0 to prefill 0/16 blocks",
	}
	if diff := cmp.Diff(want, d.lines); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestMemoryByHand(t *testing.T) {
	m := dyadic()
	m.KVTokens = 19 // four blocks, and a rest that is of no use
	tr := readLines(t, ReadOptions{BlockSize: 4},
		row(0, 8, 2, 0, 1), // each needs 3 blocks
		row(1000, 8, 4, 2, 3),
		row(2000, 8, 2, 0, 1),
		row(20000, 8, 1, 0, 1),
	)
	f, d := keepDiary(t, m, tr, 0)
	for _, r := range tr.Requests {
		submit(t, f, 0, r, r.Arrival)
	}
	drain(t, f)
	want := []string{
		"3.03125 stored b0 b1 after the start",
		"3.03125 request 0: first token, 0 cached",
		"5.171875 request 0: finished",
		// Request 1 had to wait for that, and takes the tail. It uses the whole chunk, so request 2 waits.
		"5.171875 removed b1",
		"8.203125 stored b2 b3 after the start",
		"8.203125 request 1: first token, 0 cached",
		"14.671875 request 1: finished",
		// b0 is the oldest, but request 2 uses it.
		"14.671875 removed b3",
		"16.6953125 stored b1 after b0",
		"16.6953125 request 2: first token, 4 cached",
		"18.8359375 request 2: finished",
		// Request 3's prompt is there in full. Its last token is computed all the same, with the block it is in; that
		// copy is given back, and nothing is stored.
		"20 removed b2",
		"22.0234375 request 3: first token, 4 cached",
		"22.0234375 request 3: finished",
	}
	if diff := cmp.Diff(want, d.lines); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if e := f.engines[0]; e.cache.blocks() != 2 || e.private != 0 {
		t.Errorf("%d cached and %d private blocks at the end, want 2 and 0", e.cache.blocks(), e.private)
	}
}

func TestBatchLimitByHand(t *testing.T) {
	m := dyadic()
	m.MaxBatch = 1
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 4, 1, 0), row(0, 4, 1, 1))
	f, d := keepDiary(t, m, tr, 2)
	for _, r := range tr.Requests {
		submit(t, f, 0, r, 0)
	}
	drain(t, f)
	want := []string{
		"2 load 1 running 1 waiting 8 to prefill 0/16 blocks",
		"2.0078125 stored b0 after the start",
		"2.0078125 request 0: first token, 0 cached",
		"2.0078125 request 0: finished",
		"4 load 1 running 0 waiting 4 to prefill 0/16 blocks",
		"4.015625 stored b1 after the start",
		"4.015625 request 1: first token, 0 cached",
		"4.015625 request 1: finished",
	}
	if diff := cmp.Diff(want, d.lines); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
