package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvoracle/kvoracle/internal/sim"
)

// small is a plan that is done in a second.
func small(t *testing.T) Plan {
	t.Helper()
	cs, unknown := ByName(Contestants(), []string{Ours, Informed, SGLang, Least, "random"})
	if unknown != "" {
		t.Fatal(unknown)
	}
	ds, _ := ByName(Degrees(), []string{Ours, DecisionsOnly})
	return Plan{
		Cells: []Cell{
			{Workload: &Workload{Name: UnsharedName, Title: "nothing shared", Trace: sim.Unshared(200, 1)}, Model: sim.Model8B(), Engines: 2},
			{Workload: &Workload{Name: "hot_head", Title: "one hot head", Trace: sim.HotHead(200, 1)}, Model: sim.Model8B(), Engines: 3},
		},
		Loads: []float64{0.5, 0.9}, Contestants: cs, Degrees: ds, DegreeLoads: []float64{0.9},
		WithDegrees: func(c *Cell) bool { return c.Engines == 3 }, Capacity: func(*Contestant) bool { return true }, Seeds: 2, Keep: 0.9,
	}
}

// TestWhatIsDrawnIsAMean: in a closed loop the order of sessions is drawn, so one run of a rule that draws nothing is not held
// against the mean of several of another.
func TestWhatIsDrawnIsAMean(t *testing.T) {
	tr, err := ReadFile("../../bench/traces/lmcache_agents.jsonl.gz", sim.ReadOptions{BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	c := Cell{Workload: &Workload{Name: "closed", Trace: tr, BlockSize: 64, IsClosed: true}, Model: sim.Model8B(), Engines: 32}
	cs, _ := ByName(Contestants(), []string{Least})
	w := &crew{plan: &Plan{Seeds: 2}}
	got, err := w.point(&c, &CellReport{Scale: Scale{Full: 40}}, &cs[0], 1, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	var each []float64
	for seed := range uint64(2) {
		r, err := c.run(&cs[0], 40, seed+1, false)
		if err != nil {
			t.Fatal(err)
		}
		each = append(each, r.TTFT.Mean)
	}
	if want := (each[0] + each[1]) / 2; got.Result.TTFT.Mean != want || each[0] == each[1] {
		t.Errorf("mean TTFT %v, want %v of %v", got.Result.TTFT.Mean, want, each)
	}
}

func TestRun(t *testing.T) {
	p := small(t)
	last, all := 0, 0
	p.Progress = func(done, total int, _ string) {
		if done != last+1 {
			t.Errorf("%d done after %d", done, last)
		}
		last, all = done, total
	}
	rep, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	// In each cell a scale, five policies at two loads and their capacities; in one, two degrees at one load.
	if want := 2*(1+5*2+5) + 2; last != want || all != want {
		t.Errorf("%d of %d done, want %d", last, all, want)
	}
	for i := range rep.Cells {
		c := &rep.Cells[i]
		for _, l := range rep.Policies {
			for _, load := range p.Loads {
				x := c.At(l.Name, load)
				if x == nil || x.Result.N != 160 || x.Result.TTFT.Mean <= 0 {
					t.Fatalf("%s, %s at %v: %+v", c.Name, l.Name, load, x)
				}
				if got, want := len(x.Kept), 160; (i == 0 && load == 0.9) != (got == want) {
					t.Errorf("%s, %s at %v: %d requests kept", c.Name, l.Name, load, got)
				}
			}
		}
		if c.Capacities[Informed].Promise != 1 {
			t.Errorf("%s: the reference's capacity is %v", c.Name, c.Capacities[Informed])
		}
		// Load 1 is where the promise ends.
		at := func(load float64) sim.Result {
			r, err := p.Cells[i].run(&p.Contestants[1], load*c.Scale.Full, 1, false)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		below, above := at(1), at(precision)
		if !c.Scale.keeps(&below) || c.Scale.keeps(&above) {
			t.Errorf("%s: promise %v, %v; at load 1 %v, %v; above %v, %v", c.Name, c.Scale.TTFT90, c.Scale.TPOT,
				below.TTFT.P90, below.TPOT.Mean, above.TTFT.P90, above.TPOT.Mean)
		}
	}
	if len(rep.Cells[0].Degrees) != 0 || len(rep.Cells[1].Degrees) != 2 {
		t.Errorf("%d and %d degrees", len(rep.Cells[0].Degrees), len(rep.Cells[1].Degrees))
	}

	p.Progress = nil
	again, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(rep, again); d != "" {
		t.Errorf("the same plan gives something else:\n%s", d)
	}
	var page bytes.Buffer
	if err := rep.Markdown(&page, "make something", true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Written by `make something`", "a part of the comparison only", "| not measured |", "**kvoracle**", "SGLang, SMG", "unshared/8b/2", "hot_head/8b/3", "own decisions only", "it follows from who reports",
		"| unshared-worst |", "## Where kvoracle is not the best",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page.String(), "NaN") || strings.Contains(page.String(), "%!") {
		t.Errorf("the page:\n%s", page.String())
	}
}

// TestClimb: each load at which a promise is kept is a step, whichever of them a search would meet.
func TestClimb(t *testing.T) {
	for name, tt := range map[string]struct {
		keeps func(step int) bool
		want  int // steps above load 1
	}{
		"at load 1":            {func(step int) bool { return step <= 0 }, 0},
		"far above":            {func(step int) bool { return step <= 57 }, 57},
		"far below":            {func(step int) bool { return step <= -130 }, -130},
		"here and there above": {func(step int) bool { return step <= 4 || step == 6 || step == 7 || step == 11 }, 7},
		"broken once below":    {func(step int) bool { return step <= 9 && step != 8 }, 8},
		"kept far beyond":      {func(step int) bool { return step <= 4 || step == 40 }, 4},
	} {
		for _, guess := range []float64{0.2, 0.9, 1, 1.1, 3} {
			s, runs := Scale{Full: 2.5}, map[int]bool{}
			got, err := s.climb(func(load float64) (*sim.Result, error) {
				step := math.Log(load/s.Full) / math.Log(climbStep)
				k := int(math.Round(step))
				if math.Abs(step-float64(k)) > 1e-6 {
					t.Errorf("%s: a load of %v is on no step", name, load)
				}
				runs[k] = true
				return &sim.Result{N: k}, nil
			}, func(r *sim.Result) bool { return tt.keeps(r.N) }, guess*s.Full)
			if want := s.Full * math.Pow(climbStep, float64(tt.want)); err != nil || math.Abs(got/want-1) > 1e-9 {
				t.Errorf("%s, from %v: %v, %v, want %v", name, guess, got, err, want)
			}
			if len(runs) > 30 {
				t.Errorf("%s, from %v: %d runs", name, guess, len(runs))
			}
		}
	}
	s := Scale{Full: 1}
	never := func(*sim.Result) bool { return false }
	run := func(float64) (*sim.Result, error) { return new(sim.Result), nil }
	if got, err := s.climb(run, never, 1); got != 0 || err != nil {
		t.Errorf("kept at no load: %v, %v", got, err)
	}
	always := func(*sim.Result) bool { return true }
	if got, err := s.climb(run, always, 1); err != nil || math.IsInf(got, 0) || got < 90 {
		t.Errorf("kept at all loads: %v, %v", got, err)
	}
	failing := errors.New("no run")
	if _, err := s.climb(func(float64) (*sim.Result, error) { return nil, failing }, never, 1); !errors.Is(err, failing) {
		t.Errorf("a run that fails: %v", err)
	}
}

func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := small(t)
	p.Progress = func(int, int, string) { cancel() }
	if _, err := Run(ctx, p); err == nil {
		t.Error("it went on")
	}
	p = small(t)
	p.Cells[1].Engines = 0
	if _, err := Run(t.Context(), p); err == nil || !strings.Contains(err.Error(), "hot_head/8b/0") {
		t.Errorf("a cell that cannot run: %v", err)
	}
}

// A closed loop's load is users, whole ones.
func TestClosedScale(t *testing.T) {
	var lines strings.Builder
	for i := range 40 {
		fmt.Fprintf(&lines, `{"timestamp":%d,"input_length":%d,"output_length":40,"hash_ids":%s,"session_id":"s%d","delay":500}`+"\n",
			i*100, 64*(1+i%8), strings.ReplaceAll(fmt.Sprint(hashes(i)), " ", ","), i/8)
	}
	tr, err := sim.ReadTrace(strings.NewReader(lines.String()), sim.ReadOptions{BlockSize: 64})
	if err != nil {
		t.Fatal(err)
	}
	c := Cell{Workload: &Workload{Name: "sessions", Trace: tr, IsClosed: true, Horizon: 20}, Model: sim.Model8B(), Engines: 1}
	ref, _ := ByName(Contestants(), []string{Informed})
	s, err := c.scale(&ref[0])
	if err != nil {
		t.Fatal(err)
	}
	if s.Full != float64(int(s.Full)) || s.Full < 2 {
		t.Errorf("load 1 is %v users", s.Full)
	}
}

// hashes of request i: eight of a session go on with one another.
func hashes(i int) []int {
	out := []int{0}
	for k := range i % 8 {
		out = append(out, 1000+100*(i/8)+k)
	}
	return out
}

// A scenario counts the requests of its time alone, at a load of the fleet as it was before.
func TestScenarios(t *testing.T) {
	p := small(t)
	p.Cells, p.Degrees = nil, nil
	p.Contestants, _ = ByName(p.Contestants, []string{Ours, Informed, Least, "random"})
	p.Capacity = func(c *Contestant) bool { return !c.IsRandom }
	w := Workload{Name: "tenants", Title: "many tenants", Trace: sim.MultiTenant(300, 1)}
	cell := Cell{Workload: &w, Model: sim.Model8B(), Engines: 2}
	wider := cell
	wider.Engines, wider.Speeds = 3, []float64{1, 1, 0.5}
	p.Scenarios = []Scenario{
		{Name: "joins", Title: "one joins", Cell: wider, Present: 2, Load: 0.5, Changes: []sim.Change{{At: 6, Engine: 2, Kind: sim.Join}}, From: 4, To: 10},
		{Name: "burst", Title: "a burst", Cell: cell, Load: 0.5, Surge: &sim.Surge{From: 6, For: 1, Requests: 50, Head: 640, Tail: 10}, From: 6, To: 8},
		{Name: "slow", Title: "one is slow", Cell: Cell{Workload: &w, Model: cell.Model, Engines: 2, Speeds: []float64{1, 0.5}}, Load: 0.7},
	}
	last, all := 0, 0
	p.Progress = func(done, total int, _ string) { last, all = done, total }
	rep, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	// Three fleets, and three contestants that are not random.
	if last != all || all != 3+3*3 {
		t.Errorf("%d of %d runs", last, all)
	}
	joins, burst, slow := &rep.Scenarios[0], &rep.Scenarios[1], &rep.Scenarios[2]
	for _, s := range rep.Scenarios {
		for _, l := range rep.Policies {
			if x := s.At(l.Name); (x == nil) != l.IsRandom || x != nil && (x.Result.N < 50 || x.Result.TTFT.Mean <= 0 || x.Result.N != s.At(Ours).Result.N) {
				t.Errorf("%s, %s: %+v", s.Name, l.Name, x)
			}
		}
	}
	if n := slow.At(Ours).Result.N; n != 240 {
		t.Errorf("%d requests count of a whole run, want those after the warm-up", n)
	}
	if joins.Scale.Full != burst.Scale.Full || slow.Scale.Full >= burst.Scale.Full {
		t.Errorf("load 1 is %v for two engines that a third will join, %v for two, %v if one of these is slow", joins.Scale.Full, burst.Scale.Full, slow.Scale.Full)
	}
	if s := joins.Shares[Ours]; s <= 0 || s > 1.5 {
		t.Errorf("an engine that is there half the time is given %v times as much as others", s)
	}
	var page bytes.Buffer
	if err := rep.Markdown(&page, "make something", true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## Fleets that change", "### On many tenants", "| one joins | 0.5 | ", "| a burst | 0.5 | - | ", " of 3."} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page.String(), "NaN") || strings.Contains(page.String(), "%!") {
		t.Errorf("the page:\n%s", page.String())
	}

	p.Scenarios[0].To = 1e6
	if _, err := Run(t.Context(), p); err == nil || !strings.Contains(err.Error(), "its requests end at") {
		t.Errorf("a scenario that outlasts its requests: %v", err)
	}
}

// Bars are arithmetic on a report; this one can be done by hand.
func TestBars(t *testing.T) {
	point := func(policy string, load, mean, p99 float64) Point {
		return Point{Policy: policy, Load: load, Result: sim.Result{N: 1, TTFT: sim.Summary{Mean: mean, P99: p99}}}
	}
	cell := func(name string, ours, informed, dynamo, sglang, least, capacity float64) CellReport {
		return CellReport{
			Name: name, Workload: name,
			Points: []Point{
				point(Ours, 0.9, ours, 5), point(Informed, 0.9, informed, 1), point(Dynamo, 0.9, dynamo, 4), point(SGLang, 0.9, sglang, 6),
				point(Least, 0.9, least, 9), point(LLMD, 0.9, 10, 9),
			},
			Degrees: []Point{
				point(Ours, 0.9, ours, 5), point(PriorHigh, 0.9, 1.1*ours, 5), point(PriorLow, 0.9, ours, 5), point(DecisionsOnly, 0.9, 3, 5),
			},
			Capacities: map[string]Capacity{Ours: {capacity, capacity / 2}, Informed: {9, 9}, Dynamo: {0.8, 0.4}, SGLang: {0.5, 0.5}},
		}
	}
	rep := Report{
		Loads:    []float64{0.9},
		Policies: labels(Contestants()),
		Cells: []CellReport{
			cell("a", 1.0, 1.0, 2.0, 4.0, 2.0, 1.0), cell("b", 1.2, 1.0, 1.0, 8.0, 2.0, 0.6), cell(UnsharedName, 0.9, 1.0, 2.0, 2.0, 0.8, 0.9),
		},
	}
	got := map[string]string{}
	for _, b := range rep.Bars() {
		got[b.Name] = fmt.Sprintf("%.3f %s, %s", b.Measured, b.Verdict(), b.Where)
	}
	want := map[string]string{
		"ttft-informed-worst":      "1.200 short, b at 0.9",
		"ttft-informed-median-0.9": "1.000 ok, of 3 cells",
		"ttft-dynamo-worst":        "1.200 short, b at 0.9",
		"ttft-dynamo-median-0.9":   "0.500 ok, of 3 cells",
		"ttft-sglang-worst":        "0.450 ok, unshared at 0.9",
		"ttft-sglang-median-busy":  "0.250 ok, of 3 cells",
		"ttft-llmd-worst":          "0.120 ok, b at 0.9",
		"ttft-llmd-median-busy":    "0.100 ok, of 3 cells",
		"p99-best-rival-worst":     "1.250 short, a at 0.9",
		"capacity-worst":           "0.750 short, b",
		"capacity-median":          "1.125 ok, of 3 cells",
		"capacity-tpot-worst":      "0.600 short, b",
		"capacity-tpot-median":     "0.900 short, of 3 cells",
		"wrong-prior-worst":        "1.100 short, a at 0.9, prior_x4",
		"decisions-only-worst":     "1.500 short, unshared at 0.9",
		"unshared-worst":           "1.125 short, unshared at 0.9",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	var page bytes.Buffer
	if err := rep.Markdown(&page, "make something", true); err != nil {
		t.Fatal(err)
	}
	if text := page.String(); !strings.Contains(text, "| b | 0.750 | ") || strings.Contains(text, "| a | 1.250 | ") {
		t.Errorf("the page does not tell where capacity is lower than a rival's, or tells more:\n%s", text)
	}
	// What was not measured is not met.
	for _, b := range (&Report{}).Bars() {
		if b.IsMet() {
			t.Errorf("%s is met by nothing", b.Name)
		}
	}
	var lines bytes.Buffer
	if err := PrintBars(&lines, rep.Bars()[:1]); err != nil || !strings.HasPrefix(lines.String(), "bar  ttft-informed-worst ") {
		t.Errorf("%v: %s", err, lines.String())
	}
}

// The published suite reads its traces and has every cell.
func TestSuite(t *testing.T) {
	p, err := Suite("../../bench/traces", true)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Cells) != 10 || len(p.Contestants) != len(Contestants()) {
		t.Errorf("%d cells, %d contestants", len(p.Cells), len(p.Contestants))
	}
	tenants, tools := &Workload{Name: "a"}, &Workload{Name: "b"}
	named := map[string]bool{}
	for _, s := range Scenarios(tenants, tools) {
		named[s.Workload.Name+s.Name] = true
		if s.Load <= 0 || s.Engines < 8 || s.Title == "" || s.To > 0 && s.To <= s.From {
			t.Errorf("%+v", s)
		}
	}
	if len(named) != 26 {
		t.Errorf("%d different scenarios, want 13 on each workload", len(named))
	}
	if _, err := Suite(t.TempDir(), true); err == nil {
		t.Error("no traces, no error")
	}
	seen := map[string]bool{}
	for _, c := range append(Contestants(), Degrees()[1:]...) {
		if seen[c.Name] || c.Title == "" || c.Rule == "" {
			t.Errorf("%q is there twice or says nothing", c.Name)
		}
		seen[c.Name] = true
	}
	if _, unknown := ByName(Contestants(), []string{Ours, "best"}); unknown != "best" {
		t.Errorf("unknown is %q", unknown)
	}
}

// TestDegreesAreMeansOfNearbyLoads: one run decides nothing about what differs by a few percent.
func TestDegreesAreMeansOfNearbyLoads(t *testing.T) {
	p := small(t)
	p.Cells, p.Contestants, p.Capacity = p.Cells[1:], p.Contestants[:1], nil
	p.Near = []float64{0.9, 1.1}
	rep, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	c, want := &rep.Cells[0], 0.0
	for _, near := range p.Near {
		r, err := p.Cells[0].run(&p.Degrees[0], 0.9*near*c.Scale.Full, 1, false)
		if err != nil {
			t.Fatal(err)
		}
		want += r.TTFT.Mean / 2
	}
	if got := c.Degree(Ours, 0.9).Result.TTFT.Mean; math.Abs(got-want) > 1e-9*want || got == c.At(Ours, 0.9).Result.TTFT.Mean {
		t.Errorf("%v, want %v", got, want)
	}
}
