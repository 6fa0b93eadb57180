package replica

import "testing"

// NATS ends and comes back, with its log and without.
func TestBrokerRestarts(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 3)
	for _, isEmpty := range []bool{false, true} {
		for range 10 {
			for _, e := range engines {
				e.work()
			}
		}
		b.stop()
		for _, p := range peers {
			eventually(t, "cut off", func() bool { return !p.n.Stats().IsConnected })
		}
		for _, e := range engines {
			e.work()
		}
		if isEmpty {
			b.opts.StoreDir = t.TempDir()
		}
		b.start()
		for range 10 {
			for _, e := range engines {
				e.work()
			}
		}
		agree(t, peers, engines)
		engines[0].cut()
		engines[0].connect(peers[1])
		engines[0].work()
		agree(t, peers, engines)
		engines[0].cut()
		engines[0].connect(peers[0])
	}
	if s := peers[0].n.Stats(); s.NewLogs != 1 {
		t.Errorf("%d new logs were noticed, want 1", s.NewLogs)
	}
}
