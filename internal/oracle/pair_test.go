package oracle

import (
	"context"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
)

// duo makes an oracle with workers of the given roles, in racks, all of which report that they hold nothing.
func duo(t *testing.T, cfg Config, workers map[string]fleet.Roles, racks map[string]string) (_ *Oracle, streams map[string]*BlockSession) {
	t.Helper()
	o := New(cfg, nil)
	streams = map[string]*BlockSession{}
	for name, roles := range workers {
		s, _, err := o.OpenBlocks(&Hello{
			Spec:        fleet.Spec{Worker: name, Model: "m", BlockSize: size, DPSize: 1, Roles: roles, Class: name, Labels: map[string]string{"rack": racks[name]}},
			Incarnation: 1, NextSequence: 1,
		}, t0)
		if err != nil {
			t.Fatal(err)
		}
		streams[name] = s
	}
	return o, streams
}

func both(r *RouteRequest) { r.Role, r.IsPair = fleet.Decode, true }

// inFlight is what is booked, by worker.
func inFlight(o *Oracle, now time.Time) map[string]int {
	out := map[string]int{}
	for _, w := range o.fleet.View().Workers() {
		if n := o.load.States(w.Targets, now, nil)[0].Booked; n > 0 {
			out[w.Worker] = n
		}
	}
	return out
}

func wantInFlight(t *testing.T, o *Oracle, when string, now time.Time, want map[string]int) {
	t.Helper()
	got := inFlight(o, now)
	same := len(got) == len(want)
	for w, n := range want {
		same = same && got[w] == n
	}
	if !same {
		t.Errorf("%s: booked on %v, want %v", when, got, want)
	}
}

// TestPairIsBookedOnBoth: both targets are booked, with the prefill on the one and the rest on the other; the first token
// ends the first, the end of the request the second, and so does everything else that can end it.
func TestPairIsBookedOnBoth(t *testing.T) {
	step := func(s Step) *Event { return &Event{Step: s, OutputTokens: 3, Cached: -1} }
	for _, tt := range []struct {
		name  string
		steps []*Event
		end   func(o *Oracle)
		then  map[string]int
	}{
		{"sent", []*Event{{Step: Dispatched, Gateway: "g"}}, nil, map[string]int{"p": 1, "d": 1}},
		{"first token", []*Event{step(FirstToken)}, nil, map[string]int{"d": 1}},
		{"output", []*Event{step(Generating)}, nil, map[string]int{"d": 1}},
		{"a sign of life", []*Event{{Step: Generating}}, nil, map[string]int{"p": 1, "d": 1}},
		{"first token, finished", []*Event{step(FirstToken), step(Finished)}, nil, nil},
		{"finished at once", []*Event{step(Finished)}, nil, nil},
		{"cancelled", []*Event{step(Cancelled)}, nil, nil},
		{"failed", []*Event{step(FirstToken), step(Failed)}, nil, nil},
		{"no news", nil, func(o *Oracle) { o.Tick(t0.Add(2 * time.Minute)) }, nil},
		{"its gateway is gone", []*Event{{Step: Dispatched, Gateway: "g"}}, func(o *Oracle) { o.load.ReleaseGateway("g") }, nil},
	} {
		o, _ := duo(t, Config{WorkerLease: time.Hour, StreamGrace: time.Hour}, map[string]fleet.Roles{"p": fleet.Prefill, "d": fleet.Decode}, nil)
		a := route(t, o, prompt(1, 2, 3), both, t0)
		if a.Target.Worker != "d" || a.Prefill == nil || a.Prefill.Worker != "p" || a.Uncached != 3*size {
			t.Fatalf("%s: decodes on %v, prefills on %v, computes %d", tt.name, a.Target, a.Prefill, a.Uncached)
		}
		wantInFlight(t, o, tt.name+", before", t0, map[string]int{"p": 1, "d": 1})
		if s := o.load.States([]fleet.TargetID{a.Prefill.ID, a.Target.ID}, t0, nil); s[0].PendingPrefillTokens != 3*size || s[1].PendingPrefillTokens != 0 || s[1].ActiveTokens != 3*size {
			t.Errorf("%s: booked %+v", tt.name, s)
		}
		for _, e := range tt.steps {
			e := *e
			e.Decision = a.Decision
			if out, err := o.Progress(&e, t0); out != Applied || err != nil {
				t.Errorf("%s: step %v was %v, %v", tt.name, e.Step, out, err)
			}
		}
		if tt.end != nil {
			tt.end(o)
		}
		wantInFlight(t, o, tt.name, t0, tt.then)
	}
}

