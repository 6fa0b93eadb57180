package client

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

type blocksServer = kvoraclev1.RouteService_ReportBlocksServer

// acceptAll is a ReportBlocks that follows the protocol; feed outlives its streams.
func acceptAll(feed *oracleFeed) func(blocksServer) error {
	return func(s blocksServer) error {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if err := s.Send(&kvoraclev1.ReportBlocksResponse{
			Message: &kvoraclev1.ReportBlocksResponse_Accepted{Accepted: feed.hello(m.GetHello())},
		}); err != nil {
			return err
		}
		for {
			m, err := s.Recv()
			if err != nil {
				return err
			}
			for _, out := range feed.take(m) {
				if err := s.Send(out); err != nil {
					return err
				}
			}
		}
	}
}

func testWorker() Worker {
	return Worker{ID: "w", Model: "m", BlockSize: 4, Incarnation: 7, Repeats: RepeatsSet}
}

func newTestReporter(t *testing.T, conn *grpc.ClientConn, opts ...ReporterOption) *Reporter {
	t.Helper()
	r, err := NewReporter(conn, testWorker(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustStore(t *testing.T, r *Reporter, ids ...BlockID) {
	t.Helper()
	if err := r.Store(Root(), ids, TierDevice); err != nil {
		t.Fatal(err)
	}
}

// lines is a log to count in.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), what)
}

func TestOracleWithoutLoadReports(t *testing.T) {
	feed := &oracleFeed{}
	f := &fake{blocks: acceptAll(feed)}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		var log lines
		r := newTestReporter(t, conn, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		defer running(t, r)()
		for range 100 {
			r.Load(LoadSample{Running: new(1)})
			<-time.After(time.Second)
		}
		mustStore(t, r, 1, 2, 3)
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := f.called("ReportLoad"); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if n := log.count("takes no load reports"); n != 1 {
			t.Errorf("%d lines about it", n)
		}
		if len(feed.view.blocks) != 3 {
			t.Errorf("blocks do not flow: %v", feed.view.blocks)
		}
	})
}

func TestOracleWithoutBlockReports(t *testing.T) {
	f := &fake{}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		var log lines
		r := newTestReporter(t, conn, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		mustStore(t, r, 1, 2)
		r.Load(LoadSample{Running: new(1)})
		if err := r.Run(t.Context()); !errors.Is(err, ErrUnserved) {
			t.Errorf("got %v", err)
		}
		<-time.After(time.Hour)
		if err := r.Flush(t.Context()); !errors.Is(err, ErrUnserved) {
			t.Errorf("flush: %v", err)
		}
		if blocks, loads := f.called("ReportBlocks"), f.called("ReportLoad"); blocks != 1 || loads != 0 {
			t.Errorf("asked %d times for blocks, %d for load", blocks, loads)
		}
		if n, all := log.count("refused for good"), log.count("level="); n != 1 || all != 1 {
			t.Errorf("%d lines about it, %d in all", n, all)
		}
	})
}

func TestOracleThatSaysNothingIsLeft(t *testing.T) {
	f := &fake{}
	f.blocks = func(s blocksServer) error {
		<-s.Context().Done()
		return s.Context().Err()
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		defer running(t, newTestReporter(t, conn))()
		<-time.After(time.Minute)
		// 10 s of waiting each, and pauses.
		if n := f.called("ReportBlocks"); n < 4 || n > 6 {
			t.Errorf("%d streams in a minute", n)
		}
	})
}

func TestGoAwayIsObeyed(t *testing.T) {
	feed := &oracleFeed{}
	var goodbye error
	f := &fake{}
	f.load = func(s kvoraclev1.RouteService_ReportLoadServer) error {
		for {
			if _, err := s.Recv(); err != nil {
				return err
			}
			if err := s.Send(&kvoraclev1.ReportLoadResponse{GoAway: &kvoraclev1.GoAway{ReconnectAfterMs: 3000}}); err != nil {
				return err
			}
		}
	}
	f.blocks = func(s blocksServer) error {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if err := s.Send(&kvoraclev1.ReportBlocksResponse{
			Message: &kvoraclev1.ReportBlocksResponse_Accepted{Accepted: feed.hello(m.GetHello())},
		}); err != nil {
			return err
		}
		if m, err = s.Recv(); err != nil {
			return err
		}
		if err := s.Send(&kvoraclev1.ReportBlocksResponse{
			Message: &kvoraclev1.ReportBlocksResponse_GoAway{GoAway: &kvoraclev1.GoAway{ReconnectAfterMs: 3000}},
		}); err != nil {
			return err
		}
		<-time.After(100 * time.Millisecond)
		for err == nil { // what was on its way is still taken
			for _, out := range feed.take(m) {
				if err := s.Send(out); err != nil {
					return err
				}
			}
			m, err = s.Recv()
		}
		goodbye = err
		return nil
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := newTestReporter(t, conn)
		defer running(t, r)()
		mustStore(t, r, 1, 2, 3)
		r.Load(LoadSample{Running: new(1)})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Flush(ctx); err != nil {
			t.Errorf("the goodbye lost what was under way: %v", err)
		}
		<-time.After(2800 * time.Millisecond)
		if f.called("ReportBlocks") != 1 || f.called("ReportLoad") != 1 {
			t.Errorf("%d, %d streams, asked to wait 3 s", f.called("ReportBlocks"), f.called("ReportLoad"))
		}
		<-time.After(300 * time.Millisecond)
		synctest.Wait()
		if f.called("ReportBlocks") != 2 || f.called("ReportLoad") != 2 {
			t.Errorf("%d, %d streams after 3 s", f.called("ReportBlocks"), f.called("ReportLoad"))
		}
		if goodbye == nil || goodbye.Error() != "EOF" {
			t.Errorf("the stream ended with %v, want a half-close", goodbye)
		}
		if feed.snapshots != 0 {
			t.Errorf("%d snapshots for a stream that could be resumed", feed.snapshots)
		}
	})
}

