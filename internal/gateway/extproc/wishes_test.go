package extproc

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// asked is a rig that keeps what the oracle was asked.
func asked(t *testing.T, q Queue) (r *rig, heard chan oracle.RouteRequest) {
	t.Helper()
	heard = make(chan oracle.RouteRequest, 10)
	return start(t, 1, func(c *Config) {
		c.Queue = q
		route := c.Route
		c.Route = func(ctx context.Context, parent string, q *oracle.RouteRequest) (*oracle.Answer, error) {
			heard <- oracle.RouteRequest{Session: q.Session, Tenant: q.Tenant, Priority: q.Priority, MaxWait: q.MaxWait, Goals: q.Goals}
			return route(ctx, parent, q)
		}
	}), heard
}

// TestWishes: headers of a request, the same as attributes of its body, and the same over ext_authz.
func TestWishes(t *testing.T) {
	r, heard := asked(t, Queue{MaxWait: 5 * time.Second, Objectives: map[string]int32{"batch": -10, "premium": 7}})
	web := r.authz(func() bool { return true }) // so that what was booked is ended
	all := 5 * time.Second
	for _, tt := range []struct {
		name    string
		headers []string
		want    oracle.RouteRequest
		goals   [2]float64 // TTFT, TPOT
	}{
		{"none", nil, oracle.RouteRequest{MaxWait: all}, [2]float64{}},
		{"session and tenant", []string{"x-session-id", "s", keyTenant, "t"}, oracle.RouteRequest{Session: "s", Tenant: "t", MaxWait: all}, [2]float64{}},
		{"objective", []string{keyObjective, "batch"}, oracle.RouteRequest{Priority: -10, MaxWait: all}, [2]float64{}},
		{"unknown objective", []string{keyObjective, "x"}, oracle.RouteRequest{MaxWait: all}, [2]float64{}},
		{"priority wins", []string{keyObjective, "batch", keyPriority, "3"}, oracle.RouteRequest{Priority: 3, MaxWait: all}, [2]float64{}},
		{"priority zero", []string{keyObjective, "batch", keyPriority, "0"}, oracle.RouteRequest{MaxWait: all}, [2]float64{}},
		{"no priority", []string{keyPriority, "4294967296"}, oracle.RouteRequest{MaxWait: all}, [2]float64{}},
		{"a shorter wait", []string{keyMaxQueue, "0.25"}, oracle.RouteRequest{MaxWait: 250 * time.Millisecond}, [2]float64{}},
		{"no wait", []string{keyMaxQueue, "0"}, oracle.RouteRequest{}, [2]float64{}},
		{"a longer wait", []string{keyMaxQueue, "60"}, oracle.RouteRequest{MaxWait: all}, [2]float64{}},
		{"no number", []string{keyMaxQueue, "NaN", keyTTFT, "-1", keyTPOT, "1e300"}, oracle.RouteRequest{MaxWait: all}, [2]float64{}},
		{"goals", []string{keyTTFT, "200", keyTPOT, "50"}, oracle.RouteRequest{MaxWait: all}, [2]float64{0.2, 0.05}},
		{"llm-d's names", []string{keyTTFT2, "200", keyTPOT2, "50", keyTenant2, "t", keyObj2, "premium"}, oracle.RouteRequest{
			MaxWait: all, Tenant: "t", Priority: 7,
		}, [2]float64{0.2, 0.05}},
		{"too long", []string{keyTenant, strings.Repeat("x", longestSession+1)}, oracle.RouteRequest{MaxWait: all}, [2]float64{}},
	} {
		tt.want.Goals.TTFT, tt.want.Goals.TPOT = tt.goals[0], tt.goals[1]
		c := r.call(buffered, none)
		c.post(textPath, tt.headers...)
		c.recv()
		c.body(question, true)
		choice(t, c.recv())
		if d := cmp.Diff(tt.want, next(t, heard)); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
		c.over()

		c = r.call(buffered, none)
		c.bodyWith(attributesOf(t, textPath, tt.headers...))
		choice(t, c.recv())
		if d := cmp.Diff(tt.want, next(t, heard)); d != "" {
			t.Errorf("%s, as attributes: %s", tt.name, d)
		}
		c.over()

		r.check(web, http.MethodPost, textPath, question, tt.headers...)
		if d := cmp.Diff(tt.want, next(t, heard)); d != "" {
			t.Errorf("%s, over ext_authz: %s", tt.name, d)
		}
	}
}

