package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/sim"
	"github.com/kvoracle/kvoracle/server"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// live is one oracle with its fleet and its gateway, all talking over a socket.
type live struct {
	o       Options
	conn    *grpc.ClientConn
	router  *client.Router
	workers []*reporting
	gateway *gateway
	fleet   *sim.Fleet
	index   map[string]int // engines by worker name
	took    []time.Duration
	refused int
}

// runPolicy routes the trace with one policy from cold caches.
func runPolicy(ctx context.Context, o Options, policy string, trace *sim.Trace) (Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return Outcome{}, err
	}
	cfg := server.DefaultConfig()
	cfg.Policy, cfg.OpsListen = policy, ""
	// Guesses wait for reports in wall time; the engines live faster.
	cfg.GuessLinger = seconds(2 / o.Pace)
	srv, err := server.New(cfg, server.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return Outcome{}, err
	}
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return Outcome{}, err
	}
	defer conn.Close()

	l, err := newLive(conn, o)
	if err != nil {
		return Outcome{}, err
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	var serves, clients errgroup.Group
	serves.Go(func() error { return srv.Serve(serving, lis) })
	for _, w := range l.workers {
		clients.Go(func() error { return w.reporter.Run(ctx) })
	}
	clients.Go(func() error { return l.router.Run(ctx) })

	out, err := l.replay(ctx, policy, trace)
	cancel()
	if e := clients.Wait(); e != nil && !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	stopServing()
	return out, errors.Join(err, serves.Wait())
}

func newLive(conn *grpc.ClientConn, o Options) (*live, error) {
	const patience = 10 * time.Second // a demonstration on a busy laptop must not fall back
	l := &live{
		o: o, conn: conn, index: make(map[string]int),
		router: client.NewRouter(conn, client.WithTimeout(patience), client.WithGatewayID("demo"), client.WithProgressQueue(1<<16)),
	}
	l.gateway = &gateway{router: l.router, decisions: make(map[*sim.Job]client.Decision)}
	sinks := make([]sim.Sink, o.Engines)
	for i := range sinks {
		w, err := newReporting(conn, i, o)
		if err != nil {
			return nil, err
		}
		l.workers = append(l.workers, w)
		l.index[workerName(i)] = i
		sinks[i] = w
	}
	var err error
	l.fleet, err = sim.NewFleet(sim.Options{
		Engines: o.Engines, BlockSize: o.BlockSize, Sinks: sinks, Observer: l.gateway, LoadEvery: 1,
		Keyspace: block.Identity{Model: model, BlockSize: o.BlockSize}.Keyspace(),
	})
	return l, err
}

// replay sends the requests at their times and waits for the last to finish.
func (l *live) replay(ctx context.Context, policy string, trace *sim.Trace) (Outcome, error) {
	if err := l.settle(ctx); err != nil {
		return Outcome{}, err
	}
	all := len(trace.Requests)
	warm := all / 5 // caches are cold at first for every policy alike
	start := time.Now()
	clock := func(t float64) error { return sleepUntil(ctx, start.Add(seconds(t/l.o.Pace))) }
	var tokens []uint32
	for i, r := range trace.Requests {
		at := r.Arrival / l.o.Speed
		if err := l.advance(at, clock); err != nil {
			return Outcome{}, err
		}
		if i == warm {
			l.fleet.Measure()
		}
		if !l.fleet.Fits(r) {
			l.refused++
			continue
		}
		tokens = r.AppendTokens(tokens[:0])
		if err := l.send(ctx, r, tokens, at); err != nil {
			return Outcome{}, fmt.Errorf("request %d: %w", i, err)
		}
		l.o.Progress(policy, i+1, all)
	}
	for l.fleet.Unfinished() > 0 {
		t, ok := l.fleet.Next()
		if !ok {
			break
		}
		if err := l.advance(t, clock); err != nil {
			return Outcome{}, err
		}
	}
	out := Outcome{Policy: policy, Result: l.fleet.Result(), Decisions: len(l.took)}
	out.Refused = l.refused
	slices.Sort(l.took)
	if n := len(l.took); n > 0 {
		out.DecideP50, out.DecideP99 = l.took[n/2], l.took[n*99/100]
	}
	var err error
	if out.Verified, out.HeldBlocks, err = l.verify(ctx); err != nil {
		return out, err
	}
	out.PerSecond, err = l.burst(ctx, trace)
	return out, err
}

