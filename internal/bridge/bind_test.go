package bridge

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/bridge/enginetest"
	"github.com/kvoracle/kvoracle/internal/engine/feed"
	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// startBound is an engine that connects to the bridge, as vLLM does when its endpoint has no wildcard.
func startBound(t *testing.T, cfg enginetest.Config) *rig {
	t.Helper()
	port, err := enginetest.Ports(max(cfg.Ranks, 1))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Connect = fmt.Sprintf("tcp://127.0.0.1:%d", port)
	return start(t, cfg, func(e *Engine) { e.Events, e.Bind = cfg.Connect, true })
}

func TestEngineThatConnects(t *testing.T) {
	for _, ring := range []int{10_000, 0} {
		t.Run(fmt.Sprint("ring ", ring), func(t *testing.T) {
			cfg := small()
			cfg.Ranks, cfg.Ring = 2, ring
			r := startBound(t, cfg)
			r.live()
			r.round()
			if ring > 0 {
				r.engine.Lose(1, 5)
			}
			r.round()
			for life := 2; life < 4; life++ {
				r.restart()
				r.round()
				r.round()
				for rank := range cfg.Ranks {
					if s := r.caughtUp(rank); s.Lives != uint64(life) || s.Missing != 0 || len(s.Dropped) != 0 || s.Trust != feed.Whole {
						t.Errorf("%+v", s)
					}
				}
			}
		})
	}
}

// A process may be there before the bridge hears that the former one has gone. What that one still sends is not the new one's,
// though the numbers may look so, and its end is not the new one's end.
func TestFormerConnectionDoesNotCount(t *testing.T) {
	cfg := small()
	cfg.Ring, cfg.Silent = 0, true
	r := startBound(t, cfg)
	r.live()
	r.steps(0, 20)
	r.settled()
	former := r.engine
	cfg.Connect = r.bridge.cfg.Engines[0].Events
	next, err := enginetest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.Close)
	if err := next.WaitSubscribers(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bridge knows of it, too", func() bool { return r.log.says("the engine's events are there") == 2 })
	r.steps(0, 3) // the former one
	eventually(t, "what the former one says is dropped", func() bool {
		return r.bridge.Status()[0].Dropped["former_connection"] == 3
	})
	r.engine = next
	r.steps(0, 20)
	r.settled()
	former.Crash()
	r.steps(0, 20)
	r.settled()
	if s := r.caughtUp(0); s.Lives != 2 || s.Missing != 0 || s.Trust != feed.Whole {
		t.Errorf("%+v", s)
	}
}

func TestNewestConnectionCounts(t *testing.T) {
	e := &Engine{Worker: "w", Events: "tcp://127.0.0.1:5557", Bind: true}
	r, err := newRank(newWorker(e, "", nil, slog.New(slog.DiscardHandler)), 0, e.Events, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		kind zmtp.EventKind
		conn uint64
		want bool
	}{
		{zmtp.Connected, 1, true},
		{zmtp.Disconnected, 1, false},
		{zmtp.Connected, 2, true},
		{zmtp.Connected, 4, true},
		{zmtp.Disconnected, 2, true},
		{zmtp.Connected, 3, true},
		{zmtp.Disconnected, 3, true}, // it came before 4 and was slow
		{zmtp.Disconnected, 4, false},
	} {
		r.delivered(&zmtp.Delivery{Event: &zmtp.Event{Kind: step.kind}, Conn: step.conn}, time.Unix(1, 0))
		if got := r.count.isConnected.Load(); got != step.want {
			t.Errorf("step %d: connected %v", i, got)
		}
	}
}
