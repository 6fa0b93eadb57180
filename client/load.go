package client

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// LoadSample is one look at the engine's own gauges. A nil field means that the engine does not say, which is not zero.
type LoadSample struct {
	Running              *int      // sequences in the running batch
	Waiting              *int      // requests in the queue that do not run yet
	WaitingPrefillTokens *int      // prompt tokens still to be prefilled
	UsedBlocks           *int      // KV blocks that running requests refer to
	TotalBlocks          *int      // KV blocks in all; 0: unknown
	At                   time.Time // when it was taken; zero: now
}

// LoadBelief is what the oracle made of the samples.
type LoadBelief struct {
	Applied, Ignored      uint64 // samples of the current stream, taken and found old
	InFlight, Booked      uint32 // requests believed there, and the oracle's own bookings among them
	PendingPrefillSeconds float64
}

// Load reports a sample. Only the newest one waits for the oracle: an older gauge has nothing to add to it.
func (r *Reporter) Load(s LoadSample) {
	at := s.At
	if at.IsZero() {
		at = time.Now()
	}
	m := &kvoraclev1.LoadSample{
		RunningRequests:      gauge32(s.Running),
		WaitingRequests:      gauge32(s.Waiting),
		WaitingPrefillTokens: gauge64(s.WaitingPrefillTokens),
		UsedBlocks:           gauge64(s.UsedBlocks),
		TotalBlocks:          gauge64(s.TotalBlocks),
		SampledAtUnixNanos:   uint64(max(at.UnixNano(), 0)),
	}
	r.load.mu.Lock()
	r.load.newest = m
	r.load.mu.Unlock()
	wake(r.load.wake)
}

// loadBox holds the sample to be sent next. mu is a leaf lock.
type loadBox struct {
	wake   chan struct{}
	mu     sync.Mutex
	newest *kvoraclev1.LoadSample // nil: sent
	belief LoadBelief
}

func newLoadBox() loadBox { return loadBox{wake: make(chan struct{}, 1)} }

func (b *loadBox) take() *kvoraclev1.LoadSample {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.newest
	b.newest = nil
	return m
}

// sendLoad keeps the load stream open until ctx is done, from when the oracle knows the worker. An oracle without
// ReportLoad is asked once.
func (r *Reporter) sendLoad(ctx context.Context, known <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-known:
	}
	retry := r.cfg.reconnect
	for {
		began := time.Now()
		after, err := r.loadOnce(ctx)
		if isOver(ctx) {
			return
		}
		if status.Code(err) == codes.Unimplemented {
			r.log(slog.LevelWarn, "kvoracle: the oracle takes no load reports; blocks go on", "error", err)
			return
		}
		if !pause(ctx, max(retry.after(began), after)) {
			return
		}
	}
}

// loadOnce runs one stream to its end. after is how long the oracle asked to be left alone.
func (r *Reporter) loadOnce(ctx context.Context) (after time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := r.rpc.ReportLoad(ctx)
	if err != nil {
		cancel()
		return 0, err
	}
	goAway := make(chan *kvoraclev1.GoAway, 1)
	reader := hear(func() error { return r.hearLoad(stream, goAway) })
	defer reader.close(cancel)
	send := func(m *kvoraclev1.ReportLoadRequest) bool { return stream.Send(m) == nil }
	if !send(&kvoraclev1.ReportLoadRequest{Message: &kvoraclev1.ReportLoadRequest_Hello{Hello: &kvoraclev1.LoadHello{
		Target:      &kvoraclev1.Target{WorkerId: r.spec.GetWorkerId(), DpRank: r.rank},
		Incarnation: r.incarnation,
	}}}) {
		return 0, reader.lastWord(cancel)
	}
	for {
		if m := r.load.take(); m != nil && !send(&kvoraclev1.ReportLoadRequest{Message: &kvoraclev1.ReportLoadRequest_Sample{Sample: m}}) {
			return 0, reader.lastWord(cancel)
		}
		select {
		case <-r.load.wake:
		case <-reader.done:
			return 0, reader.err
		case g := <-goAway:
			// Nothing is owed: the next sample goes to whoever answers next.
			return time.Duration(g.GetReconnectAfterMs()) * time.Millisecond, errGoAway
		}
	}
}

// hearLoad reads beliefs until the stream ends.
func (r *Reporter) hearLoad(stream grpc.BidiStreamingClient[kvoraclev1.ReportLoadRequest, kvoraclev1.ReportLoadResponse],
	goAway chan<- *kvoraclev1.GoAway,
) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		r.load.mu.Lock()
		r.load.belief = LoadBelief{
			Applied: m.GetAppliedSamples(), Ignored: m.GetIgnoredSamples(),
			InFlight: m.GetBelievedInFlight(), Booked: m.GetBookedRequests(),
			PendingPrefillSeconds: m.GetBelievedPendingPrefillSeconds(),
		}
		r.load.mu.Unlock()
		if g := m.GetGoAway(); g != nil {
			select {
			case goAway <- g:
			default: // said before
			}
		}
	}
}

func gauge32(v *int) *uint32 {
	if v == nil {
		return nil
	}
	return new(clamp32(*v))
}

func gauge64(v *int) *uint64 {
	if v == nil {
		return nil
	}
	return new(min(uint64(max(*v, 0)), math.MaxInt64))
}
