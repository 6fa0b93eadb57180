package server

import (
	"log/slog"
	"time"
)

// drain ends the service in the order in which nobody is surprised: load balancers hear that we are going, then long
// streams, then calls end by themselves, then what is left is cut. It takes at most DrainDelay + DrainTimeout, and the
// moment that cut calls need to notice.
func (s *Server) drain() {
	start := time.Now()
	s.health.draining()
	c := s.current.Load()
	s.log.Info("draining", slog.Duration("delay", c.DrainDelay), slog.Duration("timeout", c.DrainTimeout))
	wait(nil, c.DrainDelay)
	close(s.going)
	s.oracle.EndWaits()

	graceful := make(chan struct{})
	go func() {
		s.grpc.GracefulStop() // waits without limit for calls in flight
		close(graceful)
	}()
	timeout := time.NewTimer(c.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-graceful:
	case <-timeout.C:
		s.log.Warn("calls are cut: they did not end in time")
		s.grpc.Stop() // makes GracefulStop return
		<-graceful
	}
	s.health.ended()
	s.log.Info("drained", slog.Duration("took", time.Since(start)))
}

// wait waits, or until done is closed; nil never is.
func wait(done <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	}
}
