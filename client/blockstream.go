package client

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// helloTimeout bounds the wait for the answer to a hello: an oracle that accepts connections and says nothing is gone.
const helloTimeout = 10 * time.Second

// capacityPause is how long digests rest after the oracle said that it is full: they cannot match then, and each would
// cost a snapshot that cannot fit either.
const capacityPause = 5 * time.Minute

// sendBlocks keeps the block stream open until ctx is done or the oracle refuses the hello for good.
func (r *Reporter) sendBlocks(ctx context.Context, known func()) error {
	retry := r.cfg.reconnect
	var trouble news
	for {
		began := time.Now()
		s := &blockStream{r: r, known: known, ready: make(chan struct{}), goAway: make(chan *kvoraclev1.GoAway, 1)}
		after, err := s.run(ctx)
		e := errorFrom(err)
		wasReady := r.disconnected(e)
		if isOver(ctx) {
			return nil
		}
		if !wasReady && (errors.Is(e, ErrInvalid) || errors.Is(e, ErrMismatch) || errors.Is(e, ErrUnserved)) {
			r.log(slog.LevelError, "kvoracle: block reports refused for good", "error", e)
			return e
		}
		if trouble.is(wasReady) {
			r.log(slog.LevelWarn, "kvoracle: no block stream; will reconnect", "error", err)
		}
		if !pause(ctx, max(retry.after(began), after)) {
			return nil
		}
	}
}

// disconnected takes note of a stream's end and reports whether it had been accepted.
func (r *Reporter) disconnected(e *Error) (wasReady bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wasReady = r.stats.Connected
	r.stats.Connected = false
	if wasReady {
		r.stats.Disconnects++
		if errors.Is(e, ErrInvalid) {
			// It choked on a message; the same one again would choke it again.
			r.out.giveUp()
		}
	}
	return wasReady
}

// blockStream is one ReportBlocks stream. The goroutine in run writes to it, the one in read reads from it.
type blockStream struct {
	r      *Reporter
	known  func()
	stream grpc.BidiStreamingClient[kvoraclev1.ReportBlocksRequest, kvoraclev1.ReportBlocksResponse]
	ready  chan struct{} // closed when the hello was accepted
	reader *ear
	goAway chan *kvoraclev1.GoAway

	maxBytes int                                   // set before ready is closed
	shown    uint64                                // newest snapshot begun on this stream; guarded by r.mu
	warned   map[kvoraclev1.RefusalReason]struct{} // read's own
}

// run takes the stream from hello to end. after is how long the oracle asked to be left alone.
func (s *blockStream) run(ctx context.Context) (after time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	s.stream, err = s.r.rpc.ReportBlocks(ctx)
	if err != nil {
		cancel()
		return 0, err
	}
	s.reader = hear(s.read)
	defer s.reader.close(cancel)
	if err := s.stream.Send(s.r.hello()); err != nil {
		return 0, s.reader.lastWord(cancel)
	}
	t := time.NewTimer(helloTimeout)
	defer t.Stop()
	select {
	case <-s.ready:
		s.r.log(slog.LevelInfo, "kvoracle: block stream open")
	case <-s.reader.done:
		return 0, s.reader.err
	case <-t.C:
		return 0, errors.New("no answer to the hello")
	}
	for {
		sent, wait, err := s.step()
		if err != nil {
			return 0, s.reader.lastWord(cancel)
		}
		if sent {
			select {
			case g := <-s.goAway:
				return s.leave(ctx, g)
			default:
				continue
			}
		}
		t.Reset(wait)
		select {
		case <-s.r.wake:
		case <-t.C:
		case <-s.reader.done:
			return 0, s.reader.err
		case g := <-s.goAway:
			return s.leave(ctx, g)
		}
	}
}

// leave stops sending and waits for the acknowledgements that are still to come.
func (s *blockStream) leave(ctx context.Context, g *kvoraclev1.GoAway) (time.Duration, error) {
	after := time.Duration(g.GetReconnectAfterMs()) * time.Millisecond
	_ = s.stream.CloseSend() // if that fails it has ended
	t := time.NewTimer(closeGrace)
	defer t.Stop()
	select {
	case <-s.reader.done:
	case <-ctx.Done():
	case <-t.C:
	}
	return after, errGoAway
}

// step sends whatever is next, or says how long nothing will be due.
func (s *blockStream) step() (sent bool, wait time.Duration, err error) {
	todo := s.r.next(s, time.Now())
	switch {
	case todo.snapshot != nil:
		s.r.log(slog.LevelInfo, "kvoracle: sending a snapshot", "sequence", todo.snapshot.sequence, "blocks", len(todo.snapshot.blocks))
		err = s.sendSnapshot(todo.snapshot)
	case todo.batch != nil:
		err = s.send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: todo.batch}})
		if err == nil {
			err = s.sendDigests(todo.digests)
		}
	case len(todo.digests) > 0:
		err = s.sendDigests(todo.digests)
	default:
		return false, todo.wait, nil
	}
	return true, 0, err
}

func (s *blockStream) send(m *kvoraclev1.ReportBlocksRequest) error { return s.stream.Send(m) }

func (s *blockStream) sendDigests(digests []*kvoraclev1.BlockDigest) error {
	for _, d := range digests {
		if err := s.send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Digest{Digest: d}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *blockStream) sendSnapshot(snap *snapshot) error {
	err := s.send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotBegin{
		SnapshotBegin: &kvoraclev1.SnapshotBegin{Sequence: snap.sequence},
	}})
	if err != nil {
		return err
	}
	snap.chunks(s.maxBytes-messageBytes, func(c *kvoraclev1.SnapshotChunk) bool {
		err = s.send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotChunk{SnapshotChunk: c}})
		return err == nil
	})
	if err != nil {
		return err
	}
	err = s.send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotEnd{
		SnapshotEnd: &kvoraclev1.SnapshotEnd{BlockCount: snap.count, Doubtful: snap.doubtful},
	}})
	if err != nil {
		return err
	}
	return s.sendDigests(snap.digests)
}

// read takes in what the oracle says until the stream ends.
func (s *blockStream) read() error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		switch x := m.GetMessage().(type) {
		case *kvoraclev1.ReportBlocksResponse_Accepted:
			if s.maxBytes == 0 { // once
				s.r.accepted(s, x.Accepted)
				close(s.ready)
				s.known()
			}
		case *kvoraclev1.ReportBlocksResponse_Ack:
			s.r.acknowledged(s, x.Ack)
		case *kvoraclev1.ReportBlocksResponse_Resync:
			s.r.resync(s, x.Resync)
		case *kvoraclev1.ReportBlocksResponse_GoAway:
			select {
			case s.goAway <- x.GoAway:
			default: // said before
			}
		}
	}
}
