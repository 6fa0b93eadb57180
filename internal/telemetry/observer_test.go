package telemetry_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/telemetry"
)

func answer() *oracle.Answer {
	return &oracle.Answer{
		Decision: 0xabc, Policy: "least_time", Reason: oracle.LeastCost, Blocks: oracle.Fresh, Load: oracle.Reported,
		PromptTokens: 1000, Matched: oracle.TierTokens{fleet.Device: 500, fleet.Host: 250}, Model: "m",
	}
}

// everything calls each method of the observer, and Refused and Panicked, at least once with something to count.
func everything(tel *telemetry.Telemetry) {
	o := tel.Observer()
	counters := oracle.BlockCounters{RefusedOps: 6, OtherGroupOps: 15}
	counters.Refusals[oracle.RefusalHashConflict] = 6
	o.Blocks(counters)
	a := answer()
	a.Shadow = &oracle.Shadow{Policy: "random", Cost: -0.5}
	a.Goals.TTFT = 1
	o.Decided(a, 120*time.Microsecond)
	o.Blocks(oracle.BlockCounters{
		Stored: 1, RepeatedStores: 2, Removed: 3, UnknownRemovals: 4, Orphans: 5, DuplicateBatches: 7, Gaps: 8,
		IgnoredBatches: 9, DigestsMatched: 10, DigestsMismatched: 11, DigestsSkipped: 12, Snapshots: 13, AppliedOps: 14,
	})
	o.Resync(oracle.ResyncGap)
	o.Sample(true)
	o.Sample(false)
	o.Progress(oracle.FirstToken, oracle.Applied)
	o.Prediction(100, 64)
	o.Prediction(64, 100)
	o.Prediction(64, 64)
	o.FirstToken(0.5, 0.25)
	o.Goal(true)
	o.Goal(false)
	o.FirstToken(0.25, 1)
	o.Released(3, "lease")
	o.WorkerState(&fleet.Worker{}, "registered")
	o.Unmatched(&fleet.Worker{}, 0, 64)
	tel.Refused("/kvoracle.v1.RouteService/Route", "MODEL_UNKNOWN")
	tel.Panicked("/kvoracle.v1.RouteService/Route")
	tel.Picked("decided")
	tel.Prompted("text")
	tel.Observer().Waited(oracle.WaitServed, 500*time.Millisecond)
	tel.Observer().Waited(oracle.WaitTimeout, 2*time.Second)
	tel.Observer().Waited(oracle.WaitFull, 0)
	tel.Unobserved()
	tel.Closed("full")
	tel.ConnectionEnded("handed")
	tel.Reloaded("access", true)
	tel.Reloaded("certificate", false)
	tel.Tokenized("asked")
	tel.Logged("ended")
}

