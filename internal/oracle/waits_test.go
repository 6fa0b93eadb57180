package oracle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvoracle/kvoracle/internal/admit"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
)

// pass lets time go by.
func pass(d time.Duration) { <-time.After(d) }

// crowd is an oracle whose workers have limits, inside a synctest bubble.
type crowd struct {
	t *testing.T
	o *Oracle
}

func newCrowd(t *testing.T, queue admit.Config, workers ...fleet.Spec) *crowd {
	t.Helper()
	c := &crowd{t: t, o: New(Config{Queue: queue}, nil)}
	for _, w := range workers {
		c.register(w)
	}
	return c
}

func limited(name string, most int) fleet.Spec {
	return fleet.Spec{Worker: name, Model: "m", BlockSize: size, DPSize: 1, MaxRequests: most}
}

func (c *crowd) register(w fleet.Spec) {
	c.t.Helper()
	if _, err := c.o.Register(w, time.Now()); err != nil {
		c.t.Fatal(err)
	}
}

// question is one that was asked in a goroutine of its own.
type question struct {
	cancel context.CancelFunc
	answer *Answer
	err    error
	isOver atomic.Bool // answer and err are there
}

// ask asks, and lets everything happen that then happens by itself.
func (c *crowd) ask(change func(*RouteRequest)) *question {
	q := c.start(change)
	synctest.Wait()
	return q
}

func (c *crowd) start(change func(*RouteRequest)) *question {
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(cancel)
	q := &question{cancel: cancel}
	r := &RouteRequest{Model: "m", Prompt: prompt(1, 2), MaxWait: time.Minute}
	if change != nil {
		change(r)
	}
	go func() {
		defer cancel()
		q.answer, q.err = c.o.Route(ctx, r, time.Now())
		q.isOver.Store(true)
	}()
	return q
}

// served fails unless the question has an answer.
func (c *crowd) served(q *question) *Answer {
	c.t.Helper()
	if !q.isOver.Load() || q.err != nil {
		c.t.Fatalf("over: %v, error: %v; want an answer", q.isOver.Load(), q.err)
	}
	return q.answer
}

func (c *crowd) waits(qs ...*question) {
	c.t.Helper()
	for i, q := range qs {
		if q.isOver.Load() {
			c.t.Fatalf("question %d of %d does not wait: %v, %v", i, len(qs), q.answer, q.err)
		}
	}
	if n := c.o.Stats(time.Now()).Waiting; n != len(qs) {
		c.t.Fatalf("%d questions wait, want %d", n, len(qs))
	}
}

func (c *crowd) refused(q *question, kind Kind, reason Reason) {
	c.t.Helper()
	var e *Error
	if !q.isOver.Load() || !errors.As(q.err, &e) || e.Kind != kind || e.Reason != reason {
		c.t.Fatalf("over: %v, error: %v; want %s", q.isOver.Load(), q.err, reason)
	}
}

// shed is how long the wait of a question was predicted to be that found no place.
func (c *crowd) shed(q *question, reason Reason) time.Duration {
	c.t.Helper()
	c.refused(q, Exhausted, reason)
	var e *Error
	_ = errors.As(q.err, &e)
	return e.RetryAfter
}

// end finishes a request, and lets everything happen that then happens by itself.
func (c *crowd) end(a *Answer) {
	c.t.Helper()
	if out, err := c.o.Progress(&Event{Decision: a.Decision, Step: Finished, OutputTokens: 1, Cached: -1}, time.Now()); err != nil || out != Applied {
		c.t.Fatalf("finished: %v, %v", out, err)
	}
	synctest.Wait()
}

func at(priority int32) func(*RouteRequest) {
	return func(r *RouteRequest) { r.Priority = priority }
}

func of(tenant string, output int) func(*RouteRequest) {
	return func(r *RouteRequest) { r.Tenant, r.ExpectedOutput = tenant, output }
}

func TestPlaceIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{}, limited("w1", 2))
		a, b := c.served(c.ask(nil)), c.served(c.ask(nil))
		if a.Waited != 0 || a.Position != 0 {
			t.Errorf("who need not wait has waited %v at %d", a.Waited, a.Position)
		}
		first, second := c.ask(nil), c.ask(nil)
		c.waits(first, second)
		pass(3 * time.Second)
		c.end(a)
		got := c.served(first)
		if got.Waited != 3*time.Second || got.Position != 1 || got.Target.Worker != "w1" || !got.DecidedAt.Equal(time.Now()) {
			t.Errorf("waited %v at %d for %s, decided at %v", got.Waited, got.Position, got.Target.Worker, got.DecidedAt)
		}
		if x := c.o.Explain(got.Decision); x.Waited != 3*time.Second || x.Position != 1 {
			t.Errorf("its explanation says %v at %d", x.Waited, x.Position)
		}
		c.waits(second)
		pass(2 * time.Second)
		c.end(b)
		if got := c.served(second); got.Waited != 5*time.Second || got.Position != 2 {
			t.Errorf("waited %v at %d, want 5 s at 2", got.Waited, got.Position)
		}
		c.waits()
	})
}

