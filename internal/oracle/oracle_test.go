package oracle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/policy"
)

var t0 = time.Unix(1_800_000_000, 0)

const size = 4 // tokens per block

// prompt spells block contents: each number is one block.
func prompt(contents ...uint32) Prompt {
	var ids []uint32
	for _, c := range contents {
		for i := range uint32(size) {
			ids = append(ids, c*size+i)
		}
	}
	return Prompt{Tokens: ids, Length: len(ids)}
}

// wide is the size of the blocks of long prompts, which are quickly made of so many new blocks.
const wide = 64

func wideFrom(first uint64, blocks int) Prompt {
	p := Prompt{LocalsSize: wide, Length: blocks * wide}
	for i := range uint64(blocks) {
		p.Locals = append(p.Locals, block.Local((first+i)*0x9E3779B97F4A7C15))
	}
	return p
}

func chain(contents ...uint32) []block.ID {
	ks := block.Identity{Model: "m", BlockSize: size}.Keyspace()
	return block.AppendTokenChain(nil, ks, prompt(contents...).Tokens, size)
}

func open(t *testing.T, o *Oracle, name string, incarnation uint64, now time.Time) *BlockSession {
	t.Helper()
	s, _, err := o.OpenBlocks(&Hello{
		Spec: fleet.Spec{Worker: name, Model: "m", BlockSize: size, DPSize: 1}, Incarnation: incarnation, NextSequence: 1,
	}, now)
	if err != nil {
		t.Fatalf("hello of %s: %v", name, err)
	}
	return s
}

// store reports a chain from the start as one batch.
func store(t *testing.T, s *BlockSession, seq uint64, ids []block.ID, now time.Time) Ack {
	t.Helper()
	ack, err := s.Batch(seq, seq, []Op{{Kind: OpStore, IsRoot: true, IDs: ids}}, now)
	if err != nil {
		t.Fatal(err)
	}
	return ack
}

func route(t *testing.T, o *Oracle, p Prompt, change func(*RouteRequest), now time.Time) *Answer {
	t.Helper()
	r := &RouteRequest{Model: "m", Prompt: p, MaxAlternatives: 2}
	if change != nil {
		change(r)
	}
	a, err := o.Route(context.Background(), r, now)
	if err != nil {
		t.Fatalf("Route: %v", err)
	}
	return a
}

func dry(r *RouteRequest) { r.DryRun = true }

