package server

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/telemetry"
)

// watcher counts refusals and logs errors and slow calls. It stands on the hot path: a call that is well costs two looks
// at the clock. It never sees inside a message, and its lines hold no error text of a refusal, which may quote what the
// caller sent.
type watcher struct {
	tel  *telemetry.Telemetry
	log  *slog.Logger
	slow atomic.Int64 // a time.Duration; 0: never
	// Lines are rationed, faults of ours and everything else apart: one broken client must not fill a disk, nor hide
	// our own faults. The metrics count all.
	faults, others ration
}

// linesPerSecond bounds each ration.
const linesPerSecond = 10

func newWatcher(tel *telemetry.Telemetry, log *slog.Logger, slow time.Duration) *watcher {
	w := &watcher{tel: tel, log: log}
	w.slow.Store(int64(slow))
	return w
}

func (w *watcher) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	start := time.Now()
	resp, err := handler(ctx, req)
	took := time.Since(start)
	if a, ok := resp.(*oracle.Answer); ok && a != nil {
		took -= a.Waited // for a place, as it wished
	}
	w.done(ctx, info.FullMethod, err, took)
	return resp, err
}

// done looks at a unary call that has ended.
func (w *watcher) done(ctx context.Context, rpc string, err error, took time.Duration) {
	switch slow := time.Duration(w.slow.Load()); {
	case err != nil:
		w.failed(ctx, rpc, err, took)
	case slow > 0 && took >= slow:
		w.line(ctx, &w.others, slog.LevelWarn, "slow call", slog.String("rpc", rpc), slog.Duration("took", took))
	}
}

func (w *watcher) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	start := time.Now()
	err := handler(srv, stream)
	if err != nil {
		w.failed(stream.Context(), info.FullMethod, err, time.Since(start))
	}
	return err
}

// failed counts and logs a call, or a message of a stream, that was answered with an error. A caller that went away was
// not refused anything.
func (w *watcher) failed(ctx context.Context, rpc string, err error, took time.Duration) {
	st := status.Convert(err)
	level := levelOf(st.Code())
	if st.Code() == codes.Canceled || errors.Is(ctx.Err(), context.Canceled) && level != slog.LevelError {
		return
	}
	info := errorInfo(st)
	reason := info.GetReason()
	if reason == "" {
		reason = codeName(st.Code())
	}
	w.tel.Refused(rpc, reason)

	attrs := []slog.Attr{
		slog.String("rpc", rpc), slog.String("code", st.Code().String()), slog.String("reason", reason), slog.Duration("took", took),
	}
	if field := info.GetMetadata()["field"]; field != "" {
		attrs = append(attrs, slog.String("field", field))
	}
	if p, ok := peer.FromContext(ctx); ok {
		attrs = append(attrs, slog.String("peer", p.Addr.String()))
	}
	from := &w.others
	if level == slog.LevelError {
		from = &w.faults
		if cause := errors.Unwrap(err); cause != nil {
			attrs = append(attrs, slog.String("cause", cause.Error()))
		}
	}
	w.line(ctx, from, level, "call failed", attrs...)
}

// line writes one line if its ration allows, and says how many were left out before it.
func (w *watcher) line(ctx context.Context, from *ration, level slog.Level, msg string, attrs ...slog.Attr) {
	ok, left := from.take(time.Now())
	if !ok {
		return
	}
	if left > 0 {
		attrs = append(attrs, slog.Int("lines_left_out", left))
	}
	w.log.LogAttrs(ctx, level, msg, attrs...)
}

// levelOf says how bad a code is for the operator of this server.
func levelOf(c codes.Code) slog.Level {
	switch {
	case slices.Contains([]codes.Code{codes.Internal, codes.Unknown, codes.DataLoss}, c):
		return slog.LevelError
	case slices.Contains([]codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded}, c):
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}

// codeName is a code in the form of ErrorInfo's reasons, e.g. UNAUTHENTICATED. A hook may make up codes of its own.
func codeName(c codes.Code) string {
	if _, known := code.Code_name[int32(c)]; !known {
		c = codes.Unknown
	}
	return code.Code(c).String()
}

// ration hands out a number of lines a second. Safe for concurrent use.
type ration struct {
	mu     sync.Mutex
	second int64 // Unix
	used   int
	left   int // refused since the last line
}

// take says whether a line may be written, and if so how many were refused since the one before it.
func (r *ration) take(now time.Time) (ok bool, left int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := now.Unix(); s != r.second {
		r.second, r.used = s, 0
	}
	if r.used >= linesPerSecond {
		r.left++
		return false, 0
	}
	r.used++
	left, r.left = r.left, 0
	return true, left
}
