package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

const (
	janitorEvery = 250 * time.Millisecond // what waits for time alone is that late at most
	freshEvery   = 5 * time.Second        // how often fresh workers are counted when nothing depends on it any more
	flushTimeout = 5 * time.Second        // for the last telemetry
)

// Run serves on the configured ports until ctx is done, then drains; see the package comment for the order. It returns
// nil after an orderly end, and once only: a Server is not run twice.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(ctx); err != nil {
		return errors.Join(err, s.Close()) //nolint:contextcheck // the last export has a deadline of its own
	}
	if err := s.take(ctx, nil); err != nil {
		return err
	}
	return s.serve(ctx)
}

// Serve is Run on a listener of the caller's (bufconn, a Unix socket) instead of Config.Listen. The server closes it.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	if err := s.take(ctx, lis); err != nil {
		return errors.Join(err, lis.Close())
	}
	return s.serve(ctx)
}

// serve owns every goroutine of the server: when it returns, all have ended. The first that fails ends the others.
func (s *Server) serve(ctx context.Context) error {
	s.health.serving()
	s.log.LogAttrs(ctx, slog.LevelInfo, "serving", slog.String("address", address(s.lis)),
		slog.String("ops_address", address(s.ops)), slog.String("http_address", address(s.web)), slog.String("policy", s.cfg.Policy), slog.String("version", Version()))
	g, ctx := errgroup.WithContext(ctx)
	over := make(chan struct{}) // closed when calls are not answered any more
	g.Go(s.serveCalls)
	if s.ops != nil {
		g.Go(func() error { return s.serveOps(over) })
	}
	if s.web != nil {
		g.Go(s.serveHTTP)
	}
	g.Go(func() error { s.janitor(over); return nil })
	g.Go(func() error { s.warm.run(over); return nil })
	g.Go(func() error { return s.replicate(over) })
	g.Go(func() error { s.reloader(over); return nil })
	g.Go(func() error {
		<-ctx.Done()
		defer close(over)
		s.drain()
		return nil
	})
	err := errors.Join(g.Wait(), s.warm.close())

	// The context that ended the server would end the last export too.
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if lost := s.tel.Shutdown(flush); lost != nil {
		s.log.LogAttrs(flush, slog.LevelWarn, "the last telemetry was not delivered", slog.String("error", lost.Error()))
	}
	s.log.LogAttrs(flush, slog.LevelInfo, "ended")
	return err
}

// serveCalls serves gRPC until the drain stops it, which may have happened before it came to start.
func (s *Server) serveCalls() error {
	s.guests.Listener = s.lis
	if err := s.grpc.Serve(s.guests); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

func address(lis net.Listener) string {
	if lis == nil {
		return ""
	}
	return AddressOf(lis.Addr())
}

// serveOps serves the operator's pages until over: they show the drain too.
func (s *Server) serveOps(over <-chan struct{}) error {
	ops := s.newOps()
	ended := make(chan error, 1)
	go func() { ended <- ops.Serve(s.secure(s.ops, s.cfg.clientAuth(true), "http/1.1")) }()
	select {
	case err := <-ended:
		return err
	case <-over:
		err := ops.Close() // a half-read profile is no reason to wait
		if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	}
}

// janitor does what time alone asks for until over.
func (s *Server) janitor(over <-chan struct{}) {
	tick := time.NewTicker(janitorEvery)
	defer tick.Stop()
	var counted time.Time
	for {
		select {
		case now := <-tick.C:
			s.oracle.Tick(now)
			s.picker.Tick(now)
			if !s.health.isWarm() || now.Sub(counted) >= freshEvery {
				counted = now
				s.countFresh(now)
			}
			s.lookAtReplicas()
			s.tellSheds()
		case <-over:
			return
		}
	}
}

// countFresh feeds the fleet component. Once that is well it stays so; how many are fresh is then for people to read.
func (s *Server) countFresh(now time.Time) {
	fresh := 0
	for _, w := range s.oracle.Workers("", now) {
		if isFresh(&w) {
			fresh++
		}
	}
	s.health.workers(fresh)
}

// isFresh says whether every rank's block reports can be trusted. Those of a rank that had to give up blocks can: what it is
// credited with is true, and waiting would not make room.
func isFresh(w *oracle.WorkerStatus) bool {
	for i := range w.Ranks {
		if !w.Ranks[i].Blocks.IsTrue() {
			return false
		}
	}
	return true
}
