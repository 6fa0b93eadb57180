package replica

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// trio is three replicas that have joined, and engines whose reporters are spread over them.
func trio(t *testing.T, b *broker, engines int, edits ...func(*Config)) ([]*peer, []*engine) {
	t.Helper()
	var peers []*peer
	for _, name := range []string{"a", "b", "c"} {
		cfg := quick(name)
		for _, edit := range edits {
			edit(&cfg)
		}
		peers = append(peers, joinedPeer(t, b, cfg))
	}
	var es []*engine
	for i := range engines {
		e := newEngine(t, fmt.Sprintf("w %d.*>", i), uint64(i)) // names may have what subjects may not
		e.connect(peers[i%len(peers)])
		es = append(es, e)
	}
	return peers, es
}

// Whatever is reported where, all replicas hold what the engines hold, also while reporters move, with and without a word.
func TestReplicasAgree(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 5)
	rng := rand.New(rand.NewPCG(9, 9))
	for range 300 {
		e := engines[rng.IntN(len(engines))]
		switch rng.IntN(20) {
		case 0:
			e.cut()
			e.connect(peers[rng.IntN(len(peers))])
		case 1:
			old, was := e.stream, e.session
			e.connect(peers[rng.IntN(len(peers))])
			was.Close(time.Now())
			old.Close()
		default:
			e.work()
		}
	}
	agree(t, peers, engines)
}

// Who moves is told to go on where it stands: all that was acknowledged elsewhere is known.
func TestReporterMoves(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 1, func(c *Config) { c.AckWait = patience }) // however slow, all comes into the log
	e := engines[0]
	for i := range 30 {
		for range 5 {
			e.work()
		}
		e.cut()
		got := e.connect(peers[(i+1)%len(peers)])
		if want := (oracle.Accepted{ResumeFrom: e.seq + 1, Confidence: oracle.Fresh}); got != want && !isDegraded(peers) {
			t.Fatalf("move %d: accepted %+v, want %+v", i, got, want)
		}
	}
	agree(t, peers, engines)
	for _, p := range peers {
		if s := p.n.Stats(); !isDegraded(peers) && (s.Gaps+s.Differences+s.Announced != 0 || s.Claims == 0) {
			t.Errorf("%s: %+v", p.n.cfg.Name, s)
		}
	}
}

// A stream that is still open where the reporter has left ends there.
func TestFormerStreamEnds(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 1)
	e := engines[0]
	e.work()
	was := e.session
	e.connect(peers[1])
	select {
	case <-was.Kicked():
	case <-time.After(patience):
		t.Fatal("the former session is not ended")
	}
	e.work()
	agree(t, peers, engines)
}

// A replica that starts later, or again with nothing, knows all that lives when it says that it has joined.
func TestFreshReplicaCatchesUp(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 4)
	for range 60 {
		for _, e := range engines {
			e.work()
		}
	}
	d := joinedPeer(t, b, quick("d"))
	for _, e := range engines {
		if got, want := d.believed(e.worker), e.held(); len(got) != len(want) {
			t.Fatalf("joined with %d blocks of %s, want %d", len(got), e.worker, len(want))
		}
	}
	agree(t, append(peers, d), engines)
	if s := peers[1].n.Stats(); !isDegraded(peers) && (s.Skipped == 0 || s.Differences != 0) {
		t.Errorf("who agreed built again what was announced: %+v", s)
	}

	peers[0].stop() // with it went the streams of two
	for i, e := range engines {
		if i%3 == 0 {
			e.connect(peers[1])
		}
		e.work()
	}
	again := joinedPeer(t, b, quick("a"))
	for _, e := range engines {
		e.work()
	}
	agree(t, []*peer{peers[1], peers[2], d, again}, engines)
}

// Each replica serves on alone while it has no NATS, and afterwards all agree.
func TestPartition(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 3)
	for round := range 3 {
		peers[round].cable.cut()
		eventually(t, "cut off", func() bool { return !peers[round].n.Stats().IsConnected })
		for range 20 {
			for _, e := range engines {
				e.work()
			}
		}
		if s := peers[round].n.Stats(); s.Unpublished == 0 || !s.IsDegraded {
			t.Errorf("served on without a word: %+v", s)
		}
		peers[round].cable.mend()
		agree(t, peers, engines)
		eventually(t, "well again", func() bool { return !peers[round].n.Stats().IsDegraded })
	}
}

// Whoever is cut off takes others' targets for STALE after the grace, and for FRESH again when it has heard what was said.
func TestCutOffDistrusts(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 2)
	engines[0].work()
	agree(t, peers, engines)
	confidence := func() oracle.BlockConfidence {
		v, err := peers[2].o.Verify(engines[0].worker, 0, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return v.Confidence
	}
	peers[2].cable.cut()
	eventually(t, "STALE", func() bool { return confidence() == oracle.Stale })
	engines[0].work()
	peers[2].cable.mend()
	eventually(t, "FRESH", func() bool { return confidence() == oracle.Fresh })
	agree(t, peers, engines)
}