// TestPairOfASilentGatewayIsOver: of a gateway that tells nothing both bookings count for as long as they are predicted to
// take.
func TestPairOfASilentGatewayIsOver(t *testing.T) {
	o, _ := duo(t, Config{}, map[string]fleet.Roles{"p": fleet.Prefill, "d": fleet.Decode}, nil)
	a := route(t, o, prompt(1, 2, 3), both, t0)
	for _, step := range []struct {
		what string
		in   time.Duration
		want map[string]int
	}{
		{"booked", 0, map[string]int{"p": 1, "d": 1}},
		{"the prefill is over", 200 * time.Millisecond, map[string]int{"d": 1}},
		{"the output, too", 30 * time.Second, nil},
	} {
		wantInFlight(t, o, step.what, t0.Add(step.in), step.want)
	}
	later := t0.Add(31 * time.Second)
	if out, err := o.Progress(&Event{Decision: a.Decision, Step: FirstToken}, later); out != Applied || err != nil {
		t.Errorf("first token: %v, %v", out, err)
	}
	wantInFlight(t, o, "it had not begun", later, map[string]int{"d": 1})
	wantInFlight(t, o, "who was heard will tell its end", later.Add(30*time.Second), map[string]int{"d": 1})
}

// TestPairGoesWhereItIsHeldAndNear: the start is the one that holds the prompt; of equal ones the one near the end.
func TestPairGoesWhereItIsHeldAndNear(t *testing.T) {
	o, streams := duo(t, Config{}, map[string]fleet.Roles{"p1": fleet.Prefill, "p2": fleet.Prefill, "d1": fleet.Decode, "d2": fleet.Decode},
		map[string]string{"p1": "r1", "p2": "r2", "d1": "r1", "d2": "r2"})
	for i := range 8 {
		a := route(t, o, prompt(uint32(10+i), 2, 3), both, t0)
		if a.Prefill == nil || a.Prefill.Worker[1] != a.Target.Worker[1] {
			t.Errorf("request %d: prefill on %v, decode on %v: not the same rack", i, a.Prefill, a.Target)
		}
		if _, err := o.Progress(&Event{Decision: a.Decision, Step: Finished, Cached: -1}, t0); err != nil {
			t.Fatal(err)
		}
	}
	long := make([]uint32, 2000)
	for i := range long {
		long[i] = uint32(1000 + i)
	}
	store(t, streams["p2"], 1, chain(long...), t0)
	a := route(t, o, prompt(append(long, 7)...), both, t0)
	if a.Prefill == nil || a.Prefill.Worker != "p2" || a.PrefillMatched.Total() != len(long)*size || a.Matched.Total() != 0 || a.Target.Worker != "d2" {
		t.Errorf("prefill on %v, which holds %v; decode on %v", a.Prefill, a.PrefillMatched, a.Target)
	}
	if len(a.Alternatives) != 1 || a.Alternatives[0].Target.Worker != "d1" || a.Alternatives[0].Prefill == nil || a.Alternatives[0].Prefill.Worker != "p2" {
		t.Errorf("alternatives: %+v", a.Alternatives)
	}
}

// TestPairMayBeOne: who may do both does so when nobody else can prefill, or when that is faster; who may not is no
// candidate then.
func TestPairMayBeOne(t *testing.T) {
	o, _ := duo(t, Config{}, map[string]fleet.Roles{"d": fleet.Decode, "a": fleet.Aggregated}, nil)
	if a := route(t, o, prompt(1, 2, 3), both, t0); a.Target.Worker != "a" || a.Prefill != nil {
		t.Errorf("nobody prefills: decode on %v, prefill on %v", a.Target, a.Prefill)
	}
	o, _ = duo(t, Config{}, map[string]fleet.Roles{"d": fleet.Decode, "e": fleet.Decode}, nil)
	_, err := o.Route(context.Background(), &RouteRequest{Model: "m", Prompt: prompt(1), Role: fleet.Decode, IsPair: true}, t0)
	if !isKind(err, Unavailable) {
		t.Errorf("nobody prefills at all: %v", err)
	}
	o, streams := duo(t, Config{}, map[string]fleet.Roles{"p": fleet.Prefill, "x": fleet.Decode | fleet.Aggregated}, nil)
	long := make([]uint32, 500)
	for i := range long {
		long[i] = uint32(1000 + i)
	}
	if a := route(t, o, prompt(long...), both, t0); a.Target.Worker != "x" || a.Prefill != nil {
		t.Errorf("both idle, one needs no transfer: decode on %v, prefill on %v", a.Target, a.Prefill)
	}
	store(t, streams["p"], 1, chain(long...), t0)
	if a := route(t, o, prompt(long...), both, t0); a.Target.Worker != "x" || a.Prefill == nil {
		t.Errorf("it is held where it can be prefilled only: decode on %v, prefill on %v", a.Target, a.Prefill)
	}
}