// attributesOf is what Envoy sends of a request's headers where request_attributes name them.
func attributesOf(t *testing.T, path string, headers ...string) map[string]*structpb.Struct {
	t.Helper()
	words := map[string]any{"request.method": "POST", "request.path": path}
	for i := 0; i+1 < len(headers); i += 2 {
		words["request.headers['"+headers[i]+"']"] = headers[i+1]
	}
	s, err := structpb.NewStruct(words)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*structpb.Struct{attributes: s}
}

// bodyWith is a whole request's body with attributes.
func (c *call) bodyWith(attributes map[string]*structpb.Struct) {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Attributes: attributes, Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(question), EndOfStream: true},
	}})
}

// TestBodyAlone: a request of which only the body is sent. Envoy waits for one answer.
func TestBodyAlone(t *testing.T) {
	isOver := false
	r := start(t, 3, func(c *Config) { c.Overloaded = func(context.Context) bool { return isOver } })
	for _, tt := range []struct {
		name, path string
		hint       any
		isOver     bool
		to         int
		want       Outcome
	}{
		{name: "a prompt", path: textPath, to: 3, want: Decided},
		{name: "a prompt and one candidate", path: textPath, hint: []any{at(2)}, to: 1, want: Decided},
		{name: "no prompt", path: "/v1/audio/transcriptions", to: 2, want: InTurn},
		{name: "a candidate that is not there", path: "/v1/audio/transcriptions", hint: []any{"1.2.3.4:5"}, want: NoEndpoint},
		{name: "overload", path: textPath, isOver: true, want: Overloaded},
	} {
		isOver = tt.isOver
		c := r.call(buffered, none)
		if tt.hint != nil {
			c.meta = meta(t, spaceHint, map[string]any{keyHint: tt.hint})
		}
		c.bodyWith(attributesOf(t, tt.path))
		m := c.recv()
		if tt.want == NoEndpoint {
			if got := m.GetImmediateResponse().GetStatus().GetCode(); got != 503 {
				t.Errorf("%s: %v", tt.name, m)
			}
		} else if to, _ := choice(t, m); len(to) != tt.to {
			t.Errorf("%s: chose %v, want %d", tt.name, to, tt.to)
		}
		if got := next(t, r.picked); got != tt.want {
			t.Errorf("%s: counted as %v, want %v", tt.name, got, tt.want)
		}
		c.over()
	}
	// Where the body is not kept its answer comes too late for the headers; and without a path nothing can be made of it.
	for _, mode := range []bodyMode{duplex, streamed} {
		c := r.call(mode, none)
		c.bodyWith(attributesOf(t, textPath))
		if _, err := c.stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", mode, err)
		}
	}
	c := r.call(buffered, none)
	c.bodyWith(nil)
	if _, err := c.stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without attributes: %v", err)
	}
}

// TestQueue: a request waits for a place by its headers, and is answered when there is one; one that leaves gives its place up.
func TestQueue(t *testing.T) {
	r := start(t, 0, func(c *Config) { c.Queue.MaxWait = time.Hour })
	r.register(1, 1)
	first, m := r.ask(textPath, question)
	if to, _ := choice(t, m); len(to) != 1 {
		t.Fatalf("chose %v", to)
	}
	waiting := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); r.o.Stats(time.Now()).Waiting != want; {
			if time.Now().After(deadline) {
				t.Fatalf("%d wait, want %d", r.o.Stats(time.Now()).Waiting, want)
			}
			<-time.After(time.Millisecond)
		}
	}
	second := r.call(buffered, none)
	second.bodyWith(attributesOf(t, textPath))
	waiting(1)
	urgent := r.call(buffered, none)
	urgent.bodyWith(attributesOf(t, textPath, keyPriority, "5"))
	waiting(2)
	gone := r.call(buffered, none)
	gone.bodyWith(attributesOf(t, textPath, keyPriority, "9"))
	waiting(3)
	gone.cancel() // as Envoy does at its message_timeout
	waiting(2)
	impatient := r.call(buffered, none)
	impatient.bodyWith(attributesOf(t, textPath, keyMaxQueue, "0"))
	if got := impatient.recv().GetImmediateResponse().GetStatus().GetCode(); got != 429 {
		t.Errorf("one that does not wait was answered %v", got)
	}
	first.over()
	if to, _ := choice(t, urgent.recv()); len(to) != 1 {
		t.Errorf("the urgent one: %v", to)
	}
	waiting(1)
	urgent.over()
	if to, _ := choice(t, second.recv()); len(to) != 1 {
		t.Errorf("the other one: %v", to)
	}
	second.over()
}
