package client

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Router asks the oracle where requests should go, and decides by itself when the oracle cannot. All methods may be
// called concurrently.
//
// Run owns all its goroutines. Without Run it still routes: the fleet list is then fetched beside a Route now and then,
// and progress events stay in their queue.
type Router struct {
	cfg      routerConfig
	rpc      kvoraclev1.RouteServiceClient
	fleetRPC kvoraclev1.FleetServiceClient
	breaker  breaker
	bookings *bookings
	fleet    fleet
	progress *progressQueue
	lanes    []*lane
	nextLane atomic.Uint32
	stats    routerCounters

	incarnation uint64
	running     atomic.Bool
	lazy        sync.Mutex // held while a Route fetches the fleet; guards lazyAt
	lazyAt      time.Time
}

// NewRouter makes a router over a connection, which stays the caller's. It does not touch the network.
func NewRouter(conn grpc.ClientConnInterface, opts ...RouterOption) *Router {
	cfg := routerConfig{
		common:        defaultCommon(),
		timeout:       defaultTimeout,
		breakerLimit:  5,
		breakerPause:  backoff{least: 100 * time.Millisecond, most: 5 * time.Second},
		progressLimit: 8192,
		lease:         time.Minute,
		fleetInterval: time.Second,
	}
	for _, o := range opts {
		o.applyRouter(&cfg)
	}
	if cfg.gateway == "" {
		cfg.gateway = uniqueName()
	}
	r := &Router{
		cfg:         cfg,
		rpc:         kvoraclev1.NewRouteServiceClient(conn),
		fleetRPC:    kvoraclev1.NewFleetServiceClient(conn),
		breaker:     breaker{limit: cfg.breakerLimit, pauses: cfg.breakerPause},
		bookings:    newBookings(cfg.lease),
		progress:    newProgressQueue(cfg.progressLimit),
		incarnation: uint64(time.Now().UnixNano()),
	}
	for range cfg.streams {
		r.lanes = append(r.lanes, newLane(r))
	}
	return r
}

// uniqueName is a gateway's name that no other one has.
func uniqueName() string {
	host, err := os.Hostname()
	if err != nil || len(host) > 200 {
		host = "gateway"
	}
	return host + "/" + rand.Text()
}

// Route decides where a request goes. It waits for the oracle no longer than the timeout, and answers by its own choice
// (Decision.Source) when the oracle is late, gone, busy or broken: the target that serves the model and passes the
// request's filters with the fewest requests of this router in flight, ties going round.
//
// Errors, to be told apart with errors.Is: ErrInvalid, ErrMismatch and ErrUnserved, which the caller must fix;
// ErrModelUnknown, ErrNoEligibleWorker and ErrFleetFull, as the oracle said it; ErrNoFallback when neither the oracle nor the fleet list
// has an answer; the context's error when the caller cancelled it. A context that runs out of time is no reason to fail.
func (r *Router) Route(ctx context.Context, req Request) (Decision, error) {
	msg, bad := req.proto()
	if bad != nil {
		return Decision{}, bad
	}
	ok, probe := r.breaker.allow(time.Now())
	if !ok {
		return r.fallback(&req, ReasonBreakerOpen, nil)
	}
	res, err := r.ask(ctx, msg, max(req.MaxQueue, 0))
	now := time.Now()
	if err == nil && res.GetTarget().GetWorkerId() == "" {
		err = status.Error(codes.Internal, "the oracle's answer names no worker")
	}
	if err == nil {
		r.breaker.success()
		d := decisionOf(res)
		d.booking = r.bookings.book(d.Target, d.ID, now)
		r.stats.oracle.Add(1)
		r.fetchFleet(ctx, now)
		return d, nil
	}
	e := errorFrom(err)
	if !errors.Is(e, ErrUnavailable) {
		r.breaker.success()
		if errors.Is(e, ErrModelUnknown) && r.fleet.vouches(req.Model, now) {
			return r.fallback(&req, ReasonOracleAmnesia, e)
		}
		r.stats.errors.Add(1)
		return Decision{}, e
	}
	reason, blame := blameFor(e)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		r.breaker.neither(probe)
		return Decision{}, ctx.Err()
	case isLate(ctx, now) || !blame:
		// The caller gave it less time than the timeout, or a message too large: not a sign of an oracle in trouble.
		r.breaker.neither(probe)
	default:
		r.breaker.failure(now, probe, e.retryAfter)
	}
	return r.fallback(&req, reason, e)
}

// isLate reports whether a context is done, or is about to be: the oracle knows the caller's deadline too, and its word that this
// has passed may be here before the context's own timer has run.
func isLate(ctx context.Context, now time.Time) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !now.Before(deadline)
}

// ask puts the question, by a stream if one is up. It may wait that long at the oracle.
func (r *Router) ask(ctx context.Context, msg *kvoraclev1.RouteRequest, wait time.Duration) (*kvoraclev1.RouteResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.timeout+wait)
	defer cancel()
	if l := r.lane(); l != nil && max(len(msg.GetTokens().GetTokenIds()), len(msg.GetText())/4) <= laneTokens {
		res, err := l.ask(ctx, msg)
		if !errors.Is(err, errLaneDown) {
			return res, err
		}
	}
	return r.rpc.Route(withTrace(ctx), msg)
}

// Run keeps the fleet list fresh, sends progress events and keeps the streams of WithStreams open, reconnecting as
// needed, until ctx is done; then it returns nil. It returns an error for what reconnecting cannot cure: ErrRunning, or
// the oracle's refusal of this gateway's name. When it returns, all its goroutines have ended; it may then be called
// again.
func (r *Router) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer r.running.Store(false)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	wg.Go(func() { r.watchFleet(ctx) })
	wg.Go(func() {
		if err := r.sendProgress(ctx); err != nil {
			cancel(err)
		}
	})
	for _, l := range r.lanes {
		wg.Go(func() { l.run(ctx) })
	}
	wg.Wait()
	var refused *Error
	if errors.As(context.Cause(ctx), &refused) {
		return refused
	}
	return nil
}
