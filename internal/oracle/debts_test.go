package oracle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// TestHotPrefixSpreads: prompts that begin alike come one by one and decode for long. The worker that holds the beginning
// is in company before long, but never so much that one prompt by itself would gain by computing it again: without debts
// all stay there. With them everybody has a copy before the company has cost much more than that, and makes it once.
// Whether workers report their blocks or not makes no difference.
func TestHotPrefixSpreads(t *testing.T) {
	for name, reports := range map[string]bool{"reported": true, "guessed": false} {
		t.Run(name, func(t *testing.T) { spreadHotPrefix(t, reports) })
	}
}

func spreadHotPrefix(t *testing.T, reports bool) {
	const workers = 4
	head := make([]uint32, 1000)
	for i := range head {
		head[i] = uint32(i + 1)
	}
	o := New(Config{}, nil)
	sessions := map[string]*BlockSession{}
	for i := range workers {
		name := fmt.Sprint("w", i)
		if reports {
			sessions[name] = open(t, o, name, 1, t0)
		} else if _, err := o.Register(fleet.Spec{Worker: name, Model: "m", BlockSize: size, DPSize: 1}, t0); err != nil {
			t.Fatal(err)
		}
	}
	if reports {
		store(t, sessions["w0"], 1, chain(head...), t0)
	}

	copies, most, now := map[string]int{}, 0, t0
	inFlight := map[string]int{}
	for i := range 400 {
		now = now.Add(50 * time.Millisecond)
		p := prompt(append(slices.Clone(head), uint32(10_000+i))...)
		a := route(t, o, p, func(r *RouteRequest) { r.ExpectedOutput = 500 }, now)
		w := a.Target.Worker
		if inFlight[w]++; len(copies) < workers-1 {
			most = max(most, inFlight[w])
		}
		if a.Matched.Total() == 0 {
			copies[w]++
			if reports {
				store(t, sessions[w], 1, chain(head...), now.Add(20*time.Millisecond))
			}
		}
		if out, err := o.Progress(&Event{Decision: a.Decision, Step: FirstToken}, now.Add(30*time.Millisecond)); err != nil || out != Applied {
			t.Fatal(out, err)
		}
	}
	for i := 1; i < workers; i++ {
		if name := fmt.Sprint("w", i); copies[name] != 1 {
			t.Errorf("%s computed the beginning %d times, want once", name, copies[name])
		}
	}
	if most > 100 {
		t.Errorf("a holder had %d in flight before all had a copy", most)
	}
	for w, n := range inFlight {
		if n < 60 || n > 140 {
			t.Errorf("%s serves %d of 400 on %d workers", w, n, workers)
		}
	}
}
