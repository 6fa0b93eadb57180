package server

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/fleet"
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
	codec := transport.NewCodec(mem.DefaultBufferPool())
	route := newRouteService(r.s, codec)
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

// TestHTTPCallerWhoLeavesIsNotBooked: gateways over HTTP give a call up by closing its connection. Here all have, before their
// questions are read.
func TestHTTPCallerWhoLeavesIsNotBooked(t *testing.T) {
	r := newRig(t, Config{HTTPListen: "127.0.0.1:0"})
	if err := r.s.openOthers(t.Context()); err != nil {
		t.Fatal(err)
	}
	spec := fleet.Spec{Worker: "w1", Address: "10.0.0.1:80", Model: "m", BlockSize: 16, DPSize: 1}
	if _, err := r.s.oracle.Register(spec, time.Now()); err != nil {
		t.Fatal(err)
	}
	const calls = 20
	body := `{"model":"m","tokens":{"token_ids":[1,2,3]}}`
	for range calls {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.s.HTTPAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "POST /v1/route HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	r.serve()
	if a := r.do("POST", "/v1/route", body); a.code != 200 { // accepted after all of those
		t.Fatalf("%d %s", a.code, a.text)
	}
	r.stop() // when all are answered
	decided := r.s.oracle.Workers("", time.Now())[0].Ranks[0].Decisions
	if booked := r.s.oracle.Stats(time.Now()).Load.Bookings; booked != 1 {
		t.Errorf("%d decisions, of which %d are booked, want that of the caller who stayed", decided, booked)
	}
}