func TestEachReportIsCountedOnce(t *testing.T) {
	clearEnv(t)
	tel, r := metered(t)
	everything(tel)
	got := collect(t, r)
	want := map[string]point{
		"kvoracle.decisions{blocks=fresh,booked=true,load=reported,policy=least_time,reason=least_cost}": {1, 0},
		"kvoracle.targets.predicted{outcome=reached}":                                                    {value: 1},
		"kvoracle.targets.measured{outcome=reached}":                                                     {value: 1},
		"kvoracle.targets.measured{outcome=missed}":                                                      {value: 1},
		"kvoracle.shadow.decisions{agrees=false,policy=least_time,shadow=random}":                        {1, 0},
		"kvoracle.shadow.cost{direction=under}":                                                          {0.5, 1},
		"kvoracle.decision.duration":                                                                     {120e-6, 1},
		"kvoracle.prompt.tokens":                                                                         {1000, 0},
		"kvoracle.matched.tokens{tier=device}":                                                           {500, 0},
		"kvoracle.matched.tokens{tier=host}":                                                             {250, 0},
		"kvoracle.matched.share":                                                                         {0.75, 1},
		"kvoracle.blocks.changes{change=stored}":                                                         {1, 0},
		"kvoracle.blocks.changes{change=repeated_store}":                                                 {2, 0},
		"kvoracle.blocks.changes{change=removed}":                                                        {3, 0},
		"kvoracle.blocks.changes{change=unknown_removal}":                                                {4, 0},
		"kvoracle.blocks.changes{change=orphan}":                                                         {5, 0},
		"kvoracle.blocks.operations{outcome=refused}":                                                    {6, 0},
		"kvoracle.blocks.operations{outcome=other_group}":                                                {15, 0},
		"kvoracle.blocks.refusals{reason=hash_conflict}":                                                 {6, 0},
		"kvoracle.blocks.operations{outcome=applied}":                                                    {14, 0},
		"kvoracle.blocks.batches{outcome=duplicate}":                                                     {7, 0},
		"kvoracle.blocks.batches{outcome=gap}":                                                           {8, 0},
		"kvoracle.blocks.batches{outcome=ignored}":                                                       {9, 0},
		"kvoracle.blocks.digests{outcome=matched}":                                                       {10, 0},
		"kvoracle.blocks.digests{outcome=mismatched}":                                                    {11, 0},
		"kvoracle.blocks.digests{outcome=skipped}":                                                       {12, 0},
		"kvoracle.blocks.snapshots":                                                                      {13, 0},
		"kvoracle.blocks.resyncs{reason=gap}":                                                            {1, 0},
		"kvoracle.load.samples{outcome=applied}":                                                         {1, 0},
		"kvoracle.load.samples{outcome=ignored}":                                                         {1, 0},
		"kvoracle.progress.events{outcome=applied,step=first_token}":                                     {1, 0},
		"kvoracle.first_token.duration":                                                                  {1.25, 2},
		"kvoracle.first_token.error{direction=over}":                                                     {0.25, 1},
		"kvoracle.first_token.error{direction=under}":                                                    {0.75, 1},
		"kvoracle.cached.tokens{source=matched}":                                                         {228, 0},
		"kvoracle.cached.tokens{source=counted}":                                                         {228, 0},
		"kvoracle.cached.error{direction=over}":                                                          {36, 1},
		"kvoracle.cached.error{direction=under}":                                                         {36, 1},
		"kvoracle.cached.error{direction=exact}":                                                         {0, 1},
		"kvoracle.bookings.released{cause=lease}":                                                        {3, 0},
		"kvoracle.worker.events{event=unmatched}":                                                        {1, 0},
		"kvoracle.worker.events{event=registered}":                                                       {1, 0},
		"kvoracle.extproc.requests{outcome=decided}":                                                     {1, 0},
		"kvoracle.extproc.prompts{source=text}":                                                          {1, 0},
		"kvoracle.tokenize.requests{outcome=asked}":                                                      {1, 0},
		"kvoracle.accesslog.entries{outcome=ended}":                                                      {1, 0},
		"kvoracle.extproc.unobserved":                                                                    {1, 0},
		"kvoracle.queue.wait{outcome=served}":                                                            {0.5, 1},
		"kvoracle.queue.wait{outcome=timeout}":                                                           {2, 1},
		"kvoracle.queue.shed{reason=timeout}":                                                            {1, 0},
		"kvoracle.queue.shed{reason=full}":                                                               {1, 0},
		"kvoracle.panics{rpc=kvoracle.v1.RouteService/Route}":                                            {1, 0},
		"kvoracle.connections.closed{reason=full}":                                                       {1, 0},
		"kvoracle.http.connections{outcome=handed}":                                                      {1, 0},
		"kvoracle.reloads{file=access,outcome=applied}":                                                  {1, 0},
		"kvoracle.reloads{file=certificate,outcome=refused}":                                             {1, 0},
		"kvoracle.requests.refused{reason=MODEL_UNKNOWN,rpc=kvoracle.v1.RouteService/Route}":             {1, 0},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(point{})); d != "" {
		t.Errorf("metrics (-want +got):\n%s", d)
	}
}

func TestDryRunIsADecisionButNoTraffic(t *testing.T) {
	clearEnv(t)
	tel, r := metered(t)
	a := answer()
	a.Decision = 0
	tel.Observer().Decided(a, time.Millisecond)
	want := map[string]float64{
		"kvoracle.decisions{blocks=fresh,booked=false,load=reported,policy=least_time,reason=least_cost}": 1,
		"kvoracle.decision.duration": 1e-3,
	}
	if d := cmp.Diff(want, values(collect(t, r))); d != "" {
		t.Errorf("metrics (-want +got):\n%s", d)
	}
}

