package extproc

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// TestDuesEqualAScan: what a tick does to any lives is what a look at each of them says.
func TestDuesEqualAScan(t *testing.T) {
	type fate uint8
	const (
		stays fate = iota
		isRenewed
		ends
	)
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 1))
		silence := time.Minute
		if seed%4 > 1 {
			silence = renewEvery / 2
		}
		s := New(Config{Oracle: oracle.New(oracle.Config{}, nil), LogSilence: silence, HasReplicas: seed%2 == 1, MaxAwaited: 30})
		now := time.Now()
		look := func(l *life) fate {
			switch {
			case !l.settles.IsZero():
				if !now.Before(l.settles) {
					return ends
				}
			case !l.isLeft:
				if now.Sub(l.renewed) >= renewEvery {
					return isRenewed
				}
			case now.Sub(l.renewed) >= silence:
				return ends
			case s.cfg.HasReplicas && now.Sub(l.doubted) >= renewEvery:
				return ends // nothing is booked here: another one has heard it
			}
			return stays
		}
		var all []*life
		seen := map[fate]int{}
		for i := range 2000 {
			now = now.Add(time.Duration(random.IntN(400)) * time.Millisecond)
			var l *life
			if len(all) > 0 {
				l = all[random.IntN(len(all))] // it may be over
			}
			switch n := random.IntN(10); {
			case n < 4 || l == nil:
				all = append(all, s.begin(&oracle.Answer{Decision: oracle.DecisionID(i + 1)}, false, true, "", now))
			case n == 4:
				if !l.isLeft {
					s.await(l)
				}
			case n == 5:
				l.goesOn("", now)
			case n == 6:
				l.mu.Lock()
				if !l.isOver {
					s.settle(l, now.Add(observerWait))
				}
				l.mu.Unlock()
			case n == 7:
				l.unheard()
			default:
				want := map[*life]fate{}
				for _, l := range s.lives {
					want[l] = look(l)
				}
				s.Tick(now)
				for l, f := range want {
					seen[f]++
					if _, isThere := s.lives[l.answer.Decision]; isThere == (f == ends) || f == isRenewed && !l.renewed.Equal(now) {
						t.Fatalf("seed %d, step %d: fate %d, still there %v, renewed %v ago", seed, i, f, isThere, now.Sub(l.renewed))
					}
				}
			}
			if len(s.dues) != len(s.lives) {
				t.Fatalf("seed %d, step %d: %d dues of %d lives", seed, i, len(s.dues), len(s.lives))
			}
			for k, l := range s.dues {
				if l.place != k || s.lives[l.answer.Decision] != l || !l.due.Equal(s.dueOf(l)) || k > 0 && l.due.Before(s.dues[(k-1)/2].due) {
					t.Fatalf("seed %d, step %d: place %d of %d is wrong", seed, i, l.place, k)
				}
			}
		}
		if seen[stays] == 0 || seen[isRenewed] == 0 || seen[ends] == 0 {
			t.Errorf("seed %d: fates %v", seed, seen)
		}
	}
}

// BenchmarkTick is a tick beside so many lives that an access log would have to end, of which none is due.
func BenchmarkTick(b *testing.B) {
	s := New(Config{Oracle: oracle.New(oracle.Config{}, nil)})
	now := time.Now()
	for i := range 50_000 {
		s.await(s.begin(&oracle.Answer{Decision: oracle.DecisionID(i + 1)}, false, true, "", now))
	}
	for b.Loop() {
		s.Tick(now)
	}
}
