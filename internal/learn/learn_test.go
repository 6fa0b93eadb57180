package learn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// world makes prefills of an engine whose true costs are known, one after the other and in spells.
type world struct {
	rnd   *rand.Rand
	truth Parts // factors of the prior
	now   float64
	busy  float64
	noise float64
}

// next is one request: short and long ones, alone or behind others, sometimes with decodes beside them.
func (w *world) next(id fleet.TargetID) (p Prefill, seconds float64) {
	tokens := math.Exp(w.rnd.NormFloat64()) * 2500
	context := float64(w.rnd.IntN(4)) * 6000
	decodes, kv := float64(w.rnd.IntN(60)), float64(w.rnd.IntN(300_000))
	k := math.Ceil(tokens / 2048)
	p = Prefill{
		Target: id,
		Parts: Parts{
			Linear: 22e-6 * (tokens + k*decodes), Attention: 1.17e-9 * tokens * (context + tokens/2), Iteration: 3e-3 * k,
			Floor: 7.5e-3 * k, Decode: 52e-9 * k * kv,
		},
		First: Parts{Linear: 11e-6 * decodes, Iteration: 1.5e-3, Floor: 3.75e-3, Decode: 26e-9 * kv},
	}
	if w.rnd.IntN(3) == 0 {
		p.Parts[Transfer] = 5e-6 * context
	}
	w.now += w.rnd.ExpFloat64() * 0.15
	p.Iterations = k
	p.Booked = w.now
	begun := max(w.now, w.busy)
	seconds = timeOf(&p, &w.truth, begun == w.now)
	seconds *= math.Exp(w.noise * w.rnd.NormFloat64())
	w.busy = begun + seconds
	p.Done = w.busy
	return p, seconds
}

// timeOf is the time of a prefill under factors. The iteration that was under way has its own least time.
func timeOf(p *Prefill, f *Parts, first bool) float64 {
	of := func(parts *Parts) float64 {
		var t Parts
		for i := range t {
			t[i] = f[i] * parts[i]
		}
		return max(t[Linear]+t[Iteration], t[Floor]) + t[Attention] + t[Decode] + t[Transfer]
	}
	if !first {
		return of(&p.Parts)
	}
	return of(&p.Parts) + of(&p.First)
}

// TestWrongPriorIsCorrected: a prior that is four times too slow or too fast, or wrong in one part only, is right within
// some hundred requests, also among outliers.
func TestWrongPriorIsCorrected(t *testing.T) {
	for _, truth := range []Parts{
		{1, 1, 1, 1, 1, 1},
		{4, 4, 4, 4, 4, 4},
		{0.25, 0.25, 0.25, 0.25, 0.25, 0.25},
		{4, 4, 1, 1, 1, 1},
		{0.25, 0.25, 1, 1, 1, 1},
		{1, 3, 1, 1, 1, 1},
		{1.5, 1.5, 3, 1, 1, 1},
	} {
		for _, outliers := range []int{0, 20} { // one in so many
			t.Run(fmt.Sprint(truth, outliers), func(t *testing.T) {
				w := &world{rnd: rand.New(rand.NewPCG(5, 5)), truth: truth, noise: 0.05}
				l := New()
				l.Begin(0, "h100")
				bias, spread, n := 0.0, 0.0, 0
				for i := range 600 {
					p, seconds := w.next(0)
					if i >= 300 { // what would be predicted of it
						l.Publish(0)
						f := l.Of(0)
						e := timeOf(&p, &f.Factors, p.Booked == p.Done-seconds)/seconds - 1
						bias, spread, n = bias+e, spread+math.Abs(e), n+1
					}
					if outliers > 0 && w.rnd.IntN(outliers) == 0 {
						w.busy += 5 * seconds // it stood still, or a report came late
						p.Done = w.busy
					}
					l.FirstToken(&p)
				}
				bias, spread = bias/float64(n), spread/float64(n)
				if limit := 0.03 + 0.06*float64(min(outliers, 1)); math.Abs(bias) > limit || spread > 0.05+limit {
					t.Errorf("after 300 requests predictions are off by %+.3f, |error| %.3f; %+v", bias, spread, l.Of(0))
				}
			})
		}
	}
}

