package sim

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// spy is a policy that shows what it was given and chooses at random.
type spy struct {
	rnd   *rand.Rand
	check func(req *policy.Request, cands []policy.Candidate)
}

func (spy) Name() string { return "spy" }

func (s spy) Choose(req *policy.Request, cands []policy.Candidate, d *policy.Decision) {
	s.check(req, cands)
	(policy.LeastTime{}).Choose(req, cands, d) // for the scores
	d.Best = s.rnd.IntN(len(cands))
}

// What a router tells a policy is what can be counted in the engines, or in the list of what it has sent.
func TestRouterTellsTheTruth(t *testing.T) {
	asked, hits, ahead, sharings := 0, 0, 0, 0
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		const size = 4
		tr := randomTrace(t, rnd, 120, size, 10)
		engines := 1 + rnd.IntN(70) // also more than a word of bits
		if seed%2 == 0 {
			engines = 1 + rnd.IntN(3)
		}
		kind := []IndexKind{Events, RoutedAll}[rnd.IntN(2)]
		o := RunOptions{Options: Options{
			Engines: engines, Model: randomModel(rnd, size, longest(tr)), BlockSize: size, Keyspace: testKeyspace,
		}}
		var fleet *Fleet
		var now *Request
		var jobs []*Job
		outputs := map[*Job]float64{}
		check := func(req *policy.Request, cands []policy.Candidate) {
			asked++
			chain := now.Chain(testKeyspace, size)
			usable := block.Usable(now.Input, size)
			for e, c := range cands {
				want := policy.Candidate{Target: c.Target, KVUsed: -1, LastChosen: c.LastChosen, LastCold: c.LastCold, MatchedAt: c.MatchedAt, Cost: c.Cost}
				held, expected, active := map[block.ID]bool{}, map[block.ID]bool{}, map[block.ID]int{}
				for id := range fleet.engines[e].cache.at {
					held[id] = kind == Events
				}
				out := 0.0
				for _, j := range jobs {
					for _, id := range j.chain {
						held[id] = held[id] || kind == RoutedAll && j.Engine == e
					}
					if j.Engine != e || j.Finished > 0 {
						continue
					}
					want.InFlight++
					want.ActiveTokens += float64(j.Request.Input)
					want.HeldTokens += float64(j.Request.Input - len(j.chain)*size)
					out += outputs[j]
					for _, id := range j.chain {
						active[id]++
						expected[id] = expected[id] || j.FirstToken == 0
					}
					if j.FirstToken == 0 {
						want.Prefilling++
						want.PendingTokens += float64(j.estimate)
						want.PendingPrefill += c.Cost.PrefillTime(j.estimate, j.Request.Input-j.estimate)
					}
				}
				want.Decoding, want.Waiting = want.InFlight-want.Prefilling, want.Prefilling
				want.HeldTokens += float64(len(active) * size)
				want.OutputToCome = out
				lead := func(has func(block.ID) bool) (n int) {
					for n < len(chain) && has(chain[n]) {
						n++
					}
					return n
				}
				n := lead(func(id block.ID) bool { return held[id] })
				want.Held, want.Cached[0] = n*size, min(n, usable)*size
				want.Expected = min(lead(func(id block.ID) bool { return held[id] || expected[id] }), usable)*size - want.Cached[0]
				want.Shared = lead(func(id block.ID) bool { return active[id] > 0 }) * size
				near := func(a, b *float64) {
					if math.Abs(*a-*b) > 1e-6 {
						t.Fatalf("seed %d, engine %d: %v, want %v", seed, e, *a, *b)
					}
					*a = *b
				}
				near(&c.PendingPrefill, &want.PendingPrefill)
				near(&c.OutputToCome, &want.OutputToCome)
				if d := cmp.Diff(want, c); d != "" {
					t.Fatalf("seed %d, engine %d:\n%s", seed, e, d)
				}
				hits, ahead, sharings = hits+want.Cached[0], ahead+want.Expected, sharings+want.Shared
			}
		}
		r := NewRouter(spy{rnd, check}, RouterOptions{Index: kind})
		_, err := Run(tr, &watched{r, func(f *Fleet, r *Request) { fleet, now = f, r }, func(j *Job) {
			j.estimate, outputs[j] = r.lives[j.Request].uncached, r.lives[j.Request].expected
			jobs = append(jobs, j)
		}}, o)
		if err != nil {
			t.Fatal(err)
		}
	}
	if asked < 2000 || hits == 0 || ahead == 0 || sharings == 0 {
		t.Errorf("asked %d times, %d held, %d ahead, %d shared: the test has not been where it matters", asked, hits, ahead, sharings)
	}
}

// watched tells a test what a router is asked.
type watched struct {
	*Router

	before func(*Fleet, *Request)
	after  func(*Job)
}

