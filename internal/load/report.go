package load

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Gauge is a number that the engine may not have said. The zero value is one it did not say, which is not zero.
type Gauge struct {
	// Value is what it said; negative is read as 0.
	Value int
	// Known says that it did.
	Known bool
}

// Known makes a gauge that was said.
func Known(v int) Gauge { return Gauge{Value: v, Known: true} }

func (g Gauge) read() int64 {
	if !g.Known {
		return 0
	}
	return within(g.Value, maxTokens)
}

// Sample is one look at an engine's own gauges.
type Sample struct {
	// SampledAt is the moment on the worker's clock, Unix nanoseconds. It orders the samples of one target and is
	// compared with nothing else. 0: order of arrival.
	SampledAt int64
	// Running is the number of sequences in the running batch, Waiting that of requests queued before it.
	Running, Waiting Gauge
	// WaitingPrefillTokens is the number of prompt tokens still to be computed, queue and running batch together.
	WaitingPrefillTokens Gauge
	// UsedBlocks is the number of KV blocks that running requests refer to (waiting ones have none yet), TotalBlocks that of all. A total of 0 is
	// unknown.
	UsedBlocks, TotalBlocks Gauge
	// SecondsPerToken is what a prefill token costs on this target, in seconds; 0: Config.PrefillSecondsPerToken.
	SecondsPerToken float64
}

// Belief is what the tracker holds true of a target after a sample.
type Belief struct {
	// Ignored says that the sample is older than the last one and changed nothing.
	Ignored bool
	// InFlight is the number of requests, own bookings and external ones.
	InFlight int
	// Booked is the number of own bookings.
	Booked int
	// PendingPrefillSeconds is the prefill believed to be waiting, own and external.
	PendingPrefillSeconds float64
}

// unknownKV is State.KVUsed when nobody knows.
const unknownKV = -1

// report is what the last accepted sample of a target said beyond the bookings of that moment.
type report struct {
	seen      bool  // any sample was accepted
	at        int64 // when, on the tracker's clock
	sampledAt int64 // its stamp, or that of the last one with a stamp
	counted   bool  // it said something of requests or prefill
	external  external
	kvUsed    float64 // 0 to 1, or unknownKV
	held      int64   // target.held at that moment, as far as the gauge can contain it
}

// external is work on a target that is not booked.
type external struct {
	waiting, decoding int64   // requests
	tokens, seconds   float64 // prefill
}

func (e *external) requests() int64 { return e.waiting + e.decoding }

// Report applies a sample. It replaces the one before: what it does not say is unknown again. A sample that is older,
// by SampledAt, than the last accepted one is ignored, unless that one is too old to be believed anyway: a clock set
// back must not make a worker unheard. It errs with ErrUnknownTarget.
func (t *Tracker) Report(id fleet.TargetID, s Sample, now time.Time) (Belief, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.tick(now)
	g := t.target(id)
	if g == nil {
		return Belief{}, ErrUnknownTarget
	}
	t.presume(g)
	r := &g.report
	late := s.SampledAt != 0 && s.SampledAt < r.sampledAt && t.isFresh(r)
	if late {
		t.count.SamplesIgnored++
		return g.belief(true), nil
	}

	t.surplus(g, &s)
	if s.SampledAt != 0 {
		r.sampledAt = s.SampledAt
	}
	r.seen, r.at = true, at
	r.counted = s.Running.Known || s.Waiting.Known || s.WaitingPrefillTokens.Known
	r.external = t.beyond(g, &s)
	r.kvUsed, r.held = unknownKV, g.held+g.marked-g.unadmitted(s.Waiting.read())
	if total := s.TotalBlocks.read(); total > 0 && s.UsedBlocks.Known {
		r.kvUsed = min(float64(s.UsedBlocks.read())/float64(total), 1)
	}
	t.count.Samples++
	t.believed.hear(g)
	if g.peers != nil {
		g.peers.report(g)
	}
	return g.belief(false), nil
}

// Reconnected forgets the stamp of a target's last sample: a new stream orders its samples anew.
func (t *Tracker) Reconnected(id fleet.TargetID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.target(id); g != nil {
		g.report.sampledAt = 0
	}
}

// beyond is the work a sample shows that the bookings of this moment do not explain. Bookings without a first token
// explain waiting requests first. A waiting request of which nothing more is said is taken to be like those of ours
// that are of its model.
func (t *Tracker) beyond(g *target, s *Sample) external {
	running, waiting := s.Running.read(), s.Waiting.read()
	more := max(0, running+waiting-g.booked)
	e := external{waiting: min(max(0, waiting-g.prefilling), more)}
	e.decoding = more - e.waiting
	if s.WaitingPrefillTokens.Known {
		e.tokens = float64(max(0, s.WaitingPrefillTokens.read()-g.pendingTok))
	} else {
		e.tokens = min(float64(e.waiting)*g.model.uncached, maxTokens)
	}
	rate := t.cfg.PrefillSecondsPerToken
	if s.SecondsPerToken > 0 {
		rate = min(s.SecondsPerToken, 1)
	}
	e.seconds = e.tokens * rate
	return e
}

// unadmitted is the memory of the bookings that wait in the engine's queue: its gauge does not contain them yet. They are
// the newest of those without a first token.
func (g *target) unadmitted(waiting int64) int64 {
	sum := int64(0)
	for b := g.prefills.last; b != nil && waiting > 0; b = b.links[byTurn].prev {
		sum += g.alone(b)
		waiting--
	}
	return sum
}

// isFresh says whether a report is still believed.
func (t *Tracker) isFresh(r *report) bool {
	return r.seen && t.clock-r.at <= int64(t.cfg.MaxReportAge)
}

// belief reads the target just after a sample.
func (g *target) belief(ignored bool) Belief {
	return Belief{
		Ignored:               ignored,
		InFlight:              int(g.booked + g.report.external.requests()),
		Booked:                int(g.booked),
		PendingPrefillSeconds: seconds(g.pending) + g.report.external.seconds,
	}
}

func seconds(nanos int64) float64 { return float64(nanos) / 1e9 }