// TestItFollows: a worker that becomes twice as slow is found out.
func TestItFollows(t *testing.T) {
	w := &world{rnd: rand.New(rand.NewPCG(6, 6)), truth: Parts{1, 1, 1, 1, 1, 1}, noise: 0.05}
	l := New()
	l.Begin(0, "")
	for range 2000 {
		p, _ := w.next(0)
		l.FirstToken(&p)
	}
	w.truth = Parts{2, 2, 2, 2, 2, 2}
	for range 300 {
		p, _ := w.next(0)
		l.FirstToken(&p)
	}
	predicted, took := 0.0, 0.0
	for range 100 {
		p, seconds := w.next(0)
		l.Publish(0)
		f := l.Of(0)
		predicted += timeOf(&p, &f.Factors, p.Booked == p.Done-seconds)
		took += seconds
	}
	if math.Abs(predicted/took-1) > 0.1 {
		t.Errorf("300 requests after it became twice as slow %v s are predicted for %v: %+v", predicted, took, l.Of(0))
	}
}

// TestWorkersOfOneClassDiffer: each learns its own speed, and one that joins starts from what its class has learned.
func TestWorkersOfOneClassDiffer(t *testing.T) {
	l := New()
	worlds := []*world{
		{rnd: rand.New(rand.NewPCG(7, 1)), truth: Parts{1.5, 1.5, 1.5, 1.5, 1.5, 1.5}, noise: 0.05},
		{rnd: rand.New(rand.NewPCG(7, 2)), truth: Parts{3, 3, 3, 3, 3, 3}, noise: 0.05},
	}
	for id := range worlds {
		l.Begin(fleet.TargetID(id), "a")
	}
	for range 300 {
		for id, w := range worlds {
			p, _ := w.next(fleet.TargetID(id))
			l.FirstToken(&p)
		}
		// One is asked as often as the other, however long it takes.
		at := max(worlds[0].busy, worlds[1].busy)
		worlds[0].now, worlds[1].now = at, at
	}
	l.Publish(0)
	for id, w := range worlds {
		if got := l.Of(fleet.TargetID(id)); math.Abs(got.Factors[Linear]/w.truth[Linear]-1) > 0.1 || got.Samples < 200 {
			t.Errorf("worker %d is %v times slower than the prior: %+v", id, w.truth[Linear], got)
		}
	}
	l.Begin(7, "a")
	if f := l.Of(7); f.Factors[Linear] < 1.4 || f.Factors[Linear] > 3.1 || f.Samples != 0 {
		t.Errorf("one that joins: %+v", f)
	}
	l.Begin(8, "another class")
	l.Begin(1, "another class") // a new life
	for _, id := range []fleet.TargetID{1, 8, 99} {
		if f := l.Of(id); f.Factors != (Parts{1, 1, 1, 1, 1, 1}) {
			t.Errorf("target %d, of which nothing is known: %+v", id, f)
		}
	}
	l.Drop(0)
	if l.FirstToken(&Prefill{Target: 0}) || l.Stats().Refused == 0 {
		t.Error("a dropped target learns")
	}
}

