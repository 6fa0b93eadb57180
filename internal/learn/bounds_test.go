package learn

import (
	"math"
	"math/rand/v2"
	"testing"
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
