package feed

import (
	"slices"
	"testing"
	"time"
)

// tape is a Handler that notes what it is told.
type tape struct {
	applied []uint64
	asked   []uint64
	lives   []Cause
	trust   Trust
	next    Result
}

type message uint64

func (m message) Sum() uint64 { return uint64(m) }
func (message) Size() int     { return 10 }

func (t *tape) Apply(sequence uint64, _ message) Result {
	t.applied = append(t.applied, sequence)
	r := t.next
	t.next = Result{}
	return r
}

func (t *tape) Replay(from uint64) { t.asked = append(t.asked, from) }
func (t *tape) NewLife(c Cause)    { t.lives = append(t.lives, c) }
func (t *tape) Trust(x Trust)      { t.trust = x }

// expect compares everything at once.
func (t *tape) expect(test *testing.T, what string, applied, asked []uint64, lives []Cause, trust Trust) {
	test.Helper()
	if !slices.Equal(t.applied, applied) || !slices.Equal(t.asked, asked) || !slices.Equal(t.lives, lives) || t.trust != trust {
		test.Errorf("%s: applied %v, asked %v, lives %v, %v; want %v, %v, %v, %v", what, t.applied, t.asked, t.lives, t.trust, applied, asked, lives, trust)
	}
}

var zero = time.Unix(1e9, 0)

func live(f *Feed[message], life message, sequences ...uint64) {
	for _, s := range sequences {
		f.Live(s, 1000*life+message(s), zero)
	}
}

func replay(f *Feed[message], life message, sequences ...uint64) {
	for _, s := range sequences {
		f.Replayed(s, 1000*life+message(s), zero)
	}
	f.ReplayEnd(zero)
}

func TestWithoutReplay(t *testing.T) {
	type u = []uint64
	h := &tape{}
	f := New(Config{DoubtFor: time.Hour}, h)
	f.Connected(zero)
	live(f, 1, 0, 1, 1, 0)
	h.expect(t, "from the start", u{0, 1}, nil, nil, Whole)
	live(f, 1, 4, 3)
	h.expect(t, "a gap", u{0, 1}, nil, nil, Whole)
	live(f, 1, 2)
	h.expect(t, "filled in time", u{0, 1, 2, 3, 4}, nil, nil, Whole)
	live(f, 1, 6, 8)
	f.Tick(zero.Add(100 * time.Millisecond))
	h.expect(t, "given up", u{0, 1, 2, 3, 4, 6}, nil, nil, Doubtful)
	live(f, 1, 5)
	h.expect(t, "too late", u{0, 1, 2, 3, 4, 6}, nil, nil, Doubtful)
	// A new process's first message while one of the former waits for a gap: the latter has no place any more.
	live(f, 2, 0, 1)
	f.Tick(zero.Add(time.Second))
	h.expect(t, "a new life", u{0, 1, 2, 3, 4, 6, 0, 1}, nil, []Cause{Restarted}, Whole)
	f.Connected(zero)
	live(f, 2, 1, 2)
	h.expect(t, "proven by a repeat", u{0, 1, 2, 3, 4, 6, 0, 1, 2}, nil, []Cause{Restarted}, Whole)
	f.Connected(zero)
	f.Proven()
	live(f, 2, 3)
	h.expect(t, "proven by the caller", u{0, 1, 2, 3, 4, 6, 0, 1, 2, 3}, nil, []Cause{Restarted}, Whole)
	f.Connected(zero)
	live(f, 2, 4)
	h.expect(t, "not proven", u{0, 1, 2, 3, 4, 6, 0, 1, 2, 3, 4}, nil, []Cause{Restarted}, Doubtful)
	h.next = Result{IsWhole: true}
	live(f, 2, 5)
	h.expect(t, "everything dropped", u{0, 1, 2, 3, 4, 6, 0, 1, 2, 3, 4, 5}, nil, []Cause{Restarted}, Whole)
	f.Connected(zero)
	live(f, 3, 9)
	h.expect(t, "higher after a cut", u{0, 1, 2, 3, 4, 6, 0, 1, 2, 3, 4, 5, 9}, nil, []Cause{Restarted, Reconnected}, Partial)
	h.next = Result{IsLost: true}
	live(f, 3, 10)
	if h.trust != Doubtful {
		t.Error("a message that is not understood is no loss")
	}
	f.Tick(zero.Add(time.Hour))
	live(f, 3, 11, 11+2e9)
	if h.trust != Partial || !slices.Equal(h.lives, []Cause{Restarted, Reconnected, Outdated, Restarted}) {
		t.Errorf("outdated, then a leap: %v, %v", h.trust, h.lives)
	}
	f.Restarted(zero)
	if h.trust != Unheard || h.lives[4] != Restarted {
		t.Errorf("a restart that the caller knows of: %v, %v", h.trust, h.lives)
	}
}

