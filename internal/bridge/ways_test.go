package bridge

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"

	"github.com/kvoracle/kvoracle/internal/bridge/enginetest"
	"github.com/kvoracle/kvoracle/internal/certs/certstest"
	"github.com/kvoracle/kvoracle/internal/engine/feed"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// overStream is an engine with a servicer beside it.
func overStream(kind enginetest.Servicer) enginetest.Config {
	cfg := small()
	cfg.Servicer, cfg.Silent = kind, true
	return cfg
}

// byStream makes the bridge hear it, and nothing else.
func byStream(r **rig) func(*Engine) {
	return func(e *Engine) {
		*e = Engine{Worker: "w", Events: "grpc://" + (*r).engine.GRPC(), LoadEvery: e.LoadEvery}
	}
}

func startStream(t *testing.T, cfg enginetest.Config) *rig {
	t.Helper()
	var r *rig
	return startWith(t, cfg, &r, byStream(&r))
}

func TestStream(t *testing.T) {
	for _, kind := range []enginetest.Servicer{enginetest.Live, enginetest.Keeping} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			cfg := overStream(kind)
			cfg.Ranks = 2
			r := startStream(t, cfg)
			r.live()
			for range 3 {
				for rank := range cfg.Ranks {
					r.steps(rank, 30)
				}
				r.settled()
			}
			r.engine.Reset(0)
			r.steps(0, 5)
			r.settled()
			for rank := range cfg.Ranks {
				if s := r.caughtUp(rank); s.Missing != 0 || s.Lives != 1 || len(s.Dropped) != 0 || s.Trust != feed.Whole || s.Held == 0 {
					t.Errorf("%+v", s)
				}
			}
			r.reported(t, 1, 2)
		})
	}
}

// SGLang's servicer speaks TLS, and may ask for a certificate.
func TestStreamOverTLS(t *testing.T) {
	ca, other := certstest.NewCA(t), certstest.NewCA(t)
	cert, key := ca.Issue("servicer", certstest.Leaf{})
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	mine, mineKey := ca.Issue("bridge", certstest.Leaf{})
	for name, tt := range map[string]struct {
		auth    tls.ClientAuthType
		change  func(*Engine)
		refused string // empty: it works
	}{
		"its authority":        {tls.NoClientCert, func(e *Engine) { e.EventsCA = ca.File }, ""},
		"a certificate shown":  {tls.RequireAndVerifyClientCert, func(e *Engine) { e.EventsCA, e.EventsCert, e.EventsKey = ca.File, mine, mineKey }, ""},
		"none shown":           {tls.RequireAndVerifyClientCert, func(e *Engine) { e.EventsCA = ca.File }, "Unavailable"},
		"another's authority":  {tls.NoClientCert, func(e *Engine) { e.EventsCA = other.File }, "certificate"},
		"a file that is not":   {tls.NoClientCert, func(e *Engine) { e.EventsCA = ca.File + "2" }, "no such file"},
		"plaintext to its TLS": {tls.NoClientCert, func(e *Engine) { e.Events = strings.Replace(e.Events, "grpcs", "grpc", 1) }, "Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := overStream(enginetest.Keeping)
			cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tt.auth, ClientCAs: ca.Pool()} //nolint:gosec // Go's own least is meant
			var r *rig
			startWith(t, cfg, &r, func(e *Engine) {
				byStream(&r)(e)
				e.Events = "grpcs://" + r.engine.GRPC()
				tt.change(e)
			})
			if tt.refused != "" {
				eventually(t, "it is said why", func() bool { return strings.Contains(r.bridge.Status()[0].Wrong, tt.refused) })
				return
			}
			r.live()
			r.steps(0, 20)
			r.settled()
		})
	}
}

// reported waits until the oracle has heard from each rank how many requests it runs.
func (r *rig) reported(t *testing.T, running ...uint32) {
	t.Helper()
	eventually(t, "the oracle has a report of each rank", func() bool {
		m, err := kvoraclev1.NewFleetServiceClient(r.oracle.Conn()).ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
		if err != nil || len(m.GetWorkers()) != 1 || len(m.GetWorkers()[0].GetRanks()) != len(running) {
			return false
		}
		for rank, x := range m.GetWorkers()[0].GetRanks() {
			if x.GetConfidence().GetLoad() != kvoraclev1.LoadConfidence_LOAD_CONFIDENCE_REPORTED || x.GetInFlight() != running[rank] {
				return false
			}
		}
		return true
	})
}

// A servicer that keeps things tells a late comer all of them: its batches, or what is held if it has not all batches.
func TestStreamBegunLate(t *testing.T) {
	for _, ring := range []int{10_000, 5} {
		t.Run(fmt.Sprint("ring ", ring), func(t *testing.T) {
			cfg := overStream(enginetest.Keeping)
			cfg.Ring = ring
			var r *rig
			startWith(t, cfg, &r, func(e *Engine) {
				r.steps(0, 40)
				byStream(&r)(e)
			})
			r.settled()
			if s := r.caughtUp(0); s.Trust != feed.Whole || s.Lives != 1 {
				t.Errorf("%+v", s)
			}
			r.steps(0, 20)
			r.settled()
		})
	}
}

