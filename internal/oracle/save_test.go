package oracle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// copied is what Save tells, kept.
type copied struct {
	workers []SavedWorker
	ranks   []copiedRank
}

type copiedRank struct {
	worker int
	saved  SavedRank
	guess  *SavedGuess // nil: it is what was reported
	lost   [fleet.NumTiers]Digest
	runs   []BlockRun
}

func (c *copied) Worker(w *SavedWorker) error {
	c.workers = append(c.workers, *w)
	return nil
}

func (c *copied) Rank(r *SavedRank, all *Contents) error {
	c.add(copiedRank{saved: *r}, all)
	return nil
}

func (c *copied) Guess(g *SavedGuess, all *Contents) error {
	x := *g
	c.add(copiedRank{guess: &x}, all)
	return nil
}

func (c *copied) add(x copiedRank, all *Contents) {
	x.worker, x.lost = len(c.workers)-1, all.Lost
	all.Each(func(b BlockRun) bool {
		b.IDs = append([]block.ID(nil), b.IDs...)
		x.runs = append(x.runs, b)
		return true
	})
	c.ranks = append(c.ranks, x)
}

// saved is what an oracle tells.
func saved(t *testing.T, o *Oracle) *copied {
	t.Helper()
	c := new(copied)
	if err := o.Save(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// put restores it into an oracle.
func (c *copied) put(t *testing.T, o *Oracle, when, now time.Time) *Restoring {
	t.Helper()
	r := o.Restore(when, now)
	for i := range c.workers {
		if err := r.Worker(&c.workers[i]); err != nil {
			t.Fatal(err)
		}
		for k := range c.ranks {
			x := &c.ranks[k]
			if x.worker != i {
				continue
			}
			var add func(BlockRun)
			if x.guess != nil {
				add = r.Guess(x.guess)
			} else {
				add = r.Rank(&x.saved, &x.lost)
			}
			for _, b := range x.runs {
				add(b)
			}
		}
	}
	return r
}

// reborn is an oracle that begins where another one ends.
func reborn(t *testing.T, o *Oracle, cfg Config, now time.Time) *Oracle {
	t.Helper()
	next := New(cfg, nil)
	saved(t, o).put(t, next, now, now).Commit()
	return next
}

func hello(t *testing.T, o *Oracle, h Hello, now time.Time) (*BlockSession, Accepted) {
	t.Helper()
	if h.Spec.Worker == "" {
		h.Spec = fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}
	}
	s, a, err := o.OpenBlocks(&h, now)
	if err != nil {
		t.Fatal(err)
	}
	return s, a
}

// sees asks for a prompt of three blocks, dry, and wants so many of them matched, and so far trusted.
func sees(t *testing.T, o *Oracle, matched int, c BlockConfidence, now time.Time) {
	t.Helper()
	if a := route(t, o, prompt(1, 2, 3, 4), dry, now); a.Matched.Total() != matched*size || a.Blocks != c {
		t.Errorf("%d tokens matched, %v; want %d blocks, %v", a.Matched.Total(), a.Blocks, matched, c)
	}
}

// TestAReporterThatGoesOnMakesARestoredTargetFresh: nothing is sent again.
func TestAReporterThatGoesOnMakesARestoredTargetFresh(t *testing.T) {
	before := New(Config{}, nil)
	s := open(t, before, "w", 7, t0)
	store(t, s, 1, chain(1, 2, 3), t0)
	after := reborn(t, before, Config{}, t0)
	sees(t, after, 3, Stale, t0)
	s, a := hello(t, after, Hello{Incarnation: 7, NextSequence: 2}, t0)
	if a.ResumeFrom != 2 || a.SnapshotRequired || a.Confidence != Fresh {
		t.Errorf("the hello was answered with %+v", a)
	}
	sees(t, after, 3, Fresh, t0)
	if ack, err := s.Digest(1, fleet.Device, digestOf(chain(1, 2, 3)), t0); err != nil || ack.Counters.DigestsMatched != 1 {
		t.Errorf("the digest: %+v, %v", ack, err)
	}
	if ack := store(t, s, 2, chain(1, 2, 3, 4), t0); ack.Confidence != Fresh || ack.Held != 4 {
		t.Errorf("the next batch: %+v", ack)
	}
}

func digestOf(ids []block.ID) Digest {
	var d [fleet.NumTiers]Digest
	SumUp(&d, BlockRun{IDs: ids, Copies: [fleet.NumTiers]uint16{1}})
	return d[fleet.Device]
}

// TestARestoredTargetIsStaleUntilItHasHeardAll: the reporter is two batches further on.
func TestARestoredTargetIsStaleUntilItHasHeardAll(t *testing.T) {
	before := New(Config{}, nil)
	store(t, open(t, before, "w", 7, t0), 1, chain(1), t0)
	after := reborn(t, before, Config{}, t0)
	s, a := hello(t, after, Hello{Incarnation: 7, NextSequence: 4}, t0)
	if a.ResumeFrom != 2 || a.SnapshotRequired || a.Confidence != Stale {
		t.Errorf("the hello was answered with %+v", a)
	}
	if ack := store(t, s, 2, chain(1, 2), t0); ack.Confidence != Stale {
		t.Errorf("after one of two: %v", ack.Confidence)
	}
	if ack := store(t, s, 3, chain(1, 2, 3), t0); ack.Confidence != Fresh {
		t.Errorf("after both: %v", ack.Confidence)
	}
	sees(t, after, 3, Fresh, t0)

	// It may have forgotten them instead: then a snapshot says what there is.
	after = reborn(t, before, Config{}, t0)
	s, _ = hello(t, after, Hello{Incarnation: 7, NextSequence: 4}, t0)
	if _, err := s.SnapshotBegin(4, t0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SnapshotChunk([]Op{{Kind: OpStore, IsRoot: true, IDs: chain(1, 2)}}, t0); err != nil {
		t.Fatal(err)
	}
	sees(t, after, 1, Stale, t0)
	if ack, err := s.SnapshotEnd(2, t0); err != nil || ack.Confidence != Fresh {
		t.Errorf("after a snapshot: %+v, %v", ack, err)
	}
	sees(t, after, 2, Fresh, t0)
}

// TestNothingOfARestoredLifeIsCreditedToTheNext is case B05.
func TestNothingOfARestoredLifeIsCreditedToTheNext(t *testing.T) {
	before := New(Config{}, nil)
	store(t, open(t, before, "w", 1, t0), 1, chain(1, 2, 3), t0)
	after := reborn(t, before, Config{}, t0)
	sees(t, after, 3, Stale, t0)
	s, a := hello(t, after, Hello{Incarnation: 2, NextSequence: 1}, t0)
	if a.ResumeFrom != 1 || a.SnapshotRequired {
		t.Errorf("the new life was answered with %+v", a)
	}
	sees(t, after, 0, Fresh, t0)
	store(t, s, 1, chain(1), t0)
	sees(t, after, 1, Fresh, t0)
	// A report of the restored life comes too late.
	if _, _, err := after.OpenBlocks(&Hello{
		Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 1, NextSequence: 2,
	}, t0); !isKind(err, FailedPrecondition) {
		t.Errorf("the former life: %v", err)
	}
}

// TestWhatWasRestoredKeepsItsDoubts: who owed a snapshot owes it still, who names blocks by engine hashes owes one now, and a
// reporter whose numbering began again sends one.
func TestWhatWasRestoredKeepsItsDoubts(t *testing.T) {
	before := New(Config{}, nil)
	s := open(t, before, "w", 1, t0)
	store(t, s, 1, chain(1, 2), t0)
	store(t, s, 3, chain(1, 2, 3), t0) // a gap
	_, a := hello(t, reborn(t, before, Config{}, t0), Hello{Incarnation: 1, NextSequence: 2}, t0)
	if !a.SnapshotRequired || a.Confidence != Stale {
		t.Errorf("after a gap: %+v", a)
	}

	before = New(Config{}, nil)
	s, _ = hello(t, before, Hello{Incarnation: 1, NextSequence: 1, EngineHashes: true}, t0)
	locals := block.AppendLocals(nil, prompt(1, 2).Tokens, size)
	if _, err := s.Batch(1, 1, []Op{{
		Kind: OpStore, IsRoot: true, Content: ContentLocals, Locals: locals, Hashes: []EngineHash{11, 12},
	}}, t0); err != nil {
		t.Fatal(err)
	}
	after := reborn(t, before, Config{}, t0)
	sees(t, after, 2, Stale, t0)
	s, a = hello(t, after, Hello{Incarnation: 1, NextSequence: 2, EngineHashes: true}, t0)
	if !a.SnapshotRequired {
		t.Errorf("with engine hashes: %+v", a)
	}
	if ack := store(t, s, 2, chain(9), t0); ack.Counters.IgnoredBatches != 1 {
		t.Errorf("a batch before the snapshot: %+v", ack)
	}
	sees(t, after, 2, Stale, t0)

	before = New(Config{}, nil)
	s = open(t, before, "w", 1, t0)
	store(t, s, 1, chain(1), t0)
	store(t, s, 2, chain(1, 2), t0)
	if _, a = hello(t, reborn(t, before, Config{}, t0), Hello{Incarnation: 1, NextSequence: 2}, t0); !a.SnapshotRequired {
		t.Errorf("a numbering that goes back: %+v", a)
	}

	// Nothing known is not the same as an empty cache.
	before = New(Config{}, nil)
	hello(t, before, Hello{Incarnation: 1, NextSequence: 50}, t0)
	sees(t, reborn(t, before, Config{}, t0), 0, Warming, t0)
}

// TestTheGroupOfWhatWasRestoredIsKnown, unless the file does not say it: then the first hello does.
func TestTheGroupOfWhatWasRestoredIsKnown(t *testing.T) {
	before := New(Config{}, nil)
	s, _ := hello(t, before, Hello{Incarnation: 7, NextSequence: 1, PrefixGroup: 3}, t0)
	store(t, s, 1, chain(1, 2, 3), t0)
	all := saved(t, before)
	again := func(o *Oracle, group uint32) error {
		_, _, err := o.OpenBlocks(&Hello{
			Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 7, NextSequence: 2, PrefixGroup: group,
		}, t0)
		return err
	}
	for _, isSaid := range []bool{true, false} {
		all.ranks[0].saved.HasGroup = isSaid
		o := New(Config{}, nil)
		all.put(t, o, t0, t0).Commit()
		if err := again(o, 0); isSaid && !isReason(err, ReasonSpecContradiction) || !isSaid && err != nil {
			t.Errorf("said by the file: %v; another group: %v", isSaid, err)
		}
		group := uint32(3)
		if !isSaid {
			group = 0 // what the first hello said
		}
		if err := again(o, group); err != nil {
			t.Errorf("said by the file: %v; the group that is known: %v", isSaid, err)
		}
		if err := again(o, group+1); !isReason(err, ReasonSpecContradiction) {
			t.Errorf("said by the file: %v; another group than the one that is known: %v", isSaid, err)
		}
		sees(t, o, 3, Fresh, t0)
	}
}

func isReason(err error, want Reason) bool {
	var e *Error
	return errors.As(err, &e) && e.Reason == want
}

// TestRestoredWorkersLiveByTheirLease: one that does not speak goes as any other does; after a long rest it must speak first.
func TestRestoredWorkersLiveByTheirLease(t *testing.T) {
	cfg := Config{WorkerLease: time.Minute, ForgetAfter: time.Hour}
	before := New(cfg, nil)
	store(t, open(t, before, "w", 1, t0), 1, chain(1), t0)
	if _, err := before.Register(fleet.Spec{Worker: "hand", Model: "m", BlockSize: size, DPSize: 1}, t0); err != nil {
		t.Fatal(err)
	}
	if _, err := before.Drain("hand", true); err != nil {
		t.Fatal(err)
	}
	all := saved(t, before)
	state := func(o *Oracle, name string) fleet.State {
		w := o.fleet.View().Worker(name)
		if w == nil {
			t.Fatalf("%s is gone", name)
		}
		return w.State()
	}
	for rest, want := range map[time.Duration]fleet.State{30 * time.Second: fleet.Ready, time.Hour: fleet.Lost, -time.Hour: fleet.Ready} {
		now := t0.Add(rest)
		o := New(cfg, nil)
		all.put(t, o, t0, now).Commit()
		o.Tick(now)
		if got := state(o, "w"); got != want {
			t.Errorf("after a rest of %v: %v, want %v", rest, got, want)
		}
		if got := state(o, "hand"); got != fleet.Draining {
			t.Errorf("after a rest of %v the one that was drained is %v", rest, got)
		}
		o.Tick(now.Add(61 * time.Second))
		if got := state(o, "w"); got != fleet.Lost {
			t.Errorf("silent for its lease: %v", got)
		}
		s, a := hello(t, o, Hello{Incarnation: 1, NextSequence: 2}, now.Add(2*time.Minute))
		if a.Confidence != Fresh || state(o, "w") != fleet.Ready {
			t.Errorf("it spoke: %+v, %v", a, state(o, "w"))
		}
		s.Close(now)
	}
}

// TestWhoWasLostIsLostStill: a restart makes no candidate of a worker that had been given up.
func TestWhoWasLostIsLostStill(t *testing.T) {
	before := New(Config{}, nil)
	s := open(t, before, "w", 1, t0)
	store(t, s, 1, chain(1, 2), t0)
	s.Close(t0)
	now := t0.Add(5 * time.Minute)
	before.Tick(now)
	after := reborn(t, before, Config{}, now)
	if _, err := after.Route(context.Background(), &RouteRequest{Model: "m", Prompt: prompt(1, 2, 3), DryRun: true}, now); err == nil {
		t.Error("a request goes to a worker that is lost")
	}
	hello(t, after, Hello{Incarnation: 1, NextSequence: 2}, now)
	sees(t, after, 2, Fresh, now)
}

// TestARestoreThatFailsLeavesNothing, and one that comes late changes nothing of what was told.
func TestARestoreThatFailsLeavesNothing(t *testing.T) {
	before := New(Config{}, nil)
	store(t, open(t, before, "w", 1, t0), 1, chain(1, 2, 3), t0)
	all := saved(t, before)
	o := New(Config{}, nil)
	all.put(t, o, t0, t0).Abort()
	for o.index.Reclaim(1000) > 0 {
	}
	if st := o.index.Stats(); len(o.fleet.View().Workers()) != 0 || st.Entries != 0 || st.Ledgers != 0 {
		t.Errorf("%d workers and %+v are left", len(o.fleet.View().Workers()), st)
	}

	o = New(Config{}, nil)
	store(t, open(t, o, "w", 1, t0), 1, chain(1), t0)
	if n := all.put(t, o, t0, t0).Commit(); n != 0 {
		t.Errorf("%d blocks were restored over what was told", n)
	}
	sees(t, o, 1, Fresh, t0)

	// It spoke while the file was being read.
	o = New(Config{}, nil)
	r := all.put(t, o, t0, t0)
	store(t, open(t, o, "w", 1, t0), 1, chain(1), t0)
	if n := r.Commit(); n != 0 {
		t.Errorf("%d blocks were restored over what was told", n)
	}
	sees(t, o, 1, Fresh, t0)
}

// TestGuessesOutliveTheProcess: of a target that does not report, and of text, with what they were worth; the first report
// ends those of tokens.
func TestGuessesOutliveTheProcess(t *testing.T) {
	before := New(Config{}, nil)
	if _, err := before.Register(fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, t0); err != nil {
		t.Fatal(err)
	}
	text := Prompt{PackedTokens: [][]byte{[]byte("what is to be done about all of this")}, Length: 9, IsText: true}
	for _, p := range []Prompt{prompt(1, 2, 3, 4), text} {
		a := route(t, before, p, nil, t0)
		for _, s := range []Step{Dispatched, FirstToken, Finished} {
			if out, err := before.Progress(&Event{Decision: a.Decision, Step: s, OutputTokens: 3, Cached: 0}, t0); err != nil || out != Applied {
				t.Fatalf("%v: %v, %v", s, out, err)
			}
		}
	}
	sees(t, before, 4, Approximate, t0)
	ofText := route(t, before, text, dry, t0).Matched
	if ofText.Total() == 0 {
		t.Fatal("nothing is guessed of text")
	}
	f := before.feed(0)
	f.approx[asTokens].credit, f.approx[asTokens].limit = 0.4, 77
	f.sayCredit(asTokens)

	after := reborn(t, before, Config{}, t0)
	sees(t, after, 4, Approximate, t0)
	if got := route(t, after, text, dry, t0).Matched; got != ofText {
		t.Errorf("of text %v is matched, want %v", got, ofText)
	}
	g := after.feed(0)
	if a := g.approx[asTokens]; a.limit != 77 || a.credit != 0.4 || a.capacity != f.approx[asTokens].capacity || g.credit(Approximate, asTokens) != 0.4 {
		t.Errorf("restored with %+v", a)
	}
	open(t, after, "w", 1, t0)
	sees(t, after, 0, Fresh, t0)
	for as := range after.approx {
		n := 0
		if form(as) == asText {
			n = 1
		}
		if got := after.approximated[as].Load(); got != int64(n) {
			t.Errorf("%d targets are guessed in form %d, want %d", got, as, n)
		}
	}
	r := saved(t, before).put(t, New(Config{}, nil), t0, t0)
	r.Abort()
	for _, x := range r.o.approx {
		for x.Reclaim(1000) > 0 {
		}
		if st := x.Stats(); st.Entries != 0 {
			t.Errorf("given up, and %d entries are left", st.Entries)
		}
	}
}