// TestWhoDoesNotAskDoesNotWait: for those nothing is different, whoever else waits.
func TestWhoDoesNotAskDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{}, limited("w1", 1))
		never := func(r *RouteRequest) { r.MaxWait = 0 }
		dryRun := func(r *RouteRequest) { r.DryRun = true }
		a := c.served(c.ask(never))
		c.refused(c.ask(never), Unavailable, ReasonNoEligibleWorker)
		c.refused(c.ask(dryRun), Unavailable, ReasonNoEligibleWorker)
		q := c.ask(nil)
		c.refused(c.ask(never), Unavailable, ReasonNoEligibleWorker)
		c.refused(c.ask(dryRun), Unavailable, ReasonNoEligibleWorker)
		c.waits(q)
		// A worker that only some may go to has a place, and those take it.
		c.register(limited("w2", 9))
		if got := c.served(c.ask(never)); got.Target.Worker != "w2" {
			t.Errorf("sent to %s, want w2", got.Target.Worker)
		}
		c.o.Tick(time.Now())
		synctest.Wait()
		c.served(q)
		c.end(a)
		c.waits()
	})
}

func TestUrgentQuestionsAndTenantsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{}, limited("w1", 1))
		a := c.served(c.ask(nil))
		names := map[*question]string{}
		var order []string
		var waiting []*question
		add := func(name string, change func(*RouteRequest)) {
			q := c.ask(change)
			names[q] = name
			waiting = append(waiting, q)
		}
		add("low", at(-1))
		for i := range 4 {
			add(fmt.Sprintf("hog%d", i), of("hog", 1000))
		}
		for i := range 3 {
			add(fmt.Sprintf("small%d", i), of("small", 300))
		}
		add("urgent", at(1))
		c.waits(waiting...)
		for len(waiting) > 0 {
			c.end(a)
			i := slices.IndexFunc(waiting, func(q *question) bool { return q.isOver.Load() })
			if i < 0 {
				t.Fatalf("a place is free and %d wait", len(waiting))
			}
			a = c.served(waiting[i])
			order = append(order, names[waiting[i]])
			waiting = slices.Delete(waiting, i, i+1)
		}
		// Three small requests come to less than one of the hog's.
		want := []string{"urgent", "small0", "small1", "small2", "hog0", "hog1", "hog2", "hog3", "low"}
		if !slices.Equal(order, want) {
			t.Errorf("served in order\n%v, want\n%v", order, want)
		}
	})
}

func TestShedAnswersSayWhenToAskAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{MaxItems: 2}, limited("w1", 1))
		a := c.served(c.ask(nil))
		short := c.ask(func(r *RouteRequest) { r.MaxWait = 5 * time.Second })
		long := c.ask(nil)
		after := c.shed(c.ask(nil), ReasonQueueFull)
		if after < time.Second || after > time.Minute {
			t.Errorf("three requests of some 1.5 s before it: told to ask again after %v", after)
		}
		// One that is more urgent takes the place of the last of the others.
		urgent := c.ask(at(3))
		c.refused(long, Exhausted, ReasonQueueFull)
		c.waits(short, urgent)
		pass(5 * time.Second)
		synctest.Wait()
		after = c.shed(short, ReasonQueueTimeout)
		if after <= 0 {
			t.Errorf("told to ask again after %v", after)
		}
		c.waits(urgent)
		c.end(a)
		c.served(urgent)
		c.waits()
	})
}

// TestPredictedWaitFollowsThePace: after some places have come free, what is told follows how fast they did.
func TestPredictedWaitFollowsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{MaxItems: 10}, limited("w1", 1))
		a := c.served(c.ask(nil))
		var waiting []*question
		patient := func(r *RouteRequest) { r.MaxWait = time.Hour }
		for range 10 {
			waiting = append(waiting, c.ask(patient))
		}
		for _, q := range waiting[:8] {
			pass(7500 * time.Millisecond)
			c.end(a)
			a = c.served(q)
			c.ask(patient)
		}
		after := c.shed(c.ask(nil), ReasonQueueFull)
		if want := 11 * 7500 * time.Millisecond; after != want {
			t.Errorf("11th, at a place each 7.5 s: told %v, want %v", after, want)
		}
		c.o.EndWaits()
		synctest.Wait()
	})
}

func TestNobodyMayWaitWhereThereIsNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{MaxItems: -1}, limited("w1", 1))
		c.served(c.ask(nil))
		if after := c.shed(c.ask(nil), ReasonQueueFull); after <= 0 {
			t.Errorf("told to ask again after %v", after)
		}
	})
}

func TestWhoLeavesGivesItsPlaceUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{}, limited("w1", 1))
		a := c.served(c.ask(nil))
		for range 50 {
			gone, next := c.ask(nil), c.ask(nil)
			c.waits(gone, next)
			// It leaves at the moment a place comes free: whether it was called before or not, nobody is forgotten.
			gone.cancel()
			c.end(a)
			if gone.err == nil {
				a = c.served(gone)
				next.cancel()
				synctest.Wait()
			} else {
				if !errors.Is(gone.err, context.Canceled) {
					t.Fatalf("it was told %v, want that it left", gone.err)
				}
				a = c.served(next)
			}
			c.waits()
		}
		late := c.start(nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := c.o.Route(ctx, &RouteRequest{Model: "m", Prompt: prompt(1), MaxWait: time.Minute}, time.Now())
		var e *Error
		if !errors.As(err, &e) || e.Kind != Expired {
			t.Errorf("its caller's time ran out: told %v", err)
		}
		c.end(a)
		c.served(late)
	})
}

// TestPlaceThatSuitsSomeoneElse: who waits for a certain worker does not hold up those who may go elsewhere.
func TestPlaceThatSuitsSomeoneElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{}, limited("w1", 1), limited("w2", 1))
		only := func(w string) func(*RouteRequest) {
			return func(r *RouteRequest) { r.Allowed = []string{w} }
		}
		a1, a2 := c.served(c.ask(only("w1"))), c.served(c.ask(only("w2")))
		first, other := c.ask(only("w1")), c.ask(nil)
		late := c.ask(only("w2"))
		c.waits(first, other, late)
		c.end(a2)
		if got := c.served(other); got.Target.Worker != "w2" {
			t.Errorf("sent to %s, want w2", got.Target.Worker)
		}
		c.waits(first, late)
		// One that comes later and that the free place suits gets it at once, though others wait.
		c.register(limited("w3", 1))
		if got := c.served(c.ask(nil)); got.Target.Worker != "w3" || got.Position != 3 {
			t.Errorf("sent to %s at %d, want w3 at 3", got.Target.Worker, got.Position)
		}
		c.end(a1)
		c.served(first)
		c.waits(late)
		// Nobody may ever take this one: it hears so, and does not wait.
		c.refused(c.ask(only("w9")), Unavailable, ReasonNoEligibleWorker)
		c.end(other.answer)
		c.served(late)
	})
}

func TestWhatFreesPlaces(t *testing.T) {
	for _, tc := range []struct {
		name string
		free func(c *crowd, a *Answer)
	}{
		{"cancelled", func(c *crowd, a *Answer) {
			_, _ = c.o.Progress(&Event{Decision: a.Decision, Step: Cancelled, Cached: -1}, time.Now())
		}},
		{"failed", func(c *crowd, a *Answer) {
			_, _ = c.o.Progress(&Event{Decision: a.Decision, Step: Failed, Cached: -1}, time.Now())
		}},
		{"sent elsewhere", func(c *crowd, a *Answer) {
			c.register(fleet.Spec{Worker: "w2", Model: "other", BlockSize: size, DPSize: 1})
			_, _ = c.o.Progress(&Event{Decision: a.Decision, Step: Dispatched, Worker: "w2", Cached: -1}, time.Now())
		}},
		{"lease", func(c *crowd, _ *Answer) {
			pass(time.Minute)
			c.o.Tick(time.Now())
		}},
		{"another worker", func(c *crowd, _ *Answer) {
			c.register(limited("w2", 1))
			c.o.Tick(time.Now())
		}},
		{"a higher limit", func(c *crowd, _ *Answer) {
			c.register(limited("w1", 2))
			c.o.Tick(time.Now())
		}},
		{"no limit", func(c *crowd, _ *Answer) {
			c.register(limited("w1", 0))
			c.o.Tick(time.Now())
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t, admit.Config{}, limited("w1", 1))
				a := c.served(c.ask(nil))
				q := c.ask(func(r *RouteRequest) { r.MaxWait = time.Hour })
				c.waits(q)
				tc.free(c, a)
				synctest.Wait()
				c.served(q)
			})
		})
	}
}

func TestReportedLoadFreesPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{}, limited("w1", 4))
		s, err := c.o.OpenLoad("w1", 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		say := func(running int) {
			t.Helper()
			if _, err := s.Sample(Sample{Running: load.Known(running), Waiting: load.Known(0)}, time.Now()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		say(4)
		a, b, d := c.ask(nil), c.ask(nil), c.ask(nil)
		c.waits(a, b, d)
		say(4)
		c.waits(a, b, d)
		say(2)
		c.served(a)
		c.served(b)
		c.waits(d)
		say(9)
		c.waits(d)
		say(3)
		c.served(d)
	})
}

func TestFleetThatGoesLeavesNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{}, limited("w1", 1), limited("w2", 1))
		c.ask(nil)
		c.ask(nil)
		q, s := c.ask(nil), c.ask(at(5))
		c.waits(s, q)
		if _, _, err := c.o.Remove("w1"); err != nil {
			t.Fatal(err)
		}
		c.o.Tick(time.Now())
		synctest.Wait()
		c.waits(s, q)
		if _, err := c.o.Drain("w2", true); err != nil {
			t.Fatal(err)
		}
		c.o.Tick(time.Now())
		synctest.Wait()
		c.refused(q, Unavailable, ReasonNoEligibleWorker)
		c.refused(s, Unavailable, ReasonNoEligibleWorker)
		c.waits()
	})
}

func TestServerThatGoesLetsEverybodyGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{}, limited("w1", 1))
		c.ask(nil)
		a, b := c.ask(nil), c.ask(at(4))
		c.o.EndWaits()
		synctest.Wait()
		c.refused(a, Unavailable, ReasonDraining)
		c.refused(b, Unavailable, ReasonDraining)
		c.refused(c.ask(nil), Unavailable, ReasonDraining)
		c.waits()
	})
}

func TestWaitingTwiceUnderOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{}, limited("w1", 1), limited("w2", 1))
		named := func(r *RouteRequest) { r.RequestID = "r" }
		a, b := c.served(c.ask(nil)), c.served(c.ask(nil))
		x, y := c.ask(named), c.ask(named)
		last := c.ask(nil)
		c.waits(x, y, last)
		c.end(a)
		got := c.served(x)
		if again := c.served(c.ask(named)); !again.Repeated || again.Decision != got.Decision {
			t.Errorf("asked again while others wait: decision %d, repeated %v; want %d again", again.Decision, again.Repeated, got.Decision)
		}
		c.end(b) // y is called, needs no place, and passes it on
		if again := c.served(y); !again.Repeated || again.Decision != got.Decision {
			t.Errorf("decision %d, repeated %v; want %d again", again.Decision, again.Repeated, got.Decision)
		}
		c.served(last)
		c.waits()
	})
}

// TestPairsWaitForBothPlaces: a pair waits while either side is full; a first token frees the prefill's place.
func TestPairsWaitForBothPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := limited("p1", 1), limited("d1", 2)
		p.Roles, d.Roles = fleet.Prefill, fleet.Decode
		c := newCrowd(t, admit.Config{}, p, d)
		a := c.served(c.ask(both))
		x, y := c.ask(both), c.ask(both)
		c.waits(x, y)
		if _, err := c.o.Progress(&Event{Decision: a.Decision, Step: FirstToken, Cached: -1}, time.Now()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := c.served(x)
		if got.Prefill == nil || got.Prefill.Worker != "p1" || got.Target.Worker != "d1" {
			t.Errorf("sent to %v and %v", got.Prefill, got.Target)
		}
		// Now the prefill's place comes free and the decode's does not.
		if _, err := c.o.Progress(&Event{Decision: got.Decision, Step: FirstToken, Cached: -1}, time.Now()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c.waits(y)
		c.end(a)
		c.served(y)
		c.waits()
	})
}

// TestPlaceFreedWhileAQuestionLinesUp: a request ends while the first to wait looks for a place. Whichever is first, it is
// served, without a tick.
func TestPlaceFreedWhileAQuestionLinesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admit.Config{}, limited("w1", 1))
		a := c.served(c.ask(nil))
		for range 3000 {
			q := c.start(nil)
			c.end(a)
			a = c.served(q)
		}
		c.waits()
	})
}