func TestWithReplay(t *testing.T) {
	type u = []uint64
	h := &tape{}
	f := New(Config{HasReplay: true, ReplayTimeout: time.Second, Attempts: 2, Messages: 3}, h)
	f.Connected(zero)
	live(f, 1, 3, 4)
	replay(f, 1, 1, 2, 3)
	h.expect(t, "the ring begins late", u{1, 2, 3, 4}, u{0}, nil, Partial)
	live(f, 1, 6, 7)
	replay(f, 1, 5, 6)
	h.expect(t, "a gap", u{1, 2, 3, 4, 5, 6, 7}, u{0, 5}, nil, Partial)
	// The ring goes on where the gap has been forgotten: what it has is right.
	live(f, 1, 12)
	replay(f, 1, 10, 11, 12)
	h.expect(t, "overrun", u{1, 2, 3, 4, 5, 6, 7, 10, 11, 12}, u{0, 5, 8}, []Cause{Overrun}, Partial)
	f.Connected(zero)
	live(f, 1, 14)
	replay(f, 1, 12, 13, 14)
	h.expect(t, "the same life", u{1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14}, u{0, 5, 8, 12}, []Cause{Overrun}, Partial)
	f.Connected(zero)
	replay(f, 2, 14, 15)
	replay(f, 2, 0, 1)
	h.expect(t, "another life", u{1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 0, 1}, u{0, 5, 8, 12, 14, 0}, []Cause{Overrun, Restarted}, Whole)
	h.applied, h.asked, h.lives = nil, nil, nil
	f.Connected(zero)
	replay(f, 3)
	replay(f, 3, 0)
	h.expect(t, "a ring that has nothing of it", u{0}, u{1, 0}, []Cause{Restarted}, Whole)
	// An answer that does not come is asked for again; then what waits goes on without it.
	live(f, 3, 2)
	f.Tick(zero.Add(time.Second))
	f.Tick(zero.Add(2 * time.Second))
	f.Tick(zero.Add(3 * time.Second))
	h.expect(t, "no answer", u{0, 2}, u{1, 0, 1, 1}, []Cause{Restarted}, Doubtful)
	// Nor may too much wait.
	h.next = Result{IsWhole: true}
	live(f, 3, 3, 5, 6, 7, 8)
	h.expect(t, "too much waits", u{0, 2, 3, 5, 6, 7, 8}, u{1, 0, 1, 1, 4}, []Cause{Restarted}, Doubtful)
	if s := f.Stats(); s.Overflows != 1 || s.Failed != 2 || s.Missing != 4 {
		t.Errorf("%+v", s)
	}
	f.Tick(zero.Add(time.Hour))
	replay(f, 3, 0, 1, 2, 3)
	h.expect(t, "outdated, from the ring", u{0, 2, 3, 5, 6, 7, 8, 0, 1, 2, 3}, u{1, 0, 1, 1, 4, 0}, []Cause{Restarted, Outdated}, Whole)
}

// What an answer did not bring is asked for once more if it brought something, and given up if it did not.
func TestAnswersThatAreShort(t *testing.T) {
	type u = []uint64
	h := &tape{}
	f := New(Config{HasReplay: true, Attempts: 1}, h)
	f.Connected(zero)
	replay(f, 1, 0)
	live(f, 1, 2, 5)
	replay(f, 1, 1, 2, 3)
	h.expect(t, "short", u{0, 1, 2, 3}, u{0, 1, 4}, nil, Whole)
	replay(f, 1)
	h.expect(t, "empty", u{0, 1, 2, 3, 5}, u{0, 1, 4}, nil, Doubtful)
	h.next = Result{IsWhole: true}
	live(f, 1, 6)
	// Without an answer nothing proves that the life is the same, even if the number fits.
	f.Connected(zero)
	live(f, 1, 7)
	f.ReplayFailed(zero)
	h.expect(t, "none", u{0, 1, 2, 3, 5, 6, 7}, u{0, 1, 4, 6}, nil, Doubtful)
}

// What came live before a ring forgot it counts, though the ring's answer begins later.
func TestLiveBeforeTheRing(t *testing.T) {
	h := &tape{}
	f := New(Config{HasReplay: true}, h)
	f.Connected(zero)
	live(f, 1, 0, 1, 2, 3)
	replay(f, 1, 2, 3, 4)
	h.expect(t, "history", []uint64{0, 1, 2, 3, 4}, []uint64{0}, nil, Whole)
}