// TestANameOfAnotherRequestGivesNothingAway: a request that has the name of one under way gets its decision only if it asks
// for the same; else it is refused, and what is booked stays.
func TestANameOfAnotherRequestGivesNothingAway(t *testing.T) {
	o := New(Config{}, nil)
	store(t, open(t, o, "w", 1, t0), 1, chain(1, 2, 3), t0)
	first := route(t, o, prompt(1, 2, 3), func(r *RouteRequest) { r.RequestID, r.CacheSalt = "r", "mine" }, t0)
	for name, change := range map[string]func(*RouteRequest){
		"no salt":      func(r *RouteRequest) { r.CacheSalt = "" },
		"another salt": func(r *RouteRequest) { r.CacheSalt = "yours" },
		"an adapter":   func(r *RouteRequest) { r.LoRAName = "x" },
		"longer":       func(r *RouteRequest) { r.Prompt = prompt(1, 2, 3, 4) },
	} {
		r := &RouteRequest{Model: "m", Prompt: prompt(1, 2, 3), RequestID: "r", CacheSalt: "mine"}
		change(r)
		if a, err := o.Route(context.Background(), r, t0); !isKind(err, FailedPrecondition) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	again := route(t, o, prompt(1, 2, 3), func(r *RouteRequest) { r.RequestID, r.CacheSalt = "r", "mine" }, t0)
	if !again.Repeated || again.Decision != first.Decision || o.load.Stats().Bookings != 1 {
		t.Errorf("asked again: %+v, %d bookings", again, o.load.Stats().Bookings)
	}
}

func TestConfidenceFollowsTheStream(t *testing.T) {
	o := New(Config{StreamGrace: 10 * time.Second, WorkerLease: time.Minute, ForgetAfter: time.Hour}, nil)
	s := open(t, o, "w", 1, t0)
	store(t, s, 1, chain(1, 2), t0)
	at := t0.Add
	look := func(now time.Time) BlockConfidence { return route(t, o, prompt(1, 2, 3), dry, now).Blocks }

	// An idle stream is a living one, however long it is quiet.
	o.Tick(at(15 * time.Minute))
	if got := look(at(15 * time.Minute)); got != Fresh {
		t.Errorf("quiet for 15 minutes: %v, want fresh", got)
	}
	lost := 15 * time.Minute
	s.Close(at(lost))
	for _, tt := range []struct {
		after time.Duration
		want  BlockConfidence
	}{{9 * time.Second, Fresh}, {11 * time.Second, Stale}, {59 * time.Second, Stale}} {
		o.Tick(at(lost + tt.after))
		if got := look(at(lost + tt.after)); got != tt.want {
			t.Errorf("%v after the cut: %v, want %v", tt.after, got, tt.want)
		}
	}
	// Overlap of a stale worker is discounted, not thrown away.
	a := route(t, o, prompt(1, 2, 3), func(r *RouteRequest) { r.DryRun, r.Explain = true, true }, at(lost+30*time.Second))
	if a.Matched.Total() != 2*size || a.Rows[0].Usable.Total() != size {
		t.Errorf("stale: matched %d usable %d, want 8 and half of it", a.Matched.Total(), a.Rows[0].Usable.Total())
	}
	o.Tick(at(lost + 61*time.Second))
	if _, err := o.Route(context.Background(), &RouteRequest{Model: "m", Prompt: prompt(1)}, at(lost+61*time.Second)); !isKind(err, Unavailable) {
		t.Errorf("a lost worker: err = %v, want unavailable", err)
	}
	// It comes back and goes on where it was.
	s2, acc, err := o.OpenBlocks(&Hello{
		Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 1, NextSequence: 2,
	}, at(lost+62*time.Second))
	if err != nil || acc.SnapshotRequired || acc.ResumeFrom != 2 {
		t.Fatalf("resume: %+v, %v", acc, err)
	}
	if got := route(t, o, prompt(1, 2, 3), dry, at(lost+62*time.Second)); got.Blocks != Fresh || got.Matched.Total() != 2*size {
		t.Errorf("after it came back: %v, %d tokens", got.Blocks, got.Matched.Total())
	}
	s2.Close(at(2 * time.Hour))
	o.Tick(at(4 * time.Hour))
	if _, err := o.Worker("w", at(4*time.Hour)); !isKind(err, NotFound) {
		t.Errorf("a worker lost for long: err = %v, want not found", err)
	}
}

func isKind(err error, k Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k
}

func TestGuessesJoinABurst(t *testing.T) {
	// Eight equal prompts arrive before any report: at most two workers should compute the prefix.
	o := New(Config{}, nil)
	for i := range 8 {
		open(t, o, fmt.Sprint("w", i), 1, t0)
	}
	p := prompt(slices.Repeat([]uint32{5}, 400)...)
	used := map[string]bool{}
	var first *Answer
	for range 8 {
		a := route(t, o, p, nil, t0)
		if first == nil {
			first = a
		}
		used[a.Target.Worker] = true
	}
	if len(used) > 2 {
		t.Errorf("a burst of one prompt went to %d workers, want at most 2", len(used))
	}
	// The guess is no fact: nothing is reported as matched.
	if a := route(t, o, p, dry, t0); a.Matched.Total() != 0 {
		t.Errorf("guesses count as matched: %d tokens", a.Matched.Total())
	}
	// Nobody confirms it: it expires.
	later := t0.Add(guessMost + time.Second)
	o.Tick(later)
	if n := o.guesses.tree.check(t); n != 0 || o.guesses.living.Len() != 0 {
		t.Errorf("after expiry %d guessed blocks, %d guesses are left", n, o.guesses.living.Len())
	}
}

func TestGuessDiesWithItsCause(t *testing.T) {
	for _, tt := range []struct {
		step  Step
		after time.Duration
		left  int
	}{
		{Cancelled, 0, 0},
		{Failed, 0, 0},
		{FirstToken, time.Minute, 3}, // a running request holds what it computed
		{Finished, 0, 3},
		{Finished, 2 * time.Second, 0},
	} {
		o := New(Config{}, nil)
		open(t, o, "w", 1, t0)
		a := route(t, o, prompt(1, 2, 3), nil, t0)
		if out, err := o.Progress(&Event{Decision: a.Decision, Step: tt.step, Cached: -1}, t0); err != nil || out != Applied {
			t.Fatalf("%v: %v, %v", tt.step, out, err)
		}
		o.Tick(t0.Add(tt.after))
		if got := o.guesses.tree.check(t); got != tt.left {
			t.Errorf("%v and %v: %d guessed blocks, want %d", tt.step, tt.after, got, tt.left)
		}
	}
}

func TestGuessesAreBounded(t *testing.T) {
	o := New(Config{GuessBlocks: 10}, nil)
	open(t, o, "w", 1, t0)
	for i := range uint32(8) {
		route(t, o, prompt(i*10, i*10+1, i*10+2), nil, t0)
	}
	if o.guesses.blocks > 10 || o.guesses.tree.check(t) > 10 {
		t.Errorf("%d blocks remembered, bound 10", o.guesses.blocks)
	}
	// Forgetting one by one must come out even.
	for id := range o.guesses.living.All {
		o.guesses.cancel(id)
	}
	if o.guesses.blocks != 0 || o.guesses.tree.check(t) != 0 {
		t.Errorf("%d blocks are left behind", o.guesses.blocks)
	}
}

func TestGuessQueueIsOrdered(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	g := newGuesses(100, time.Second)
	living := make(map[*guess]bool)
	for range 5000 {
		switch n := rnd.IntN(5); {
		case n < 3 || len(living) == 0:
			x := &guess{}
			living[x] = true
			g.push(x, time.Duration(rnd.Int64N(100)))
		default:
			// From anywhere: guesses end before they are due.
			i := rnd.IntN(len(g.queue))
			if n == 3 {
				g.queue[i].at = time.Duration(rnd.Int64N(100))
				g.fix(i)
				break
			}
			delete(living, g.queue[i].guess)
			g.unqueue(i)
		}
		for i, x := range g.queue {
			if x.guess.place != i || !living[x.guess] || i > 0 && x.at < g.queue[(i-1)/2].at {
				t.Fatalf("seed %d: place %d has %+v", seed, i, x)
			}
		}
		if len(g.queue) != len(living) {
			t.Fatalf("seed %d: %d in the queue, %d living", seed, len(g.queue), len(living))
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := newHistory(5, 8, 0)
	made := func(id, cands, excluded int) {
		w := &work{}
		x := &fleet.Worker{Spec: fleet.Spec{Worker: fmt.Sprint("w", id), Address: "a"}}
		for i := range cands {
			w.targets = append(w.targets, candidate{worker: x, hold: hold{id: fleet.TargetID(i), held: TierTokens{id, 1, 2, 3}, usable: TierTokens{4}, guess: 5}})
			w.cands, w.picks = append(w.cands, policy.Candidate{}), append(w.picks, i)
			w.choice.Order = append(w.choice.Order, cands-1-i)
			w.choice.Scores = append(w.choice.Scores, policy.Score{Cost: float64(i)})
		}
		for range excluded {
			w.excluded = append(w.excluded, candidate{worker: x, why: ExcludedLabel})
		}
		h.add(&Answer{Decision: DecisionID(id), Rows: w.rows()}, w, nil)
		if got := h.get(DecisionID(id)).Rows; got != nil {
			t.Fatalf("decision %d keeps %d rows of its own", id, len(got))
		}
	}
	for id := 1; id <= 1000; id++ {
		made(id, 2, 1)
		a, cands := h.explain(DecisionID(id))
		want := Row{
			Target: TargetRef{ID: 1, Worker: fmt.Sprint("w", id), Address: "a"}, Matched: TierTokens{id, 1, 2, 3}, Usable: TierTokens{4},
			Expected: 5, Score: policy.Score{Cost: 1},
		}
		if cands != 2 || len(a.Rows) != 3 || a.Rows[2].Excluded != ExcludedLabel || a.Rows[0] != want {
			t.Fatalf("decision %d: %d candidates, rows %+v", id, cands, a.Rows)
		}
		if len(h.pages) != 1 || len(h.pages[0]) != 8 {
			t.Fatalf("%d pages, of which the first has %d rows", len(h.pages), len(h.pages[0]))
		}
	}
	if h.get(995) != nil || h.get(996) == nil {
		t.Error("it does not keep just the newest five")
	}
	if a, _ := h.explain(999); len(a.Rows) != 3 {
		t.Errorf("the second newest has %d rows", len(a.Rows))
	}
	if a, _ := h.explain(998); a == nil || a.Rows != nil {
		t.Errorf("an old decision: %+v, want one without rows", a)
	}
	// More rows than fit: the best of them.
	made(5000, 20, 3)
	if a, cands := h.explain(5000); cands != 8 || len(a.Rows) != 8 || a.Rows[0].Target.ID != 19 {
		t.Errorf("a wide decision: %d candidates, %d rows", cands, len(a.Rows))
	}
	// Pages, the last one a part of one, written round and round: what is remembered is what was made.
	h = newHistory(500, 2*rowsPage+20, 0)
	for id := 1; id <= 2000; id++ {
		made(id, 1+id%5, id%3)
		for back := range min(id, 60) {
			a, cands := h.explain(DecisionID(id - back))
			if want := 1 + (id-back)%5; cands != want || len(a.Rows) != want+(id-back)%3 || a.Rows[0].Target.Worker != fmt.Sprint("w", id-back) {
				t.Fatalf("decision %d after %d: %d candidates, %d rows", id-back, id, cands, len(a.Rows))
			}
		}
	}
	h = newHistory(5, 1000, 0)
	made(1, 300, 300)
	if a, cands := h.explain(1); cands != rowsEach || len(a.Rows) != 2*rowsEach || a.Rows[rowsEach].Excluded != ExcludedLabel {
		t.Errorf("a wide decision: %d candidates, %d rows", cands, len(a.Rows))
	}
}

// TestASessionHasAPlaceInEachModel: an agent that asks a large model and a small one by turns stays where it was in both.
func TestASessionHasAPlaceInEachModel(t *testing.T) {
	o := New(Config{}, nil)
	for _, model := range []string{"large", "small"} {
		for i := range 3 {
			if _, err := o.Register(fleet.Spec{Worker: fmt.Sprint(model, i), Model: model, BlockSize: size, DPSize: 1}, t0); err != nil {
				t.Fatal(err)
			}
		}
	}
	last := map[string]fleet.TargetID{}
	for turn := range 4 {
		for _, model := range []string{"large", "small"} {
			a := route(t, o, prompt(uint32(turn)), func(r *RouteRequest) { r.Model, r.Session = model, "agent" }, t0)
			if _, err := o.Progress(&Event{Decision: a.Decision, Step: Finished, OutputTokens: 1, Cached: -1}, t0); err != nil {
				t.Fatal(err)
			}
			want := SessionStayed
			if turn == 0 {
				want, last[model] = SessionNone, a.Target.ID
			}
			if a.Session != want || a.Target.ID != last[model] {
				t.Errorf("turn %d at %s: %v at target %d, want %v at %d", turn, model, a.Session, a.Target.ID, want, last[model])
			}
		}
	}
}

func TestSessionsAreBounded(t *testing.T) {
	r := fleet.NewRegistry(10)
	c, err := r.Register(fleet.Spec{Worker: "w", DPSize: 1}, 1, t0)
	if err != nil {
		t.Fatal(err)
	}
	l, often := newLRU(3), sessionKey{"m", "often"}
	for i := range 100 {
		l.put(sessionKey{"m", fmt.Sprint(i)}, c.Worker.Targets[0], c.Worker)
		l.put(often, c.Worker.Targets[0], c.Worker)
	}
	if l.order.Len() != 3 || len(l.byKey) != 3 {
		t.Errorf("%d sessions, bound 3", l.order.Len())
	}
	if _, got := l.get(often, r.View()); got != SessionStayed {
		t.Error("the session that is used is forgotten")
	}
	if _, err := r.Register(fleet.Spec{Worker: "w", DPSize: 1}, 2, t0); err != nil {
		t.Fatal(err)
	}
	if _, got := l.get(often, r.View()); got != SessionWorkerGone {
		t.Error("a session is bound to a life that has ended")
	}
}

func TestForgottenAnswerIsNotBookedTwice(t *testing.T) {
	o := New(Config{HistoryDecisions: 1}, nil)
	open(t, o, "w", 1, t0)
	id := func(r *RouteRequest) { r.RequestID = "q" }
	route(t, o, prompt(1), id, t0)
	route(t, o, prompt(2), nil, t0) // pushes the answer out
	route(t, o, prompt(1), id, t0)
	if got := o.load.Stats().Bookings; got != 2 {
		t.Errorf("%d bookings, want 2: one for each request", got)
	}
}

// TestLivesUnderLoad runs decisions against the births and deaths of workers: an answer must name a worker
// that existed, and every booking must be on a living target.
func TestLivesUnderLoad(t *testing.T) {
	o := New(Config{}, nil)
	for i := range 4 {
		open(t, o, fmt.Sprint("keep", i), 1, t0)
	}
	var routers, churners sync.WaitGroup
	stop := make(chan struct{})
	for g := range 3 {
		routers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 2))
			for {
				select {
				case <-stop:
					return
				default:
				}
				a, err := o.Route(context.Background(), &RouteRequest{Model: "m", Prompt: prompt(rnd.Uint32N(5), rnd.Uint32N(5))}, t0)
				if err != nil {
					t.Errorf("Route: %v", err)
					return
				}
				if a.Matched.Total() > 0 && a.Target.Worker[0] != 'c' {
					t.Errorf("%s is credited with %d tokens it never reported", a.Target.Worker, a.Matched.Total())
					return
				}
				if _, err := o.Progress(&Event{Decision: a.Decision, Step: Finished, Cached: -1}, t0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for g := range 2 {
		churners.Go(func() {
			for i := range 300 {
				name := fmt.Sprint("c", g)
				s, _, err := o.OpenBlocks(&Hello{
					Spec:        fleet.Spec{Worker: name, Model: "m", BlockSize: size, DPSize: 1},
					Incarnation: uint64(i + 1), NextSequence: 1,
				}, t0)
				if err != nil {
					t.Errorf("hello: %v", err)
					return
				}
				if _, err := s.Batch(1, 1, []Op{{Kind: OpStore, IsRoot: true, IDs: chain(uint32(i%5), 2)}}, t0); err != nil && !isKind(err, Aborted) {
					t.Errorf("batch: %v", err)
					return
				}
				if i%3 == 0 {
					if _, _, err := o.Remove(name); err != nil {
						t.Errorf("remove: %v", err)
						return
					}
				}
				o.Tick(t0)
			}
		})
	}
	churners.Wait()
	close(stop)
	routers.Wait()
	if st := o.load.Stats(); st.Bookings != 0 {
		t.Errorf("%d bookings are left behind", st.Bookings)
	}
}

// TestScoresAreFinite feeds extremes through the whole path.
func TestScoresAreFinite(t *testing.T) {
	o := New(Config{Costs: map[string]policy.CostModel{"odd": {}}}, nil)
	for i, class := range []string{"", "odd"} {
		s, _, err := o.OpenBlocks(&Hello{
			Spec: fleet.Spec{Worker: fmt.Sprint("w", i), Model: "m", BlockSize: size, DPSize: 1, Class: class}, Incarnation: 1, NextSequence: 1,
		}, t0)
		if err != nil {
			t.Fatal(err)
		}
		store(t, s, 1, chain(1), t0)
		l, err := o.OpenLoad(fmt.Sprint("w", i), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Sample(Sample{Running: Known(math.MaxInt), WaitingPrefillTokens: Known(math.MaxInt), UsedBlocks: Known(5), TotalBlocks: Known(0)}, t0); err != nil {
			t.Fatal(err)
		}
	}
	a := route(t, o, prompt(1), func(r *RouteRequest) { r.ExpectedOutput, r.Explain = math.MaxInt32, true }, t0)
	if len(a.Rows) == 0 {
		t.Error("no rows")
	}
	for _, row := range a.Rows {
		for _, v := range []float64{row.Score.Cost, row.Score.TTFT, row.Score.Terms.Sum(), a.TTFT} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Errorf("%s: %+v is not finite", row.Target.Worker, row.Score)
			}
		}
	}
}

// TestModelsWithoutAClassLearnApart: of two models whose workers name no class one costs a quarter of the prior and one four times
// that. Who joins either is taken to be like the workers of its model. Where all name a class they learn together.
func TestModelsWithoutAClassLearnApart(t *testing.T) {
	const blocks = 60
	truth := map[string]float64{"small": 0.25, "large": 4}
	for _, class := range []string{"", "shared"} {
		o, now := New(Config{}, nil), t0
		join := func(name, model string) {
			if _, err := o.Register(fleet.Spec{Worker: name, Model: model, BlockSize: wide, DPSize: 1, Class: class}, now); err != nil {
				t.Fatal(err)
			}
		}
		for model := range truth {
			join(model+"0", model)
			join(model+"1", model)
		}
		next := uint64(1)
		ask := func(model, worker string) *Answer {
			next += blocks
			return route(t, o, wideFrom(next, blocks), func(r *RouteRequest) {
				if r.Model = model; worker != "" {
					r.Allowed, r.DryRun = []string{worker}, true
				}
			}, now)
		}
		prior := o.fallback.PrefillTime(blocks*wide, 0)
		for range 80 {
			for _, model := range []string{"large", "small"} {
				a := ask(model, "")
				ttft := truth[model] * prior
				now = now.Add(time.Duration(ttft * 1e9))
				for _, e := range []Event{{Step: FirstToken, TTFT: ttft}, {Step: Finished, OutputTokens: 1, Cached: -1}} {
					e.Decision = a.Decision
					if _, err := o.Progress(&e, now); err != nil {
						t.Fatal(err)
					}
				}
			}
			o.Tick(now)
		}
		for model, x := range truth {
			join(model+" late", model)
			got := ask(model, model+" late").TTFT / (x * prior)
			isRight := got > 0.8 && got < 1.25
			if isRight != (class == "") {
				t.Errorf("class %q: of a worker of the %s model that has joined a first token is predicted after %.2f of its time", class, model, got)
			}
		}
	}
}

func TestDigestsOfBothSidesAgree(t *testing.T) {
	o := New(Config{}, nil)
	s := open(t, o, "w", 1, t0)
	ids := chain(1, 2, 3)
	store(t, s, 1, ids, t0)
	d := index.Digest{}
	for _, id := range ids {
		d.Count++
		d.XOR ^= uint64(id)
		d.Sum += uint64(id)
	}
	if ack, err := s.Digest(1, fleet.Device, d, t0); err != nil || ack.Counters.DigestsMatched != 1 {
		t.Errorf("equal digests: %+v, %v", ack, err)
	}
	d.Sum++
	ack, err := s.Digest(1, fleet.Device, d, t0)
	if err != nil || ack.Resync == nil || ack.Resync.Reason != ResyncDigestMismatch || ack.Confidence != Stale {
		t.Errorf("different digests: %+v, %v", ack, err)
	}
}

func TestOldRepeatCostsASnapshot(t *testing.T) {
	o := New(Config{}, nil)
	s := open(t, o, "w", 1, t0)
	for seq := uint64(1); seq <= fingerprints+10; seq++ {
		if _, err := s.Batch(seq, seq, nil, t0); err != nil {
			t.Fatal(err)
		}
	}
	if ack, _ := s.Batch(fingerprints+10, fingerprints+10, nil, t0); ack.Resync != nil || ack.Counters.DuplicateBatches != 1 {
		t.Errorf("a recent repeat: %+v", ack)
	}
	// Too old to be recognised: safe is to ask.
	if ack, _ := s.Batch(3, 3, nil, t0); ack.Resync == nil || ack.Resync.Reason != ResyncRenumbered {
		t.Errorf("an old repeat: %+v", ack)
	}
}

func TestSnapshotIsSwappedWhole(t *testing.T) {
	o := New(Config{}, nil)
	s := open(t, o, "w", 1, t0)
	store(t, s, 1, chain(1, 2), t0)
	matched := func(contents ...uint32) int {
		return route(t, o, prompt(contents...), dry, t0).Matched.Total() / size
	}
	if _, err := s.SnapshotBegin(1, t0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SnapshotChunk([]Op{{Kind: OpStore, IsRoot: true, IDs: chain(7, 8)}}, t0); err != nil {
		t.Fatal(err)
	}
	if matched(1, 2) != 2 || matched(7, 8) != 0 {
		t.Error("the snapshot shows before its end")
	}
	// A count that does not match refuses it; the old view stays, as stale, and another is asked for.
	ack, err := s.SnapshotEnd(3, t0)
	if err != nil || ack.Resync == nil || ack.Resync.Reason != ResyncBadSnapshot || ack.Confidence != Stale || matched(1, 2) != 2 {
		t.Errorf("short snapshot: %+v, %v", ack, err)
	}
	// That may have been the end of the one before, told again. Its own is no cause to ask once more; another is, since a
	// beginning was lost.
	for i, reason := range []ResyncReason{ResyncNone, ResyncBadSnapshot} {
		ack, err := s.SnapshotEnd(2, t0)
		got := ResyncNone
		if ack.Resync != nil {
			got = ack.Resync.Reason
		}
		if err != nil || got != reason || len(ack.Refusals) != 1 || !ack.Awaiting {
			t.Errorf("end %d behind it: %+v, %v, want to be asked for %v", i, ack, err, reason)
		}
	}
	if _, err := s.SnapshotBegin(1, t0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SnapshotChunk([]Op{{Kind: OpStore, IsRoot: true, IDs: chain(7, 8)}}, t0); err != nil {
		t.Fatal(err)
	}
	if ack, err = s.SnapshotEnd(2, t0); err != nil || ack.Confidence != Fresh || matched(1, 2) != 0 || matched(7, 8) != 2 {
		t.Errorf("good snapshot: %+v, %v; old %d new %d", ack, err, matched(1, 2), matched(7, 8))
	}
	// Parts of a snapshot without a beginning are refused by name.
	if ack, _ := s.SnapshotChunk(nil, t0); len(ack.Refusals) != 1 || ack.Refusals[0].Reason != RefusalSnapshot {
		t.Errorf("chunk without begin: %+v", ack)
	}
	if ack, _ := s.SnapshotEnd(0, t0); len(ack.Refusals) != 1 || ack.Refusals[0].Reason != RefusalSnapshot {
		t.Errorf("end without begin: %+v", ack)
	}
}

func TestGatewayThatRestartsLosesItsBookings(t *testing.T) {
	o := New(Config{}, nil)
	open(t, o, "w", 1, t0)
	if _, err := o.OpenGateway("g", 5); err != nil {
		t.Fatal(err)
	}
	a := route(t, o, prompt(1), nil, t0)
	if _, err := o.Progress(&Event{Decision: a.Decision, Step: Dispatched, Gateway: "g"}, t0); err != nil {
		t.Fatal(err)
	}
	if _, err := o.OpenGateway("g", 4); !isKind(err, FailedPrecondition) {
		t.Errorf("an older life of the gateway: err = %v", err)
	}
	if _, err := o.OpenGateway("g", 5); err != nil || o.load.Stats().Bookings != 1 {
		t.Errorf("the same life again: %v, %d bookings", err, o.load.Stats().Bookings)
	}
	if _, err := o.OpenGateway("g", 6); err != nil || o.load.Stats().Bookings != 0 {
		t.Errorf("a new life: %v, %d bookings", err, o.load.Stats().Bookings)
	}
}

func TestGatewayThatIsGoneLosesItsBookings(t *testing.T) {
	o := New(Config{GatewayGrace: 10 * time.Second}, nil)
	open(t, o, "w", 1, t0)
	first, err := o.OpenGateway("g", 1)
	if err != nil {
		t.Fatal(err)
	}
	second, err := o.OpenGateway("g", 1)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a := route(t, o, prompt(1), nil, t0)
		if _, err := o.Progress(&Event{Decision: a.Decision, Step: Dispatched, Gateway: "g"}, t0); err != nil {
			t.Fatal(err)
		}
	}
	route(t, o, prompt(1), nil, t0) // never dispatched: nobody's, left to its lease
	at := func(d time.Duration, want int) {
		t.Helper()
		o.Tick(t0.Add(d))
		if got := o.load.Stats().Bookings; got != want {
			t.Errorf("after %v: %d bookings, want %d", d, got, want)
		}
	}
	first.Close(t0)
	at(30*time.Second, 4) // one stream is still open
	second.Close(t0.Add(30 * time.Second))
	at(39*time.Second, 4)
	at(41*time.Second, 1)
	if len(o.gateways.known) != 0 {
		t.Error("the gateway is still known")
	}
}

func TestBrokenPromisesCostTrust(t *testing.T) {
	o := New(Config{}, nil)
	s := open(t, o, "w", 1, t0)
	store(t, s, 1, chain(1, 2, 3, 4), t0)
	seq := uint64(1)
	// serve runs requests that are promised four blocks of five, and says how many each found.
	serve := func(n, cached int) {
		t.Helper()
		for range n {
			a := route(t, o, prompt(1, 2, 3, 4, 5), nil, t0)
			if _, err := o.Progress(&Event{Decision: a.Decision, Step: Finished, Cached: cached}, t0); err != nil {
				t.Fatal(err)
			}
		}
	}
	trusted := func() bool { return route(t, o, prompt(1, 2, 3, 4, 5), dry, t0).Blocks == Fresh }
	asked := func() bool {
		select {
		case r := <-s.Resyncs():
			return r.Reason == ResyncOutcomes
		default:
			return false
		}
	}
	restate := func() {
		t.Helper()
		if _, err := s.SnapshotBegin(seq, t0); err != nil {
			t.Fatal(err)
		}
		if _, err := s.SnapshotChunk([]Op{{Kind: OpStore, IsRoot: true, IDs: chain(1, 2, 3, 4)}}, t0); err != nil {
			t.Fatal(err)
		}
		if _, err := s.SnapshotEnd(4, t0); err != nil {
			t.Fatal(err)
		}
	}
	serve(2, 0)
	serve(1, 4*size) // one that was kept wipes the slate
	serve(2, 0)
	if !trusted() || asked() {
		t.Fatal("two in a row already cost the trust")
	}
	serve(1, 0)
	if trusted() || !asked() {
		t.Fatal("three in a row did not")
	}
	serve(10, 0)
	if asked() {
		t.Error("it is asked again while the snapshot is awaited")
	}
	// The snapshot promises the same and is wrong again: it is asked four times as rarely.
	restate()
	serve(11, 0)
	if !trusted() || asked() {
		t.Error("a target that repeats itself is asked at once again")
	}
	serve(1, 0)
	if trusted() || !asked() {
		t.Error("a target that repeats itself is never asked again")
	}
	restate()
	serve(1, 4*size)
	serve(3, size)
	if !asked() {
		t.Error("after a promise that was kept, patience is short again")
	}
}

// TestWhatWasFreedByWordIsNoBrokenPromise: requests that wait while their target says that it frees what they were promised
// cost no trust; the same without a word does.
func TestWhatWasFreedByWordIsNoBrokenPromise(t *testing.T) {
	o := New(Config{}, nil)
	s := open(t, o, "w", 1, t0)
	ids := chain(1, 2, 3, 4)
	seq := uint64(0)
	next := func(op Op) {
		t.Helper()
		seq++
		if ack, err := s.Batch(seq, seq, []Op{op}, t0); err != nil || len(ack.Refusals) > 0 {
			t.Fatal(ack, err)
		}
	}
	rounds := func(n int, remove []block.ID) {
		t.Helper()
		for range n {
			next(Op{Kind: OpStore, IsRoot: true, IDs: ids})
			a := route(t, o, prompt(1, 2, 3, 4, 5), nil, t0)
			if a.Usable.Total() != 4*size {
				t.Fatalf("promised %v", a.Usable)
			}
			next(Op{Kind: OpRemove, IDs: remove})
			if _, err := o.Progress(&Event{Decision: a.Decision, Step: Finished, Cached: 0}, t0); err != nil {
				t.Fatal(err)
			}
		}
	}
	trusted := func() bool { return route(t, o, prompt(9, 2, 3, 4, 5), dry, t0).Blocks == Fresh }
	rounds(10, ids)
	if !trusted() {
		t.Error("all was freed by word, and the target is not believed any more")
	}
	rounds(2, ids[3:])
	if !trusted() {
		t.Error("two in a row cost the trust")
	}
	rounds(1, ids[3:])
	if trusted() {
		t.Error("one block was freed by word and three without one, three times: and it is still believed")
	}
}

func TestOutcomesOfUnpromisedRequestsProveNothing(t *testing.T) {
	var tr trust
	for range 100 {
		if tr.judge(0, 0) {
			t.Fatal("nothing was promised")
		}
	}
	if tr != (trust{}) {
		t.Errorf("left behind: %+v", tr)
	}
}

func TestVerifyShowsOneMoment(t *testing.T) {
	o := New(Config{}, nil)
	s := open(t, o, "w", 1, t0)
	ids := chain(1, 2, 3)
	store(t, s, 1, ids, t0)
	if _, err := s.Batch(2, 2, []Op{{Kind: OpStore, IsRoot: true, IDs: ids[:1], Tier: fleet.Host}}, t0); err != nil {
		t.Fatal(err)
	}
	v, err := o.Verify("w", 0, t0)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(v.IDs[fleet.Device])
	want := slices.Sorted(slices.Values(ids))
	if !slices.Equal(v.IDs[fleet.Device], want) || !slices.Equal(v.IDs[fleet.Host], ids[:1]) || v.Applied != 2 || v.Confidence != Fresh {
		t.Errorf("got %+v", v)
	}
	if _, err := o.Verify("nobody", 0, t0); !isKind(err, NotFound) {
		t.Errorf("unknown worker: %v", err)
	}
	if _, err := o.Verify("w", 1, t0); !isKind(err, InvalidArgument) {
		t.Errorf("unknown rank: %v", err)
	}
}

func TestClosedSessionTakesNothing(t *testing.T) {
	o := New(Config{}, nil)
	s := open(t, o, "w", 1, t0)
	s.Close(t0)
	s.Close(t0)
	if _, err := s.Batch(1, 1, nil, t0); !isKind(err, Aborted) {
		t.Errorf("a batch after Close: %v", err)
	}
}

func TestRepeatsCannotChangeTheirMeaning(t *testing.T) {
	o := New(Config{}, nil)
	open(t, o, "w", 1, t0)
	h := &Hello{Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 1, NextSequence: 1, Counted: true}
	if _, _, err := o.OpenBlocks(h, t0); !isKind(err, FailedPrecondition) {
		t.Errorf("the same incarnation: %v", err)
	}
	h.Incarnation = 2
	if _, _, err := o.OpenBlocks(h, t0); err != nil {
		t.Errorf("a new incarnation: %v", err)
	}
}

func TestLongAndShortNameListsAgree(t *testing.T) {
	o := New(Config{}, nil)
	var all []string
	for i := range 20 {
		all = append(all, fmt.Sprint("w", i))
		open(t, o, all[i], 1, t0)
	}
	for n := range 20 {
		a := route(t, o, prompt(1), func(r *RouteRequest) { r.Denied = all[:n]; dry(r) }, t0)
		if a.Candidates != 20-n || slices.Contains(all[:n], a.Target.Worker) {
			t.Errorf("%d denied: %d candidates, chose %s", n, a.Candidates, a.Target.Worker)
		}
		if n == 0 {
			continue
		}
		a = route(t, o, prompt(1), func(r *RouteRequest) { r.Allowed = all[:n]; dry(r) }, t0)
		if a.Candidates != n || !slices.Contains(all[:n], a.Target.Worker) {
			t.Errorf("%d allowed: %d candidates, chose %s", n, a.Candidates, a.Target.Worker)
		}
	}
}

func TestListImputesAsRouteDoes(t *testing.T) {
	o := New(Config{}, nil)
	for _, name := range []string{"w1", "w2"} {
		open(t, o, name, 1, t0)
	}
	l, err := o.OpenLoad("w1", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Sample(Sample{Running: Known(18)}, t0); err != nil {
		t.Fatal(err)
	}
	one, err := o.Worker("w2", t0)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []WorkerStatus{one, o.Workers("", t0)[1], o.Workers("m", t0)[1]} {
		if got := w.Ranks[0].Load; w.Spec.Worker != "w2" || got.Confidence != Imputed || got.InFlight != 18 {
			t.Errorf("%s, which said nothing: %v, %d in flight; want imputed, 18", w.Spec.Worker, got.Confidence, got.InFlight)
		}
	}
}

// TestDenyDoesNotNarrowWhatIsKnown: what is imputed to a silent worker comes from the model's whole fleet, also when the
// request may go to few of it.
func TestDenyDoesNotNarrowWhatIsKnown(t *testing.T) {
	o := New(Config{}, nil)
	for i, running := range []int{9, 9, 0} {
		name := fmt.Sprintf("w%d", i)
		open(t, o, name, 1, t0)
		l, err := o.OpenLoad(name, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Sample(Sample{Running: Known(running)}, t0); err != nil {
			t.Fatal(err)
		}
	}
	open(t, o, "silent", 1, t0)
	for _, r := range []RouteRequest{
		{Denied: []string{"w0", "w1"}},
		{Allowed: []string{"silent", "w2"}},
	} {
		r.Model, r.Prompt, r.Explain, r.DryRun = "m", prompt(1, 2), true, true
		a, err := o.Route(context.Background(), &r, t0)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range a.Rows {
			if row.Target.Worker == "silent" && (row.InFlight != 9 || row.Load != Imputed) {
				t.Errorf("deny %v, allow %v: silent is taken to have %d in flight (%v), want the fleet's median, 9",
					r.Denied, r.Allowed, row.InFlight, row.Load)
			}
		}
	}
}

// TestCostsAreLearnedAndShown: first tokens teach what a worker costs, and its status says so.
func TestCostsAreLearnedAndShown(t *testing.T) {
	o := New(Config{}, nil)
	open(t, o, "w1", 1, t0)
	prior := policy.DefaultCostModel().PrefillPerToken
	now := t0
	for i := range 200 {
		r := &RouteRequest{Model: "m", Prompt: prompt(make([]uint32, 500)...)}
		r.Prompt.Tokens[0] = uint32(1_000_000 + i) // nothing is cached
		a, err := o.Route(context.Background(), r, now)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Duration(4 * (float64(a.Uncached)*prior + 3e-3) * 1e9) // four times the prior
		now = now.Add(took)
		for _, e := range []Event{{Step: FirstToken}, {Step: Finished, OutputTokens: 2, Cached: -1}} {
			e.Decision = a.Decision
			if out, err := o.Progress(&e, now); err != nil || out != Applied {
				t.Fatal(out, err)
			}
		}
		now = now.Add(time.Second)
		o.Tick(now)
	}
	w, err := o.Worker("w1", now)
	if err != nil {
		t.Fatal(err)
	}
	if r := w.Ranks[0]; r.Learned < 190 || r.Cost.PrefillPerToken < 3.6*prior || r.Cost.PrefillPerToken > 4.4*prior || r.CostError > 0.1 {
		t.Errorf("after 200 prefills of four times the prior's time: %d samples, %v of the prior's cost a token, error %v",
			r.Learned, r.Cost.PrefillPerToken/prior, r.CostError)
	}
	if s := o.Stats(now).Learn; s.Samples < 190 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
}