// A servicer that keeps nothing ends the stream when a batch is missing. What the bridge holds then may be wrong, and goes.
func TestStreamWithAGap(t *testing.T) {
	r := startStream(t, overStream(enginetest.Live))
	r.live()
	r.steps(0, 30)
	r.settled()
	r.engine.Lose(0, 5)
	r.steps(0, 20)
	eventually(t, "what is in doubt is given up", func() bool {
		s := r.bridge.Status()[0]
		return s.State == Live && s.Trust == feed.Partial && s.OutboxBytes == 0
	})
	r.steps(0, 20)
	eventually(t, "it goes on", func() bool { return r.bridge.Status()[0].Next == r.engine.Published(0) })
	eventually(t, "nothing is in doubt", func() bool {
		s := r.bridge.Status()[0]
		return s.Trust == feed.Partial && s.OutboxBytes == 0
	})
	if r.nothingFalse(0) == 0 {
		t.Error("what came after the gap is not believed")
	}
	r.engine.Reset(0)
	r.steps(0, 20)
	r.settled()
}

func TestStreamOfAnEngineThatRestarts(t *testing.T) {
	for _, kind := range []enginetest.Servicer{enginetest.Live, enginetest.Keeping} {
		for _, ring := range []int{10_000, 5} {
			t.Run(fmt.Sprintf("%v ring %d", kind, ring), func(t *testing.T) {
				cfg := overStream(kind)
				cfg.Ring = ring
				r := startStream(t, cfg)
				r.live()
				r.steps(0, 30)
				r.settled()
				before := r.bridge.Status()[0].Incarnation
				// Another life's numbers are beyond those of the former one before anybody hears it.
				r.restart(func(*enginetest.Engine) { r.steps(0, 50) })
				r.steps(0, 20)
				r.caughtUp(0)
				if kind == enginetest.Keeping {
					r.settled()
				}
				r.nothingFalse(0)
				if s := r.bridge.Status()[0]; s.Lives != 2 || s.Incarnation <= before {
					t.Errorf("incarnation was %d: %+v", before, s)
				}
			})
		}
	}
}

// SGLang's documents say everything but where they are, and its load socket is newer than they are.
func TestSGLangByItsDocuments(t *testing.T) {
	cfg := small()
	cfg.Family = enginetest.SGLang
	var r *rig
	startWith(t, cfg, &r, func(e *Engine) {
		*e = Engine{Worker: "w", API: e.API, LoadEvery: e.LoadEvery}
	})
	r.live()
	for range 3 {
		r.steps(0, 30)
		r.settled()
	}
	r.engine.Lose(0, 3)
	r.steps(0, 10)
	r.settled()
	r.engine.Reset(0)
	r.steps(0, 10)
	r.settled()
	if s := r.caughtUp(0); s.Missing != 0 || s.Lives != 1 || len(s.Dropped) != 0 || s.Trust != feed.Whole || s.Held == 0 {
		t.Errorf("%+v", s)
	}
	r.reported(t, 7) // its documents say 5 running and 2 waiting
	eventually(t, "the load socket counts", func() bool {
		if err := r.engine.PublishLoad(0, 40, 3, 900); err != nil {
			t.Fatal(err)
		}
		m, err := kvoraclev1.NewFleetServiceClient(r.oracle.Conn()).ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
		return err == nil && len(m.GetWorkers()) == 1 && m.GetWorkers()[0].GetRanks()[0].GetInFlight() == 43
	})
}

// What TensorRT-LLM's buffer gives is gone from it, and what it has no room for is gone without that.
func TestTensorRTLLMByItsBuffer(t *testing.T) {
	cfg := small()
	cfg.Family, cfg.Ranks, cfg.KeepsLast = enginetest.TRTLLM, 2, true
	var r *rig
	startWith(t, cfg, &r, func(e *Engine) {
		*e = Engine{Worker: "w", Events: e.API + "/kv_cache_events", Metrics: e.Metrics, Ranks: 2, LoadEvery: e.LoadEvery}
		for rank := range 2 {
			r.steps(rank, 10)
		}
	})
	r.round()
	r.round()
	for rank := range 2 {
		if s := r.caughtUp(rank); s.Trust != feed.Whole || s.Missing != 0 || len(s.Dropped) != 0 || s.Lives != 1 || s.Held == 0 {
			t.Errorf("%+v", s)
		}
	}
	r.reported(t, 1, 2)
	r.engine.Lose(0, 5)
	r.steps(0, 20)
	eventually(t, "what is in doubt is given up", func() bool {
		s := r.bridge.Status()[0]
		return s.Missing == 5 && s.Trust == feed.Partial
	})
	r.steps(0, 20)
	r.caughtUp(0)
	r.nothingFalse(0)
	// Another process begins with the same events under the same numbers.
	r.restart()
	r.round()
	r.round()
	if s := r.caughtUp(1); s.Lives != 2 || s.Trust != feed.Whole {
		t.Errorf("%+v", s)
	}
}
