package storm

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "replay this one storm and print what happens")
	stormsFlag = flag.Int("storms", 0, "how many storms; 0: as many as fit in CI")

	errGone = errors.New("the oracle is gone")
	errCut  = errors.New("the stream was cut")
)

// storm lets things happen at random.
func (w *world) storm(steps int) {
	for range steps {
		if w.err != nil {
			return
		}
		switch x := w.dice.IntN(100); {
		case x < 22:
			w.act(w.ranks[w.dice.IntN(len(w.ranks))])
		case x < 42:
			ps := w.ranks[w.dice.IntN(len(w.ranks))].publishers()
			w.report(ps[w.dice.IntN(len(ps))], false)
		case x < 90:
			w.move()
		case x < 95:
			w.tick(time.Duration(w.dice.IntN(1000)) * time.Millisecond)
		default:
			if f := fault(w.dice.IntN(int(numFaults))); w.weather[f] {
				w.strike(f)
			}
		}
		w.observe([]int{w.dice.IntN(numLeaves)})
		w.sweep()
	}
}

// move lets one message arrive, up or down, on a stream that moves.
func (w *world) move() {
	if len(w.conns) == 0 {
		return
	}
	c := w.conns[w.dice.IntN(len(w.conns))]
	if c.stalled > 0 {
		c.stalled--
		return
	}
	if len(c.up) > 0 && (len(c.down) == 0 || w.dice.IntN(2) == 0) {
		w.deliver(c)
	} else if len(c.down) > 0 {
		w.hear(c)
	}
}

// calm ends the storm: nothing fails any more, rivals go, everything arrives, reporters do what they owe, twice over so
// that digests speak last. Then the picture must be true and complete.
func (w *world) calm() {
	w.say("the storm is over")
	for _, r := range w.ranks {
		if r.second != nil {
			w.rival(r)
		}
	}
	const rounds = 12
	isQuiet := 0
	for n := 0; w.err == nil && isQuiet < 2; n++ {
		if n == rounds {
			w.fail("no peace after %d rounds: %s", rounds, w.restless())
			return
		}
		before := w.count.restored
		if w.tick(time.Second); n >= rounds/2 {
			w.tick(time.Minute) // somebody believes to have answered: it is asked again
		}
		if isQuiet++; w.count.restored > before {
			isQuiet = 0
		}
		for _, r := range w.ranks {
			if !r.reporter.isIdle() {
				isQuiet = 0
			}
			w.report(r.reporter, true)
		}
		w.drain()
	}
	w.verify()
}

