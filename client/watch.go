package client

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

const (
	// lazyFleetAge is how old the list may grow before a Route without Run fetches another.
	lazyFleetAge = 5 * time.Second
	// pollTimeout bounds one ListWorkers.
	pollTimeout = 5 * time.Second
)

// watchFleet keeps the list fresh until ctx is done.
func (r *Router) watchFleet(ctx context.Context) {
	retry := r.cfg.reconnect
	var trouble news
	for {
		began := time.Now()
		seen, err := r.watchOnce(ctx)
		r.fleet.lost(time.Now())
		if isOver(ctx) {
			return
		}
		if status.Code(err) == codes.Unimplemented {
			r.cfg.log.Info("kvoracle: the oracle has no WatchWorkers; polling ListWorkers")
			r.pollFleet(ctx)
			return
		}
		if trouble.is(seen) {
			r.cfg.log.Warn("kvoracle: no fleet watch; will reconnect", "error", err)
		}
		if !pause(ctx, retry.after(began)) {
			return
		}
	}
}

// watchOnce follows one watch to its end and reports whether it was ever answered.
func (r *Router) watchOnce(ctx context.Context) (seen bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.fleetRPC.WatchWorkers(ctx, &kvoraclev1.WatchWorkersRequest{
		IntervalMs: clamp32(int(r.cfg.fleetInterval.Milliseconds())),
	})
	if err != nil {
		return false, err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return seen, err
		}
		r.sawFleet(m.GetWorkers(), !seen, true)
		seen = true
	}
}

// pollFleet asks for the list each few seconds until ctx is done.
func (r *Router) pollFleet(ctx context.Context) {
	failed := true
	var trouble news
	for {
		callCtx, cancel := context.WithTimeout(ctx, pollTimeout)
		m, err := r.fleetRPC.ListWorkers(callCtx, &kvoraclev1.ListWorkersRequest{})
		cancel()
		switch {
		case err == nil:
			r.sawFleet(m.GetWorkers(), failed, false)
		case !isOver(ctx) && trouble.is(!failed):
			r.cfg.log.Warn("kvoracle: no fleet list; will ask again", "error", err)
		}
		failed = err != nil
		if !pause(ctx, jitter(3*r.cfg.fleetInterval)) {
			return
		}
	}
}

// sawFleet takes a list in. The first one after trouble says that the oracle answers again.
func (r *Router) sawFleet(workers []*kvoraclev1.Worker, first, watching bool) {
	now := time.Now()
	r.fleet.set(workers, first, watching, now)
	if first {
		r.breaker.hint(now)
	}
	names := r.fleet.names()
	r.bookings.forget(func(w string) bool { return names[w] })
}

// fetchFleet is the list for routers without Run, and for one whose watch has not been answered yet: one Route in five
// seconds brings it along, within another timeout. Others do not wait for that.
func (r *Router) fetchFleet(ctx context.Context, now time.Time) {
	if r.running.Load() && r.fleet.age(now) >= 0 || !r.lazy.TryLock() {
		return
	}
	defer r.lazy.Unlock()
	if !r.lazyAt.IsZero() && now.Sub(r.lazyAt) < lazyFleetAge {
		return
	}
	r.lazyAt = now
	ctx, cancel := context.WithTimeout(ctx, r.cfg.timeout)
	defer cancel()
	if m, err := r.fleetRPC.ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{}); err == nil {
		r.sawFleet(m.GetWorkers(), false, false)
	}
}
