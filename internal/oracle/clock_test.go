package oracle

import (
	"testing"
	"time"
	"unsafe"
)

// set is a moment of a machine whose clock was set forward or back by so many seconds since it started: the wall has moved, and
// the monotonic reading in it, by which Go measures how long things last, has not.
func set(t *testing.T, at time.Time, seconds int64) time.Time {
	t.Helper()
	// As time.Time has it with a monotonic reading: a bit that says so, 33 bits of seconds, 30 of nanoseconds.
	const hasMonotonic, nanosecondBits = 1 << 63, 30
	out := at
	wall := (*uint64)(unsafe.Pointer(&out))
	if *wall&hasMonotonic == 0 {
		t.Fatal("no monotonic reading")
	}
	*wall += uint64(seconds) << nanosecondBits
	if got := out.Round(0).Sub(at.Round(0)); got != time.Duration(seconds)*time.Second || out.Sub(at) != 0 {
		t.Fatalf("the wall has moved by %v and time by %v", got, out.Sub(at))
	}
	return out
}

// TestTheMachinesClockIsSet: by an hour, forward or back. No booking ends and no worker is lost for it, nothing becomes stale,
// and afterwards leases end when their time has come and costs go on being learned.
func TestTheMachinesClockIsSet(t *testing.T) {
	for name, by := range map[string]int64{"forward": 3600, "back": -3600} {
		t.Run(name, func(t *testing.T) {
			o := New(Config{WorkerLease: time.Minute, StreamGrace: 10 * time.Second}, nil)
			o.cfg.Load.Lease = time.Minute
			start := time.Now()
			at := func(d time.Duration) time.Time { return set(t, start.Add(d), by) }
			s := open(t, o, "w", 1, start)
			store(t, s, 1, chain(1, 2), start)
			gone := open(t, o, "gone", 1, start)
			store(t, gone, 1, chain(1, 2), start)
			gone.Close(start)
			o.Tick(start)
			const requests = 5
			for i := range uint32(requests) {
				route(t, o, prompt(100+i, 200+i), nil, start.Add(time.Duration(i)*time.Second))
			}

			o.Tick(at(5 * time.Second))
			if n := o.load.Stats().Bookings; n != requests {
				t.Fatalf("%d bookings are left of %d when the clock was set", n, requests)
			}
			if f := o.feed(s.f.target); f.confidence(at(5*time.Second)) != Fresh || gone.f.confidence(at(5*time.Second)) != Fresh {
				t.Errorf("what is known became %v, and %v within the grace", f.confidence(at(5*time.Second)), gone.f.confidence(at(5*time.Second)))
			}
			if w := o.fleet.View().Worker("gone"); w == nil || w.IsLost {
				t.Errorf("a worker was lost by the clock: %+v", w)
			}
			if got := o.seconds(at(7*time.Second)) - o.seconds(start); got < 6.999 || got > 7.001 {
				t.Errorf("7 s took %v s for what learns", got)
			}
			store(t, s, 2, chain(3, 4), at(6*time.Second))
			route(t, o, prompt(3, 4, 5), dry, at(6*time.Second))

			late := at(3 * time.Minute)
			o.Tick(late)
			if n := o.load.Stats().Bookings; n != 0 {
				t.Errorf("%d bookings outlive their lease", n)
			}
			if w := o.fleet.View().Worker("gone"); w == nil || !w.IsLost {
				t.Errorf("a worker without a sign of life for three minutes is not lost: %+v", w)
			}
		})
	}
}
