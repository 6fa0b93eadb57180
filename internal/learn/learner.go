package learn

import (
	"maps"
	"math"
	"sync"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// MaxClasses bounds the classes that are learned together. Beyond it those that have no targets are forgotten, and if all have some,
// the targets of further ones learn alone.
const MaxClasses = 1024

const (
	// together is how far apart first tokens of one iteration may be told, in seconds.
	together = 1e-3
	// alone is for how many seconds a sample waits for what may belong to it.
	alone = 10
	// longest is the longest sample in seconds. What takes longer did not compute all the while.
	longest = 600
	// middleStep is by how much the median of a class moves with a sample, as a share.
	middleStep = 0.02
	// wholeWeight is that of a request of which only the end is told.
	wholeWeight = 0.02
)

// Learner holds what is learned of all targets. Make one with New.
type Learner struct {
	mu      sync.Mutex
	targets []*target // by TargetID; nil where unknown
	classes map[string]*class
	refused uint64
	samples uint64
	now     float64 // the latest that was told
}

// class is what is learned of the targets that are taken to be alike.
type class struct {
	targets int
	fit     fit
	told    Learned // as last published
	isNewer bool    // than what was published
	middle  float64 // the median of predicted times, about, in seconds; 0: nothing was observed yet
}

// isLong reports whether a predicted time is among the longer half of the class's.
func (c *class) isLong(predicted float64) bool {
	if c.middle == 0 {
		c.middle = predicted
	}
	isLong := predicted > c.middle
	if isLong {
		c.middle *= 1 + middleStep
	} else {
		c.middle /= 1 + middleStep
	}
	return isLong
}

// target is what is learned of one target, and the sample that is being collected.
type target struct {
	class *class
	pace  pace
	told  float64 // its own speed when all was published last

	busyUntil  float64 // the last first token
	done       float64 // that of the sample
	seconds    float64
	parts      Parts
	first      Parts
	iterations float64
	open       bool
}

// New makes an empty learner.
func New() *Learner { return &Learner{classes: make(map[string]*class)} }

// Begin starts a target's life in a class. What was known of the id is forgotten.
func (l *Learner) Begin(id fleet.TargetID, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for int64(len(l.targets)) <= int64(id) {
		l.targets = append(l.targets, nil)
	}
	l.drop(id)
	c := l.classes[name]
	if c == nil {
		c = &class{fit: newFit()}
		c.publish()
		if len(l.classes) >= MaxClasses {
			maps.DeleteFunc(l.classes, func(_ string, c *class) bool { return c.targets == 0 })
		}
		if len(l.classes) < MaxClasses {
			l.classes[name] = c
		}
	}
	c.targets++
	l.targets[id] = &target{class: c, pace: newPace(), told: 1}
}

// Drop forgets a target. What its class has learned stays, for who joins it later.
func (l *Learner) Drop(id fleet.TargetID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(id)
}

func (l *Learner) drop(id fleet.TargetID) {
	if t := l.target(id); t != nil {
		t.class.targets--
		l.targets[id] = nil
	}
}

func (l *Learner) target(id fleet.TargetID) *target {
	if int64(id) >= int64(len(l.targets)) {
		return nil
	}
	return l.targets[id]
}

// Prefill is one prefill that has ended.
type Prefill struct {
	// Target is where it ran.
	Target fleet.TargetID
	// Booked and Done are when the request was sent and when its first token came, in seconds on the learner's clock.
	Booked, Done float64
	// Parts is its time under the prior, by part, without what was under way when it came. Both Linear with Iteration and
	// Floor are told; what is more counts.
	Parts Parts
	// First is the rest of the iteration that was under way, under the prior: added when the request found no other
	// prefill there. Of it, too, the more of both counts.
	First Parts
	// Iterations is how many the prefill took; below 1 is 1. How far into an iteration it came is not known, so that the
	// time of one of k iterations is known up to a k-th.
	Iterations float64
}

// FirstToken learns from a prefill and reports whether the target's own speed may have changed. What its class learns is
// seen after Publish.
func (l *Learner) FirstToken(p *Prefill) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.target(p.Target)
	if t == nil || !valid(p) {
		l.refused++
		return false
	}
	begun := max(p.Booked, t.busyUntil)
	took := p.Done - begun
	l.now = max(l.now, p.Done)
	t.busyUntil = max(t.busyUntil, p.Done)
	if took <= together && t.open {
		t.add(p, max(took, 0), false) // in one iteration with the one before
		return false
	}
	changed := l.close(t)
	t.add(p, took, p.Booked >= begun)
	return changed
}

