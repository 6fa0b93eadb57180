package oracle

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// counted is a plain list of all uses of one model.
type counted struct {
	u            *usage
	ids          []uint64
	ages         []float64
	last         map[uint64]float64
	times        map[uint64]int
	uses, second int
	step         float64
}

func (c *counted) use(id uint64, now float64) {
	if at, ok := c.last[id]; ok {
		c.ages = append(c.ages, now-at)
	}
	c.last[id] = now
	c.uses++
	if c.times[id]++; c.times[id] == 2 {
		c.second++
	}
	c.u.use([]uint64{id}, now)
}

func (c *counted) check(t *testing.T, r *rand.Rand, now float64) {
	t.Helper()
	for range 20 {
		age := 0.01 * math.Exp(r.Float64()*12)
		later, sooner := 0, 0
		for _, a := range c.ages {
			if ageStep(a) >= ageStep(age) {
				later++
			} else {
				sooner++
			}
		}
		want := 0.0
		if later > 0 {
			want = math.Round(float64(later)/float64(c.uses-sooner)*againSteps) / againSteps
		}
		if got := c.u.again(age); got != want {
			t.Fatalf("%s, after %d uses: %v of what is %v s old is used again, want %v", c.u.model, c.uses, got, age, want)
		}
	}
	if steps := float64(c.second) / float64(len(c.times)) * againSteps; steps < c.step-0.5 || steps > c.step+1.5 {
		c.step = math.Floor(steps)
	}
	if got, want := returning(c.u), c.step/(againSteps-c.step); got != want {
		t.Fatalf("%s: %d of %d came a second time: %v return, want %v", c.u.model, c.second, len(c.times), got, want)
	}
	of := []uint64{c.ids[r.IntN(len(c.ids))], c.ids[0]}
	want, n := 0.0, 0
	for _, id := range of {
		if at, ok := c.last[id]; ok {
			want, n = want+now+1-at, n+1
		}
	}
	if got, known := c.u.of.age(of, now+1); known != n || n > 0 && math.Abs(got-want/float64(n)) > 1e-6 {
		t.Fatalf("%s: used %v s ago in the mean of %d; want %v over %d", c.u.model, got, known, want, n)
	}
}

// TestReuseIsWhatWasCounted holds the shares against a plain list of all uses, and what comes back of what is new, of two models
// that are used in turn: one whose blocks come back, and one whose do so a tenth as often.
func TestReuseIsWhatWasCounted(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	var table reuse
	table.model("often").use([]uint64{1}, 0) // makes the table
	table.forget("often")
	all := scattered(&table, 2400)
	often, seldom := &counted{ids: all[:400]}, &counted{ids: all[400:]}
	for c, name := range map[*counted]string{often: "often", seldom: "seldom"} {
		c.u, c.last, c.times = table.model(name), map[uint64]float64{}, map[uint64]int{}
	}
	now := 1.7e9 // any clock
	for i := range 3000 {
		now += float64(r.IntN(40)) / usedTicks
		some := often.ids[:1+r.IntN(len(often.ids))] // the first are used more often
		if i < 1000 {
			some = often.ids[:1+r.IntN(1+i*len(often.ids)/1000)] // and new ones come one by one
		}
		often.use(some[r.IntN(len(some))], now)
		if i%2 == 0 {
			at := i / 2
			if r.IntN(10) == 0 {
				at = r.IntN(1 + at)
			}
			seldom.use(seldom.ids[at], now)
		}
		if i > 0 && r.IntN(50) == 0 {
			often.check(t, r, now)
			seldom.check(t, r, now)
		}
	}
	if got, few := returning(often.u), returning(seldom.u); got < 2 || few > 0.5 {
		t.Errorf("%v return though most came again, and %v though few did", got, few)
	}
	for _, c := range []*counted{often, seldom} {
		if share := c.u.again(1); share <= 0 || share >= 1 {
			t.Errorf("%s: %v of what is a second old is used again: the inputs do not exercise it", c.u.model, share)
		}
	}
}

// returning is what is published of returns.
func returning(u *usage) float64 {
	was := u.returns.Load()
	if isNews := u.publish(); isNews != (u.returns.Load() != was) {
		panic("news that are none, or none that are")
	}
	return math.Float64frombits(u.returns.Load())
}