func TestPoisonIsNotSentTwice(t *testing.T) {
	feed := &oracleFeed{}
	accept := acceptAll(feed)
	batches := 0
	f := &fake{}
	f.blocks = func(s blocksServer) error {
		return accept(&choosy{s, func(m *kvoraclev1.ReportBlocksRequest) error {
			if m.GetBatch() != nil {
				batches++
				return signed(codes.InvalidArgument, "FIELD_INVALID")
			}
			return nil
		}})
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := newTestReporter(t, conn)
		defer running(t, r)()
		mustStore(t, r, 1, 2, 3)
		<-time.After(time.Minute)
		synctest.Wait()
		if batches != 1 || feed.snapshots != 1 || len(feed.view.blocks) != 3 {
			t.Errorf("%d batches, %d snapshots, %d blocks", batches, feed.snapshots, len(feed.view.blocks))
		}
	})
}

// choosy is a stream that refuses what its rule refuses.
type choosy struct {
	blocksServer

	rule func(*kvoraclev1.ReportBlocksRequest) error
}

func (c *choosy) Recv() (*kvoraclev1.ReportBlocksRequest, error) {
	m, err := c.blocksServer.Recv()
	if err == nil {
		err = c.rule(m)
	}
	return m, err
}

func TestFightOverARankIsSlow(t *testing.T) {
	feed := &oracleFeed{}
	f := &fake{}
	f.blocks = func(s blocksServer) error {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if err := s.Send(&kvoraclev1.ReportBlocksResponse{
			Message: &kvoraclev1.ReportBlocksResponse_Accepted{Accepted: feed.hello(m.GetHello())},
		}); err != nil {
			return err
		}
		<-time.After(100 * time.Millisecond)
		return signed(codes.Aborted, "SUPERSEDED")
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := newTestReporter(t, conn)
		defer running(t, r)()
		<-time.After(10 * time.Minute)
		if n := f.called("ReportBlocks"); n < 100 || n > 260 {
			t.Errorf("%d streams in ten minutes, want one each 2.5 to 5 s", n)
		}
		if r.Stats().Disconnects == 0 {
			t.Error("no disconnect was counted")
		}
	})
}

// A full oracle cannot match a digest; asking again and again would not make room.
func TestDigestsRestWhileTheOracleIsFull(t *testing.T) {
	feed := &oracleFeed{}
	var digests atomic.Int64
	f := &fake{}
	f.blocks = func(s blocksServer) error {
		return acceptAll(feed)(&full{s, &digests})
	}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := newTestReporter(t, conn, WithDigests(1, time.Second))
		defer running(t, r)()
		mustStore(t, r, 1)
		<-time.After(time.Minute)
		before := digests.Load()
		if before < 4*50 {
			t.Fatalf("%d digests in a minute", before)
		}
		mustStore(t, r, 1, 2, 3, 4)
		<-time.After(4 * time.Minute)
		if n := digests.Load() - before; n > 4*2 {
			t.Errorf("%d digests while the oracle is full", n)
		}
		<-time.After(2 * time.Minute)
		if n := digests.Load() - before; n < 4*50 {
			t.Errorf("%d digests after the rest", n)
		}
	})
}

// full is a stream of an oracle that has no room for stores of more than three blocks.
type full struct {
	blocksServer

	digests *atomic.Int64
}

func (f *full) Recv() (*kvoraclev1.ReportBlocksRequest, error) {
	m, err := f.blocksServer.Recv()
	if m.GetDigest() != nil {
		f.digests.Add(1)
	}
	for _, op := range m.GetBatch().GetOps() {
		if len(op.GetStore().GetBlockIds().GetIds()) > 3 {
			err = f.Send(&kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_Ack{Ack: &kvoraclev1.BlocksAck{
				Refusals: []*kvoraclev1.Refusal{{Reason: kvoraclev1.RefusalReason_REFUSAL_REASON_CAPACITY}},
			}}})
		}
	}
	return m, err
}

// TestGathering: the first change goes at once, what follows soon goes in one batch, and Flush does not wait.
func TestGathering(t *testing.T) {
	feed := &oracleFeed{}
	f := &fake{blocks: acceptAll(feed)}
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r := newTestReporter(t, conn, WithGather(time.Second))
		defer running(t, r)()
		if err := r.Flush(t.Context()); err != nil { // the snapshot
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		before := r.Stats().Batches
		for id := range BlockID(5) {
			mustStore(t, r, id+1)
			<-time.After(100 * time.Millisecond)
		}
		synctest.Wait()
		if n := r.Stats().Batches - before; n != 1 {
			t.Errorf("%d batches after half a second, want the first change's alone", n)
		}
		<-time.After(1100 * time.Millisecond)
		synctest.Wait()
		if n := r.Stats().Batches - before; n != 2 {
			t.Errorf("%d batches after one and a half, want one more with all the others", n)
		}
		if n := len(feed.view.blocks); n != 5 {
			t.Errorf("the oracle knows of %d blocks, want 5", n)
		}
		mustStore(t, r, 9)
		at := time.Now()
		if err := r.Flush(t.Context()); err != nil || time.Since(at) > 100*time.Millisecond {
			t.Errorf("Flush took %v: %v", time.Since(at), err)
		}
	})
}