func (t *target) add(p *Prefill, seconds float64, first bool) {
	joins := t.open
	t.open, t.done = true, p.Done
	t.seconds += seconds
	t.iterations = max(t.iterations, p.Iterations, 1)
	for i := range t.parts {
		if joins && (Part(i) == Iteration || Part(i) == Floor) {
			continue // it is there already
		}
		t.parts[i] += p.Parts[i]
		if first {
			t.first[i] += p.First[i]
		}
	}
}

// close learns from the sample that was being collected.
func (l *Learner) close(t *target) bool {
	if !t.open {
		return false
	}
	c, parts, first := t.class, t.parts, t.first
	seconds, iterations := t.seconds, t.iterations
	t.seconds, t.parts, t.first, t.iterations, t.open = 0, Parts{}, Parts{}, 0, false
	c.fit.choose(&parts)
	c.fit.choose(&first)
	for i := range parts {
		parts[i] += first[i]
	}
	spread, predicted := spreadOf(iterations), c.fit.predict(&parts)
	before := t.pace.factor(l.now)
	if !isLike(seconds, predicted) {
		l.refused++
		return false
	}
	doubt, ok := c.fit.observe(&parts, seconds/before, spread)
	if !ok {
		l.refused++
		return false
	}
	// What may be the class's error is not the target's.
	t.pace.observe(t.done, c.isLong(predicted), seconds, predicted, math.Hypot(spread, doubt), c.fit.usual)
	l.samples++
	c.isNewer = true
	return t.pace.factor(l.now) != before
}

func valid(p *Prefill) bool {
	ok := p.Done >= p.Booked && p.Done-p.Booked <= longest && !math.IsInf(p.Done, 0) && !(p.Iterations > longest*1e3)
	for i, v := range p.Parts {
		ok = ok && v >= 0 && v <= longest && p.First[i] >= 0 && p.First[i] <= longest
	}
	return ok
}

// Whole learns from a request of which only the end is told: how long it took in all against the prediction with the
// factors of now. It moves all factors of the class alike, slowly: much else is in that time, and too much to tell one
// worker from another by it, which would send everything to whoever was asked first. Where first tokens are told, they
// know better, and it changes nothing.
func (l *Learner) Whole(id fleet.TargetID, seconds, predicted float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.target(id)
	ratio := seconds / predicted
	if t == nil || !(ratio > 1.0/absurd && ratio < absurd) {
		l.refused++
		return false
	}
	if t.class.fit.samples == 0 {
		t.class.fit.scale(ratio, wholeWeight)
		t.class.isNewer = true
	}
	l.samples++
	return true
}

// Publish makes what classes have learned what Of tells, of all their targets at one moment: workers that are alike must
// look alike, and a worker that is asked more often is not to look cheaper or dearer for it. It says whether there was anything,
// which may also be that a speed of which nothing was heard for long is believed less.
func (l *Learner) Publish(now float64) (isNews bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = max(l.now, now)
	for _, t := range l.targets {
		if t == nil {
			continue
		}
		if l.now > t.done+alone {
			l.close(t) // or it would wait for the next one, which may be long in coming to a worker that is hardly asked
		}
		if own := t.pace.factor(l.now); own != t.told {
			t.told, isNews = own, true
		}
		if t.class.isNewer {
			t.class.publish()
			isNews = true
		}
	}
	return isNews
}

func (c *class) publish() {
	c.told, c.isNewer = Learned{Factors: c.fit.factor, Error: c.fit.shown}, false
}

// Learned is what is believed of one target.
type Learned struct {
	// Factors correct the prior's costs, by part: those of the target's class when they were published last, times its own
	// speed; all 1 when nothing was learned.
	Factors Parts
	// Samples counts those of this target in this life; what its class had learned before is not in it.
	Samples uint64
	// Error is the usual relative error of a prediction in its class.
	Error float64
}

// Of tells what is believed of a target; of one that is not known, the prior.
func (l *Learner) Of(id fleet.TargetID) Learned {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.target(id)
	if t == nil {
		f := newFit()
		return Learned{Factors: f.factor, Error: f.shown}
	}
	out, own := t.class.told, t.pace.factor(l.now)
	for i, f := range out.Factors {
		out.Factors[i] = within(f * own)
	}
	out.Samples = t.pace.samples()
	return out
}

// Stats are counters since New.
type Stats struct {
	// Samples counts those learned from, Refused those that could not be.
	Samples, Refused uint64
}

// Stats reads the counters.
func (l *Learner) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{l.samples, l.refused}
}