// scattered makes ids that fall on different places of the table.
func scattered(u *reuse, n int) []uint64 {
	r, taken := rand.New(rand.NewPCG(2, 9)), map[any]bool{}
	var ids []uint64
	for len(ids) < n {
		id := r.Uint64()
		if slot, _ := u.at(id); !taken[slot] {
			taken[slot] = true
			ids = append(ids, id)
		}
	}
	return ids
}

// TestReuseFollowsTheTraffic: what came back once and does not any more is not expected for ever, and counting has an end.
func TestReuseFollowsTheTraffic(t *testing.T) {
	u := new(reuse).model("m")
	ids := make([]uint64, 100)
	for i := range ids {
		ids[i] = uint64(i)
	}
	now := 100.0
	for range 1000 { // the same each 10 s
		now += 10
		u.use(ids, now)
	}
	if got := u.again(9); got != 1 {
		t.Errorf("%v of what is 9 s old is used again, want all of it", got)
	}
	if got := u.again(30); got != 0 {
		t.Errorf("%v of what is 30 s old is used again, want nothing", got)
	}
	if got := returning(u); got != againSteps-1 {
		t.Errorf("%v return of what always does, want %v", got, againSteps-1)
	}
	next := uint64(1 << 40)
	for range 20 * fadeAfter / len(ids) { // and now never again
		now++
		for i := range ids {
			ids[i] = next
			next++
		}
		u.use(ids, now)
	}
	if got := u.again(9); got != 0 {
		t.Errorf("%v of what is 9 s old is used again, long after the last that was", got)
	}
	if got := returning(u); got != 0 {
		t.Errorf("%v return, long after the last that did", got)
	}
	for range 500 { // and then once more each
		now++
		for i := range ids {
			ids[i] = next
			next++
		}
		u.use(ids, now)
		u.use(ids, now)
	}
	if got := returning(u); got < 0.1 {
		t.Errorf("%v return, though the last 50,000 did", got)
	}
	if u.uses > fadeAfter {
		t.Errorf("%v uses are counted, want at most %d", u.uses, fadeAfter)
	}
}

// pressed is two workers: one whose cache gives up what will be asked for again in a moment, and one that gives up nothing but
// has a request to decode, so that work without a home would go to the first.
type pressed struct {
	t    *testing.T
	o    *Oracle
	full *BlockSession
	seq  uint64
	now  time.Time
	talk []uint32
}

func newPressed(t *testing.T) *pressed {
	p := &pressed{t: t, o: New(Config{}, nil), now: t0}
	p.full = open(t, p.o, "full", 1, p.now)
	open(t, p.o, "roomy", 1, p.now)
	for i := range uint32(12_000) { // more than agedOver of the sample
		p.talk = append(p.talk, 1_000_000+i)
	}
	for range 6 { // a conversation each 10 s that the full one has to give up each time
		a := p.route(p.talk, func(r *RouteRequest) { r.Allowed = []string{"full"} })
		p.end(a)
		p.batch(Op{Kind: OpStore, IsRoot: true, IDs: chain(p.talk...)})
		p.now = p.now.Add(time.Second)
		p.batch(Op{Kind: OpRemove, IDs: chain(p.talk...)})
		p.now = p.now.Add(9 * time.Second)
	}
	a := p.route([]uint32{7}, func(r *RouteRequest) { r.Allowed = []string{"roomy"} })
	if _, err := p.o.Progress(&Event{Decision: a.Decision, Step: FirstToken}, p.now); err != nil {
		t.Fatal(err)
	}
	p.o.Tick(p.now)
	return p
}

func (p *pressed) batch(op Op) {
	p.t.Helper()
	p.seq++
	if ack, err := p.full.Batch(p.seq, p.seq, []Op{op}, p.now); err != nil || ack.Awaiting {
		p.t.Fatal(ack, err)
	}
}

func (p *pressed) route(contents []uint32, change func(*RouteRequest)) *Answer {
	p.t.Helper()
	return route(p.t, p.o, prompt(contents...), change, p.now)
}

