package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/engine/metrics"
	"github.com/kvoracle/kvoracle/internal/engine/smg"
)

const (
	// retryLeast and retryMost bound the pause before an engine or an oracle that said no is asked again.
	retryLeast = time.Second
	retryMost  = 30 * time.Second
)

// worker speaks for one engine for as long as the bridge runs: over restarts of the engine, each of which is a life.
type worker struct {
	cfg    *Engine
	secret string
	conn   grpc.ClientConnInterface
	opts   []client.ReporterOption
	log    *slog.Logger

	way      way
	servicer *smg.Source // with overGRPC, while it runs

	counters workerCounters
	ranks    []*rank // set before known is closed
	known    chan struct{}

	loadAddress, loadTopic string // of SGLang's load socket, set with ranks; "": none

	mu      sync.Mutex // held while a life begins or ends
	current atomic.Pointer[life]
	flags   metrics.Facts // what the operator said; MaxRunning and the like
	last    uint64        // highest incarnation given out
	started float64       // process start of the current life, as the engine's metrics say
	ended   bool
	wrong   error // why there is no life
}

// workerCounters are read by whoever looks.
type workerCounters struct {
	lives, samples, loadFailures, odd atomic.Uint64
	loadAt, pushedAt                  atomic.Int64 // Unix nanoseconds of the last sample, and of the last that came by itself
}

func newWorker(cfg *Engine, secret string, conn grpc.ClientConnInterface, log *slog.Logger, opts ...client.ReporterOption) *worker {
	kind, _ := kvevents.ParseEngine(cfg.Kind) // checked; "" is none
	w := &worker{
		cfg: cfg, secret: secret, conn: conn, opts: opts, log: log.With("worker", cfg.Worker), known: make(chan struct{}),
		way: wayOf(cfg.Events),
	}
	w.flags = metrics.Facts{
		Source: "the configuration", Engine: kind, BlockSize: cfg.BlockSize, MaxRunning: cfg.MaxRunning, Ranks: cfg.Ranks,
	}
	if cfg.Model != "" {
		w.flags.Models = []string{cfg.Model}
	}
	return w
}

// source is the engine's documents, with a token that may have been renewed.
func (w *worker) source() (*metrics.Source, error) {
	s := &metrics.Source{Metrics: w.cfg.Metrics, API: w.cfg.API, Engine: w.flags.Engine}
	if w.cfg.BearerFile != "" {
		token, err := os.ReadFile(w.cfg.BearerFile)
		if err != nil {
			return nil, err
		}
		s.Bearer = strings.TrimSpace(string(token))
	}
	return s, nil
}

// discover asks the engine what it is.
func (w *worker) discover(ctx context.Context) (f metrics.Facts, err error) {
	f = w.flags
	if w.cfg.Metrics != "" || w.cfg.API != "" {
		s, err := w.source()
		if err != nil {
			return f, err
		}
		if f, err = s.Discover(ctx, w.flags); err != nil {
			return f, err
		}
	}
	if w.servicer != nil {
		more, err := w.servicer.Discover(ctx)
		if err != nil {
			return f, err
		}
		if f, err = metrics.Merge(f, more); err != nil {
			return f, err
		}
	}
	if f.Ranks > MaxRanks {
		return f, fmt.Errorf("ranks: got %d, want at most %d", f.Ranks, MaxRanks)
	}
	return f, missing(f)
}

// run speaks for the engine until ctx is done.
func (w *worker) run(ctx context.Context) {
	if w.way == overGRPC {
		conn, err := dialServicer(w.cfg, w.log)
		for pause := retryLeast; err != nil; pause = min(2*pause, retryMost) { // its files may not be there yet
			w.complain("events", err)
			if !rest(ctx, pause) {
				return
			}
			conn, err = dialServicer(w.cfg, w.log)
		}
		defer conn.Close()
		w.servicer = &smg.Source{Conn: conn, Engine: w.flags.Engine}
	}
	if !w.first(ctx) {
		return
	}
	var tasks sync.WaitGroup
	for _, r := range w.ranks {
		tasks.Go(func() { r.run(ctx) })
	}
	switch w.way {
	case overGRPC:
		tasks.Go(func() { w.follow(ctx) })
	case overHTTP:
		tasks.Go(func() { w.drain(ctx) })
	case overZeroMQ:
	}
	if w.cfg.Metrics != "" || w.cfg.API != "" || w.servicer != nil {
		tasks.Go(func() { w.watchLoad(ctx) })
	}
	if at := w.loadAddress; at != "" {
		for rank := range w.ranks {
			tasks.Go(func() { w.hearLoad(ctx, at, w.loadTopic, rank) })
		}
	}
	if w.cfg.ORCA != "" {
		tasks.Go(func() { w.watchORCA(ctx) })
	}
	tasks.Go(func() { w.watchLives(ctx) })
	<-ctx.Done()
	tasks.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if l := w.current.Load(); l != nil {
		l.end()
	}
}

// first waits for an engine that says what has to be known, and begins its life.
func (w *worker) first(ctx context.Context) bool {
	pause := retryLeast
	for {
		f, err := w.discover(ctx)
		if err == nil {
			err = w.connect(f)
		}
		if err == nil {
			if _, err = w.reborn(ctx, nil, &f); err == nil {
				close(w.known)
				return true
			}
		}
		if ctx.Err() != nil {
			return false
		}
		w.complain("the engine cannot be spoken for yet", err)
		if !rest(ctx, pause) {
			return false
		}
		pause = min(2*pause, retryMost)
	}
}

