package server

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/tap"

	"github.com/kvoracle/kvoracle/internal/gateway/extproc"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// shedder refuses a share of the Route calls when they wait too long for a processor.
//
// A decision does not block, so where too many are asked for they wait before their handler runs, and counting handlers
// would see nothing. What is measured is that wait: from a call's headers to its handler, of one call in sixteen. A queue
// that is there for a whole window, so that even the shortest wait in it was above the target, is one that does not
// drain (the rule of CoDel, RFC 8289). The share refused follows that shortest wait and its trend, as in PIE (RFC 8033):
//
//	share += pull * (wait-target)/target + damp * (wait-wait before)/target
//
// with a step of at most maxStep. Fewer than leastQueue calls that wait (their rate times the shortest wait, Little's law)
// are no queue, however long they do: the machine is busy with something else, and refusing them would not help it. A
// window lasts 10 ms, or until a call has been timed, but no longer than 100 ms; then it counts as one without a wait.
//
// Calls are refused when their headers come, before there is a goroutine or a message: that costs a fraction of an answer,
// so most of the machine goes on answering. Streams are not touched: flow control holds back RouteStream, and reports of
// blocks and load, progress and the operator's calls are what gets everybody out of trouble.
//
// Requests of Envoy's (ext_proc) are timed in the same way, and the same share of them is let go without a decision. They are
// not refused: Envoy would make errors of that unless it is told to fail open.
//
// All methods may be called concurrently.
type shedder struct {
	target  atomic.Int64  // nanoseconds; 0 or less: never shed
	share   atomic.Uint32 // of calls refused, of allShares
	calls   atomic.Uint32
	refusal error
	refused func()

	mu    sync.Mutex
	end   time.Time     // of the window
	least time.Duration // shortest wait in the window
	some  int           // waits in the window
	from  time.Time     // the window's beginning
	last  time.Duration // shortest wait in the window before
}

const (
	allShares  = 1 << 16
	mostShares = allShares * 49 / 50 // never all: somebody must see that it is over
	maxStep    = allShares / 16
	pull       = allShares / 256
	damp       = allShares / 32
	shedWindow = 10 * time.Millisecond
	mostWindow = 100 * time.Millisecond // when no call is heard of
	timedCalls = 16                     // one in so many
	leastQueue = 32                     // calls
)

func newShedder(target time.Duration, refused func()) *shedder {
	d := &shedder{refused: refused, refusal: toStatus(oracle.Fault(oracle.Exhausted, oracle.ReasonOverloaded, "", "",
		"more is asked than can be answered; ask again later"))}
	d.target.Store(int64(target))
	return d
}

// arrived is the context's key for the time a call's headers came.
type arrived struct{}

// tap is gRPC's look at each new call, in the goroutine that reads its connection.
func (d *shedder) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	isRoute := info.FullMethodName == kvoraclev1.RouteService_Route_FullMethodName
	if !isRoute && info.FullMethodName != extproc.Process || d.target.Load() <= 0 {
		return ctx, nil
	}
	if isRoute && d.share.Load() > 0 {
		d.roll(time.Now()) // windows pass without a call that gets through
		if rand.Uint32N(allShares) < d.share.Load() {
			d.refused()
			return nil, d.refusal
		}
	}
	if d.calls.Add(1)%timedCalls == 0 {
		ctx = context.WithValue(ctx, arrived{}, time.Now())
	}
	return ctx, nil
}

// letsGo says whether a request of Envoy's goes on without a decision. It is asked when the first message has come, which
// Envoy sends with the call's headers, so that is when its handler is at work.
func (d *shedder) letsGo(ctx context.Context) bool {
	d.begun(ctx)
	if d.share.Load() == 0 {
		return false
	}
	d.roll(time.Now())
	return rand.Uint32N(allShares) < d.share.Load()
}

// begun is told when a call's handler runs.
func (d *shedder) begun(ctx context.Context) {
	if at, ok := ctx.Value(arrived{}).(time.Time); ok {
		now := time.Now()
		d.waited(now.Sub(at), now)
	}
}

func (d *shedder) waited(wait time.Duration, now time.Time) {
	d.roll(now)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.some == 0 || wait < d.least {
		d.least = wait
	}
	d.some++
}

// roll closes the window when it is over, and every one that has passed since without a call.
func (d *shedder) roll(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Before(d.end) || d.some == 0 && now.Before(d.end.Add(mostWindow-shedWindow)) {
		return
	}
	least, target := d.least, float64(d.target.Load())
	if target <= 0 { // not any more
		d.share.Store(0)
		d.from, d.end, d.some, d.last = now, now.Add(shedWindow), 0, 0
		return
	}
	if rate := float64(d.some*timedCalls) / now.Sub(d.from).Seconds(); !(rate*least.Seconds() >= leastQueue) {
		least = 0
	}
	step := pull*(float64(least)-target)/target + damp*float64(least-d.last)/target
	share := float64(d.share.Load()) + min(max(step, -maxStep), maxStep)
	share -= pull * float64(max(now.Sub(d.end)/shedWindow, 0)) // windows that nothing was heard of
	d.share.Store(uint32(min(max(share, 0), mostShares)))
	d.from, d.end, d.some, d.last = now, now.Add(shedWindow), 0, least
}

// shed counts a refused call. It is called under a connection's lock.
func (s *Server) shed() {
	s.sheds.Add(1)
	s.tel.Refused(kvoraclev1.RouteService_Route_FullMethodName, string(oracle.ReasonOverloaded))
}

// tellSheds writes a line when calls were refused since the last one.
func (s *Server) tellSheds() {
	if n := s.sheds.Swap(0); n > 0 {
		s.watch.line(context.Background(), &s.watch.others, slog.LevelWarn, "overloaded: calls were refused",
			slog.Uint64("calls", n), slog.Float64("share", float64(s.shedder.share.Load())/allShares))
	}
}