// TestAlikeLookAlike: equal workers are believed equal however unevenly they are asked and whatever their luck; one that
// is not is found out, and moves nobody else.
func TestAlikeLookAlike(t *testing.T) {
	const workers, slow = 32, 5
	l, rnd := New(), rand.New(rand.NewPCG(8, 8))
	busy := make([]float64, workers)
	for id := range busy {
		l.Begin(fleet.TargetID(id), "a")
	}
	for i := range 6000 {
		id := min(rnd.IntN(workers), rnd.IntN(workers)) // the first ones are asked most
		k := 1.0
		if rnd.IntN(3) == 0 {
			k = float64(2 + rnd.IntN(20))
		}
		parts := Parts{Linear: 0.045 * k, Iteration: 0.003 * k, Floor: 0.0075 * k}
		truth := 1.3 * (parts[Linear] + parts[Iteration])
		if id == slow {
			truth *= 1.25
		}
		took := truth * (1 + (rnd.Float64()-0.5)/k) // up to half an iteration sooner or later
		begun := max(busy[id], float64(i)*0.02)
		busy[id] = begun + took
		l.FirstToken(&Prefill{Target: fleet.TargetID(id), Booked: begun, Done: busy[id], Parts: parts, Iterations: k})
	}
	l.Publish(0)
	usual := l.Of(0).Factors[Linear]
	if math.Abs(usual/1.3-1) > 0.03 {
		t.Errorf("a worker of the class is believed %v times slower than the prior, want 1.3", usual)
	}
	for id := range fleet.TargetID(workers) {
		got, want := l.Of(id).Factors[Linear]/usual, 1.0
		if id == slow {
			want = 1.25
		}
		if math.Abs(got-want) > 0.04*(want-1)/0.25 {
			t.Errorf("worker %d is believed %v times slower than the first, want %v", id, got, want)
		}
	}
}

// crowd is workers of one class that are asked in turn, twice a second.
type crowd struct {
	l    *Learner
	rnd  *rand.Rand
	slow []float64 // by worker: how many times slower than the class
	busy []float64
	now  float64
}

func newCrowd(workers int) *crowd {
	c := &crowd{l: New(), rnd: rand.New(rand.NewPCG(11, 11)), slow: make([]float64, workers), busy: make([]float64, workers)}
	for id := range c.slow {
		c.l.Begin(fleet.TargetID(id), "a")
		c.slow[id] = 1
	}
	return c
}

// ask sends one worker a prefill of so many iterations, which takes some times longer than it would.
func (c *crowd) ask(id int, k, times float64) {
	c.now += 0.5
	parts := Parts{Linear: 0.045 * k, Iteration: 0.003 * k, Floor: 0.0075 * k}
	took := (parts[Linear] + parts[Iteration]) * c.slow[id] * times * (1 + (c.rnd.Float64()-0.5)/k)
	begun := max(c.busy[id], c.now)
	c.busy[id] = begun + took
	c.l.FirstToken(&Prefill{Target: fleet.TargetID(id), Booked: begun, Done: c.busy[id], Parts: parts, Iterations: k})
}

// run sends so many to each but for one, with a third of them long.
func (c *crowd) run(rounds, without int) {
	for range rounds {
		for id := range c.slow {
			if id != without {
				c.ask(id, c.length(), 1)
			}
		}
	}
	c.l.Publish(c.now)
}

func (c *crowd) length() float64 {
	if c.rnd.IntN(3) == 0 {
		return float64(2 + c.rnd.IntN(12))
	}
	return 1
}

// than is how many times slower one is believed to be than another.
func (c *crowd) than(id, other int) float64 {
	return c.l.Of(fleet.TargetID(id)).Factors[Linear] / c.l.Of(fleet.TargetID(other)).Factors[Linear]
}

// TestSuddenlySlow: a worker that becomes four times slower is found out within a dozen of its prefills, be they short, long
// or both, and so is one that is well again; the others are what they were.
func TestSuddenlySlow(t *testing.T) {
	for name, length := range map[string]func(*crowd) float64{
		"short": func(*crowd) float64 { return 1 }, "long": func(*crowd) float64 { return 8 }, "both": (*crowd).length,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(8)
			c.run(300, -1)
			for _, step := range []struct{ slow, least, most float64 }{{4, 2.5, 5}, {1, 0.7, 1.3}} {
				c.slow[7] = step.slow
				for range 14 {
					c.run(1, 7)
					c.ask(7, length(c), 1)
				}
				c.l.Publish(c.now)
				if got := c.than(7, 0); got < step.least || got > step.most {
					t.Errorf("after 14 prefills of a worker that is %v times slower it is believed %.2f times", step.slow, got)
				}
				if got := c.than(3, 0); got != 1 {
					t.Errorf("another one is believed %.3f times slower", got)
				}
			}
		})
	}
}