// A difference that nobody has noticed is found by the origin's digest and repaired.
func TestSilentDifferenceIsRepaired(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 1)
	e := engines[0]
	for range 20 {
		e.work()
	}
	agree(t, peers, engines)
	n := peers[1].n
	n.mu.Lock()
	x := n.targets[key{e.worker, 0}]
	for _, m := range []*kvoraclev1.ReportBlocksRequest{
		{Message: &kvoraclev1.ReportBlocksRequest_SnapshotBegin{SnapshotBegin: &kvoraclev1.SnapshotBegin{Sequence: e.seq}}},
		{Message: &kvoraclev1.ReportBlocksRequest_SnapshotChunk{SnapshotChunk: &kvoraclev1.SnapshotChunk{
			Stores: []*kvoraclev1.StoreBlocks{storeOf(0, 7, 8, 9)},
		}}},
		{Message: &kvoraclev1.ReportBlocksRequest_SnapshotEnd{SnapshotEnd: &kvoraclev1.SnapshotEnd{}}},
	} {
		if _, err := x.applier.Apply(m, time.Now()); err != nil {
			t.Error(err)
		}
	}
	n.mu.Unlock()
	if got := peers[1].believed(e.worker); len(got) != 3 {
		t.Fatalf("%d blocks are there, want 3 wrong ones", len(got))
	}
	agree(t, peers, engines)
	if s := n.Stats(); !isDegraded(peers) && (s.Differences == 0 || s.LackedTotal != 1) {
		t.Errorf("the difference was found %d times, %d times something was missing, want at least once, and once", s.Differences, s.LackedTotal)
	}
}

// mortals are two replicas of which the one is soon missed when the other is cut off.
func mortals(t *testing.T) (a, b *peer) {
	t.Helper()
	broker := newBroker(t)
	cfg := quick("a")
	cfg.BeatTimeout = 2 * time.Second
	a = joinedPeer(t, broker, cfg)
	cfg.Name = "b"
	return a, joinedPeer(t, broker, cfg)
}

// An origin that dies leaves its targets as a reporter does whose stream is cut; the reporter finds everything elsewhere.
func TestOriginDies(t *testing.T) {
	a, other := mortals(t)
	e := newEngine(t, "w", 1)
	e.connect(a)
	e.work()
	agree(t, []*peer{a, other}, []*engine{e})
	a.cable.cut() // for ever; to others it is dead
	eventually(t, "the stream is lost", func() bool { return other.n.Stats().Followed == 0 })
	if got := len(other.believed("w")); got != len(e.held()) {
		t.Errorf("%d blocks within the grace, want %d", got, len(e.held()))
	}
	if v, err := other.o.Verify("w", 0, time.Now().Add(time.Minute)); err != nil || v.Confidence != oracle.Stale {
		t.Errorf("after the grace: %v, %v, want STALE", v.Confidence, err)
	}
	if got := e.connect(other); got.SnapshotRequired || got.ResumeFrom != e.seq+1 {
		t.Errorf("the reporter is told %+v, want to go on", got)
	}
	e.work()
	agree(t, []*peer{other}, []*engine{e})
}

// A zombie of a former life that finds a replica which does not know better is sent away when that hears of the present one.
func TestFormerLifeLoses(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 1)
	e := engines[0]
	e.life = 2
	e.connect(peers[0])
	e.work()
	agree(t, peers, engines)
	zombie := &Stream{}
	func() {
		m := e.hello()
		m.Incarnation, m.NextSequence = 1, 1
		zombie = peers[1].n.Open(t.Context(), m) // whose oracle then refuses the hello, here or there
		zombie.Close()
	}()
	e.work()
	agree(t, peers, engines)
}

// A replica whose machine's clock was set back by an hour is killed and begins again: to others that looks like a life before
// the one they know. When that has been silent for long enough they take the new one for what it is.
func TestAReplicaIsBornBeforeItsFormerLife(t *testing.T) {
	other, a := mortals(t) // it is "b" that is cut off
	e := newEngine(t, "w", 1)
	e.connect(a)
	e.work()
	agree(t, []*peer{a, other}, []*engine{e})
	a.cable.cut() // without a word

	cfg := a.n.cfg
	cfg.born = cfg.born.Add(-time.Hour)
	now := joinedPeer(t, a.cable.b, cfg)
	e.connect(now)
	e.work()
	eventually(t, "it is heard", func() bool {
		other.n.mu.Lock()
		defer other.n.mu.Unlock()
		o := other.n.origins[cfg.Name]
		return o != nil && o.boot == now.n.boot
	})
	e.work()
	agree(t, []*peer{now, other}, []*engine{e})
	crew(t, []*peer{now, other}, 2)
	now.ask(&oracle.RouteRequest{Prompt: oracle.Prompt{Tokens: make([]uint32, 64), Length: 64}})
	alike(t, []*peer{now, other})
}