// restless names those who still have something to say, and what the oracle thinks of them.
func (w *world) restless() string {
	var b strings.Builder
	for _, r := range w.ranks {
		if s, err := w.oracle.Worker(r.w.name, w.now); err == nil && !r.reporter.isIdle() {
			x := &s.Ranks[r.n]
			fmt.Fprintf(&b, "%v is %v, awaits a snapshot: %v, owes one: %v; ", r, x.Blocks, x.IsAwaiting, r.reporter.owes)
		}
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// drain lets everything arrive.
func (w *world) drain() {
	for isMoving := true; isMoving && w.err == nil; {
		isMoving = false
		for _, c := range w.conns {
			for c.stalled = 0; w.err == nil && len(c.up)+len(c.down) > 0; isMoving = true {
				if len(c.up) > 0 {
					w.deliver(c)
				} else {
					w.hear(c)
				}
			}
		}
	}
	w.sweep()
}

// verify holds every target against its engine.
func (w *world) verify() {
	if w.err != nil {
		return
	}
	for _, r := range w.ranks {
		s, err := w.oracle.Worker(r.w.name, w.now)
		if err != nil {
			w.fail("%v: %v", r, err)
			return
		}
		isPartial := w.limit > 0 && s.Ranks[r.n].Blocks == oracle.Partial
		if got := s.Ranks[r.n]; got.Blocks != oracle.Fresh && !isPartial {
			w.fail("%v is %v in the calm, awaiting %v, want fresh", r, got.Blocks, got.IsAwaiting)
			return
		}
		toHold := r.truth.sets
		if r.naming.isHashed {
			toHold = r.seen.told.credit()
			w.verifyNames(r, isPartial && r.seen.isSuspect)
		}
		for t := range fleet.Tier(fleet.NumTiers) {
			if got, want := s.Ranks[r.n].Held[t], toHold.count(t); got != want && !(isPartial && (got <= want || r.seen.isSuspect)) {
				w.fail("%v holds %d blocks in %v, the oracle says %d", r, want, t, got)
			}
		}
		if r.seen.told.sets != r.truth.sets && !(isPartial && r.seen.isSuspect) {
			w.fail("%v: what was told is not what the engine holds", r)
		}
		if r.asked > r.causes {
			w.fail("%v was asked for %d snapshots; only %d things happened that need one", r, r.asked, r.causes)
		}
	}
	all := make([]int, numLeaves)
	for i := range all {
		all[i] = i
	}
	w.observe(all)
}

// verifyNames holds what is known of a rank's engine hashes against its engine: every chain of names of one kind leads to
// blocks that are credited, up to one of which it was lost what it is, and nothing is that the engine does not hold.
func (w *world) verifyNames(r *rank, isLenient bool) {
	known, truth := r.seen.told.credit(), r.truth.held()
	for leaf := range numLeaves {
		p := r.naming.tree.path(leaf)
		got, least := known.match(p), 0
		for kind := range 2 {
			one := r.truth.ofOne(kind)
			for i := range another / 64 {
				at := kind*another/64 + i
				unknown := r.unsaid[at] &^ r.seen.told.known[at]
				for t := range one {
					one[t][i] &^= unknown
				}
			}
			least = max(least, total(one.match(p)))
		}
		if most := total(truth.match(p)); !isLenient && (total(got) < least || total(got) > most) {
			w.fail("%v: %v blocks of %v are known, the engine holds %d to %d", r, got, p, least, most)
		}
	}
}

func total(match [fleet.NumTiers]int) int {
	n := 0
	for _, k := range match {
		n += k
	}
	return n
}

// relax makes room in an index that was too small: all but one leave, and that one's engines drop nearly all. Within an
// hour it is asked once for what had to be given up, and the picture is whole again.
func (w *world) relax() {
	if w.limit == 0 || w.err != nil {
		return
	}
	for _, x := range w.workers[1:] {
		w.remove(x)
	}
	w.workers, w.ranks = w.workers[:1], w.workers[0].ranks
	w.conns = slices.DeleteFunc(w.conns, func(c *conn) bool { return c.by.r.w != w.workers[0] })
	for _, r := range w.ranks {
		for t := range fleet.Tier(fleet.NumTiers) {
			was := r.truth.sets[t]
			for n := range was.all {
				if k := w.limit / 8; int(n) >= k {
					op := r.naming.remove(slices.Repeat([]node{n}, int(r.truth.copies[t][n])), t)
					r.truth.apply(&op)
					r.reporter.changed([]oracle.Op{op})
				}
			}
		}
	}
	w.calm()
	before := w.count.restored
	for range 65 {
		was := w.count.restored
		w.tick(time.Minute)
		if w.count.restored > was {
			w.calm()
		}
	}
	w.calm()
	if n := w.count.restored - before; n > len(w.ranks) {
		w.fail("%d snapshots were asked for to bring back what %d ranks lacked", n, len(w.ranks))
	}
	for _, r := range w.ranks {
		if s, err := w.oracle.Worker(r.w.name, w.now); err != nil || s.Ranks[r.n].Blocks != oracle.Fresh {
			w.fail("%v is %v with an empty index around it (%v)", r, s.Ranks[r.n].Blocks, err)
		}
	}
}

// finish removes everybody and looks for leftovers.
func (w *world) finish() {
	if w.err != nil {
		return
	}
	for _, x := range w.workers {
		w.remove(x)
	}
	w.tick(time.Second)
	s := w.oracle.Stats(w.now)
	w.count.evicted += int(s.Evicted)
	x := s.Index
	if left := x.Ledgers + x.HolderBlocks + x.DistinctBlocks + x.Orphans + x.Entries + x.Reclaimable; left != 0 {
		w.fail("all workers are gone; left in the index: %+v", x)
	}
	if s.Workers != [3]int{} || s.Load.Targets != 0 {
		w.fail("all workers are gone; left: %+v", s)
	}
}

// run weathers one seed: a few storms with a calm after each.
func run(seed uint64, log func(string, ...any)) *world {
	w := newWorld(seed, log)
	if seed%3 == 0 {
		w.limit = 8 + w.dice.IntN(120)
		w.say("the index has room for %d blocks", w.limit)
		w.oracle = w.newOracle()
	}
	for n := 0; n < 2 && w.err == nil; n++ {
		w.storm(120 + w.dice.IntN(240))
		w.calm()
	}
	w.relax()
	w.finish()
	return w
}

// lateSeeds have failed once and lie beyond those that are always run: 1758 loses all of a snapshot, which was then awaited
// for ever; in 7603 the end of a snapshot comes again within the next one, which was then asked for twice; 2719 and 4743 lose
// what an engine hash stands for, which no digest can find.
var lateSeeds = []uint64{1758, 2719, 4743, 7603}

func TestStorm(t *testing.T) {
	if *seedFlag != 0 {
		if w := run(*seedFlag, t.Logf); w.err != nil {
			t.Fatalf("seed %d: %v", *seedFlag, w.err)
		}
		return
	}
	storms := 1000
	if isRace {
		storms = 60
	}
	if *stormsFlag > 0 {
		storms = *stormsFlag
	}
	var all tally
	seeds := slices.Clone(lateSeeds)
	for n := range uint64(storms) {
		seeds = append(seeds, n+1) // 0 means none
	}
	for _, seed := range seeds {
		w := run(seed, nil)
		all.add(&w.count)
		if w.err == nil {
			continue
		}
		var b strings.Builder
		run(seed, func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) })
		t.Fatalf("%sseed %d: %v\nreplay: go test ./internal/storm -run TestStorm -seed=%d -v", b.String(), seed, w.err, seed)
	}
	t.Logf("%+v", all)
	if storms >= 500 {
		all.check(t)
	}
}

