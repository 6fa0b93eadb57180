package oracle

import (
	"context"
	"encoding/binary"
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
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// town is an oracle with a fleet to which everything happens.
type town struct {
	t     *testing.T
	o     *Oracle
	r     *rand.Rand
	now   time.Time
	names []string
	lives map[string]uint64
	specs map[string]fleet.Spec
	said  map[string]*BlockSession
	loads map[string]*LoadSession
	seq   map[string]uint64
	mute  bool // nobody reports load
	tiers int  // in use
	asked []DecisionID
	met   map[string]int
	long  work
	quick work
}

var townClasses = map[string]policy.CostModel{
	"": policy.DefaultCostModel(),
	"tight": {
		PrefillPerToken: 1e-3, PrefillPerTokenContext: 1e-6, IterationFixed: 3e-3, IterationBase: 7e-3, DecodePerKVToken: 1e-5,
		ChunkTokens: 64, KVTokens: 300, MaxBatch: 2, TransferPerToken: [fleet.NumTiers]float64{0, 1e-4, 2e-4, 3e-4},
	},
	"free": {},
}

func newTown(t *testing.T, seed uint64) *town {
	v := &town{
		t: t, r: rand.New(rand.NewPCG(seed, 3)), now: t0, lives: map[string]uint64{}, specs: map[string]fleet.Spec{},
		said: map[string]*BlockSession{}, loads: map[string]*LoadSession{}, seq: map[string]uint64{}, met: map[string]int{},
		o: New(Config{
			Costs: townClasses, StreamGrace: 5 * time.Second, WorkerLease: 20 * time.Second, ForgetAfter: time.Minute,
			Load: load.Config{MaxReportAge: 4 * time.Second, Lease: 15 * time.Second}, ApproxBlocks: 4000,
		}, nil),
	}
	v.o.sieveLeast = 1 + int(seed%2)*sieveLeast
	v.mute, v.tiers = v.r.IntN(4) == 0, 1+v.r.IntN(2)
	for i := range 6 + v.r.IntN(8) {
		v.names = append(v.names, fmt.Sprint("w", (i*7)%20))
	}
	classes, sizes := []string{"", "tight", "free"}[:1+v.r.IntN(3)], []int{size, size, 2 * size}[:1+v.r.IntN(3)]
	for _, name := range v.names {
		s := fleet.Spec{
			Worker: name, Model: "m", BlockSize: sizes[v.r.IntN(len(sizes))], DPSize: 1 + v.r.IntN(2), Class: classes[v.r.IntN(len(classes))],
			Labels: map[string]string{"zone": []string{"a", "b"}[v.r.IntN(2)]},
		}
		if v.r.IntN(5) == 0 {
			s.Roles = fleet.Prefill
		}
		if v.r.IntN(6) > 0 {
			s.Address = name + ":80"
		}
		if v.r.IntN(3) == 0 {
			s.MaxRequests = 1 + v.r.IntN(3)
		}
		v.specs[name] = s
	}
	return v
}

func (v *town) chain(n int) []block.ID {
	_, p := v.prompt(n)
	ks := block.Identity{Model: "m", BlockSize: size}.Keyspace()
	return block.AppendTokenChain(nil, ks, p.Tokens, size)
}

// prompt is one of few, each with several beginnings in common with others.
func (v *town) prompt(n int) ([]uint32, Prompt) {
	var contents []uint32
	for i := range n {
		contents = append(contents, uint32(10*i+v.r.IntN(1+i/3)))
	}
	return contents, prompt(contents...)
}

func (v *town) step() {
	r, name := v.r, v.names[v.r.IntN(len(v.names))]
	if r.IntN(2) == 0 {
		v.now = v.now.Add(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
	}
	switch op := r.IntN(100); {
	case op < 6: // it is born, comes back, or begins a new life
		if s := v.said[name]; s != nil {
			s.Close(v.now)
		}
		if v.lives[name] == 0 || r.IntN(3) == 0 {
			v.lives[name]++
			v.seq[name] = 0
		}
		if r.IntN(6) == 0 { // one that does not report blocks
			_, _ = v.o.Register(v.specs[name], v.now)
			delete(v.said, name)
		} else if s, acc, err := v.o.OpenBlocks(&Hello{
			Spec: v.specs[name], Incarnation: v.lives[name], NextSequence: v.seq[name] + 1,
		}, v.now); err == nil {
			v.said[name], v.seq[name] = s, acc.ResumeFrom-1
		}
		if l, err := v.o.OpenLoad(name, 0, 0); err == nil {
			v.loads[name] = l
		}
	case op < 22:
		s := v.said[name]
		if s == nil {
			break
		}
		op := Op{Kind: OpStore, IsRoot: true, IDs: v.chain(1 + r.IntN(9)), Tier: fleet.Tier(r.IntN(v.tiers))}
		if r.IntN(4) == 0 {
			op = Op{Kind: OpRemove, IDs: v.chain(5)[4:], Tier: fleet.Device}
		}
		v.seq[name]++
		if r.IntN(30) == 0 {
			v.seq[name] += 2 // a gap: it is stale
		}
		s.Doubt(r.IntN(9) == 0)
		_, _ = s.Batch(v.seq[name], v.seq[name], []Op{op}, v.now)
	case op < 24:
		if s := v.said[name]; s != nil {
			s.Close(v.now)
			delete(v.said, name)
		}
	case op < 40:
		l := v.loads[name]
		if l == nil || v.mute {
			break
		}
		s := load.Sample{Running: load.Known(r.IntN(5)), Waiting: load.Known(r.IntN(2))}
		if r.IntN(2) == 0 {
			s.UsedBlocks, s.TotalBlocks = load.Known(r.IntN(40)), load.Known(50)
		}
		_, _ = l.Sample(s, v.now)
	case op < 60:
		_, p := v.prompt(1 + r.IntN(9))
		q := v.question(p)
		q.DryRun, q.Explain = false, r.IntN(8) == 0
		if a, err := v.o.Route(context.Background(), q, v.now); err == nil {
			v.asked = append(v.asked, a.Decision)
		}
	case op < 90 && len(v.asked) > 0:
		e := &Event{Decision: v.asked[r.IntN(len(v.asked))], Step: Step(r.IntN(6)), OutputTokens: r.IntN(60), Cached: r.IntN(30) - 5}
		if uint32(e.Decision)%3 > 0 { // of the others nobody says who tells, nor when the first token came
			e.Gateway, e.TTFT = "tells", r.Float64()
		} else if e.Step == FirstToken || e.Step == Generating {
			break
		}
		if e.Step == Dispatched && r.IntN(3) == 0 {
			e.Worker = name
		}
		_, _ = v.o.Progress(e, v.now)
		if e.Step >= Finished {
			v.asked = slices.DeleteFunc(v.asked, func(id DecisionID) bool { return id == e.Decision })
		}
	case op < 92:
		_, _ = v.o.Drain(name, r.IntN(2) == 0)
	case op < 93 && r.IntN(3) == 0:
		_, _, _ = v.o.Remove(name)
		delete(v.lives, name)
		delete(v.loads, name)
	case op < 94 && r.IntN(4) == 0:
		v.now = v.now.Add(7 * time.Second)
	case op < 96:
		v.o.Tick(v.now)
	}
}

// wear makes a target one whose cache gives up what was used just now, or long ago. The prompts here are too short to say so.
func (v *town) wear(name string) {
	w := v.o.fleet.View().Worker(name)
	if w == nil {
		return
	}
	now := v.o.seconds(v.now)
	f := v.o.feed(w.Targets[0])
	f.usage.use([]uint64{1}, now)
	v.o.reuse.isAged.Store(true)
	f.eldest.Store(math.Float64bits(now - 5*v.r.Float64()))
}

func (v *town) question(p Prompt) *RouteRequest {
	r := v.r
	q := &RouteRequest{Model: "m", Prompt: p, DryRun: true, MaxAlternatives: r.IntN(4), ExpectedOutput: r.IntN(3) * 30}
	if r.IntN(2) == 0 {
		q.Session = fmt.Sprint("s", r.IntN(6))
	}
	switch r.IntN(11) {
	case 0:
		q.Denied = []string{v.names[r.IntN(len(v.names))], v.names[0]}
	case 1:
		q.Allowed = []string{v.names[r.IntN(len(v.names))], v.names[0], v.names[1]}
	case 2:
		q.Labels = map[string]string{"zone": "a"}
	case 3:
		q.Role = []fleet.Roles{fleet.Aggregated, fleet.Prefill, fleet.Decode}[r.IntN(3)]
	case 4:
		q.Prompt.LocalsSize = size
		q.Prompt.Locals = block.AppendLocals(nil, p.Tokens, size)
		q.Prompt.Tokens = nil
	case 5:
		var text []byte
		for _, id := range p.Tokens {
			text = binary.LittleEndian.AppendUint32(text, id)
		}
		q.Prompt = TextPrompt([][]byte{text})
	case 6:
		q.NeedsAddress = true
	case 7:
		q.Addresses = []string{v.names[0] + ":80", v.names[1] + ":80"}[:r.IntN(3)]
	}
	return q
}

// compare decides one question both ways on the same state, and holds everything that the quick way says against the
// long way.
func (v *town) compare(q *RouteRequest) {
	v.t.Helper()
	o, short, long := v.o, &v.quick, &v.long
	view := o.fleet.View()
	short.reset(v.now)
	long.reset(v.now)
	short.rules, long.rules = o.rules.Load(), o.rules.Load()
	errShort, errLong := error(nil), o.eligible(view, q, v.now, long)
	if !o.enlist(view, q, short) {
		errShort = errNobody
	}
	if (errShort == nil) != (errLong == nil) {
		v.t.Fatalf("who may take it: %v, want %v", errShort, errLong)
	}
	if errLong != nil {
		v.met["nobody"]++
		return
	}
	o.match(q, short)
	o.match(q, long)
	o.deciding.Lock()
	defer o.deciding.Unlock()
	a := policy.Request{PromptTokens: q.Prompt.Length, ExpectedOutput: float64(q.ExpectedOutput), Places: q.MaxAlternatives + 1}
	b := a
	end, debt := long.end(long.deepest()), float64(v.r.IntN(3))*1e-4
	owing := func() {
		o.debts.Add(end, o.seconds(v.now), -policy.MaxTerm)
		o.debts.Add(end, o.seconds(v.now), debt)
	}
	owing()
	errShort = o.pick(q, &a, v.now, short)
	owing()
	errLong = o.choose(q, &b, v.now, long)
	if (errShort == nil) != (errLong == nil) || errors.Is(errShort, errLeft) {
		v.t.Fatalf("choice: %v, want %v", errShort, errLong)
	}
	if errLong != nil {
		v.met["all full"]++
		return
	}
	if a.Prices != b.Prices || short.share != long.share || short.eligible != long.eligible || short.session != long.session || short.choice.Reason != long.choice.Reason {
		v.t.Fatalf("got %+v, busy %v of %d, session %v, %v\nwant %+v, busy %v of %d, session %v, %v", a.Prices, short.share, short.eligible, short.session, short.choice.Reason,
			b.Prices, long.share, long.eligible, long.session, long.choice.Reason)
	}
	if a.Deepest != b.Deepest || a.Debt != b.Debt || a.Deepest > 0 && math.Abs(short.picked.Owed-long.choice.Owed()) > 1e-9 {
		v.t.Fatalf("got %d tokens at the deepest, a debt of %v and %v for it, want %d, %v, %v", a.Deepest, a.Debt, short.picked.Owed,
			b.Deepest, b.Debt, long.choice.Owed())
	}
	if e, f := short.end(short.deepestHold()), long.end(long.deepest()); e != f {
		v.t.Fatalf("end of the deepest match: %x, want %x", e, f)
	}
	for place, i := range short.choice.Order {
		x := &short.targets[short.picks[i]]
		if place >= min(a.Places, long.eligible) { // the deepest match
			if place > min(a.Places, long.eligible) || x.depth() != long.deepest().depth() {
				v.t.Fatalf("place %d: %+v", place, x)
			}
			continue
		}
		j := long.choice.Order[place]
		y := long.targets[long.picks[j]]
		if place >= b.Places { // the long way ranks no more than it was asked for
			k := slices.IndexFunc(long.picks, func(k int) bool { return long.targets[k].id == x.id })
			y, j = long.targets[long.picks[k]], k
		}
		z := *x
		z.credit, y.credit = 0, 0
		z.size, y.size = short.prompts[z.size].size, long.prompts[y.size].size
		if z.why, y.why = 0, 0; z.hold != y.hold || z.worker != y.worker || z.rank != y.rank || *z.cost != *y.cost {
			v.t.Fatalf("place %d:\ngot  %+v\nwant %+v", place, z, y)
		}
		if z.state.ReportAge, y.state.ReportAge = 0, 0; z.state != y.state {
			v.t.Fatalf("place %d: load\ngot  %+v\nwant %+v", place, z.state, y.state)
		}
		got, want := short.choice.Scores[i], long.choice.Scores[j]
		if got != want || math.Abs(short.picked.Top[place].Cost-want.Cost) > 1e-9*want.Cost {
			v.t.Fatalf("place %d: score\ngot  %+v %+v\nwant %+v", place, got, short.picked.Top[place], want)
		}
	}
	v.met[long.choice.Reason.String()]++
	v.met[fmt.Sprint("load ", short.targets[0].state.Confidence)]++
	v.met[fmt.Sprint("blocks ", short.targets[0].blocks)]++
	for what, isSo := range map[string]bool{
		"common":            slices.ContainsFunc(short.kinds[1:], func(k kind) bool { return k.said.facts > 0 && k.n > 1 }),
		"commonly expected": slices.ContainsFunc(short.kinds[1:], func(k kind) bool { return k.said.guesses > 0 && k.n > 1 }),
		"several kinds":     len(short.kinds) > 3, "nothing alone": len(short.holds) == 0,
		"chosen for what is common": short.targets[0].depth() > 0 && short.holdOf(short.targets[0].id) == nil,
		"text":                      q.Prompt.IsText, "some full": short.roster.full > 0, "not plain": !short.roster.isPlain(q), "holders": len(short.holds) > 0,
		"two block sizes": len(short.prompts) > 1, "busy": short.share > 0, "session": short.session == SessionStayed,
		"guessed": short.targets[0].guess > 0, "owes": short.picked.Owed > 0, "pays": short.picked.Owed < 0, "learned": o.learn.Stats().Samples > 0, "presumed": o.load.Stats().Presumed > 0,
		"transfer": short.choice.Scores[0].Terms.Transfer > 0, "memory": short.choice.Scores[0].Terms.Memory > 0,
		"evict": short.choice.Scores[0].Terms.Evict > 0, "stay": short.choice.Scores[0].Terms.Stay > 0,
	} {
		if isSo {
			v.met[what]++
		}
	}
}

// deepestHold is what deepest is of the long way.
func (w *work) deepestHold() (deepest *hold) {
	for i := range w.holds {
		deepest = w.deeper(deepest, &w.holds[i])
	}
	for i := range w.kinds {
		if w.kinds[i].n > 0 {
			deepest = w.deeper(deepest, &w.kinds[i].hold)
		}
	}
	return deepest
}

// TestQuickWayIsTheLongWay: whatever has happened to a fleet, both ways decide alike and for the same reasons.
func TestQuickWayIsTheLongWay(t *testing.T) {
	met := map[string]int{}
	for seed := range uint64(40) {
		v := newTown(t, seed)
		v.met = met
		for range 300 {
			v.step()
			if v.r.IntN(20) == 0 {
				v.wear(v.names[v.r.IntN(len(v.names))])
			}
			if v.r.IntN(3) > 0 {
				_, p := v.prompt(1 + v.r.IntN(9))
				v.compare(v.question(p))
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
	for _, need := range []string{
		"nobody", "all full", "some full", "not plain", "holders", "two block sizes", "busy", "session", "guessed", "learned", "presumed",
		"common", "commonly expected", "several kinds", "nothing alone", "chosen for what is common", "transfer", "memory", "evict", "stay", "owes", "pays", "text", "only_candidate", "least_cost", "tie_deeper_match", "tie_session", "tie_fewest_in_flight", "tie_least_recent",
		"load reported", "load imputed", "load booked_only", "blocks silent", "blocks stale", "blocks fresh", "blocks approximate",
	} {
		if met[need] < 8 {
			t.Errorf("%q was met %d times: the operations do not exercise it", need, met[need])
		}
	}
	if t.Failed() {
		t.Log(met)
	}
}

// TestQuickWayBesideEverything: decisions while workers come, go and report. Every answer names a target of the moment,
// and in the end nothing is booked on anybody.
func TestQuickWayBesideEverything(t *testing.T) {
	o := New(Config{}, nil)
	const workers = 12
	spec := func(i int) fleet.Spec {
		return fleet.Spec{Worker: fmt.Sprint("w", i), Model: "m", BlockSize: size, DPSize: 1 + i%2, MaxRequests: (i % 3) * 40}
	}
	for i := range workers {
		if _, err := o.Register(spec(i), t0); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 9))
			var mine []DecisionID
			for n := range 600 {
				now := t0.Add(time.Duration(n) * time.Millisecond)
				q := &RouteRequest{Model: "m", Prompt: prompt(1, uint32(r.IntN(4)), uint32(r.IntN(9))), MaxAlternatives: 2, Session: fmt.Sprint(r.IntN(9))}
				if r.IntN(5) == 0 {
					q.Denied = []string{"w0"}
				}
				a, err := o.Route(context.Background(), q, now)
				if err != nil {
					t.Errorf("Route: %v", err)
					return
				}
				if a.Candidates < 1 || len(a.Alternatives) > 2 || a.Target.Worker == "" || len(q.Denied) > 0 && a.Target.Worker == "w0" {
					t.Errorf("answer %+v", a)
				}
				mine = append(mine, a.Decision)
				if len(mine) > 20 {
					_, _ = o.Progress(&Event{Decision: mine[0], Step: Finished, OutputTokens: 5, Cached: -1}, now)
					mine = mine[1:]
				}
			}
			for _, id := range mine {
				_, _ = o.Progress(&Event{Decision: id, Step: Finished, OutputTokens: 5, Cached: -1}, t0.Add(2*time.Second))
			}
		})
	}
	wg.Go(func() {
		r := rand.New(rand.NewPCG(5, 9))
		for n := range 300 {
			now, i := t0.Add(time.Duration(n)*time.Millisecond), 6+r.IntN(workers-6) // some stay
			switch r.IntN(5) {
			case 0:
				_, _, _ = o.Remove(fmt.Sprint("w", i))
			case 1, 2:
				if _, err := o.Register(spec(i), now); err != nil {
					t.Error(err)
				}
			case 3:
				_, _ = o.Drain(fmt.Sprint("w", i), r.IntN(2) == 0)
			case 4:
				o.Tick(now)
			}
			if l, err := o.OpenLoad(fmt.Sprint("w", r.IntN(workers)), 0, 0); err == nil {
				_, _ = l.Sample(load.Sample{Running: load.Known(r.IntN(9)), Waiting: load.Known(0)}, now)
			}
		}
	})
	wg.Wait()
	if n := o.load.Stats().Bookings; n != 0 {
		t.Errorf("%d bookings are left", n)
	}
	o.deciding.Lock()
	defer o.deciding.Unlock()
	ro := o.rosterOf(o.fleet.View(), "m")
	o.follow(ro, t0.Add(time.Hour))
	if ro.busy != 0 || ro.full != 0 {
		t.Errorf("%d busy and %d full of an idle fleet", ro.busy, ro.full)
	}
}

// TestBeingBornIsNotYetThere: a decision may see a worker's targets before they have all that belongs to them. They are no
// candidates then, and are the moment they have.
func TestBeingBornIsNotYetThere(t *testing.T) {
	o := New(Config{}, nil)
	q := &RouteRequest{Model: "m", Prompt: prompt(1, 2)}
	c, err := o.fleet.Register(fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 2}, 1, t0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Route(t.Context(), q, t0); !isKind(err, Unavailable) {
		t.Errorf("no feeds: %v, want unavailable", err)
	}
	for _, id := range c.Worker.Targets {
		o.load.Add(id, "m")
	}
	o.addFeeds(c.Worker)
	if a, err := o.Route(t.Context(), q, t0); err != nil || a.Candidates != 2 {
		t.Errorf("with feeds: %+v, %v", a, err)
	}
	// A decision under way when the fleet changes begins again.
	var w work
	w.reset(t0)
	if !o.enlist(o.fleet.View(), q, &w) {
		t.Fatal("nobody")
	}
	o.match(q, &w)
	o.addFeeds(c.Worker)
	if err := o.pick(q, &policy.Request{}, t0, &w); !errors.Is(err, errLeft) {
		t.Errorf("a list that is out of date: %v, want to begin again", err)
	}
}

// TestWhatIsRememberedOfAWideDecision: the first places, and the deepest match wherever it ranks.
func TestWhatIsRememberedOfAWideDecision(t *testing.T) {
	o := New(Config{}, nil)
	var deep *BlockSession
	for i := range 40 {
		s := open(t, o, fmt.Sprint("w", i), 1, t0)
		if i == 17 {
			deep = s
		}
	}
	store(t, deep, 1, chain(1, 2), t0)
	for i, waiting := range []int{17: 200, 39: 0} {
		l, err := o.OpenLoad(fmt.Sprint("w", i), 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Sample(load.Sample{Running: load.Known(0), Waiting: load.Known(waiting)}, t0); err != nil {
			t.Fatal(err)
		}
	}
	a := route(t, o, prompt(1, 2, 3), nil, t0)
	full := route(t, o, prompt(1, 2, 3), func(r *RouteRequest) { r.DryRun, r.Explain = true, true }, t0)
	if a.Target.Worker == "w17" || a.Candidates != 40 || len(full.Rows) != 40 {
		t.Fatalf("went to %s, %d candidates, %d rows", a.Target.Worker, a.Candidates, len(full.Rows))
	}
	got := o.Explain(a.Decision)
	if len(got.Rows) != rankedPlaces+1 || got.Rows[0].Target != a.Target || !isNearly(got.Rows[0].Score.Terms.Sum(), a.Terms.Sum()) {
		t.Fatalf("kept %+v", got.Rows)
	}
	if last := got.Rows[rankedPlaces]; last.Target.Worker != "w17" || last.Matched.Total() != 2*size || !isNearly(last.Score.TTFT, full.Rows[39].Score.TTFT) {
		t.Errorf("the deepest match: %+v", last)
	}
	for i, alt := range a.Alternatives {
		if got.Rows[1+i].Target != alt.Target || !isNearly(got.Rows[1+i].Score.TTFT, alt.TTFT) {
			t.Errorf("place %d: %+v, said %+v", i, got.Rows[1+i], alt)
		}
	}
}
