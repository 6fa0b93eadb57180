package sim

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNewFleetRefuses(t *testing.T) {
	with := func(change func(*Options)) Options {
		o := Options{Engines: 2, Model: Model8B(), BlockSize: 16}
		change(&o)
		return o
	}
	for name, o := range map[string]Options{
		"no engines":   {},
		"engines":      with(func(o *Options) { o.Engines = MaxEngines + 1 }),
		"block size":   with(func(o *Options) { o.BlockSize = -1 }),
		"block size 2": with(func(o *Options) { o.BlockSize = 1 << 17 }),
		"sinks":        with(func(o *Options) { o.Sinks = make([]Sink, 1) }),
		"load":         with(func(o *Options) { o.LoadEvery = 1e-9 }),
		"load 2":       with(func(o *Options) { o.LoadEvery = math.NaN() }),
		"prefill":      with(func(o *Options) { o.Model.PrefillPerToken = -1 }),
		"attention":    with(func(o *Options) { o.Model.PrefillPerTokenContext = math.Inf(1) }),
		"fixed":        with(func(o *Options) { o.Model.IterationFixed = math.NaN() }),
		"decode":       with(func(o *Options) { o.Model.DecodePerKVToken = -1 }),
		"base":         with(func(o *Options) { o.Model.IterationBase = 0 }),
		"memory":       with(func(o *Options) { o.Model.KVTokens = 15 }),
		"batch":        with(func(o *Options) { o.Model.MaxBatch = 0 }),
		"chunk":        with(func(o *Options) { o.Model.ChunkTokens = 0 }),
	} {
		if _, err := NewFleet(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	f, err := NewFleet(Options{Engines: 1, Sinks: []Sink{nil}})
	if err != nil {
		t.Fatal(err)
	}
	if o := f.options; o.BlockSize != 64 || o.Model != Model8B() {
		t.Errorf("defaults: %+v", o)
	}
}

func TestSubmitRefuses(t *testing.T) {
	m := dyadic()
	m.KVTokens = 16
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 12, 4, 0, 1, 2), row(0, 12, 5, 0, 1, 2))
	f := newTestFleet(t, Options{Engines: 1, Model: m, BlockSize: 4})
	fits, long := tr.Requests[0], tr.Requests[1]
	if _, err := f.Submit(0, long, 0); !errors.Is(err, ErrTooLong) || f.Fits(long) || !f.Fits(fits) {
		t.Errorf("17 tokens in a memory of 16: %v", err)
	}
	for _, at := range []float64{-1, math.NaN(), math.Inf(1)} {
		if _, err := f.Submit(0, fits, at); err == nil {
			t.Errorf("arrival %v: no error", at)
		}
	}
	for _, engine := range []int{-1, 1} {
		if _, err := f.Submit(engine, fits, 0); err == nil {
			t.Errorf("engine %d: no error", engine)
		}
	}
	if _, err := f.Submit(0, &Request{}, 0); err == nil {
		t.Error("zero request: no error")
	}
	if _, ok := f.Next(); ok || f.Unfinished() != 0 {
		t.Error("a refused request is in flight")
	}
	submit(t, f, 0, fits, 0)
	drain(t, f)
}

func TestClock(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 4, 1, 0))
	f := newTestFleet(t, Options{Engines: 3, Model: dyadic(), BlockSize: 4})
	if at, ok := f.Next(); ok {
		t.Errorf("an idle fleet does something at %v", at)
	}
	f.Advance(5)
	for _, at := range []float64{4, -1, math.NaN(), math.Inf(1), math.Inf(-1), 1e11} {
		f.Advance(at)
		if f.Now() != 5 {
			t.Fatalf("Advance(%v) moved the clock to %v", at, f.Now())
		}
	}
	late := submit(t, f, 1, tr.Requests[0], 3) // it arrived at 3, and the engine gets it at 5
	if at, ok := f.Next(); !ok || at != 7.0078125 {
		t.Errorf("next at %v %v, want 7.0078125", at, ok)
	}
	f.Advance(7)
	if late.FirstToken != 0 || f.InFlight(1) != 1 || f.InFlight(0) != 0 || f.Unfinished() != 1 {
		t.Errorf("before its time: %+v", late)
	}
	f.Advance(7.0078125)
	if late.FirstToken != 7.0078125 || late.Finished != 7.0078125 || f.Unfinished() != 0 {
		t.Errorf("in its time: %+v", late)
	}
	if ttft := f.Result().TTFT.Mean; ttft != 4.0078125 {
		t.Errorf("time to first token %v, want 4.0078125 since it arrived", ttft)
	}
	ahead := submit(t, f, 2, tr.Requests[0], 9)
	if f.Now() != 9 || ahead.Arrived != 9 {
		t.Errorf("clock at %v, arrived %v, want 9", f.Now(), ahead.Arrived)
	}
}

func TestEnginesTakeTurns(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 4, 1, 0))
	order := &finishers{}
	f := newTestFleet(t, Options{Engines: 3, Model: dyadic(), BlockSize: 4, Observer: order})
	for _, engine := range []int{2, 0, 1} { // all will finish at once
		submit(t, f, engine, tr.Requests[0], 0)
	}
	drain(t, f)
	if d := cmp.Diff([]int{0, 1, 2}, order.engines); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

type finishers struct {
	noReports
	engines []int
}

func (o *finishers) Finished(_ float64, j *Job) { o.engines = append(o.engines, j.Engine) }

func TestLoadSamplesAreStaggered(t *testing.T) {
	var got [2][]float64
	o := Options{Engines: 2, Model: dyadic(), BlockSize: 4, LoadEvery: 2}
	for i := range got {
		o.Sinks = append(o.Sinks, loadTimes{times: &got[i]})
	}
	f := newTestFleet(t, o)
	if at, ok := f.Next(); !ok || at != 1 {
		t.Errorf("next at %v %v, want 1", at, ok)
	}
	f.Advance(6)
	if d := cmp.Diff([2][]float64{{1, 3, 5}, {2, 4, 6}}, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

type loadTimes struct {
	noReports
	times *[]float64
}

func (l loadTimes) Load(t float64, _ LoadSample) { *l.times = append(*l.times, t) }

// How the caller cuts time into pieces changes nothing.
func TestAdvanceInAnyStepsIsTheSame(t *testing.T) {
	run := func(step func(*Fleet, float64)) []float64 {
		rnd := rand.New(rand.NewPCG(3, 3))
		tr := randomTrace(t, rnd, 100, 8, 8)
		f := newTestFleet(t, Options{Engines: 2, Model: randomModel(rnd, 8, longest(tr)), BlockSize: 8})
		var jobs []*Job
		for i, r := range tr.Requests {
			step(f, r.Arrival)
			jobs = append(jobs, submit(t, f, i%2, r, r.Arrival))
		}
		drain(t, f)
		var times []float64
		for _, j := range jobs {
			times = append(times, j.FirstToken, j.Finished)
		}
		return times
	}
	want := run(func(*Fleet, float64) {})
	small := run(func(f *Fleet, to float64) {
		for at := f.Now(); at < to; at += 0.01 {
			f.Advance(at)
		}
	})
	events := run(func(f *Fleet, to float64) {
		for at, ok := f.Next(); ok && at <= to; at, ok = f.Next() {
			f.Advance(at)
		}
	})
	if d := cmp.Diff(want, small); d != "" {
		t.Errorf("small steps:\n%s", d)
	}
	if d := cmp.Diff(want, events); d != "" {
		t.Errorf("event by event:\n%s", d)
	}
}