// TestPairLimitsAndExclusions: a full or draining start is none, and what is said of each candidate has its start in it.
func TestPairLimitsAndExclusions(t *testing.T) {
	o, _ := duo(t, Config{}, map[string]fleet.Roles{"p1": fleet.Prefill, "p2": fleet.Prefill, "d": fleet.Decode}, nil)
	if _, err := o.Drain("p1", true); err != nil {
		t.Fatal(err)
	}
	a := route(t, o, prompt(1, 2), func(r *RouteRequest) { both(r); r.Explain = true }, t0)
	if a.Prefill == nil || a.Prefill.Worker != "p2" {
		t.Errorf("prefill on %v", a.Prefill)
	}
	later := o.Explain(a.Decision)
	for _, rows := range [][]Row{a.Rows, later.Rows} {
		if len(rows) == 0 || rows[0].Prefill == nil || rows[0].Prefill.Worker != "p2" || rows[0].Score.Terms.Transfer <= 0 ||
			rows[0].PrefillBlocks != Fresh || rows[0].PrefillLoad != load.BookedOnly {
			t.Errorf("reasons: %+v", rows)
		}
	}
	// A decision for one has none.
	alone := o.Explain(route(t, o, prompt(1, 2), func(r *RouteRequest) { r.Role = fleet.Decode }, t0).Decision)
	if len(alone.Rows) == 0 || alone.Rows[0].Prefill != nil {
		t.Errorf("reasons of one for one: %+v", alone.Rows)
	}
	_, err := o.Route(context.Background(), &RouteRequest{Model: "m", Prompt: prompt(1), Role: fleet.Decode, IsPair: true, Denied: []string{"p2"}}, t0)
	if !isKind(err, Unavailable) {
		t.Errorf("without any start: %v", err)
	}
	again := func() *Answer {
		return route(t, o, prompt(5), func(r *RouteRequest) { both(r); r.RequestID = "r" }, t0)
	}
	if first, second := again(), again(); second.Decision != first.Decision || !second.Repeated || second.Prefill == nil {
		t.Errorf("asked again: %+v, then %+v", first, second)
	}
}

// TestPairTeachesItsStart: what a prefill took is learned of the one that did it.
func TestPairTeachesItsStart(t *testing.T) {
	o, _ := duo(t, Config{}, map[string]fleet.Roles{"p": fleet.Prefill, "d": fleet.Decode}, nil)
	long := make([]uint32, 3000)
	now := t0
	var p, d fleet.TargetID
	for i := range 60 {
		for k := range long {
			long[k] = uint32(i*len(long) + k)
		}
		a := route(t, o, prompt(long...), both, now)
		p, d = a.Prefill.ID, a.Target.ID
		now = now.Add(2 * time.Second) // some seven times what the prior says
		for _, e := range []*Event{{Step: FirstToken}, {Step: Finished, OutputTokens: 1, Cached: -1}} {
			e.Decision = a.Decision
			if _, err := o.Progress(e, now); err != nil {
				t.Fatal(err)
			}
		}
		o.Tick(now)
	}
	prior := o.feed(p).pricing.Load().prior
	if got := o.feed(p).pricing.Load().cost.PrefillPerToken; got < 3*prior.PrefillPerToken {
		t.Errorf("the start's prefill is taken to cost %v a token, the prior was %v", got, prior.PrefillPerToken)
	}
	if got := o.feed(d).pricing.Load().cost; got != o.feed(d).pricing.Load().prior {
		t.Errorf("the end, which prefilled nothing, has learned %+v", got)
	}
	if n := o.load.Stats().Bookings; n != 0 {
		t.Errorf("%d bookings are left", n)
	}
}
