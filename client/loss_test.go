package client_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/client/clienttest"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestReconnectsResumeByCursor is case B35: a stream that is cut resumes where it was and costs no snapshot; oracles that
// know nothing cost one each, out of the reporter's own copy, and never two for one of them.
func TestReconnectsResumeByCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := clienttest.Start(t)
		r, err := client.NewReporter(o.Conn(), client.Worker{ID: "w1", Model: "m", BlockSize: 4, Incarnation: 7, Repeats: client.RepeatsSet})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		const oracles = 8
		held := 0
		more := func() {
			t.Helper()
			held++
			if err := r.Store(client.Root(), []client.BlockID{client.BlockID(held)}, client.TierDevice); err != nil {
				t.Fatal(err)
			}
			if err := r.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		more()
		for range oracles {
			o.Cut()
			more()
		}
		if st := r.Stats(); st.Snapshots != 0 || st.Disconnects != oracles || st.HeldByOracle != uint64(held) {
			t.Errorf("after %d cuts: %+v", oracles, st)
		}
		for n := range uint64(oracles) {
			if err := o.Restart(); err != nil {
				t.Fatal(err)
			}
			more()
			if st := r.Stats(); st.Snapshots != n+1 || st.HeldByOracle != uint64(held) {
				t.Errorf("oracle %d: %+v", n+1, st)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// lossy drops the first operation of the batches it is told to, on the way out.
type lossy struct {
	grpc.ClientStream

	drops *atomic.Bool
	done  *atomic.Int64
}

// SendMsg implements grpc.ClientStream.
func (l *lossy) SendMsg(m any) error {
	if r, ok := m.(*kvoraclev1.ReportBlocksRequest); ok && len(r.GetBatch().GetOps()) > 0 && l.drops.CompareAndSwap(true, false) {
		l.done.Add(1)
		r.GetBatch().Ops = r.GetBatch().GetOps()[1:]
	}
	return l.ClientStream.SendMsg(m)
}

// TestSilentLossIsFound lets an operation disappear between the reporter and the wire, where no number can show it. A
// digest finds it within its interval, in both meanings of a repeat, and the snapshot that follows makes it good. A lost
// copy of a counted block is found like a lost block.
func TestSilentLossIsFound(t *testing.T) {
	store := func(r *client.Reporter, ids ...client.BlockID) error {
		return r.Store(client.Root(), ids, client.TierDevice)
	}
	for name, tt := range map[string]struct {
		repeats client.Repeats
		lost    func(r *client.Reporter) error
	}{
		"set":            {client.RepeatsSet, func(r *client.Reporter) error { return store(r, 7, 8) }},
		"set, removal":   {client.RepeatsSet, func(r *client.Reporter) error { return r.Remove([]client.BlockID{2}, client.TierDevice) }},
		"counted":        {client.RepeatsCounted, func(r *client.Reporter) error { return store(r, 7, 8) }},
		"counted, copy":  {client.RepeatsCounted, func(r *client.Reporter) error { return store(r, 1) }},
		"counted, fewer": {client.RepeatsCounted, func(r *client.Reporter) error { return r.Remove([]client.BlockID{1}, client.TierDevice) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var drops atomic.Bool
				var done atomic.Int64
				o := clienttest.Start(t, clienttest.WithDialOptions(grpc.WithChainStreamInterceptor(
					func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
						s, err := next(ctx, d, cc, method, opts...)
						return &lossy{s, &drops, &done}, err
					},
				)))
				r, err := client.NewReporter(o.Conn(), client.Worker{ID: "w1", Model: "m", BlockSize: 4, Incarnation: 7, Repeats: tt.repeats},
					client.WithDigests(0, 10*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- r.Run(ctx) }()
				for range 2 { // counted: two copies of each
					if err := store(r, 1, 2, 3); err != nil {
						t.Fatal(err)
					}
				}
				if err := r.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				<-time.After(15 * time.Second) // nothing is wrong yet
				if st := r.Stats(); st.Resyncs != 0 || st.Oracle.GetDigestsMatched() == 0 {
					t.Fatalf("before the loss: %+v", st)
				}
				drops.Store(true)
				if err := tt.lost(r); err != nil {
					t.Fatal(err)
				}
				<-time.After(15 * time.Second)
				if st := r.Stats(); done.Load() != 1 || st.Resyncs != 1 || st.Snapshots != 1 || st.Oracle.GetDigestsMismatched() != 1 {
					t.Errorf("after the loss of %d operations: %+v", done.Load(), st)
				}
				<-time.After(30 * time.Second)
				if st := r.Stats(); st.Resyncs != 1 || st.Confidence != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH {
					t.Errorf("one loss, one snapshot: %+v", st)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
