package client

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// ledger is bookings the plain way: a list of everything ever booked.
type ledger struct {
	lease time.Duration
	all   []*entry
}

type entry struct {
	worker, decision string
	renewed          time.Time
	ended            bool
	ref              *booking
}

func (l *ledger) booked(worker string) (n int) {
	for _, e := range l.all {
		if !e.ended && e.worker == worker {
			n++
		}
	}
	return n
}

func (l *ledger) expire(now time.Time) {
	for _, e := range l.all {
		if now.Sub(e.renewed) >= l.lease {
			e.ended = true
		}
	}
}

func TestBookingsAreTheirTwin(t *testing.T) {
	workers := []string{"a", "b", "c", "d"}
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 5))
		const lease = 20 * time.Second
		b, l := newBookings(lease), &ledger{lease: lease}
		now := time.Unix(0, 0)
		for step := range 300 {
			now = now.Add(time.Duration(rng.IntN(1500)) * time.Millisecond)
			var e *entry
			if len(l.all) > 0 {
				e = l.all[rng.IntN(len(l.all))]
			}
			w := Target{Worker: workers[rng.IntN(len(workers))]}
			switch n := rng.IntN(10); {
			case n < 3:
				id := fmt.Sprint(rng.IntN(30))
				l.expire(now)
				ref := b.book(w, id, now)
				repeated := false
				for _, old := range l.all {
					if !old.ended && old.decision == id {
						if repeated = true; old.ref != ref {
							t.Fatalf("seed %d step %d: decision %s was booked twice", seed, step, id)
						}
					}
				}
				if !repeated {
					l.all = append(l.all, &entry{worker: w.Worker, decision: id, renewed: now, ref: ref})
				}
			case n < 5:
				l.expire(now)
				cands := []Target{{Worker: "a"}, {Worker: "b"}, {Worker: "c"}}
				k := 1 + rng.IntN(4)
				best, ref := b.choose(cands, k, false, now)
				if len(best) != min(k, len(cands)) {
					t.Fatalf("seed %d step %d: %d of %d wanted", seed, step, len(best), k)
				}
				for i := range best[1:] {
					if l.booked(best[i].Worker) > l.booked(best[i+1].Worker) {
						t.Fatalf("seed %d step %d: %v is not ranked by bookings", seed, step, best)
					}
				}
				for _, c := range cands {
					if last := best[len(best)-1]; !slices.Contains(best, c) && l.booked(c.Worker) < l.booked(last.Worker) {
						t.Fatalf("seed %d step %d: %v is better than %v", seed, step, c, best)
					}
				}
				l.all = append(l.all, &entry{worker: best[0].Worker, renewed: now, ref: ref})
			case e == nil:
			case n < 7:
				b.renew(e.ref, now)
				if !e.ended {
					e.renewed = now
				}
			case n < 8:
				b.move(e.ref, w, now)
				if !e.ended {
					e.worker, e.renewed = w.Worker, now
				}
			case n < 9:
				b.end(e.ref)
				e.ended = true
			default:
				b.forget(func(string) bool { return rng.IntN(2) == 0 })
			}
			want, got := map[string]int{}, map[string]int{}
			alive := 0
			for _, name := range workers {
				if n := l.booked(name); n > 0 {
					want[name] = n
					alive += n
				}
			}
			for k, y := range b.tallies {
				if y.booked != 0 {
					got[k.worker] = y.booked
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("seed %d step %d (-want +got)\n%s", seed, step, d)
			}
			if b.inFlight() != alive {
				t.Fatalf("seed %d step %d: %d in flight, want %d", seed, step, b.inFlight(), alive)
			}
		}
	}
}

func TestTiesGoRound(t *testing.T) {
	b := newBookings(time.Minute)
	now := time.Unix(0, 0)
	var got []string
	for range 7 {
		cands := []Target{{Worker: "a"}, {Worker: "b"}, {Worker: "c"}}
		best, k := b.choose(cands, 2, false, now)
		got = append(got, best[0].Worker)
		b.end(k) // all are equal again
	}
	if d := cmp.Diff([]string{"a", "b", "c", "a", "b", "c", "a"}, got); d != "" {
		t.Error(d)
	}
}
