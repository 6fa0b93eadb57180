package oracle

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// finish ends a decision with its whole life told.
func finish(t *testing.T, o *Oracle, a *Answer, output, cached int, now time.Time) {
	t.Helper()
	for _, e := range []Event{
		{Decision: a.Decision, Step: FirstToken, TTFT: 0.25},
		{Decision: a.Decision, Step: Finished, OutputTokens: output, Cached: cached},
	} {
		if out, err := o.Progress(&e, now); err != nil || out != Applied {
			t.Fatalf("%v: %v, %v", e.Step, out, err)
		}
	}
}

// drained takes what a recording has.
func drained(r *Recording) (out []Record) {
	for {
		select {
		case x := <-r.Records():
			out = append(out, x)
		default:
			return out
		}
	}
}

func TestRecording(t *testing.T) {
	o := New(Config{}, nil)
	open(t, o, "w1", 1, t0)
	before := route(t, o, prompt(1, 2), nil, t0)
	one, err := o.StartRecording("")
	if err != nil {
		t.Fatal(err)
	}
	two, err := o.StartRecording("m")
	if err != nil {
		t.Fatal(err)
	}
	other, err := o.StartRecording("another model")
	if err != nil {
		t.Fatal(err)
	}

	session := func(r *RouteRequest) { r.Session = "s" }
	a := route(t, o, prompt(1, 2, 3), session, t0)
	b := route(t, o, prompt(1, 2, 4), session, t0.Add(time.Second))
	c := route(t, o, prompt(5), nil, t0)
	route(t, o, prompt(6), dry, t0)
	finish(t, o, before, 1, 0, t0) // decided before
	finish(t, o, b, 20, 8, t0)
	finish(t, o, a, 10, -1, t0.Add(2*time.Second))
	if _, err := o.Progress(&Event{Decision: c.Decision, Step: Failed}, t0); err != nil {
		t.Fatal(err)
	}

	got := drained(one)
	if len(got) != 2 || one.Lost() != 0 {
		t.Fatalf("%d recorded, %d lost: %+v", len(got), one.Lost(), got)
	}
	x, y := got[1], got[0] // in the order of their ends
	want := Record{
		Decided: t0, Finished: t0.Add(2 * time.Second), PromptTokens: 12, OutputTokens: 10, BlockSize: size, Blocks: x.Blocks, Session: x.Session, Cached: -1, TTFT: 0.25, Worker: "w1", Model: "m",
	}
	if d := cmp.Diff(want, x); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if len(x.Blocks) != 3 || len(y.Blocks) != 3 || !slices.Equal(x.Blocks[:2], y.Blocks[:2]) || x.Blocks[2] == y.Blocks[2] {
		t.Errorf("blocks %v and %v, of prompts with two of three in common", x.Blocks, y.Blocks)
	}
	if x.Session == 0 || x.Session != y.Session || y.Cached != 8 {
		t.Errorf("%+v, %+v", x, y)
	}
	// Nothing of it is an id, and nothing of it is in another recording.
	second := drained(two)
	if len(second) != 2 || len(drained(other)) != 0 {
		t.Fatalf("%d recorded of the model", len(second))
	}
	for i, id := range chain(1, 2, 3) {
		if x.Blocks[i] == uint64(id) || slices.Contains(second[1].Blocks, x.Blocks[i]) {
			t.Errorf("block %d is not hidden", i)
		}
	}
	if second[1].Session == x.Session {
		t.Error("the session is the same in two recordings")
	}

	fourth, err := o.StartRecording("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.StartRecording(""); !isKind(err, Exhausted) {
		t.Errorf("more than %d: %v", MaxRecordings, err)
	}
	for _, r := range []*Recording{one, two, other, fourth, fourth} {
		r.Stop()
	}
	if o.recordings.any.Load() || len(o.recordings.all) != 0 {
		t.Error("a recording is left")
	}
	finish(t, o, route(t, o, prompt(9), nil, t0), 1, 0, t0) // nobody listens
}

// A recording never grows beyond its bounds, and counts what it loses.
func TestRecordingIsBounded(t *testing.T) {
	o := New(Config{}, nil)
	open(t, o, "w1", 1, t0)
	r, err := o.StartRecording("")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	for range recordsWaiting + 10 {
		finish(t, o, route(t, o, prompt(1), nil, t0), 1, 0, t0)
	}
	if n := len(drained(r)); n != recordsWaiting || r.Lost() != 10 {
		t.Errorf("%d recorded, %d lost", n, r.Lost())
	}
	if len(r.living) != 0 || r.blocks != 0 {
		t.Errorf("%d living, %d blocks", len(r.living), r.blocks)
	}

	// One that lasts does not make the queue grow with those that come and go.
	lasting := route(t, o, prompt(7), nil, t0)
	for range 3000 {
		finish(t, o, route(t, o, prompt(1), nil, t0), 1, 0, t0)
	}
	if n := len(drained(r)); n != 3000 || len(r.queue) > 1100 {
		t.Errorf("%d recorded, %d queued", n, len(r.queue))
	}
	finish(t, o, lasting, 1, 0, t0)
	if n := len(drained(r)); n != 1 {
		t.Errorf("%d recorded of one that lasted", n)
	}

	// Requests of which nothing is heard are given up in time, and until then they take room.
	for range 5 {
		route(t, o, prompt(1, 2), nil, t0)
	}
	r.blocks += recordedBlocks - 11
	route(t, o, prompt(1, 2), nil, t0)
	if r.Lost() != 11 || len(r.living) != 5 {
		t.Errorf("%d lost, %d living", r.Lost(), len(r.living))
	}
	r.blocks -= recordedBlocks - 11
	late := route(t, o, prompt(1, 2), nil, t0.Add(recordMost))
	if r.Lost() != 16 || len(r.living) != 1 || r.blocks != 2 {
		t.Errorf("%d lost, %d living, %d blocks", r.Lost(), len(r.living), r.blocks)
	}
	finish(t, o, late, 1, 0, t0.Add(recordMost))
}