func TestGaugesShowStats(t *testing.T) {
	clearEnv(t)
	tel, r := metered(t)
	s := oracle.Stats{
		Index: index.Stats{Ledgers: 1, HolderBlocks: 2, DistinctBlocks: 3, Orphans: 4, Reclaimable: 5}, Guesses: 6, Names: 13, Waiting: 18, Unmatched: 24,
		Evicted: 13, Refound: 14, Forgone: 15, Approx: index.Stats{HolderBlocks: 16}, Text: index.Stats{HolderBlocks: 17},
		Load: load.Stats{Bookings: 7, Gateways: 8, Counters: load.Counters{Presumed: 14, Outlived: 114}}, Model: map[string][2]int{"a": {1, 3}, "b": {0, 2}},
		Outcomes: map[string]oracle.Outcomes{"w": {Matched: 25, Cached: 26}},
	}
	s.Learn.Samples, s.Learn.Refused = 15, 16
	s.Workers[fleet.Ready], s.Workers[fleet.Lost] = 9, 10
	s.Targets[oracle.Fresh], s.Targets[oracle.Stale] = 11, 12
	if err := tel.Watch(func() oracle.Stats { return s }); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"kvoracle.index.ledgers": 1, "kvoracle.index.blocks": 2, "kvoracle.index.distinct_blocks": 3, "kvoracle.index.orphans": 4,
		"kvoracle.index.evicted": 13, "kvoracle.index.refound": 14, "kvoracle.guesses.forgone": 15, "kvoracle.approximate.blocks": 16, "kvoracle.text.blocks": 17,
		"kvoracle.targets{confidence=partial}": 0, "kvoracle.targets{confidence=approximate}": 0,
		"kvoracle.index.reclaimable": 5, "kvoracle.guesses": 6, "kvoracle.engine_hashes": 13, "kvoracle.targets.unmatched": 24, "kvoracle.bookings": 7, "kvoracle.gateways": 8, "kvoracle.queue.depth": 18,
		"kvoracle.learn.prefills": 15, "kvoracle.learn.refused": 16, "kvoracle.prefills.presumed": 14, "kvoracle.bookings.presumed": 114,
		"kvoracle.workers{state=ready}": 9, "kvoracle.workers{state=draining}": 0, "kvoracle.workers{state=lost}": 10,
		"kvoracle.targets{confidence=fresh}": 11, "kvoracle.targets{confidence=stale}": 12,
		"kvoracle.targets{confidence=warming}": 0, "kvoracle.targets{confidence=silent}": 0,
		"kvoracle.worker.cached.tokens{source=matched,worker=w}": 25, "kvoracle.worker.cached.tokens{source=counted,worker=w}": 26,
		"kvoracle.model.targets{fresh=true,model=a}": 1, "kvoracle.model.targets{fresh=false,model=a}": 2,
		"kvoracle.model.targets{fresh=true,model=b}": 0, "kvoracle.model.targets{fresh=false,model=b}": 2,
	}
	if d := cmp.Diff(want, values(collect(t, r))); d != "" {
		t.Errorf("gauges (-want +got):\n%s", d)
	}
}

