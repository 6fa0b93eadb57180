package bridge

import (
	"context"
	"time"

	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/engine/metrics"
	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// hearLoad reports what SGLang publishes on a rank's load socket. Only the newest counts: what came before it says nothing.
func (w *worker) hearLoad(ctx context.Context, at, topic string, rank int) {
	endpoint, err := rankEndpoint(at, rank)
	if err != nil {
		w.complain("load", err)
		return
	}
	cfg := socket(endpoint, topic)
	cfg.QueueMessages = 64
	sub, err := zmtp.Dial(ctx, cfg)
	if err != nil {
		w.complain("load", err)
		return
	}
	defer sub.Close()
	for {
		d, err := sub.Recv(ctx)
		if err != nil {
			return
		}
		if d.Event != nil || sub.Stats().Queued > 0 {
			continue
		}
		f, err := kvevents.ParseLive(d.Message)
		if err != nil {
			w.counters.loadFailures.Add(1)
			continue
		}
		s, err := kvevents.DecodeLoadStat(f.Payload)
		if err != nil {
			w.counters.loadFailures.Add(1)
			continue
		}
		w.counters.pushedAt.Store(time.Now().UnixNano())
		w.takeReading(ctx, loadStat(rank, s))
	}
}

// loadStat is a message of the load socket as a look at the rank that it is of: the socket's, whatever it says itself.
func loadStat(rank int, s kvevents.LoadStat) metrics.Reading {
	number := func(v int) *float64 { return new(float64(v)) }
	g := metrics.Gauges{Running: number(s.Running), Waiting: number(s.Waiting)}
	if s.TotalTokens > 0 {
		g.UsedTokens, g.TotalTokens = number(s.Tokens), number(s.TotalTokens)
	}
	if s.WaitingUncached >= 0 {
		g.WaitingPrefillTokens = number(s.WaitingUncached)
	}
	r := metrics.Reading{Facts: metrics.Facts{Source: "the load socket", Engine: metrics.SGLang}}
	metrics.TakeFact(&r.Facts.MaxRunning, float64(s.MaxRunning))
	r.Take(rank, g)
	return r
}
