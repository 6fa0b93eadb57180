package replica

import (
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// TestTheWayToNATSSwallows: between one replica and NATS packets are lost without a word. The one behind the wall notices by its
// pings, goes on alone, and believes the others' targets no more; the others believe its no more. Then the way is there again,
// and all know what was acknowledged meanwhile.
func TestTheWayToNATSSwallows(t *testing.T) {
	t.Parallel() // most of it is waiting
	b := newBroker(t)
	peers, engines := trio(t, b, 3, func(c *Config) {
		c.pingEvery, c.natsWait, c.AckWait, c.HelloWait = 300*time.Millisecond, 2*time.Second, time.Second, time.Second
		c.BeatTimeout, c.Grace = 2*time.Second, 500*time.Millisecond
	})
	for range 10 {
		for _, e := range engines {
			e.work()
		}
	}
	agree(t, peers, engines)
	peers[0].cable.swallow()
	confidence := func(p *peer, worker string) oracle.BlockConfidence {
		v, err := p.o.Verify(worker, 0, time.Now())
		if err != nil {
			return oracle.Silent
		}
		return v.Confidence
	}
	eventually(t, "the wall is noticed", func() bool { return !peers[0].n.Stats().IsConnected })
	for _, e := range engines {
		e.work() // acknowledged all the same
	}
	eventually(t, "nobody believes what he cannot hear", func() bool {
		return confidence(peers[0], engines[1].worker) == oracle.Stale && confidence(peers[1], engines[0].worker) != oracle.Fresh
	})
	if c := confidence(peers[0], engines[0].worker); c != oracle.Fresh {
		t.Errorf("what is reported here is %v here", c)
	}
	for range 10 {
		for _, e := range engines {
			e.work()
		}
	}
	peers[0].cable.mend()
	start := time.Now()
	agree(t, peers, engines)
	t.Logf("known alike %v after", time.Since(start).Round(time.Millisecond))
}