func TestTableTellsTheTruth(t *testing.T) {
	clearEnv(t)
	tel, r := metered(t)
	everything(tel)
	tel.Saved(true, 1<<20, 2*time.Second)
	tel.Loaded("loaded")
	if err := tel.WatchReplication(func() telemetry.Replication {
		return telemetry.Replication{
			Entries: map[string]uint64{"written": 1}, Differences: map[string]uint64{"gap": 2}, Announcements: map[string]uint64{"asked": 3}, Snapshots: map[string]uint64{"written": 1}, Notices: map[string]uint64{"told": 1},
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := tel.Watch(func() oracle.Stats {
		return oracle.Stats{Model: map[string][2]int{"m": {1, 1}}, Outcomes: map[string]oracle.Outcomes{"w": {Matched: 1}}}
	}); err != nil {
		t.Fatal(err)
	}
	keys := make(map[string][]string)
	for series := range collect(t, r) {
		name, _, _ := strings.Cut(series, "{")
		keys[name] = keysOf(series)
	}
	for _, row := range telemetry.Instruments() {
		got, ok := keys[row.Name]
		if !ok {
			t.Errorf("%s is in the table and was never measured", row.Name)
		}
		want := slices.Sorted(slices.Values(row.Attributes))
		if !slices.Equal(got, want) {
			t.Errorf("%s has the attributes %v, the table says %v", row.Name, got, want)
		}
		delete(keys, row.Name)
		if !strings.HasPrefix(row.Name, "kvoracle.") || row.Unit == "" || !strings.HasSuffix(row.Meaning, ".") {
			t.Errorf("%s: bad name, unit or meaning: %+v", row.Name, row)
		}
		if (row.Kind == telemetry.Histogram) != (len(row.Bounds) > 0) || !slices.IsSorted(row.Bounds) {
			t.Errorf("%s (%s) has the bounds %v", row.Name, row.Kind, row.Bounds)
		}
		if row.Name == "kvoracle.decision.duration" && row.Bounds[0] != 10e-6 {
			t.Errorf("%s begins at %v s, want 10 us", row.Name, row.Bounds[0])
		}
	}
	for name := range keys {
		t.Errorf("%s is measured and not in the table", name)
	}
}

// TestDecisionsAgainstTwin counts random decisions from several goroutines and compares with plain maps.
func TestDecisionsAgainstTwin(t *testing.T) {
	clearEnv(t)
	tel, r := metered(t)
	twin := make(map[string]float64)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 500 {
				a := &oracle.Answer{
					Decision: oracle.DecisionID(rng.Uint64N(3)), Policy: []string{"least_time", "random"}[rng.IntN(2)],
					Reason: oracle.ChoiceReason(1 + rng.IntN(7)), Blocks: oracle.BlockConfidence(rng.IntN(4)),
					Load: oracle.LoadConfidence(rng.IntN(3)), PromptTokens: rng.IntN(100),
				}
				for tier := range a.Matched {
					a.Matched[tier] = rng.IntN(60) // may exceed the prompt: reports are whole blocks
				}
				tel.Observer().Decided(a, time.Microsecond)
				mu.Lock()
				twinDecided(twin, a)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	got := values(collect(t, r))
	delete(got, "kvoracle.matched.share") // sums of rounded shares
	delete(got, "kvoracle.decision.duration")
	if d := cmp.Diff(twin, got); d != "" {
		t.Errorf("metrics (-twin +got):\n%s", d)
	}
}

func twinDecided(twin map[string]float64, a *oracle.Answer) {
	twin[fmt.Sprintf("kvoracle.decisions{blocks=%s,booked=%v,load=%s,policy=%s,reason=%s}", a.Blocks, a.Decision != 0, a.Load, a.Policy, a.Reason)]++
	if a.Decision == 0 || a.PromptTokens == 0 {
		return
	}
	twin["kvoracle.prompt.tokens"] += float64(a.PromptTokens)
	for i := range a.PromptTokens { // token by token: in which tier is it?
		end := 0
		for tier, n := range a.Matched {
			if end += n; i < end {
				twin[fmt.Sprintf("kvoracle.matched.tokens{tier=%s}", fleet.Tier(tier))]++
				break
			}
		}
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	clearEnv(t)
	tel, _ := metered(t)
	o, a := tel.Observer(), answer()
	for name, f := range map[string]func(){
		"Decided":  func() { o.Decided(a, time.Microsecond) },
		"Blocks":   func() { o.Blocks(oracle.BlockCounters{Stored: 1, AppliedOps: 1}) },
		"Sample":   func() { o.Sample(true) },
		"Progress": func() { o.Progress(oracle.Finished, oracle.Applied) },
		"Refused":  func() { tel.Refused("/kvoracle.v1.RouteService/Route", "PROMPT_EMPTY") },
		"StartDecision": func() {
			_, span := tel.StartDecision(t.Context())
			tel.EndDecision(span, a, nil)
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

func BenchmarkDecided(b *testing.B) {
	o, a := start(b, telemetry.Config{}).Observer(), answer() // one reader, as in a server: each reader costs as much again
	b.ReportAllocs()
	for b.Loop() {
		o.Decided(a, 50*time.Microsecond)
	}
}