func (p *pressed) end(a *Answer) {
	p.t.Helper()
	for _, step := range []Step{FirstToken, Finished} {
		if _, err := p.o.Progress(&Event{Decision: a.Decision, Step: step, Cached: -1}, p.now); err != nil {
			p.t.Fatal(err)
		}
	}
}

// evict is the term of a new long prompt, by worker, and who gets it.
func (p *pressed) evict() (who string, terms map[string]float64) {
	p.t.Helper()
	var contents []uint32
	for i := range uint32(3000) {
		contents = append(contents, 5_000_000+i)
	}
	a := p.route(contents, func(r *RouteRequest) { r.DryRun, r.Explain = true, true })
	quick := p.route(contents, dry)
	if quick.Target != a.Target || quick.Terms != a.Terms {
		p.t.Fatalf("without reasons %+v, with them %+v", quick, a)
	}
	terms = map[string]float64{}
	for i := range a.Rows {
		terms[a.Rows[i].Target.Worker] = a.Rows[i].Score.Terms.Evict
	}
	return a.Target.Worker, terms
}

// TestNewWorkGoesWhereNobodysIsGivenUp: a prompt that nobody holds goes to the worker whose cache has room, though that is a
// little busier. Who has room again is as good as before, and so is who gives up nothing for long.
func TestNewWorkGoesWhereNobodysIsGivenUp(t *testing.T) {
	p := newPressed(t)
	if who, terms := p.evict(); who != "roomy" || terms["full"] <= 0 || terms["roomy"] != 0 {
		t.Errorf("new work goes to %s, %v", who, terms)
	}
	p.batch(Op{Kind: OpClear, AllTier: true})
	p.o.Tick(p.now)
	if who, terms := p.evict(); who != "full" || terms["full"] != 0 {
		t.Errorf("after the cache was cleared new work goes to %s, %v", who, terms)
	}

	p = newPressed(t)
	p.now = p.now.Add(30 * time.Second)
	p.o.Tick(p.now)
	if _, terms := p.evict(); terms["full"] != 0 {
		t.Errorf("what it would give up is older than anything that was asked for again, and costs %v", terms)
	}
}

// TestConversationsStay: a conversation that a pressed worker still holds goes on there.
func TestConversationsStay(t *testing.T) {
	p := newPressed(t)
	p.batch(Op{Kind: OpStore, IsRoot: true, IDs: chain(p.talk...)})
	a := p.route(append(p.talk[:len(p.talk):len(p.talk)], 1, 2, 3), func(r *RouteRequest) { r.DryRun = true })
	if a.Target.Worker != "full" || a.Terms.Evict <= 0 {
		t.Errorf("it goes on at %s: %+v", a.Target.Worker, a.Terms)
	}
}

// TestKeptBelowIsNotGivenUp: what leaves the device and stays in a farther tier is not computed again.
func TestKeptBelowIsNotGivenUp(t *testing.T) {
	p := newPressed(t)
	p.batch(Op{Kind: OpClear, AllTier: true})
	p.batch(Op{Kind: OpStore, IsRoot: true, IDs: chain(p.talk...)})
	p.batch(Op{Kind: OpStore, IsRoot: true, IDs: chain(p.talk...), Tier: fleet.Host})
	p.batch(Op{Kind: OpRemove, IDs: chain(p.talk...)})
	p.o.Tick(p.now)
	if _, terms := p.evict(); terms["full"] != 0 {
		t.Errorf("it costs %v", terms)
	}
	p.batch(Op{Kind: OpRemove, IDs: chain(p.talk...), Tier: fleet.Host})
	p.o.Tick(p.now)
	if _, terms := p.evict(); terms["full"] <= 0 {
		t.Error("what leaves the last tier costs nothing")
	}
}