// TestPlacesAreNeitherLostNorGivenTwice drives a fleet at its limit with all sorts of questions and ends. Whenever nothing
// moves by itself, no target has more than it accepts, and nobody waits whom a free place suits.
func TestPlacesAreNeitherLostNorGivenTwice(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) { storm(t, rand.New(rand.NewPCG(seed, 7)), seed%2 == 1) })
	}
}

func storm(t *testing.T, r *rand.Rand, pairs bool) {
	t.Helper()
	limits := []fleet.Spec{limited("w0", 1), limited("w1", 2), limited("w2", 3), limited("w3", 1)}
	if pairs {
		limits[0].Roles, limits[1].Roles, limits[2].Roles, limits[3].Roles = fleet.Prefill, fleet.Prefill, fleet.Decode, fleet.Decode
	}
	c := newCrowd(t, admit.Config{MaxItems: 12}, limits...)
	type asked struct {
		*question

		allowed []string
	}
	var open []asked
	var living []*Answer
	outcomes := map[Reason]int{}
	progress := func(i int, step Step) {
		if _, err := c.o.Progress(&Event{Decision: living[i].Decision, Step: step, Cached: -1}, time.Now()); err != nil {
			t.Fatalf("%v: %v", step, err)
		}
	}
	for range 300 {
		for range 1 + r.IntN(3) { // several things at the same moment
			switch k := r.IntN(12); {
			case k < 5:
				var allowed []string
				for i := range limits {
					if r.IntN(3) == 0 {
						allowed = append(allowed, limits[i].Worker)
					}
				}
				open = append(open, asked{c.start(func(q *RouteRequest) {
					q.Allowed, q.Priority, q.Tenant = allowed, int32(r.IntN(3)), string(rune('a'+r.IntN(3)))
					q.ExpectedOutput = 1 + r.IntN(400)
					q.MaxWait = time.Duration(r.IntN(4)) * time.Second
					if pairs {
						both(q)
					}
				}), allowed})
			case k < 8 && len(living) > 0:
				i := r.IntN(len(living))
				progress(i, []Step{Finished, Cancelled, Failed}[r.IntN(3)])
				living = slices.Delete(living, i, i+1)
			case k < 10 && len(living) > 0:
				progress(r.IntN(len(living)), FirstToken)
			case k == 10 && len(open) > 0:
				open[r.IntN(len(open))].cancel()
			default:
				pass(time.Duration(r.IntN(800)) * time.Millisecond)
			}
		}
		synctest.Wait()
		open = slices.DeleteFunc(open, func(q asked) bool {
			if !q.isOver.Load() {
				return false
			}
			var e *Error
			switch {
			case q.answer != nil:
				living = append(living, q.answer)
				outcomes["served"]++
			case errors.As(q.err, &e):
				outcomes[e.Reason]++
			default:
				outcomes["left"]++
			}
			return true
		})
		booked := inFlight(c.o, time.Now())
		isFree := func(q asked, of []fleet.Spec) bool {
			return slices.ContainsFunc(of, func(w fleet.Spec) bool {
				return booked[w.Worker] < w.MaxRequests && (len(q.allowed) == 0 || slices.Contains(q.allowed, w.Worker))
			})
		}
		for _, w := range limits {
			if booked[w.Worker] > w.MaxRequests {
				t.Fatalf("%s has %d requests, and accepts %d", w.Worker, booked[w.Worker], w.MaxRequests)
			}
		}
		for _, q := range open {
			if isFree(q, limits[2:]) && (!pairs || isFree(q, limits[:2])) || !pairs && isFree(q, limits[:2]) {
				t.Fatalf("a place is free and a question waits that it suits, of %v; in flight %v", q.allowed, booked)
			}
		}
		c.waits(questionsOf(open, func(q asked) *question { return q.question })...)
	}
	for _, q := range open {
		q.cancel()
	}
	synctest.Wait()
	c.waits()
	if n := len(c.o.waits.offered) + len(c.o.waits.models); n != 0 {
		t.Errorf("nobody waits, and %d things are remembered", n)
	}
	for _, how := range []Reason{"served", ReasonQueueTimeout, ReasonNoEligibleWorker, "left"} {
		if outcomes[how] == 0 {
			t.Errorf("no question ended as %q: %v", how, outcomes)
		}
	}
}

func questionsOf[T any](s []T, f func(T) *question) []*question {
	out := make([]*question, len(s))
	for i, x := range s {
		out[i] = f(x)
	}
	return out
}
