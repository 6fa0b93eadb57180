package extproc

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// shadowed begins a request that is only shown.
func (r *rig) shadowed(resp bodyMode, path string, pieces ...string) *call {
	r.t.Helper()
	c := r.call(streamed, resp)
	c.hides = true
	c.post(path)
	for i, p := range pieces {
		c.body(p, i == len(pieces)-1)
	}
	return c
}

// servedBy is the headers of a response of which an attribute says who sent it.
func (c *call) servedBy(address string, isEnd bool, pairs ...string) {
	c.t.Helper()
	m := responseHeadersRequest(pairs...)
	m.GetResponseHeaders().EndOfStream = isEnd
	s, err := structpb.NewStruct(map[string]any{keyUpstream: address})
	if err != nil {
		c.t.Fatal(err)
	}
	m.Attributes = map[string]*structpb.Struct{attributes: s}
	c.send(m)
}

// ended waits for the picker to end a stream by itself, without a word.
func (c *call) ended() {
	c.t.Helper()
	if m, err := c.stream.Recv(); !errors.Is(err, io.EOF) {
		c.t.Fatalf("a shadow was answered: %v, %v", m, err)
	}
}

// TestShadow: of a request that is only shown a worker is chosen and booked, the booking moves to who has served it, and ends with it.
// Nothing is answered.
func TestShadow(t *testing.T) {
	r := start(t, 2, nil)
	r.isLogged = true // no log names the decision of a shadow
	for turn, tt := range []struct {
		resp   bodyMode
		serves int // the worker
		end    func(c *call)
		want   []string
	}{
		{streamed, 1, func(c *call) { c.responded(events, true); c.ended() }, []string{"first_token applied", "matched 0 cached 8", "finished applied"}},
		{streamed, 2, func(c *call) { c.responded(events, false); c.trailed(); c.ended() }, nil},
		{streamed, 1, func(c *call) { c.responded(events, false); c.over() }, []string{"first_token applied", "cancelled applied"}},
		{streamed, 2, func(c *call) { c.over() }, []string{"cancelled applied"}},
		{none, 2, func(c *call) { c.over() }, []string{"finished applied"}}, // nobody can tell
	} {
		c := r.shadowed(tt.resp, textPath, question[:5], question[5:])
		if got := next(t, r.picked); got != Decided {
			t.Fatalf("%d: %v", turn, got)
		}
		c.servedBy(at(tt.serves), false, ":status", ok, "content-type", streaming)
		if got := next(t, r.steps); got != "dispatched applied" {
			t.Errorf("%d: first came %q", turn, got)
		}
		if got := r.bookedAt(); got != at(tt.serves) {
			t.Errorf("%d: it is booked at %q, and served by %s", turn, got, at(tt.serves))
		}
		tt.end(c)
		if got := r.heard(); tt.want != nil && !cmp.Equal(tt.want, got) {
			t.Errorf("%d: heard %q, want %q", turn, got, tt.want)
		}
	}
}

// trailed is the end of a response with trailers.
func (c *call) trailed() {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}})
}

// bookedAt is the address of the only worker that has a booking.
func (r *rig) bookedAt() string {
	var out strings.Builder
	for _, w := range r.o.Workers("", time.Now()) {
		if w.Ranks[0].Load.Booked > 0 {
			out.WriteString(w.Address)
		}
	}
	return out.String()
}

// TestShadowsThatCastNothing: what is no question, or cannot be answered, books nothing and is not waited for.
func TestShadowsThatCastNothing(t *testing.T) {
	r := start(t, 1, func(c *Config) { c.MaxBody, c.Queue.MaxWait = 200, time.Hour })
	for _, tt := range []struct {
		path, body string
		want       Outcome
	}{
		{"/v1/models", "{}", InTurn},
		{textPath, "not JSON", Unparsed},
		{textPath, `{"model":"x","prompt":"y"}`, UnknownModel},
		{textPath, strings.Repeat(" ", 201), TooLarge},
	} {
		c := r.shadowed(streamed, tt.path, tt.body)
		if got := next(t, r.picked); got != tt.want {
			t.Errorf("%s %.20q: %v, want %v", tt.path, tt.body, got, tt.want)
		}
		c.ended()
	}
	c := r.call(streamed, streamed) // a GET
	c.hides = true
	c.headers(true, ":method", "GET", ":path", "/v1/models")
	if got := next(t, r.picked); got != InTurn {
		t.Errorf("GET: %v", got)
	}
	c.ended()
	c = r.shadowed(streamed, textPath) // answered before its body was complete
	c.servedBy(at(1), true, ":status", "400")
	c.ended()
	r.register(2, 1)
	if _, err := r.o.Drain("w1", true); err != nil {
		t.Fatal(err)
	}
	held := r.shadowed(streamed, textPath, question)
	if got := next(t, r.picked); got != Decided {
		t.Fatal(got)
	}
	c = r.shadowed(streamed, textPath, question) // all are full: it does not queue
	if got := next(t, r.picked); got != Shed {
		t.Errorf("beyond the limit: %v", got)
	}
	c.ended()
	held.over()
	if got := r.heard(); !cmp.Equal([]string{"cancelled applied"}, got) {
		t.Errorf("heard %q", got)
	}
}
