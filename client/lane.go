package client

import (
	"context"
	"errors"
	"sync"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// errLaneDown makes a question go by a single call instead.
var errLaneDown = errors.New("kvoracle: stream is down")

const (
	// laneQueue is how many questions may wait for a stream that is slow to take them; one more goes by a single call.
	laneQueue = 64
	// laneTokens is the longest prompt that goes over a stream: 256 KiB, so that one request does not hold up the rest,
	// and none can break the stream for all by being too large for the oracle.
	laneTokens = 65_536
)

type routeStream = grpc.BidiStreamingClient[kvoraclev1.RouteStreamRequest, kvoraclev1.RouteStreamResponse]

// lane is one RouteStream shared by many Routes. The goroutine in run owns the stream and alone writes to it; another
// reads from it. mu is a leaf lock.
//
// Invariant: each question in waiting gets exactly one answer, either from the reader or, when the stream ends, from
// close; unless its Route has given up and taken it out.
type lane struct {
	r *Router

	mu      sync.Mutex
	queue   chan *kvoraclev1.RouteStreamRequest // of the open stream; nil: takes no questions
	waiting map[uint64]chan laneAnswer          // by tag
	tag     uint64
	idle    chan struct{} // closed when a lane that takes no questions has none waiting; nil otherwise
}

type laneAnswer struct {
	res *kvoraclev1.RouteResponse
	err error
}

func newLane(r *Router) *lane {
	return &lane{r: r, waiting: make(map[uint64]chan laneAnswer)}
}

// lane picks an open lane, going round; nil if there is none.
func (r *Router) lane() *lane {
	n := uint32(len(r.lanes))
	for range n {
		l := r.lanes[r.nextLane.Add(1)%n]
		l.mu.Lock()
		open := l.queue != nil
		l.mu.Unlock()
		if open {
			return l
		}
	}
	return nil
}

// ask puts a question and waits for its answer, for the stream's end (errLaneDown) or for ctx.
func (l *lane) ask(ctx context.Context, msg *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
	m := &kvoraclev1.RouteStreamRequest{Request: msg, Traceparent: traceparent(ctx)}
	if t, ok := ctx.Deadline(); ok {
		m.TimeoutMs = max(clamp32(int(time.Until(t).Milliseconds())), 1)
	}
	answer := make(chan laneAnswer, 1)
	l.mu.Lock()
	if l.queue == nil {
		l.mu.Unlock()
		return nil, errLaneDown
	}
	l.tag++
	m.Tag = l.tag
	select {
	case l.queue <- m: // has room; whoever closes the lane holds the lock
	default:
		l.mu.Unlock()
		return nil, errLaneDown
	}
	l.waiting[m.Tag] = answer
	l.mu.Unlock()

	select {
	case a := <-answer:
		return a.res, a.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	_, unanswered := l.waiting[m.Tag]
	l.remove(m.Tag)
	l.mu.Unlock()
	if !unanswered {
		a := <-answer // it came at the same moment
		return a.res, a.err
	}
	return nil, status.FromContextError(ctx.Err()).Err()
}

// remove takes a question out of waiting. The lane is locked.
func (l *lane) remove(tag uint64) {
	delete(l.waiting, tag)
	if l.idle != nil && len(l.waiting) == 0 {
		close(l.idle)
		l.idle = nil
	}
}

// run keeps the stream open until ctx is done.
func (l *lane) run(ctx context.Context) {
	retry := l.r.cfg.reconnect
	for {
		began := time.Now()
		heard, after, err := l.once(ctx)
		if isOver(ctx) {
			return
		}
		if !heard && status.Code(err) == codes.Unimplemented {
			l.r.cfg.log.Info("kvoracle: the oracle has no RouteStream; using single calls")
			return
		}
		if !pause(ctx, max(retry.after(began), after)) {
			return
		}
	}
}

// once runs one stream to its end. after is how long the oracle asked to be left alone.
func (l *lane) once(ctx context.Context) (heard bool, after time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := l.r.rpc.RouteStream(ctx)
	if err != nil {
		cancel()
		return false, 0, err
	}
	queue := make(chan *kvoraclev1.RouteStreamRequest, laneQueue)
	l.mu.Lock()
	l.queue = queue
	l.mu.Unlock()

	goAway := make(chan *kvoraclev1.GoAway, 1)
	reader := hear(func() error { return l.read(stream, goAway, &heard) })
	after = l.write(stream, queue, reader.done, goAway)
	l.close()
	err = reader.lastWord(cancel)
	cancel()
	return heard, after, err
}

// write sends questions until the stream ends, is found broken, or has said goodbye.
func (l *lane) write(stream routeStream, queue <-chan *kvoraclev1.RouteStreamRequest, ended <-chan struct{},
	goAway <-chan *kvoraclev1.GoAway,
) (after time.Duration) {
	for {
		select {
		case m := <-queue:
			if stream.Send(m) != nil {
				return 0
			}
		case <-ended:
			return 0
		case g := <-goAway:
			l.leave(stream, queue, ended)
			return time.Duration(g.GetReconnectAfterMs()) * time.Millisecond
		}
	}
}

// leave sends what was already taken, waits for the answers and closes.
func (l *lane) leave(stream routeStream, queue <-chan *kvoraclev1.RouteStreamRequest, ended <-chan struct{}) {
	l.mu.Lock()
	l.queue = nil
	idle := make(chan struct{})
	if len(l.waiting) == 0 {
		close(idle)
	} else {
		l.idle = idle
	}
	l.mu.Unlock()
	for len(queue) > 0 { // nobody adds to it any more
		if stream.Send(<-queue) != nil {
			return
		}
	}
	t := time.NewTimer(closeGrace)
	defer t.Stop()
	select {
	case <-ended:
	case <-idle:
	case <-t.C:
	}
	_ = stream.CloseSend() // if that fails it has ended
}

// close gives everyone who still waits to the single calls.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue, l.idle = nil, nil
	for tag, answer := range l.waiting {
		answer <- laneAnswer{err: errLaneDown}
		delete(l.waiting, tag)
	}
}

// read hands answers out until the stream ends.
func (l *lane) read(stream routeStream, goAway chan<- *kvoraclev1.GoAway, heard *bool) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		*heard = true
		switch res := m.GetResult().(type) {
		case *kvoraclev1.RouteStreamResponse_GoAway:
			select {
			case goAway <- res.GoAway:
			default: // said before
			}
		case *kvoraclev1.RouteStreamResponse_Response:
			l.answer(m.GetTag(), laneAnswer{res: res.Response})
		case *kvoraclev1.RouteStreamResponse_Status:
			l.answer(m.GetTag(), laneAnswer{err: errorOf(res.Status)})
		}
	}
}

// errorOf is the error a single call would have returned.
func errorOf(s *kvoraclev1.ErrorStatus) error {
	code := s.GetCode()
	if codes.Code(code) == codes.OK {
		code = int32(codes.Internal) // an answer without a decision is none
	}
	return status.ErrorProto(&spb.Status{Code: code, Message: s.GetMessage(), Details: s.GetDetails()})
}

// answer gives an answer to whoever asked. If nobody waits for it any more, its booking is given back: the request went
// elsewhere.
func (l *lane) answer(tag uint64, a laneAnswer) {
	l.mu.Lock()
	w, ok := l.waiting[tag]
	l.remove(tag)
	l.mu.Unlock()
	if ok {
		w <- a
		return
	}
	if id := a.res.GetDecisionId(); id != "" {
		l.r.stats.late.Add(1)
		l.r.progress.put(&kvoraclev1.ProgressEvent{
			DecisionId: id, Step: &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}},
		})
	}
}
