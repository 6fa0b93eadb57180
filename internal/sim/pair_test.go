package sim

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
)

// TestPairTakesTurns: alone on idle engines, the first token of a pair is out when the prefill is done and the cache has
// been moved, and from then on the output goes as on one engine. What the second engine holds is not moved.
func TestPairTakesTurns(t *testing.T) {
	tr := mustSample(t)
	o := Options{Engines: 2, BlockSize: 512}
	for _, r := range tr.Requests[:20] {
		one := newTestFleet(t, o)
		whole := submit(t, one, 0, r, 0)
		drain(t, one)

		f := newTestFleet(t, o)
		moved := -1
		link := func(tokens int) float64 { moved = tokens; return 0.25 }
		j, err := f.SubmitPair(0, 1, r, 0, link)
		if err != nil {
			t.Fatal(err)
		}
		drain(t, f)
		if j.FirstToken != whole.FirstToken+0.25 || math.Abs((j.Finished-j.FirstToken)-(whole.Finished-whole.FirstToken)) > 1e-9 {
			t.Errorf("request %d: first token %v, last %v; on one engine %v and %v", r.Index, j.FirstToken, j.Finished, whole.FirstToken, whole.Finished)
		}
		if moved != r.Input || j.Engine != 1 || j.Cached != 0 {
			t.Errorf("request %d: %d tokens of %d moved, to engine %d, %d cached", r.Index, moved, r.Input, j.Engine, j.Cached)
		}
		again, err := f.SubmitPair(0, 1, r, f.Now(), link)
		if err != nil {
			t.Fatal(err)
		}
		drain(t, f)
		if rest := r.Input - (r.Input-1)/512*512; moved != rest || again.Cached != r.Input-rest {
			t.Errorf("request %d again: %d tokens moved, want %d; %d cached where it is prefilled", r.Index, moved, rest, again.Cached)
		}
	}
}

// TestPairsLeaveNothingBehind: any mixture of pairs and whole requests, with little memory: all finish, and every engine is
// empty but for what is cached, of which it has told exactly that.
func TestPairsLeaveNothingBehind(t *testing.T) {
	tr := mustSample(t)
	model := Model8B()
	model.KVTokens = (longest(tr)/512 + 3) * 512
	r := rand.New(rand.NewPCG(5, 6))
	sinks := make([]Sink, 4)
	told := make([]ledger, 4)
	for i := range sinks {
		told[i] = ledger{held: map[block.ID]bool{}}
		sinks[i] = told[i]
	}
	f := newTestFleet(t, Options{Engines: 4, BlockSize: 512, Model: model, Sinks: sinks})
	var jobs []*Job
	at := 0.0
	for _, q := range tr.Requests[:400] {
		at += r.ExpFloat64() * 0.5
		j, err := f.SubmitPair(r.IntN(4), r.IntN(4), q, at, func(n int) float64 { return float64(n) * 5e-6 })
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, j)
	}
	drain(t, f)
	for _, j := range jobs {
		if !(j.Arrived <= j.FirstToken && j.FirstToken <= j.Finished) || j.generated != j.Request.Output {
			t.Errorf("request %d: arrived %v, first token %v, finished %v, %d tokens of %d", j.Request.Index, j.Arrived, j.FirstToken, j.Finished, j.generated, j.Request.Output)
		}
	}
	for i, e := range f.engines {
		if e.cache.referenced != 0 || e.private != 0 || e.decodeKV != 0 || e.pending != 0 || f.inFlight[i] != 0 {
			t.Errorf("engine %d: %d referenced, %d private, %d decoding, %d pending, %d in flight", i, e.cache.referenced, e.private, e.decodeKV, e.pending, f.inFlight[i])
		}
		if len(told[i].held) != e.cache.blocks() || len(told[i].held) == 0 {
			t.Errorf("engine %d told of %d blocks, and has %d", i, len(told[i].held), e.cache.blocks())
		}
		for id := range told[i].held {
			if _, ok := e.cache.at[id]; !ok {
				t.Fatalf("engine %d told of a block that it has not", i)
			}
		}
	}
}

// ledger is a Sink that keeps the set of what it is told.
type ledger struct {
	noReports

	held map[block.ID]bool
}

func (l ledger) Stored(_ float64, _ block.ID, _ bool, ids []block.ID) {
	for _, id := range ids {
		l.held[id] = true
	}
}

func (l ledger) Removed(_ float64, ids []block.ID) {
	for _, id := range ids {
		delete(l.held, id)
	}
}

func TestPairRefusals(t *testing.T) {
	tr := mustSample(t)
	f := newTestFleet(t, Options{Engines: 2, BlockSize: 512})
	for _, e := range [][2]int{{-1, 0}, {0, 2}, {2, 0}} {
		if _, err := f.SubmitPair(e[0], e[1], tr.Requests[0], 0, func(int) float64 { return 0 }); err == nil {
			t.Errorf("engines %v were taken", e)
		}
	}
	if f.Unfinished() != 0 {
		t.Error("a refused request is in flight")
	}
}