// TestOthersUsesCount: what another replica has booked is a use like one's own.
func TestOthersUsesCount(t *testing.T) {
	o := New(Config{}, nil)
	open(t, o, "w", 1, t0)
	errs := make([]error, 1)
	for i := range 6 {
		o.BookElsewhere([]Booked{{
			Decision: FirstOf(o.Space()+1) + DecisionID(i), Worker: "w", Incarnation: 1, PromptTokens: 64,
			Marks: []uint64{1 << 20, 1 << 21}, MarkTokens: 32, Covered: 64,
		}}, t0.Add(time.Duration(i)*10*time.Second), errs)
		if errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	if got := o.reuse.model("m").again(5); got < 0.8 {
		t.Errorf("%v of what is 5 s old is taken to be used again, want nearly all", got)
	}
}

// TestAgainReachesThePrice: what is learned is in what targets are taken to cost, for every prompt, and no prior has it.
func TestAgainReachesThePrice(t *testing.T) {
	p := newPressed(t)
	w := p.o.fleet.View().Worker("full")
	if got := p.o.feed(w.Targets[0]).pricing.Load(); got.cost.Again <= 0 || got.cost.Again > 1 || got.prior.Again != 0 {
		t.Errorf("again %v, prior %v", got.cost.Again, got.prior.Again)
	}
	if again := policy.DefaultCostModel().Again; again != 0 {
		t.Errorf("the default model takes %v of what leaves to be used again", again)
	}
}

// crowded is two workers of which one holds what all conversations begin with, and decodes some of them, while the other has
// nothing to do. Conversations have so many turns, a second apart.
type crowded struct {
	*pressed

	head []uint32
	next uint32
}

func newCrowded(t *testing.T, turns int) *crowded {
	c := &crowded{pressed: &pressed{t: t, o: New(Config{}, nil), now: t0}, next: 1_000_000}
	c.full = open(t, c.o, "crowded", 1, c.now)
	open(t, c.o, "quiet", 1, c.now)
	for i := range uint32(300) {
		c.head = append(c.head, 1+i)
	}
	c.batch(Op{Kind: OpStore, IsRoot: true, IDs: chain(c.head...)})
	for range 40 {
		talk := c.head
		for range turns {
			talk = c.goOn(talk)
			c.end(c.route(talk, toCrowded))
			c.now = c.now.Add(time.Second)
		}
	}
	for range 100 {
		a := c.route(c.goOn(c.head), toCrowded)
		if _, err := c.o.Progress(&Event{Decision: a.Decision, Step: FirstToken}, c.now); err != nil {
			t.Fatal(err)
		}
	}
	c.o.Tick(c.now)
	return c
}

func toCrowded(r *RouteRequest) { r.Allowed = []string{"crowded"} }

// goOn is a conversation with some new blocks.
func (c *crowded) goOn(talk []uint32) []uint32 {
	talk = talk[:len(talk):len(talk)]
	for range 100 {
		talk = append(talk, c.next)
		c.next++
	}
	return talk
}

// TestWhatComesBackBeginsWhereFewDecode: a conversation that begins goes to who has room to decode it, though its head has to be
// computed there, where conversations have many turns, and to who has the head where they have one. One that is under way stays.
func TestWhatComesBackBeginsWhereFewDecode(t *testing.T) {
	for turns, want := range map[int]string{1: "crowded", 30: "quiet"} {
		c := newCrowded(t, turns)
		begins := c.goOn(c.head)
		a := c.route(begins, func(r *RouteRequest) { r.DryRun, r.Explain = true, true })
		if quick := c.route(begins, dry); quick.Target != a.Target || quick.Terms != a.Terms {
			t.Fatalf("without reasons %+v, with them %+v", quick, a)
		}
		if a.Target.Worker != want {
			t.Errorf("of %d turns: it begins at %s, want %s: %+v", turns, a.Target.Worker, want, a.Rows)
		}
		talk := begins
		for range 20 {
			talk = c.goOn(talk)
		}
		c.batch(Op{Kind: OpStore, IsRoot: true, IDs: chain(talk...)})
		if a := c.route(c.goOn(talk), dry); a.Target.Worker != "crowded" {
			t.Errorf("of %d turns: it goes on at %s", turns, a.Target.Worker)
		}
	}
}

// TestNewWorkersCostAsTheOthers: who comes is not taken for one to whom nobody returns until the next tick.
func TestNewWorkersCostAsTheOthers(t *testing.T) {
	c := newCrowded(t, 12)
	returns := func(name string) float64 {
		return c.o.feed(c.o.fleet.View().Worker(name).Targets[0]).pricing.Load().cost.Returns
	}
	open(t, c.o, "late", 1, c.now)
	if got, want := returns("late"), returns("crowded"); got != want || want <= 0 {
		t.Errorf("%v come back to who is new, %v to the others", got, want)
	}
	if returns := policy.DefaultCostModel().Returns; returns != 0 {
		t.Errorf("the default model takes %v to come back", returns)
	}
}

// TestModelsLearnApart: in a fleet of two models what leaves the caches of one comes back at once and never does in the other, so
// that only with the first it costs something to push it out, and only to the first requests return; and
// its answers are longer. Who joins one of them learns
// from its own kind, and a model without workers leaves nothing behind.
func TestModelsLearnApart(t *testing.T) {
	const blocks = 750 // more than agedOver of the sample
	o, now := New(Config{}, nil), t0
	type served struct {
		s    *BlockSession
		seq  uint64
		next uint64
	}
	begin := func(worker, model string, incarnation uint64) *BlockSession {
		s, _, err := o.OpenBlocks(&Hello{
			Spec: fleet.Spec{Worker: worker, Model: model, BlockSize: wide, DPSize: 1}, Incarnation: incarnation, NextSequence: 1,
		}, now)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	models := map[string]*served{}
	for _, model := range []string{"talks", "forgets"} {
		models[model] = &served{s: begin(model, model, 1), next: 1_000_000}
	}
	turn := func(model string) {
		m := models[model]
		if model == "forgets" {
			m.next += blocks // each prompt is new
		}
		p := wideFrom(m.next, blocks)
		a := route(t, o, p, func(r *RouteRequest) { r.Model = model }, now)
		for _, step := range []Step{FirstToken, Finished} {
			e := Event{Decision: a.Decision, Step: step, Cached: -1, OutputTokens: map[string]int{"talks": 2000, "forgets": 1}[model]}
			if _, err := o.Progress(&e, now); err != nil {
				t.Fatal(err)
			}
		}
		ids := block.AppendChain(nil, block.Identity{Model: model, BlockSize: wide}.Keyspace(), p.Locals)
		for _, op := range []Op{{Kind: OpStore, IsRoot: true, IDs: ids}, {Kind: OpRemove, IDs: ids}} {
			m.seq++
			if ack, err := m.s.Batch(m.seq, m.seq, []Op{op}, now); err != nil || ack.Awaiting {
				t.Fatal(ack, err)
			}
		}
	}
	for range 8 {
		now = now.Add(5 * time.Second)
		turn("talks")
		turn("forgets")
	}
	o.Tick(now)
	cost := func(worker string) policy.CostModel {
		return o.feed(o.fleet.View().Worker(worker).Targets[0]).pricing.Load().cost
	}
	if long, short := o.load.MeanOutput("talks"), o.load.MeanOutput("forgets"); long < 250 || short > 190 {
		t.Errorf("outputs of 2,000 tokens and of 1 are taken to be of %v and %v", long, short)
	}
	if c := cost("talks"); c.Again < 0.8 || c.Returns < 2 {
		t.Errorf("of the model whose prompts come back %v of what leaves does, and %v return", c.Again, c.Returns)
	}
	if c := cost("forgets"); c.Again != 0 || c.Returns != 0 {
		t.Errorf("of the model whose prompts are new %v of what leaves comes back, and %v return", c.Again, c.Returns)
	}
	known := o.load.MeanOutput("talks")
	if begin("talks", "talks", 2); o.load.MeanOutput("talks") != known { // it is reborn, and was the only one
		t.Error("how long outputs are is forgotten with a life of the only worker")
	}
	begin("late", "forgets", 1)
	if c := cost("late"); c.Returns != 0 {
		t.Errorf("%v return to who joins the model whose prompts are new", c.Returns)
	}
	for _, worker := range []string{"talks", "late"} { // the last of its model, and not
		if _, _, err := o.Remove(worker); err != nil {
			t.Fatal(err)
		}
	}
	if len(o.reuse.models) != 1 || o.reuse.models["forgets"] == nil {
		t.Errorf("of %d models it is remembered how they are used, want that of those that have workers", len(o.reuse.models))
	}
}
