package oracle

import (
	"math"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/learn"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// pricing is what work costs on one target. It never changes; what is learned makes a new one.
type pricing struct {
	class string
	prior policy.CostModel // of the class, with what the worker said of its size
	cost  policy.CostModel // the prior corrected by what was learned, in range
}

// prior is what work is taken to cost on a worker of which nothing was learned.
func (o *Oracle) prior(w *fleet.Worker) policy.CostModel {
	m := *o.cost(w.Class)
	if n := w.Capacity[fleet.Device]; n > 0 {
		m.KVTokens = int(min(n, 1<<32)) * w.BlockSize
	}
	if w.MaxRunning > 0 {
		m.MaxBatch = w.MaxRunning
	}
	return m
}

// reprice begins to learn anew for targets whose worker is new or has changed its class, and follows what it says of its
// size. The feeds must be there.
func (o *Oracle) reprice(w *fleet.Worker) {
	o.pricing.Lock()
	defer o.pricing.Unlock()
	prior := o.prior(w)
	for _, id := range w.Targets {
		f := o.feed(id)
		if f == nil {
			continue
		}
		p := f.pricing.Load()
		if p != nil && p.class == w.Class && p.prior == prior {
			continue
		}
		if p == nil || p.class != w.Class {
			o.learn.Begin(id, alike(w))
		}
		f.pricing.Store(o.priced(f, w.Class, prior))
		o.load.Touch(id)
	}
}

// alike names those that learn together what work costs: a worker's class, or where it names none those of its model that name
// none, since models differ more than machines do.
func alike(w *fleet.Worker) string {
	if w.Class == "" {
		return "model " + w.Model
	}
	return "class " + w.Class
}

// relearn takes over what was learned of a target.
func (o *Oracle) relearn(id fleet.TargetID, now time.Time) {
	o.pricing.Lock()
	defer o.pricing.Unlock()
	o.retake(id, o.seconds(now))
}

// retake is relearn for one who holds the lock.
func (o *Oracle) retake(id fleet.TargetID, now float64) {
	f := o.feed(id)
	if f == nil {
		return
	}
	if p := f.pricing.Load(); p != nil {
		c := o.priced(f, p.class, p.prior)
		if c.cost.Again = o.again(f, now); c.cost != p.cost { // which is in range
			f.pricing.Store(c)
			o.load.Touch(id)
		}
	}
}

// relearnAll takes over what classes have learned, how old is what leaves the caches and how many requests go on from one, of
// all targets at one time: for a while some would look cheaper than others otherwise.
func (o *Oracle) relearnAll(now time.Time) {
	o.pricing.Lock()
	defer o.pricing.Unlock()
	at, isNews := o.seconds(now), o.reuse.publish()
	if !o.learn.Publish(at) && !o.reuse.isAged.Load() && !isNews {
		return
	}
	for _, w := range o.fleet.View().Workers() {
		for _, id := range w.Targets {
			o.retake(id, at)
		}
	}
}

// priced is what work costs on a target that gives up nothing, by all that was learned.
func (o *Oracle) priced(f *feed, class string, prior policy.CostModel) *pricing {
	p := &pricing{class, prior, corrected(prior, o.learn.Of(f.target))}
	p.cost.Returns = math.Float64frombits(f.usage.returns.Load())
	p.cost = p.cost.Clamped()
	return p
}

func corrected(m policy.CostModel, l learn.Learned) policy.CostModel {
	m.PrefillPerToken *= l.Factors[learn.Linear]
	m.PrefillPerTokenContext *= l.Factors[learn.Attention]
	m.IterationFixed *= l.Factors[learn.Iteration]
	m.DecodePerKVToken *= l.Factors[learn.Decode]
	m.IterationBase *= l.Factors[learn.Floor]
	for t := range m.TransferPerToken {
		m.TransferPerToken[t] *= l.Factors[learn.Transfer]
	}
	return m
}

// learnFirstToken learns from a prefill that has ended. waited is the time since it was booked, ttft what the gateway
// measured from dispatch on (0: nothing).
func (o *Oracle) learnFirstToken(b *load.Booking, waited time.Duration, ttft float64, now time.Time) {
	f := o.feed(b.Target)
	if f == nil {
		return
	}
	p := f.pricing.Load()
	if p == nil {
		return
	}
	took := waited.Seconds()
	if ttft > 0 && ttft < took {
		took = ttft // it was not sent at once
	}
	m := &p.prior
	tokens := float64(b.UncachedTokens)
	context := float64(max(b.PromptTokens-b.UncachedTokens, 0))
	iterations := 1.0
	if m.ChunkTokens > 0 {
		iterations = max(1, math.Ceil(tokens/float64(m.ChunkTokens)))
	}
	decoding, kv := float64(b.Note.Decoding), float64(b.Note.ReadTokens)
	done := o.seconds(now)
	sample := learn.Prefill{
		Target: b.Target, Booked: done - took, Done: done,
		Parts: learn.Parts{
			learn.Linear:    m.PrefillPerToken * (tokens + iterations*decoding),
			learn.Attention: m.PrefillPerTokenContext * tokens * (context + tokens/2),
			learn.Iteration: m.IterationFixed * iterations,
			learn.Floor:     m.IterationBase * iterations,
			learn.Decode:    m.DecodePerKVToken * kv * iterations,
			learn.Transfer:  float64(b.Note.Transfer),
		},
		Iterations: iterations,
	}
	if decoding > 0 { // on average half an iteration is under way
		sample.First = learn.Parts{
			learn.Linear: m.PrefillPerToken * decoding / 2, learn.Iteration: m.IterationFixed / 2,
			learn.Floor: m.IterationBase / 2, learn.Decode: m.DecodePerKVToken * kv / 2,
		}
	}
	if o.learn.FirstToken(&sample) {
		o.relearn(b.Target, now)
	}
}

// learnWhole learns from the end of a request whose first token was never told, of so many output tokens.
func (o *Oracle) learnWhole(b *load.Booking, m *remembered, took time.Duration, output int) {
	f := o.feed(b.Target)
	if f == nil || output < 1 {
		return
	}
	p := f.pricing.Load()
	if p == nil {
		return
	}
	c := &p.cost
	decoding, kv := float64(b.Note.Decoding)+1, float64(b.Note.ReadTokens)+float64(b.PromptTokens)
	iteration := max(c.IterationBase, c.IterationFixed+c.PrefillPerToken*decoding) + c.DecodePerKVToken*kv
	o.learn.Whole(b.Target, took.Seconds(), m.ttft+float64(output-1)*iteration)
}

// seconds is a moment on the clock of what learns, which goes on evenly though somebody sets the machine's.
func (o *Oracle) seconds(now time.Time) float64 {
	return float64(o.born.UnixNano()+int64(now.Sub(o.born))) * 1e-9
}
