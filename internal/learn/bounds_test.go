package learn

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// TestNothingIsLearnedAway is case B105: a gateway that tells ever shorter or longer times, each like enough to what is
// believed by then, drives no part of a cost down to nothing, which would send everything to one worker, nor up without end.
func TestNothingIsLearnedAway(t *testing.T) {
	for _, times := range []float64{1.0 / 20, 20} {
		w := &world{rnd: rand.New(rand.NewPCG(3, 3)), truth: Parts{1, 1, 1, 1, 1, 1}}
		l := New()
		l.Begin(0, "h100")
		for i := range 3000 {
			l.Publish(0)
			f := l.Of(0).Factors
			p, _ := w.next(0)
			p.Booked = float64(1000 * i)
			p.Done = p.Booked + math.Min(times*timeOf(&p, &f, true), longest/2)
			l.FirstToken(&p)
		}
		f := l.Of(0).Factors
		for part, v := range f {
			if !(v >= MinFactor && v <= MaxFactor) {
				t.Errorf("told %v times what is believed: the factor of %v is %v, want %v to %v", times, Part(part), v, MinFactor, MaxFactor)
			}
		}
		if v := f[Linear]; v > 0.1 && v < 10 {
			t.Errorf("told %v times what is believed: the factor is %v, so nothing was tried", times, v)
		}
	}
}

// TestClassesThatAreGoneMakeRoom: however many classes come and go, those that are there learn together.
func TestClassesThatAreGoneMakeRoom(t *testing.T) {
	l := New()
	for i := range 3 * MaxClasses {
		l.Begin(0, strconv.Itoa(i))
	}
	l.Begin(1, "stays")
	for i := range MaxClasses {
		l.Begin(0, strconv.Itoa(i))
	}
	if len(l.classes) > MaxClasses {
		t.Errorf("%d classes are remembered, want at most %d", len(l.classes), MaxClasses)
	}
	if l.Begin(2, "stays"); l.target(1).class != l.target(2).class {
		t.Error("a class that has a target is forgotten")
	}
	for _, id := range []fleet.TargetID{0, 3} {
		l.Begin(id, "new")
	}
	if l.target(0).class != l.target(3).class {
		t.Error("those of a new class learn alone")
	}
	for i := range fleet.TargetID(MaxClasses) { // as many as there may be
		l.Begin(10+i, "own "+strconv.Itoa(int(i)))
	}
	for _, id := range []fleet.TargetID{2000, 2001} {
		l.Begin(id, "one more")
	}
	if len(l.classes) != MaxClasses || l.target(2000).class == l.target(2001).class {
		t.Errorf("%d classes, and there was room for one more", len(l.classes))
	}
}
