package server

import (
	"context"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/kvoracle/kvoracle/internal/gateway/extproc"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

func (d *shedder) shareNow() float64 { return float64(d.share.Load()) / allShares }

func TestShedderFollowsTheShortestWait(t *testing.T) {
	d := newShedder(5*time.Millisecond, func() {})
	now := time.Unix(1000, 0)
	window := func(waits ...time.Duration) {
		for _, w := range waits {
			d.waited(w, now)
		}
		now = now.Add(shedWindow)
	}
	for range 20 {
		window(time.Second, time.Millisecond) // one call that did not wait: the queue drains
	}
	if got := d.shareNow(); got != 0 {
		t.Errorf("with a queue that drains, %v is refused", got)
	}
	for range 100 {
		now = now.Add(mostWindow) // some calls a second on a machine that is busy with something else
		window(50 * time.Millisecond)
	}
	if got := d.shareNow(); got != 0 {
		t.Errorf("with a few calls that all wait, %v is refused", got)
	}
	for range 1000 {
		window(50*time.Millisecond, time.Second)
	}
	if got := d.shareNow(); got < 0.9 || got >= 1 {
		t.Errorf("with a queue that never drains, %v is refused, want nearly all", got)
	}
	before := d.shareNow()
	window(time.Millisecond)
	window(time.Millisecond)
	if got := d.shareNow(); got >= before {
		t.Errorf("the queue has drained, and the share went from %v to %v", before, got)
	}
	now = now.Add(4 * time.Second)
	d.roll(now)
	if got := d.shareNow(); got != 0 {
		t.Errorf("after four quiet seconds %v is refused", got)
	}
}

// TestShedderLetsEnvoyGo: its requests are timed as Route's are and never refused, and the same share is let go.
func TestShedderLetsEnvoyGo(t *testing.T) {
	d := newShedder(5*time.Millisecond, func() { t.Error("one was refused") })
	timed := 0
	for range 10 * timedCalls {
		ctx, err := d.tap(t.Context(), &tap.Info{FullMethodName: extproc.Process})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := ctx.Value(arrived{}).(time.Time); ok {
			timed++
		}
		if d.letsGo(ctx) {
			t.Error("one was let go for no reason")
		}
	}
	if timed != 10 {
		t.Errorf("%d of %d were timed", timed, 10*timedCalls)
	}
	d.share.Store(allShares / 2)
	d.end = time.Now().Add(time.Hour) // no window ends
	let := 0
	for range 1000 {
		ctx, err := d.tap(t.Context(), &tap.Info{FullMethodName: extproc.Process})
		if err != nil {
			t.Fatal(err)
		}
		if d.letsGo(ctx) {
			let++
		}
	}
	if let < 350 || let > 650 {
		t.Errorf("%d of 1000 were let go, want half", let)
	}
}

// TestShedderKeepsTheServerAtWork plays twice as many calls as can be answered, ms by ms, where a refusal costs a fifth of
// an answer, and then no more than can be answered.
func TestShedderKeepsTheServerAtWork(t *testing.T) {
	const perMS, refusalCost = 20, 0.2
	d := newShedder(5*time.Millisecond, func() {})
	now := time.Unix(1000, 0)
	var queue []time.Time
	budget, accepted := 0.0, 0.0
	play := func(ms, arrivals int) (answered, longest int) {
		for range ms {
			now = now.Add(time.Millisecond)
			budget = math.Min(budget+perMS, perMS)
			for range arrivals {
				d.roll(now)
				if accepted += 1 - d.shareNow(); accepted >= 1 { // the same as chance, without it
					accepted--
					queue = append(queue, now)
				} else {
					budget -= refusalCost
				}
			}
			for ; budget >= 1 && len(queue) > 0; budget-- {
				d.waited(now.Sub(queue[0]), now)
				queue = queue[1:]
				answered++
			}
			longest = max(longest, len(queue))
		}
		return answered, longest
	}
	play(1000, 2*perMS) // it finds the share
	answered, longest := play(5000, 2*perMS)
	if least := 5000 * perMS * 7 / 10; answered < least {
		t.Errorf("%d answers in 5 s, want at least %d: a quarter of the time may go into refusals", answered, least)
	}
	if most := 50 * perMS; longest > most {
		t.Errorf("up to %d calls waited, want at most %d", longest, most)
	}
	play(3000, perMS*8/10)
	if answered, _ := play(1000, perMS*8/10); answered < 1000*perMS*8/10*99/100 || d.shareNow() > 0.01 {
		t.Errorf("after the overload %d of %d are answered, %v is refused", answered, 1000*perMS*8/10, d.shareNow())
	}
}

// hold fixes the share until the window is over, an hour from now.
func (d *shedder) hold(share uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.share.Store(share)
	d.end = time.Now().Add(time.Hour)
}

// TestOverloadRefusesCallsAndNothingElse refuses half of the calls, over a real socket.
func TestOverloadRefusesCallsAndNothingElse(t *testing.T) {
	r := newRig(t, Config{QueueTarget: time.Hour})
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- r.s.Serve(ctx, lis) }()
	r.dial(lis.Addr().String())
	t.Cleanup(func() {
		_ = r.conn.Close()
		r.stop()
	})
	r.worker("w1")
	blocks := r.report(t.Context(), "w2")
	if _, err := blocks.Recv(); err != nil {
		t.Fatal(err)
	}

	r.s.shedder.hold(allShares / 2)
	var refused, answered atomic.Int64
	var wg sync.WaitGroup
	over := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				_, err := r.route.Route(t.Context(), prompt(make([]uint32, 64)...))
				if err == nil {
					answered.Add(1)
					continue
				}
				refused.Add(1)
				isOverload(t, err)
			}
		})
	}
	// Under it reports are applied, and an operator is heard.
	for seq := uint64(1); refused.Load() < 50 || answered.Load() < 50; seq++ {
		if err := blocks.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{
			Sequence: seq, Ops: []*kvoraclev1.BlockOp{{Op: &kvoraclev1.BlockOp_Clear{Clear: &kvoraclev1.ClearBlocks{}}}},
		}}}); err != nil {
			t.Fatal(err)
		}
		ack, err := blocks.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := ack.GetAck().GetAppliedSequence(); ack.GetAck() != nil && got != seq {
			t.Fatalf("batch %d was acknowledged as %d", seq, got)
		}
		if _, err := r.fleet.ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	close(over)
	wg.Wait()
	if got := r.counted("kvoracle.requests.refused", "reason=OVERLOADED"); got != refused.Load() {
		t.Errorf("%d refusals were counted, callers saw %d", got, refused.Load())
	}
	// When it is over, with the window, every call is answered again.
	r.s.shedder.mu.Lock()
	r.s.shedder.end = time.Time{}
	r.s.shedder.mu.Unlock()
	for range 50 {
		if _, err := r.route.Route(t.Context(), prompt(make([]uint32, 64)...)); err != nil {
			t.Fatal(err)
		}
	}
}

// isOverload checks that a refusal can be told from others and says when to come back.
func isOverload(t *testing.T, err error) {
	t.Helper()
	st := status.Convert(err)
	retry := false
	for _, d := range st.Details() {
		if x, ok := d.(*errdetails.RetryInfo); ok {
			retry = x.GetRetryDelay().AsDuration() > 0
		}
	}
	if st.Code() != codes.ResourceExhausted || errorInfo(st).GetReason() != "OVERLOADED" || !retry {
		t.Errorf("refused with %v %v", st, st.Details())
	}
}
