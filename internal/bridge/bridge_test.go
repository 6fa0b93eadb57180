package bridge

import (
	"fmt"
	"testing"

	"github.com/kvoracle/kvoracle/internal/bridge/enginetest"
	"github.com/kvoracle/kvoracle/internal/engine/feed"
)

func TestContentsFollowTheEngine(t *testing.T) {
	for _, asMaps := range []bool{false, true} {
		t.Run(fmt.Sprintf("maps %v", asMaps), func(t *testing.T) {
			cfg := small()
			cfg.AsMaps = asMaps
			r := start(t, cfg, nil)
			r.live()
			r.steps(0, 3)
			r.settled()
			for range 5 {
				r.steps(0, 40) // evicts, and stores copies
				r.settled()
			}
			copies := 0
			for _, n := range r.engine.Held(0) {
				copies += n - 1
			}
			if copies == 0 {
				t.Error("no block had copies, so nothing was learned about them")
			}
			if s := r.caughtUp(0); s.Missing != 0 || s.Lives != 1 || len(s.Dropped) != 0 || s.Trust != feed.Whole || s.Held == 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestCacheReset(t *testing.T) {
	r := start(t, small(), nil)
	r.live()
	r.steps(0, 30)
	r.settled()
	r.engine.Reset(0)
	r.steps(0, 1)
	r.settled()
	r.steps(0, 30)
	r.settled()
}

func TestLostMessagesAreAskedForAgain(t *testing.T) {
	r := start(t, small(), nil)
	r.live()
	for range 4 {
		r.steps(0, 20)
		r.engine.Lose(0, 7)
		r.steps(0, 20)
		r.settled()
	}
	// A loss that a replay makes good which was asked for anyway is not even noticed.
	if s := r.caughtUp(0); s.Gaps < 1 || s.Gaps > 4 || s.Missing != 0 || s.Lives != 1 {
		t.Errorf("%+v", s)
	}
}

// A subscription is there a little after the connection is. What goes by before, or at the end of a burst that a full queue
// cuts, is had without another message that would tell.
func TestWhatWentByIsLookedFor(t *testing.T) {
	r := start(t, small(), nil)
	r.live()
	r.engine.Lose(0, 1_000_000)
	r.steps(0, 20)
	r.settled()
	if s := r.caughtUp(0); s.Gaps != 0 || s.Missing != 0 || s.Lives != 1 || s.Trust != feed.Whole {
		t.Errorf("%+v", s)
	}
}

// Without a memory of the engine's there is no cure. What may be wrong is given up, and nothing false is ever believed.
func TestLostMessagesWithoutReplay(t *testing.T) {
	cfg := small()
	cfg.Ring = 0
	r := start(t, cfg, nil)
	r.live()
	r.steps(0, 30)
	r.settled()
	r.engine.Lose(0, 7)
	r.steps(0, 20)
	eventually(t, "what is in doubt is given up", func() bool {
		s := r.bridge.Status()[0]
		return s.Missing == 7 && s.Trust == feed.Partial
	})
	for range 10 {
		r.steps(0, 20)
		if s := r.caughtUp(0); s.Lives != 1 {
			t.Errorf("%+v", s)
		}
		if r.nothingFalse(0) == 0 {
			t.Error("what came after the loss is not believed")
		}
	}
	// A reset ends the doubt.
	r.engine.Reset(0)
	r.steps(0, 20)
	r.settled()
}

func TestRingThatHasForgotten(t *testing.T) {
	cfg := small()
	cfg.Ring = 3
	r := start(t, cfg, nil)
	r.live()
	r.steps(0, 30)
	r.settled()
	r.engine.Lose(0, 10)
	r.steps(0, 30)
	if s := r.caughtUp(0); s.Trust != feed.Partial || s.Lives != 1 {
		t.Errorf("%+v", s)
	}
	r.nothingFalse(0)
}

func TestBridgeThatComesLate(t *testing.T) {
	engine, err := enginetest.New(small())
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	r := start(t, small(), nil)
	r.steps(0, 50) // some before it listens, some after
	r.settled()
}

func TestEngineRestart(t *testing.T) {
	for name, change := range map[string]func(*enginetest.Config){
		"with all":        func(*enginetest.Config) {},
		"without metrics": func(c *enginetest.Config) { c.Silent = true },
		"without replay":  func(c *enginetest.Config) { c.Ring = 0 },
		"with neither":    func(c *enginetest.Config) { c.Silent, c.Ring = true, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := small()
			change(&cfg)
			r := start(t, cfg, nil)
			r.live()
			r.steps(0, 30)
			r.settled()
			before := r.bridge.Status()[0].Incarnation
			r.restart()
			r.steps(0, 30)
			r.settled()
			if s := r.caughtUp(0); s.Lives != 2 || s.Incarnation <= before {
				t.Errorf("incarnation was %d: %+v", before, s)
			}
		})
	}
}

// The new life's numbers are beyond the former one's before anybody hears of it: they rise, and prove nothing.
func TestRestartThatNobodySaw(t *testing.T) {
	for name, change := range map[string]func(*enginetest.Config){
		"the replay tells":  func(c *enginetest.Config) { c.Silent = true },
		"the metrics tell":  func(c *enginetest.Config) { c.Ring = 0 },
		"nothing tells":     func(c *enginetest.Config) { c.Silent, c.Ring = true, 0 },
		"both of them tell": func(*enginetest.Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := small()
			change(&cfg)
			r := start(t, cfg, nil)
			r.live()
			r.steps(0, 10)
			r.settled()
			r.restart(func(*enginetest.Engine) { r.steps(0, 30) })
			r.steps(0, 5)
			if cfg.Ring > 0 {
				r.settled()
			}
			r.caughtUp(0)
			r.nothingFalse(0)
		})
	}
}

func TestOracleRestart(t *testing.T) {
	r := start(t, small(), nil)
	r.live()
	r.steps(0, 30)
	r.settled()
	if err := r.oracle.Crash(); err != nil {
		t.Fatal(err)
	}
	r.steps(0, 30)
	if err := r.oracle.Restart(); err != nil {
		t.Fatal(err)
	}
	r.steps(0, 30)
	r.settled()
	if s := r.caughtUp(0); s.Lives != 1 {
		t.Errorf("%+v", s)
	}
}

func TestRanksLiveAndDieTogether(t *testing.T) {
	cfg := small()
	cfg.Ranks = 3
	r := start(t, cfg, nil)
	r.live()
	r.round()
	r.restart()
	r.round()
	r.round()
	for rank, s := range r.bridge.Status() {
		if s.Lives != 2 || s.Rank != rank {
			t.Errorf("%+v", s)
		}
	}
}