func (w *watched) Choose(t float64, r *Request, f *Fleet) int {
	w.before(f, r)
	return w.Router.Choose(t, r, f)
}

func (w *watched) submitted(j *Job) { w.after(j) }

// The bounded index forgets what was sent longest ago, tails first.
func TestRoutedIndexIsBounded(t *testing.T) {
	m := dyadic()
	m.KVTokens = 16 // four blocks
	tr := readLines(t, ReadOptions{BlockSize: 4},
		row(0, 13, 1, 0, 1, 2, 3), row(100e3, 5, 1, 9, 8), row(200e3, 13, 1, 0, 1, 2, 3), row(300e3, 9, 1, 7, 6, 5), row(400e3, 13, 1, 0, 1, 2, 3))
	var got []int
	r := NewRouter(spy{rand.New(rand.NewPCG(1, 1)), func(_ *policy.Request, cands []policy.Candidate) { got = append(got, cands[0].Held) }},
		RouterOptions{Index: Routed, NoExpected: true})
	mustRun(t, tr, r, RunOptions{Options: Options{Engines: 1, Model: m, BlockSize: 4}})
	// 3 full blocks; then 1 more makes 4; then the first 3 again; then 2 new ones push out the 1 and the tail of the 3.
	if d := cmp.Diff([]int{0, 0, 12, 0, 8}, got); d != "" {
		t.Errorf("held -want +got:\n%s", d)
	}
}

// Recent work is a window, and gauges are as old as the last scrape.
func TestRouterWindowAndScrape(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 8, 9, 0, 1), row(1000, 8, 1, 2, 3), row(4000, 8, 1, 4, 5), row(30000, 8, 1, 6, 7))
	var recent, kv []float64
	var waiting []int
	r := NewRouter(spy{rand.New(rand.NewPCG(1, 1)), func(_ *policy.Request, cands []policy.Candidate) {
		recent, kv, waiting = append(recent, cands[0].RecentWork), append(kv, cands[0].KVUsed), append(waiting, cands[0].Waiting)
	}}, RouterOptions{Window: 10, ScrapeEvery: 3})
	m := dyadic()
	m.MaxBatch = 1
	mustRun(t, tr, r, RunOptions{Options: Options{Engines: 1, Model: m, BlockSize: 4}})
	c := m.CostModel()
	one := c.PrefillTime(8, 0) + 200*m.IterationBase/16
	two := one + c.PrefillTime(8, 0) + (200+0.01*0)*m.IterationBase/16
	if math.Abs(recent[1]-one) > 1e-9 || math.Abs(recent[2]-two) > 0.1*one || recent[3] != 0 {
		t.Errorf("recent work %v, want 0, %v, about %v, 0", recent, one, two)
	}
	if d := cmp.Diff([]int{0, 0, 1, 0}, waiting); d != "" {
		t.Errorf("waiting, scraped at 0, 4 and 30:\n%s", d)
	}
	if kv[0] != 0 || kv[1] != 0 || !(kv[2] > 0) || kv[3] != 0 {
		t.Errorf("KV in use %v", kv)
	}
}

// With nothing but prefill in front of it, the informed prediction is what happens.
func TestInformedPredicts(t *testing.T) {
	m := Model8B()
	tr := readLines(t, ReadOptions{BlockSize: 64},
		row(0, 1000, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
		row(5, 1800, 1, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48),
		row(9000, 1100, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 50, 51, 52))
	a := NewInformed()
	var predicted []float64
	var jobs []*Job
	probe := &probed{a, func(f *Fleet, r *Request, at float64) {
		chain := r.Chain(0, 64)
		a.find(chain)
		a.leading(a.ahead, held, soon)
		predicted = append(predicted, a.cost(f.engines[0], r, min(a.ahead[0]*64, r.Input-1), at))
	}, func(j *Job) { jobs = append(jobs, j) }}
	mustRun(t, tr, probe, RunOptions{Options: Options{Engines: 1, Model: m, BlockSize: 64}})
	for i, j := range jobs {
		if got := j.FirstToken - j.Arrived; math.Abs(got-predicted[i]) > 1e-9 {
			t.Errorf("request %d: first token after %v s, predicted %v", i, got, predicted[i])
		}
	}
	if jobs[2].Cached != 15*64 {
		t.Errorf("%d cached", jobs[2].Cached)
	}
}

type probed struct {
	*Informed

	before func(*Fleet, *Request, float64)
	after  func(*Job)
}

func (p *probed) Choose(t float64, r *Request, f *Fleet) int {
	p.before(f, r, t)
	return p.Informed.Choose(t, r, f)
}

func (p *probed) submitted(j *Job) {
	p.Informed.submitted(j)
	p.after(j)
}