// TestLuckIsNoChange: a prefill here and there that takes ten times as long, two of them in a row even, makes no worker slow.
func TestLuckIsNoChange(t *testing.T) {
	c := newCrowd(4)
	c.run(200, -1)
	for i := range 400 {
		times := 1.0
		if i%40 < 2 {
			times = 10
		}
		c.ask(2, c.length(), times)
		c.run(1, 2)
		if got := c.than(2, 0); got > 1.1 {
			t.Fatalf("after %d prefills, of which one in twenty stood still, the worker is believed %.2f times slower", i, got)
		}
	}
}

// TestSlowIsTriedAgain: who was slow when it was last heard of looks like the others again after a while, and is known as
// well with the first prefill that shows it, or as slow as it was.
func TestSlowIsTriedAgain(t *testing.T) {
	for _, isWell := range []bool{true, false} {
		c := newCrowd(4)
		c.slow[3] = 4
		c.run(300, -1)
		if got := c.than(3, 0); got < 3 {
			t.Fatalf("it is believed %.2f times slower, want 4", got)
		}
		c.run(12, 3) // 18 s
		if got := c.than(3, 0); got < 3 {
			t.Errorf("after 18 s without a word it is believed %.2f times slower, want 4", got)
		}
		before := c.than(3, 0)
		c.run(120, 3) // 180 s
		if got := c.than(3, 0); got != 1 {
			t.Errorf("after 3 minutes without a word it is believed %.3f times slower, and is never asked", got)
		}
		want := before
		if isWell {
			c.slow[3], want = 1, 1
		}
		c.ask(3, 4, 1)
		c.run(8, 3) // 12 s
		if got := c.than(3, 0); math.Abs(got/want-1) > 0.25 {
			t.Errorf("is well %v: it is believed %.2f times slower, want %.2f", isWell, got, want)
		}
	}
}

// TestWhatTheModelMissesIsNoSpeed: what no factor can describe (here: long prefills are a sixth dearer than short ones of the
// same make) makes no worker slow that gets more of the dear ones.
func TestWhatTheModelMissesIsNoSpeed(t *testing.T) {
	const workers, dear = 4, 1
	l, rnd := New(), rand.New(rand.NewPCG(8, 9))
	now := make([]float64, workers)
	for id := range now {
		l.Begin(fleet.TargetID(id), "a")
	}
	seen, slow := 0, 0
	for i := range 8000 {
		id := rnd.IntN(workers)
		predicted, took := 0.1, 0.1*0.93
		if p := rnd.IntN(10); id == dear && p > 0 || p > 5 {
			predicted, took = 0.4, 0.4*1.08
		}
		took *= 1 + 0.1*(rnd.Float64()-0.5)
		now[id] += took + 1
		l.FirstToken(&Prefill{Target: fleet.TargetID(id), Booked: now[id] - took, Done: now[id], Parts: Parts{Linear: predicted}, Iterations: 10})
		if i > 200 && i%100 == 0 {
			l.Publish(0)
			for id := range fleet.TargetID(workers) {
				seen++
				if math.Abs(l.Of(id).Factors[Linear]/l.Of((id + 1) % workers).Factors[Linear]-1) > 0.02 {
					slow++
				}
			}
		}
	}
	if slow > seen/100 {
		t.Errorf("%d times in %d two workers that are alike are believed to differ", slow, seen)
	}
}

// TestClassIsPublishedAtOnce: between two publications no target sees what its class has learned.
func TestClassIsPublishedAtOnce(t *testing.T) {
	l := New()
	for id := range fleet.TargetID(3) {
		l.Begin(id, "a")
	}
	for i := range 50 {
		at := float64(i)
		l.FirstToken(&Prefill{Target: 1, Booked: at, Done: at + 0.4, Parts: Parts{Linear: 0.1}, Iterations: 4})
	}
	if a, b := l.Of(0).Factors, l.Of(2).Factors; a != b || a[Linear] != 1 {
		t.Errorf("before the publication: %v and %v, want the prior", a, b)
	}
	l.Publish(0)
	if a, b := l.Of(0).Factors, l.Of(2).Factors; a != b || a[Linear] < 3.5 {
		t.Errorf("after it: %v and %v, want about 4", a, b)
	}
}