// connect makes the ranks' streams. An address that was given counts; one that the engine says is of its own host.
func (w *worker) connect(f metrics.Facts) error {
	events, replay, topic := w.cfg.Events, w.cfg.Replay, w.cfg.Topic
	if events == "" {
		if f.Events == "" {
			return errors.New("events: the engine does not say it; give it")
		}
		events = reachable(f.Events, w.cfg.API)
		if replay == "" && f.Replay != "" {
			replay = reachable(f.Replay, w.cfg.API)
		}
	}
	if topic == "" {
		topic = f.Topic
	}
	w.loadAddress = w.cfg.Load
	if w.loadAddress == "" && f.LoadSocket != "" {
		w.loadAddress, w.loadTopic = reachable(f.LoadSocket, w.cfg.API), f.LoadTopic
	}
	ranks := make([]*rank, max(f.Ranks, 1))
	for i := range ranks {
		r, err := newRank(w, i, events, replay, topic)
		if err != nil {
			return err
		}
		ranks[i] = r
	}
	w.ranks = ranks
	return nil
}

// reachable puts a host that can be called in the place of a wildcard in what an engine says of itself.
func reachable(events, api string) string {
	host, port, err := splitTCP(events)
	if err != nil || (host != "*" && host != "0.0.0.0" && host != "::") {
		return events
	}
	u, err := url.Parse(api)
	if err != nil || u.Hostname() == "" {
		return events
	}
	return "tcp://" + net.JoinHostPort(u.Hostname(), fmt.Sprint(port))
}

// reborn ends the life that a rank has seen and begins the next one, unless another rank has done so already: an engine's
// ranks die together, and each may notice. It returns the life that holds now.
func (w *worker) reborn(ctx context.Context, seen *life, f *metrics.Facts) (*life, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.current.Load()
	if now != seen || w.ended {
		return now, nil
	}
	if f == nil {
		facts, err := w.discover(ctx)
		var contradiction *metrics.ContradictionError
		switch {
		case err == nil:
		case errors.As(err, &contradiction):
			w.wrong = err
			w.log.Error("kvoracle bridge: the engine is another one than was said", "error", err)
			return now, err
		default: // not up yet, but its events are: it is what it was
			facts = now.facts
			facts.Started = 0 // which is not known now
		}
		if len(w.ranks) != max(facts.Ranks, 1) {
			return now, fmt.Errorf("ranks: got %d, had %d; start the bridge again", facts.Ranks, len(w.ranks))
		}
		f = &facts
	}
	// The engine's own start is the same for a bridge that was restarted; the oracle then keeps what it knows of the
	// engine. It must rise all the same.
	incarnation := uint64(time.Now().UnixNano())
	w.started = f.Started
	if began := uint64(w.started * 1e9); w.started > 0 && began > w.last && began < incarnation && w.last == 0 {
		incarnation = began
	}
	incarnation = max(incarnation, w.last+1)
	next, err := begin(context.WithoutCancel(ctx), w.conn, w.cfg, *f, incarnation, w.secret, w.log, w.opts...)
	if err != nil {
		return now, err
	}
	if now != nil {
		now.end()
	}
	w.last, w.wrong = incarnation, nil
	w.counters.lives.Add(1)
	w.current.Store(next)
	w.log.Info("kvoracle bridge: a life begins", "incarnation", incarnation, "model", f.Models[0], "block_size", f.BlockSize,
		"ranks", len(next.reporters), "blocks", f.TotalBlocks)
	for _, r := range w.ranks {
		r.wake()
	}
	return next, nil
}

// watchLives begins another life when the oracle has refused one for good: someone else spoke for this worker, or an
// earlier bridge called the same life by a higher number.
func (w *worker) watchLives(ctx context.Context) {
	pause := retryLeast
	for {
		l := w.current.Load()
		select {
		case <-ctx.Done():
			return
		case err := <-l.failed:
			w.complain("the oracle refuses the worker", err)
			for again := true; again; again = err != nil {
				if !rest(ctx, pause) {
					return
				}
				pause = min(2*pause, retryMost)
				if _, err = w.reborn(ctx, l, nil); err != nil {
					w.complain("no life begins", err)
				}
			}
		case <-l.over:
			pause = retryLeast
		}
	}
}

// isSameProcess reports whether the engine's metrics say that its process is the one of a life.
func (w *worker) isSameProcess(ctx context.Context, l *life) bool {
	w.mu.Lock()
	before, isOver := w.started, w.current.Load() != l
	w.mu.Unlock()
	if before == 0 || isOver {
		return false
	}
	f, err := w.discover(ctx)
	return err == nil && f.Started == before
}

// complain logs why something does not work, and keeps it for the status page.
func (w *worker) complain(what string, err error) {
	w.log.Warn("kvoracle bridge: "+what, "error", err)
	w.mu.Lock()
	w.wrong = err
	w.mu.Unlock()
}

// complainNoMore takes the complaint back.
func (w *worker) complainNoMore() {
	w.mu.Lock()
	w.wrong = nil
	w.mu.Unlock()
}

// rest waits for d, or a little less so that many do not come back at once; false: ctx is done.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d - rand.N(d/4+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
