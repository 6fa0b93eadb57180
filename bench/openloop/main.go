// Command openloop replays a public trace to the index in an open loop, as routers for KV caches are compared: requests
// and cache reports have absolute deadlines, which are scaled into ever shorter windows until the index cannot keep up.
//
// The trace is Mooncake's (internal/sim has a sample), served by simulated engines whose caches say what they store and
// evict. A lookup starts with the prompt's local hashes and chains them. Offered are all block operations, looked up,
// stored and removed, over the window; achieved are the same over the time until the last one was done. A window is valid
// if everything was issued within 1.01 of it, and sustained if at least 99 % of what was offered is achieved.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/sim"
)

// indexTarget is our index.
type indexTarget struct {
	ix      *index.Index
	ledgers []*index.Ledger
	chain   []block.ID
	dst     []index.Match
	found   int // blocks that somebody holds, summed over lookups
}

func newIndexTarget(engines int) *indexTarget {
	t := &indexTarget{ix: index.New(index.Config{}), dst: make([]index.Match, 0, engines)}
	for e := range engines {
		l := t.ix.NewLedger(fleet.TargetID(e), false)
		t.ix.Publish(l)
		t.ledgers = append(t.ledgers, l)
	}
	return t
}

func (t *indexTarget) lookup(q *lookup) {
	t.chain, t.dst = t.ix.MatchLocals(q.keyspace.Root(q.locals[0]), q.locals[1:], t.chain, t.dst[:0])
	best := 0
	for i := range t.dst {
		best = max(best, t.dst[i].Total())
	}
	t.found += best
}

func (t *indexTarget) apply(e *event) {
	if e.isRemove {
		t.ledgers[e.engine].Remove(e.ids, fleet.Device)
	} else {
		t.ledgers[e.engine].Store(index.Parent{ID: e.parent, IsRoot: e.isRoot}, e.ids, fleet.Device)
	}
}

func main() {
	engines := flag.Int("engines", 16, "engines of each copy")
	copies := flag.Int("copies", 4, "copies of the trace, each with engines and prompts of its own")
	writers := flag.Int("writers", 1, "goroutines that apply events")
	first := flag.Duration("window", 24*time.Second, "first window; halved while it is sustained")
	steps := flag.Int("steps", 3, "bisections after that")
	flag.Parse()
	if err := run(*engines, *copies, *writers, *steps, *first); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(engines, copies, writers, steps int, first time.Duration) error {
	if writers < 1 || steps < 0 || first < time.Millisecond {
		return fmt.Errorf("%d writers, %d steps, a window of %v", writers, steps, first)
	}
	requests, err := sim.Sample()
	if err != nil {
		return err
	}
	t, err := record(requests, engines, copies)
	if err != nil {
		return err
	}
	fmt.Printf("trace %d copies of %d requests in %.0f s on %d engines each: %d lookups of %.1f M blocks, %d events of %.1f M\n",
		copies, len(requests.Requests), t.seconds, engines, len(t.lookups), float64(t.lookupBlocks)/1e6, len(t.events), float64(t.eventBlocks)/1e6)
	best := search(first, steps, func(window time.Duration) *outcome {
		to := newIndexTarget(t.engines)
		runtime.GC()
		o := replay(t, to, wallClock{time.Now()}, window, writers)
		fmt.Printf("window %v: offered %.2f M block operations/s, achieved %.2f (%.1f %%, %s); lookup p50 %.1f us, p99 %.1f, p99.9 %.1f; behind p99 %.1f; drain %.1f ms; found %.1f %%\n",
			window, o.offered()/1e6, o.achieved()/1e6, 100*o.achieved()/o.offered(), validity(o),
			quantile(o.lookups, 0.5), quantile(o.lookups, 0.99), quantile(o.lookups, 0.999), quantile(o.behind, 0.99),
			float64((o.drained-o.window).Microseconds())/1e3, 100*float64(to.found)/float64(t.lookupBlocks))
		return o
	})
	if best == nil {
		fmt.Printf("nothing was sustained: begin with a longer window\n")
		return nil
	}
	for _, l := range []struct {
		name string
		v    float64
		unit string
	}{
		{"replay-offered", best.offered() / 1e6, "M block operations/s, the most that is sustained"},
		{"replay-achieved", best.achieved() / 1e6, "M block operations/s"},
		{"replay-lookup-p50", quantile(best.lookups, 0.5), "us, from local hashes"},
		{"replay-lookup-p99", quantile(best.lookups, 0.99), "us"},
		{"replay-lookup-p999", quantile(best.lookups, 0.999), "us"},
		{"replay-drain", float64((best.drained - best.window).Microseconds()) / 1e3, "ms after the window's end"},
	} {
		fmt.Printf("info %-28s %10.4g %10s       (%s)\n", l.name, l.v, "", l.unit)
	}
	return nil
}

func validity(o *outcome) string {
	if o.isValid() {
		return "valid"
	}
	return fmt.Sprintf("not valid: issued in %v", o.issued)
}

// quantile is in us.
func quantile(ns []float64, q float64) float64 { return bars.Quantile(ns, q) / 1e3 }