// A live message may come long after a replay has brought it; it is no restart.
func TestLiveBehindReplay(t *testing.T) {
	h := &tape{}
	f := New(Config{HasReplay: true}, h)
	f.Connected(zero)
	var all []uint64
	for s := range uint64(3000) {
		all = append(all, s)
	}
	replay(f, 1, all...)
	live(f, 1, all...)
	live(f, 1, 3000)
	if len(h.applied) != 3001 || len(h.lives) != 0 || h.trust != Whole || f.Stats().Repeated != 3000 {
		t.Errorf("%d applied, lives %v, %v, %+v", len(h.applied), h.lives, h.trust, f.Stats())
	}
	live(f, 2, 0)
	if len(h.lives) != 1 || h.trust != Whole {
		t.Errorf("a restart behind it: %v, %v", h.lives, h.trust)
	}
}

// TestLooksAgain: what goes to nobody because the subscription is a little later than the connection, or at the end of a
// burst, comes without a message behind it.
func TestLooksAgain(t *testing.T) {
	type u = []uint64
	h := &tape{}
	f := New(Config{HasReplay: true, ReplayTimeout: time.Second, Attempts: 1}, h)
	f.Connected(zero)
	replay(f, 1, 0, 1)
	f.Tick(zero.Add(240 * time.Millisecond))
	h.expect(t, "not yet", u{0, 1}, u{0}, nil, Whole)
	f.Tick(zero.Add(250 * time.Millisecond))
	replay(f, 1, 2, 3)
	h.expect(t, "a quarter of a second later", u{0, 1, 2, 3}, u{0, 2}, nil, Whole)
	f.Tick(zero.Add(1240 * time.Millisecond))
	h.expect(t, "and not at once again", u{0, 1, 2, 3}, u{0, 2}, nil, Whole)
	f.Tick(zero.Add(1250 * time.Millisecond))
	live(f, 1, 4)
	replay(f, 1, 4)
	h.expect(t, "a second later", u{0, 1, 2, 3, 4}, u{0, 2, 4}, nil, Whole)
	f.Tick(zero.Add(29 * time.Second))
	h.expect(t, "it is heard now", u{0, 1, 2, 3, 4}, u{0, 2, 4}, nil, Whole)
	f.Tick(zero.Add(30 * time.Second))
	replay(f, 1, 5)
	h.expect(t, "long after", u{0, 1, 2, 3, 4, 5}, u{0, 2, 4, 5}, nil, Whole)
	if s := f.Stats(); s.Looks != 3 || s.Gaps != 0 || s.Missing != 0 {
		t.Errorf("%+v", s)
	}
	// Nobody answers when the life is to be proven: the look proves it.
	f.Connected(zero)
	f.ReplayFailed(zero)
	f.Tick(zero.Add(time.Second))
	h.expect(t, "asks for the last one", u{0, 1, 2, 3, 4, 5}, u{0, 2, 4, 5, 5, 5}, nil, Whole)
	replay(f, 1, 5, 6)
	live(f, 1, 7)
	h.expect(t, "it is the same", u{0, 1, 2, 3, 4, 5, 6, 7}, u{0, 2, 4, 5, 5, 5}, nil, Whole)
	f.Connected(zero)
	f.ReplayFailed(zero)
	f.Tick(zero.Add(time.Second))
	replay(f, 2, 7, 8)
	h.expect(t, "it is another", u{0, 1, 2, 3, 4, 5, 6, 7}, u{0, 2, 4, 5, 5, 5, 7, 7, 0}, []Cause{Restarted}, Unheard)
}

// TestToldAnew: a source that lists all it holds in place of a history.
func TestToldAnew(t *testing.T) {
	type u = []uint64
	h := &tape{}
	f := New(Config{DoubtFor: time.Hour}, h)
	f.Connected(zero)
	f.Lost(zero)
	h.expect(t, "nothing to lose", nil, nil, nil, Unheard)
	f.Retell(8)
	live(f, 1, 8)
	h.expect(t, "a part", u{8}, nil, nil, Partial)
	h.next = Result{IsWhole: true}
	live(f, 1, 9)
	live(f, 1, 10)
	h.expect(t, "all", u{8, 9, 10}, nil, nil, Whole)
	f.Lost(zero)
	h.expect(t, "some are lost", u{8, 9, 10}, nil, nil, Doubtful)
	f.Connected(zero)
	f.Proven()
	f.Retell(20)
	live(f, 1, 20)
	h.expect(t, "of the same life", u{8, 9, 10, 20}, nil, []Cause{Retold}, Partial)
	f.Connected(zero)
	f.Retell(3)
	live(f, 2, 3)
	h.expect(t, "of another, perhaps", u{8, 9, 10, 20, 3}, nil, []Cause{Retold, Reconnected}, Partial)
}