// check notices a test that has stopped testing.
func (a *tally) check(t *testing.T) {
	for f, n := range a.faults {
		if n == 0 {
			t.Errorf("%v never happened", fault(f))
		}
	}
	if a.hashed == 0 || a.grouped == 0 || a.waiting == 0 || a.sized == 0 {
		t.Errorf("no stream named its blocks by hashes, or had groups: %+v", a)
	}
	if a.partial == 0 || a.evicted == 0 || a.restored == 0 || a.doubted == 0 {
		t.Errorf("no index was too small: %+v", a)
	}
	if a.fresh == 0 || a.stale == 0 || a.resyncs == 0 || a.snapshots == 0 || a.found == 0 || a.copies == 0 || a.late == 0 || a.voided == 0 || a.unbegun == 0 || a.repeats == 0 || a.again == 0 {
		t.Errorf("something never happened: %+v", a)
	}
}

// kinds counts what a row is judged by.
func (a *tally) kinds(told *contents) {
	if told.by.isHashed {
		a.hashed++
	}
	if len(told.by.others) > 0 {
		a.grouped++
	}
	if told.told != (nameSet{}) {
		a.waiting++
	}
	if told.by.tree.size > unit {
		a.sized++
	}
}

func (a *tally) add(b *tally) {
	for f := range b.faults {
		a.faults[f] += b.faults[f]
	}
	a.routes += b.routes
	a.fresh += b.fresh
	a.stale += b.stale
	a.resyncs += b.resyncs
	a.snapshots += b.snapshots
	a.found += b.found
	a.copies += b.copies
	a.late += b.late
	a.voided += b.voided
	a.unbegun += b.unbegun
	a.repeats += b.repeats
	a.hashed += b.hashed
	a.grouped += b.grouped
	a.waiting += b.waiting
	a.sized += b.sized
	a.partial += b.partial
	a.evicted += b.evicted
	a.restored += b.restored
	a.doubted += b.doubted
	a.again += b.again
}