// settle waits until every worker is known.
func (l *live) settle(ctx context.Context) error {
	for _, w := range l.workers {
		if err := w.reporter.Flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// advance moves the engines' clock, event by event, no faster than the wall's.
func (l *live) advance(to float64, clock func(float64) error) error {
	for {
		t, ok := l.fleet.Next()
		if !ok || t > to {
			break
		}
		if err := clock(t); err != nil {
			return err
		}
		l.fleet.Advance(t)
	}
	if err := clock(to); err != nil {
		return err
	}
	l.fleet.Advance(to)
	return nil
}

// send asks the oracle and hands the request to the engine it names.
func (l *live) send(ctx context.Context, r *sim.Request, tokens []uint32, at float64) error {
	began := time.Now()
	d, err := l.router.Route(ctx, client.Request{Model: model, Tokens: tokens})
	if err != nil {
		return err
	}
	if d.Source != client.SourceOracle {
		return fmt.Errorf("the oracle did not answer: %s: %w", d.Reason, d.Cause())
	}
	l.took = append(l.took, time.Since(began))
	engine, ok := l.index[d.Worker]
	if !ok {
		return fmt.Errorf("the oracle chose %q, which is no worker of ours", d.Worker)
	}
	l.router.Dispatched(d)
	j, err := l.fleet.Submit(engine, r, at)
	if err != nil {
		return err
	}
	l.gateway.decisions[j] = d
	return nil
}

// verify compares the oracle's picture with the engines' caches, once everything has been told.
func (l *live) verify(ctx context.Context) (verified, blocks int, err error) {
	if err := l.settle(ctx); err != nil {
		return 0, 0, err
	}
	m, err := kvoraclev1.NewFleetServiceClient(l.conn).ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{Model: model})
	if err != nil {
		return 0, 0, err
	}
	for _, w := range m.GetWorkers() {
		i, ok := l.index[w.GetSpec().GetWorkerId()]
		if !ok {
			continue
		}
		r := w.GetRanks()[0]
		if l.workers[i].err != nil {
			return verified, blocks, l.workers[i].err
		}
		if int(r.GetDeviceBlocks()) == l.workers[i].held && r.GetConfidence().GetBlocks() == kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH {
			verified++
			blocks += l.workers[i].held
		}
	}
	if verified != len(l.workers) {
		return verified, blocks, fmt.Errorf("only %d of %d workers' pictures equal their engine's cache", verified, len(l.workers))
	}
	return verified, blocks, nil
}

// burst asks as fast as eight callers can for a second, with the trace's own prompts, booking nothing.
func (l *live) burst(ctx context.Context, trace *sim.Trace) (perSecond float64, err error) {
	const callers = 8
	const span = time.Second
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next, done atomic.Int64
	var group errgroup.Group
	start := time.Now()
	for range callers {
		group.Go(func() error {
			var tokens []uint32
			for time.Since(start) < span {
				r := trace.Requests[int(next.Add(1))%len(trace.Requests)]
				tokens = r.AppendTokens(tokens[:0])
				d, err := l.router.Route(ctx, client.Request{Model: model, Tokens: tokens, DryRun: true})
				if err == nil && d.Source != client.SourceOracle {
					err = fmt.Errorf("the oracle did not answer: %s", d.Reason)
				}
				if err != nil {
					cancel()
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	err = group.Wait()
	return float64(done.Load()) / time.Since(start).Seconds(), err
}

// sleepUntil waits for a moment; one that is close or past is not worth a timer.
func sleepUntil(ctx context.Context, t time.Time) error {
	wait := time.Until(t)
	if wait < 200*time.Microsecond {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
