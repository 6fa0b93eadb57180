//go:build !race

package sim

import (
	gocmp "cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// What whole runs come to. They are one goroutine each, and take ninety times as long under the race detector: `make test`
// runs them in its second pass.

// The product and the books of a Router see the same and come to much the same, with any policy. Least time differs most:
// live it learns what work costs and what it is worth.
func TestLiveAgreesWithRouter(t *testing.T) {
	tr := mustSample(t)
	tr.Requests = tr.Requests[:1200]
	// The rules that count requests tie often, and ties go by what little is not the same.
	for name, within := range map[string]struct{ ttft, cached float64 }{
		"least_time": {0.06, 0.03}, "block_cost": {0.05, 0.02}, "least_loaded": {0.15, 0.02},
	} {
		p, _ := policy.ByName(name)
		live := mustRun(t, tr, NewLive(LiveOptions{Oracle: oracle.Config{Policy: p}}), liveOptions())
		books := mustRun(t, tr, NewRouter(p, RouterOptions{}), liveOptions())
		if math.Abs(live.TTFT.Mean/books.TTFT.Mean-1) > within.ttft || math.Abs(live.CachedShare-books.CachedShare) > within.cached {
			t.Errorf("%s: mean TTFT %v live, %v by books; cached %v and %v",
				name, live.TTFT.Mean, books.TTFT.Mean, live.CachedShare, books.CachedShare)
		}
	}
}

// Less told is less known, and nothing breaks.
func TestLiveKnowsLess(t *testing.T) {
	tr := mustSample(t)
	tr.Requests = tr.Requests[:600]
	all := mustRun(t, tr, NewLive(LiveOptions{}), liveOptions())
	for name, o := range map[string]LiveOptions{
		"load samples": {LoadEvery: 1}, "no events": {NoEvents: true}, "no first tokens": {NoFirstToken: true},
		"nothing": {NoEvents: true, NoFirstToken: true, NoFinish: true},
	} {
		r := mustRun(t, tr, NewLive(o), liveOptions())
		if r.N != all.N || r.TTFT.Mean < 0.5*all.TTFT.Mean {
			t.Errorf("%s: %d requests, mean TTFT %v; with everything %d and %v", name, r.N, r.TTFT.Mean, all.N, all.TTFT.Mean)
		}
	}
}

// TestPairsBeatTwoPicks: on a fleet of which half prefills, a pair chosen together serves requests sooner, from arrival to
// the last token, than a prefill and a decode worker chosen one by one; and where those that decode may prefill too, the
// first token comes sooner still.
func TestPairsBeatTwoPicks(t *testing.T) {
	tr := mustSample(t)
	tr.Requests = tr.Requests[:400]
	o := RunOptions{Options: Options{Engines: 8, BlockSize: 512, Keyspace: LiveKeyspace(512)}, Speed: 1.3, Warmup: 0.2, Keep: true}
	whole, ttft := map[string]float64{}, map[string]float64{}
	for name, p := range map[string]PairOptions{
		"two picks": {Prefill: 4, Rack: 4, Apart: true}, "pair": {Prefill: 4, Rack: 4}, "pair or one": {Prefill: 4, Rack: 4, Whole: true},
	} {
		r, err := RunPairs(tr, NewLivePairs(p), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range r.Requests {
			whole[name] += (q.Finished - q.Arrived) / float64(len(r.Requests))
		}
		ttft[name] = r.TTFT.Mean
		t.Logf("%s: %.3f s in all, first token after %.3f s, %.1f ms a token", name, whole[name], r.TTFT.Mean, r.TPOT.Mean*1e3)
	}
	if whole["pair"] >= whole["two picks"] {
		t.Errorf("in all: %.3f s as a pair, %.3f s as two picks", whole["pair"], whole["two picks"])
	}
	if ttft["pair or one"] >= ttft["pair"] {
		t.Errorf("first token: %.3f s where one may do both, %.3f s where none may", ttft["pair or one"], ttft["pair"])
	}
}

// TestWrongPriorCostsNothing: a prior that is four times too slow or too fast is corrected while the first fifth of the
// trace runs (some 480 requests on eight engines); from then on it is as good as the right one.
func TestWrongPriorCostsNothing(t *testing.T) {
	tr := mustSample(t)
	run := func(factor float64) Result {
		m := Model8B()
		c := m.CostModel()
		c.PrefillPerToken *= factor
		c.PrefillPerTokenContext *= factor
		c.IterationFixed *= factor
		c.IterationBase *= factor
		c.DecodePerKVToken *= factor
		return mustRun(t, tr, NewLive(LiveOptions{Oracle: oracle.Config{Costs: map[string]oracle.CostModel{liveModel: c}}}), liveOptions())
	}
	right := run(1)
	for _, factor := range []float64{4, 0.25} {
		t.Run(fmt.Sprint(factor), func(t *testing.T) {
			wrong := run(factor)
			if ratio := wrong.TTFT.Mean / right.TTFT.Mean; ratio > 1.03 {
				t.Errorf("mean TTFT %.4f s with a prior of %v times the truth, %.4f s with the truth: %.3f", wrong.TTFT.Mean, factor, right.TTFT.Mean, ratio)
			}
		})
	}
}

// TestSilentGatewaysCostLittle: where no first token is told, prefills end by the clock and costs are learned from ends.
func TestSilentGatewaysCostLittle(t *testing.T) {
	tr := mustSample(t)
	all, silent := 0.0, 0.0
	for _, speed := range []float64{2.2, 2.3, 2.4} { // near what the fleet can do one run differs from the next by some percent
		o := liveOptions()
		o.Speed = speed
		all += mustRun(t, tr, NewLive(LiveOptions{}), o).TTFT.Mean / 3
		silent += mustRun(t, tr, NewLive(LiveOptions{NoFirstToken: true}), o).TTFT.Mean / 3
	}
	ratio := silent / all
	t.Logf("%.3f of what all reports give", ratio)
	if ratio > 1.1 {
		t.Errorf("mean TTFT %.4f s without first tokens, %.4f s with them: %.3f", silent, all, ratio)
	}
}

// TestOwnDecisionsSuffice: who is told nothing at all, or shown the engines' gauges alone, routes hardly worse: what has been
// sent says what is cached and what is still to do, as far as neither is believed to be more than an engine holds.
func TestOwnDecisionsSuffice(t *testing.T) {
	tr := mustSample(t)
	all := mustRun(t, tr, NewLive(LiveOptions{}), liveOptions())
	for name, every := range map[string]float64{"nothing": 0, "load samples": 1} {
		r := mustRun(t, tr, NewLive(LiveOptions{NoEvents: true, NoFirstToken: true, NoFinish: true, LoadEvery: every}), liveOptions())
		ratio := r.TTFT.Mean / all.TTFT.Mean
		t.Logf("%s: %.3f of what all reports give", name, ratio)
		if ratio > 1.1 {
			t.Errorf("%s: mean TTFT %.4f s, %.4f s with all reports: %.3f", name, r.TTFT.Mean, all.TTFT.Mean, ratio)
		}
	}
}

// TestTheIterationUnderWayIsWhatInformedKnowsMore: where prompts are short, a first token waits for little more than the
// iteration under way. Informed sees how far each engine is in that, and no router does: with it hidden from it, it is no better
// than the product.
func TestTheIterationUnderWayIsWhatInformedKnowsMore(t *testing.T) {
	for name, w := range map[string]struct {
		trace *Trace
		speed float64
	}{"long answers": {LongChat(4000, 1), 31.5}, "nothing shared": {Unshared(4000, 1), 41.6}} {
		o := RunOptions{Options: Options{Engines: 8, BlockSize: 64, Keyspace: LiveKeyspace(64)}, Speed: w.speed, Warmup: 0.2}
		ttft := func(c Chooser) float64 {
			r := mustRun(t, w.trace, c, o)
			return r.TTFT.Mean
		}
		live, informed, hidden := ttft(NewLive(LiveOptions{})), ttft(NewInformed()), ttft(&Informed{NoPhase: true})
		t.Logf("%s: mean TTFT %.3f of what Informed comes to, %.3f where it does not see the phase", name, live/informed, live/hidden)
		if live/hidden > 1.02 {
			t.Errorf("%s: %.4f s, want at most 1.02 times %.4f s", name, live, hidden)
		}
		if hidden < 1.02*informed {
			t.Errorf("%s: %.4f s where the phase is hidden, %.4f s where it is not: it does not matter here", name, hidden, informed)
		}
	}
}

// toolAgents is n requests of agents that begin one after the other, with one of three heads of 2,048 to 9,216 tokens, and
// have 18 turns in the mean, a few seconds apart.
func toolAgents(n int, seed uint64) *Trace {
	g := newGenerator(seed)
	heads := [][]uint32{g.blocks(32), g.blocks(80), g.blocks(144)}
	for begins := 0.0; len(g.requests) < n*13/10; begins += 12 * g.rnd.ExpFloat64() {
		g.now = begins
		talk, tokens := heads[g.rnd.IntN(len(heads))], g.length(3000, 1.0)
		for more := true; more; more = g.rnd.IntN(18) > 0 && len(talk)*generatedBlock < 90_000 {
			answer := g.length(250, 0.9)
			all := g.add(tokens, answer, talk)
			talk = slices.Concat(all[:len(all)-1], g.blocks(answer/generatedBlock))
			tokens = g.length(1100, 1.3)
			g.now += float64(answer)*0.02 + 4*g.rnd.ExpFloat64()
		}
	}
	tr := g.trace()
	slices.SortStableFunc(tr.Requests, func(a, b *Request) int { return gocmp.Compare(a.Arrival, b.Arrival) })
	tr.Requests = tr.Requests[:n] // later ones would only end
	for i, r := range tr.Requests {
		r.Index = i
	}
	return tr
}

// TestAgentsBeginEverywhere: conversations that begin alike do not all join those that have the head: they would stay there, and
// their turns wait for one another while other engines have nothing to do. Where only the request at hand had a price, a third of
// the engines did next to nothing, and Preble's rule, which counts the work of minutes, was sooner by 40 %.
func TestAgentsBeginEverywhere(t *testing.T) {
	preble, live, idle := 0.0, 0.0, 0
	for seed := range uint64(3) {
		tr := toolAgents(2500, seed)
		o := RunOptions{Options: Options{Engines: 16, Model: Model70B(), BlockSize: 64, Keyspace: LiveKeyspace(64)}, Speed: 14, Warmup: 0.2, Keep: true}
		r := mustRun(t, tr, NewLive(LiveOptions{}), o)
		live += r.TTFT.Mean / 3
		preble += mustRun(t, tr, NewRouter(policy.DefaultExploitExplore(), RouterOptions{Window: 180}), o).TTFT.Mean / 3
		var served [16]int
		for _, q := range r.Requests {
			served[q.Engine]++
		}
		for _, n := range served {
			if n < len(r.Requests)/16/4 {
				idle++
			}
		}
	}
	t.Logf("mean TTFT %.4f s, by Preble's rule %.4f s: %.3f; %d of 48 engines do less than a quarter of the mean", live, preble, live/preble, idle)
	if live > 1.25*preble || idle > 9 {
		t.Error("agents do not begin everywhere")
	}
}

// What the sample shows with room to spare, whatever the speed.
func TestSampleTellsChoosersApart(t *testing.T) {
	tr := mustSample(t)
	for _, speed := range []float64{1, 2} {
		o := eight()
		o.Speed = speed
		rr := mustRun(t, tr, RoundRobin(), o)
		least := mustRun(t, tr, LeastLoaded(), o)
		stuck := mustRun(t, tr, sticky{}, o)
		for _, r := range []Result{rr, least, stuck} {
			if r.N != SampleRequests-SampleRequests/5 || r.Refused != 0 {
				t.Errorf("%d measured, %d refused", r.N, r.Refused)
			}
			if !(r.CachedShare > 0.02 && r.CachedShare < 0.5) || !(r.Utilisation > 0 && r.Utilisation <= 1) || !(r.Imbalance >= 1 && r.Imbalance < 8) {
				t.Errorf("implausible: %+v", r)
			}
		}
		if stuck.CachedShare < 2*rr.CachedShare {
			t.Errorf("sticky serves %.3f from the cache, round robin %.3f", stuck.CachedShare, rr.CachedShare)
		}
		if least.TTFT.Mean > 0.9*rr.TTFT.Mean {
			t.Errorf("mean TTFT of least loaded %.3f, of round robin %.3f", least.TTFT.Mean, rr.TTFT.Mean)
		}
	}
}

// What each rule knows shows, with room to spare.
func TestRulesOnTheSample(t *testing.T) {
	tr := mustSample(t)
	run := func(c Chooser) Result {
		o := RunOptions{Options: Options{Engines: 8, BlockSize: 512}, Speed: 2.3, Warmup: 0.2}
		return mustRun(t, tr, c, o)
	}
	with := func(name string, o RouterOptions) Result {
		p, ok := policy.ByName(name)
		if !ok {
			t.Fatal(name)
		}
		return run(NewRouter(p, o))
	}
	informed := run(NewInformed())
	ours := with("least_time", RouterOptions{})
	least := with("least_loaded", RouterOptions{})
	robin := run(RoundRobin())
	if !(ours.TTFT.Mean < 1.1*informed.TTFT.Mean && informed.TTFT.Mean < 0.8*least.TTFT.Mean && least.TTFT.Mean < 0.8*robin.TTFT.Mean) {
		t.Errorf("mean TTFT: informed %v, least_time %v, least loaded %v, round robin %v",
			informed.TTFT.Mean, ours.TTFT.Mean, least.TTFT.Mean, robin.TTFT.Mean)
	}
	again := with("least_time", RouterOptions{})
	if d := cmp.Diff(ours, again); d != "" {
		t.Errorf("the same run differs:\n%s", d)
	}
}

// A chooser of one's own, which keeps conversations where their first 1,024 tokens are.
func ExampleRun() {
	trace, err := Sample()
	if err != nil {
		fmt.Println(err)
		return
	}
	trace.Requests = trace.Requests[:1000]
	k := block.Identity{Model: "sim-8b", BlockSize: 64}.Keyspace()
	o := RunOptions{Options: Options{Engines: 8, BlockSize: 64, Keyspace: k}, Warmup: 0.2}
	spread, _ := Run(trace, RoundRobin(), o)
	stay, _ := Run(trace, sticky{}, o)
	fmt.Println(spread.N, "requests measured")
	fmt.Println("more from the cache:", stay.CachedShare > spread.CachedShare)
	// Output:
	// 800 requests measured
	// more from the cache: true
}
