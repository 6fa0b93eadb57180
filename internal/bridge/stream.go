package bridge

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/internal/engine/smg"
)

// dialServicer is a connection to an engine's servicer. A peer that has gone without a word is noticed by TCP itself, since
// gRPC's own pings are refused by Python's servers.
func dialServicer(e *Engine, log *slog.Logger) (*grpc.ClientConn, error) {
	security := client.Security{Plaintext: !isTLS(e.Events), CAFile: e.EventsCA, CertFile: e.EventsCert, KeyFile: e.EventsKey, TLS12: isTLS(e.Events), Log: log}
	opts, err := security.DialOptions()
	if err != nil {
		return nil, err
	}
	keep := net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
	_, at, _ := strings.Cut(e.Events, "://")
	return grpc.NewClient("passthrough:///"+at, append(opts, grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) {
		return (&net.Dialer{KeepAliveConfig: keep}).DialContext(ctx, "tcp", at)
	}))...)
}

// follow hears the engine's stream for as long as the bridge runs. Batches go to their ranks; a rank that is slow holds up
// the stream, and with it the servicer, which is where the memory for that is.
func (w *worker) follow(ctx context.Context) {
	pause := retryLeast
	for ctx.Err() == nil {
		f := follower{w: w, ctx: ctx, isHeard: make([]bool, len(w.ranks))}
		err := w.servicer.Subscribe(ctx, w.current.Load().facts.Engine, f.begun, f.take)
		kind := itemClosed
		if smg.IsLoss(err) {
			kind = itemLost
		}
		f.all(item{kind: kind, err: err})
		if f.isBegun {
			pause = retryLeast
		}
		if !rest(ctx, pause) {
			return
		}
		pause = min(2*pause, retryMost)
	}
}

// follower is one stream.
type follower struct {
	w       *worker
	ctx     context.Context //nolint:containedctx // of the stream it is
	isBegun bool
	isHeard []bool // something of that rank has come
}

func (f *follower) begun() {
	f.isBegun = true
	f.all(item{kind: itemOpened})
}

func (f *follower) all(x item) {
	for _, r := range f.w.ranks {
		r.hand(f.ctx, x)
	}
}

func (f *follower) take(b smg.Batch) {
	rank := max(b.Rank, 0)
	if rank >= len(f.w.ranks) {
		f.w.ranks[0].drop("other_rank", 1)
		return
	}
	if b.Load != nil {
		f.w.record(f.ctx, rank, b.Load)
	}
	if b.IsLoadOnly {
		return
	}
	x := item{sequence: b.Sequence, m: newMessage(b.Payload)}
	switch {
	case b.IsSnapshot:
		x.m.account = accountPart
		if b.Chunk+1 == b.Chunks && b.UnknownBefore == 0 {
			x.m.account = accountWhole
		}
		if b.Chunk == 0 {
			x.kind = itemRetold
		}
	case b.Sequence == 0 && !f.isHeard[rank]:
		// All batches there ever were, from a servicer that keeps them; or the first of another life.
		x.kind = itemRetold
	}
	f.isHeard[rank] = true
	f.w.ranks[rank].hand(f.ctx, x)
}

// hand waits until the rank has room.
func (r *rank) hand(ctx context.Context, x item) {
	select {
	case r.items <- x:
	case <-ctx.Done():
	}
}

// record takes a load record that came with a batch, unless the load is had elsewhere.
func (w *worker) record(ctx context.Context, rank int, record []byte) {
	if w.cfg.Metrics != "" || w.cfg.Load != "" {
		return
	}
	r, err := smg.ParseRecord(rank, record)
	if err != nil {
		w.counters.loadFailures.Add(1)
		return
	}
	w.counters.pushedAt.Store(time.Now().UnixNano())
	w.takeReading(ctx, r)
}
