package server

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/transport"
)

// leaver is the context of a caller who leaves after it has been asked once whether it is still there.
type leaver struct{ asked atomic.Int64 }

// Err implements context.Context.
func (l *leaver) Err() error {
	if l.asked.Add(1) > 1 {
		return context.Canceled
	}
	return nil
}

// Deadline implements context.Context.
func (*leaver) Deadline() (at time.Time, ok bool) { return time.Time{}, false }

// Done implements context.Context.
func (*leaver) Done() <-chan struct{} { return nil }

// Value implements context.Context.
func (*leaver) Value(any) any { return nil }

// TestCallerWhoLeavesIsNotBooked is case B104: a caller who leaves between choice and answer keeps nothing booked; one that
// has named its request may come back for the same decision.
func TestCallerWhoLeavesIsNotBooked(t *testing.T) {
	r := up(t, Config{})
	r.worker("w1")
	route := newRouteService(r.s)
	codec := transport.NewCodec(mem.DefaultBufferPool())
	for _, tt := range []struct {
		id     string
		leaves bool
		booked int
	}{{"", true, 0}, {"", false, 1}, {"r1", true, 2}} {
		ctx := t.Context()
		if tt.leaves {
			ctx = &leaver{}
		}
		m := prompt(1, 2)
		m.RequestId = tt.id
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		dec := func(v any) error { return codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, v) }
		plain := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			return h(ctx, req)
		}
		if _, err := route.unary(nil, ctx, dec, plain); err != nil {
			t.Fatal(err)
		}
		if n := r.s.oracle.Stats(time.Now()).Load.Bookings; n != tt.booked {
			t.Errorf("request id %q: %d bookings, want %d", tt.id, n, tt.booked)
		}
	}
}
