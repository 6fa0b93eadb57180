package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/client"
)

// stopTimeout bounds how long the operator's server is waited for at the end.
const stopTimeout = 2 * time.Second

// Bridge speaks for engines. Make it with New, and call Run once.
type Bridge struct {
	cfg     Config
	workers []*worker
	log     *slog.Logger
	columns []column
	dropped *prometheus.Desc
}

// New makes a bridge over a connection to the oracle, which stays the caller's. It checks the configuration, and touches
// no network.
func New(cfg Config, oracle grpc.ClientConnInterface, log *slog.Logger, opts ...client.ReporterOption) (*Bridge, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &Bridge{
		cfg: cfg, log: log, columns: columns(),
		dropped: prometheus.NewDesc("kvoracle_bridge_dropped_total", "Events, blocks and messages left out, by reason.",
			[]string{"worker", "rank", "reason"}, nil),
	}
	for i := range b.cfg.Engines {
		b.workers = append(b.workers, newWorker(&b.cfg.Engines[i], cfg.Secret, oracle, log, opts...))
	}
	return b, nil
}

// Run bridges until ctx is done; then it returns nil, and all its goroutines have ended. It returns an error if the
// operator's port cannot be had.
func (b *Bridge) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if b.cfg.Listen != "" {
		var lc net.ListenConfig
		lis, err := lc.Listen(ctx, "tcp", b.cfg.Listen)
		if err != nil {
			return fmt.Errorf("bridge: operator's port: %w", err)
		}
		b.log.Info("kvoracle bridge: operator's port", "address", lis.Addr().String())
		srv := &http.Server{Handler: b.Handler(), ReadHeaderTimeout: 5 * time.Second}
		tasks.Go(func() {
			if err := srv.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
				b.log.Error("kvoracle bridge: operator's port", "error", err)
			}
		})
		tasks.Go(func() {
			<-ctx.Done()
			end, done := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer done()
			_ = srv.Shutdown(end)
			_ = srv.Close()
		})
	}
	for _, w := range b.workers {
		tasks.Go(func() { w.run(ctx) })
	}
	<-ctx.Done()
	return nil
}

// Status says how it is with each rank, in the order of the configuration. An engine that could not be asked yet has one
// entry, of rank 0.
func (b *Bridge) Status() []Status {
	var all []Status
	for _, w := range b.workers {
		all = append(all, w.status()...)
	}
	return all
}