// TestWholeRequests: what only ends of requests tell.
func TestWholeRequests(t *testing.T) {
	l := New()
	l.Begin(1, "")
	for range 300 {
		f := l.Of(1)
		l.Whole(1, 4, f.Factors[Linear]*1) // four times slower
		l.Publish(0)
	}
	if f := l.Of(1).Factors[Linear]; f < 1.9 || f > 4 {
		t.Errorf("from whole requests: %v, want 4 or half of it at least", f)
	}
	if l.Whole(2, 4, 1) || l.Whole(1, math.NaN(), 1) || l.Whole(1, 1, 0) || l.Stats() != (Stats{Samples: 300, Refused: 3}) {
		t.Errorf("a target that is not known, and numbers that cannot be: %+v", l.Stats())
	}
}

// FuzzLearner: whatever is told, factors stay in their range.
func FuzzLearner(f *testing.F) {
	f.Add(0.0, 1.0, 0.5, 0.1, 0.0, 0.2)
	f.Add(math.NaN(), math.Inf(1), -1.0, math.NaN(), math.Inf(-1), 1e300)
	f.Add(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
	f.Add(5.0, 4.0, 5e-324, 1e-300, 599.0, 601.0)
	f.Fuzz(func(t *testing.T, booked, done, a, b, first, predicted float64) {
		l := New()
		l.Begin(0, "")
		for i := range 40 {
			shift := float64(i)
			l.FirstToken(&Prefill{Booked: booked + shift, Done: done + shift, Parts: Parts{a, b, first, a, b}, First: Parts{first, 0, b}})
			l.FirstToken(&Prefill{Booked: booked + shift, Done: done + shift + 0.01, Parts: Parts{0.01, 0.001}})
			l.Whole(0, a, predicted)
		}
		l.Publish(0)
		got := l.Of(0)
		for i, v := range got.Factors {
			if !(v >= MinFactor && v <= MaxFactor) {
				t.Fatalf("%v = %v", Part(i), v)
			}
		}
		if !(got.Error >= 0 && got.Error <= 2*absurd) {
			t.Fatalf("%+v", got)
		}
	})
}

func BenchmarkFirstToken(b *testing.B) {
	w := &world{rnd: rand.New(rand.NewPCG(1, 1)), truth: Parts{2, 2, 2, 2, 2, 2}, noise: 0.05}
	var ps []Prefill
	for range 1000 {
		p, _ := w.next(0)
		ps = append(ps, p)
	}
	l := New()
	l.Begin(0, "")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.FirstToken(&ps[i%len(ps)])
	}
}

// TestEndsAloneTellNoWorkerFromAnother: whoever is asked first is not the faster one for it.
func TestEndsAloneTellNoWorkerFromAnother(t *testing.T) {
	l := New()
	l.Begin(1, "a")
	l.Begin(2, "a")
	for range 100 {
		l.Whole(1, 0.1, l.Of(1).Factors[Linear])
		l.Publish(0)
	}
	if a, b := l.Of(1).Factors, l.Of(2).Factors; a != b || a[Linear] > 0.5 {
		t.Errorf("the one that was told of: %v, the other: %v, want both alike and well below 1", a, b)
	}
	w := &world{rnd: rand.New(rand.NewPCG(9, 1)), truth: Parts{2, 2, 2, 2, 2, 2}, noise: 0.05}
	for range 50 {
		p, _ := w.next(1)
		l.FirstToken(&p)
	}
	l.Publish(0)
	before := l.Of(1).Factors
	l.Whole(1, 50, 1)
	l.Publish(0)
	if got := l.Of(1).Factors; got != before {
		t.Errorf("an end moved what first tokens have told: %v, before %v", got, before)
	}
}
