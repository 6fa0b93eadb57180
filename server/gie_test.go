package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/structpb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// The endpoint picker protocol of the Gateway API inference extension (its proposal 004, version 1.0.0): every rule in it that
// binds a picker, asked of a whole server as a gateway asks. What only a cluster can show (that a gateway obeys) is not here.

const (
	gieChoice = "x-gateway-destination-endpoint"
	gieServed = "x-gateway-destination-endpoint-served"
	gieBody   = `{"model":"demo","prompt":"once upon a time"}`
)

// gateway is what a gateway knows of one HTTP request.
type gateway struct {
	t      testing.TB
	stream extprocv3.ExternalProcessor_ProcessClient
}

func (r *rig) gateway() *gateway {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	r.t.Cleanup(cancel)
	stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return &gateway{r.t, stream}
}

// gieAsk is a request, up to the message of its answer that has the choice.
type gieAsk struct {
	method, path, body string
	headers            map[string]string
	hint               []any // nil: none
	silent             bool  // the gateway does not say how it sends bodies: those before Envoy 1.34 do not
	hasTrailers        bool
}

func (g *gateway) send(m *extprocv3.ProcessingRequest) {
	g.t.Helper()
	if err := g.stream.Send(m); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) recv() *extprocv3.ProcessingResponse {
	g.t.Helper()
	m, err := g.stream.Recv()
	if err != nil {
		g.t.Fatal(err)
	}
	return m
}

func (g *gateway) ask(a *gieAsk) *extprocv3.ProcessingResponse {
	g.t.Helper()
	first := &extprocv3.ProcessingRequest{}
	if !a.silent {
		const duplex = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
		first.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: duplex, ResponseBodyMode: duplex}
	}
	if a.hint != nil {
		s, err := structpb.NewStruct(map[string]any{gieChoice + "-subset": a.hint})
		if err != nil {
			g.t.Fatal(err)
		}
		first.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb.subset_hint": s}}
	}
	h := &corev3.HeaderMap{}
	for k, v := range map[string]string{":method": a.method, ":path": a.path} {
		h.Headers = append(h.Headers, &corev3.HeaderValue{Key: k, RawValue: []byte(v)})
	}
	for k, v := range a.headers {
		h.Headers = append(h.Headers, &corev3.HeaderValue{Key: k, RawValue: []byte(v)})
	}
	first.Request = &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: h, EndOfStream: a.body == ""}}
	g.send(first)
	for i, b := range []byte(a.body) { // as finely as can be
		g.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: []byte{b}, EndOfStream: i == len(a.body)-1 && !a.hasTrailers},
		}})
	}
	if a.hasTrailers {
		g.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}})
	}
	return g.recv()
}

// endpoints are those named in an answer, which header and metadata must name alike.
func endpoints(t *testing.T, m *extprocv3.ProcessingResponse) []string {
	t.Helper()
	header := ""
	for _, h := range m.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == gieChoice {
			if h.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
				t.Errorf("the header is set by %v: a client's own would stay", h.GetAppendAction())
			}
			header = string(h.GetHeader().GetRawValue())
		}
	}
	said := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()[gieChoice].GetStringValue()
	if header != said || header == "" {
		t.Errorf("the header says %q, the metadata %q: want the same, and one at least", header, said)
	}
	return strings.Split(header, ",")
}

// pool registers workers at 10.0.0.1:8000 and on; one is at an address of IPv6, one is drained.
func (r *rig) pool() (all []string) {
	r.t.Helper()
	all = []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "[fd00::1]:8000", "10.0.0.9:8000"}
	for i, a := range all {
		spec := &kvoraclev1.WorkerSpec{WorkerId: fmt.Sprint("g", i), Address: a, Model: "demo", BlockSize: 16}
		if _, err := r.fleet.RegisterWorker(r.t.Context(), &kvoraclev1.RegisterWorkerRequest{Spec: spec}); err != nil {
			r.t.Fatal(err)
		}
	}
	if _, err := r.fleet.DrainWorker(r.t.Context(), &kvoraclev1.DrainWorkerRequest{WorkerId: "g4"}); err != nil {
		r.t.Fatal(err)
	}
	return all[:4]
}

func TestEndpointPickerProtocol(t *testing.T) {
	post := func(change func(*gieAsk)) gieAsk {
		a := gieAsk{method: "POST", path: "/v1/completions", body: gieBody}
		if change != nil {
			change(&a)
		}
		return a
	}
	r := up(t, Config{})
	all := r.pool()
	for _, tt := range []struct {
		rule string
		ask  gieAsk
		from []string // any of these, and no other
		most int      // of them; 0: as many as may be
		code int      // refused with
	}{
		{rule: "without a subset the choice is from the pool", ask: post(nil), from: all},
		{rule: "only endpoints of the subset", ask: post(func(a *gieAsk) { a.hint = []any{all[1], all[2]} }), from: all[1:3]},
		{rule: "a subset of one", ask: post(func(a *gieAsk) { a.hint = []any{all[0]} }), from: all[:1]},
		{rule: "IPv6 is in brackets", ask: post(func(a *gieAsk) { a.hint = []any{all[3]} }), from: all[3:4]},
		{rule: "what is not ready in the subset is left out", ask: post(func(a *gieAsk) { a.hint = []any{"10.0.0.9:8000", all[0], "10.1.1.1:1"} }), from: all[:1]},
		{rule: "none of the subset is eligible: 503", ask: post(func(a *gieAsk) { a.hint = []any{"10.1.1.1:1"} }), code: 503},
		{rule: "none of the subset is ready: 503", ask: post(func(a *gieAsk) { a.hint = []any{"10.0.0.9:8000"} }), code: 503},
		{rule: "an empty subset: 503", ask: post(func(a *gieAsk) { a.hint = []any{} }), code: 503},
		{rule: "a subset with a request without a body", ask: gieAsk{method: "GET", path: "/v1/models", hint: []any{all[2]}}, from: all[2:3]},
		{rule: "an empty subset without a body: 503", ask: gieAsk{method: "GET", path: "/v1/models", hint: []any{}}, code: 503},
		{rule: "each request has a choice: without a body", ask: gieAsk{method: "GET", path: "/v1/models"}, from: all},
		{rule: "each request has a choice: of another kind", ask: post(func(a *gieAsk) { a.path = "/v1/audio/speech" }), from: all},
		{rule: "each request has a choice: not understood", ask: post(func(a *gieAsk) { a.body = "not JSON" }), from: all},
		{rule: "each request has a choice: a model nobody has registered", ask: post(func(a *gieAsk) { a.body = `{"model":"x","prompt":"y"}` }), from: all},
		{rule: "a choice of the client's own is replaced", ask: post(func(a *gieAsk) { a.headers = map[string]string{gieChoice: "6.6.6.6:6"} }), from: all},
		{rule: "a gateway that does not say how it sends bodies", ask: post(func(a *gieAsk) { a.silent = true }), from: all},
		{rule: "trailers", ask: post(func(a *gieAsk) { a.hasTrailers = true }), from: all},
	} {
		g := r.gateway()
		m := g.ask(&tt.ask)
		if tt.code != 0 {
			if got := m.GetImmediateResponse().GetStatus().GetCode(); int(got) != tt.code {
				t.Errorf("%s: answered %v", tt.rule, m)
			}
			continue
		}
		if m.GetRequestHeaders() == nil {
			t.Errorf("%s: answered %v", tt.rule, m)
			continue
		}
		to := endpoints(t, m)
		for i, e := range to {
			if !slices.Contains(tt.from, e) || slices.Contains(to[:i], e) {
				t.Errorf("%s: chose %v, want each of %v, and once", tt.rule, to, tt.from)
			}
		}
		// The body comes back whole, in order, and then the trailers.
		var body []byte
		for isEnd := tt.ask.body == ""; !isEnd; {
			m := g.recv()
			if m.GetRequestTrailers() != nil && tt.ask.hasTrailers {
				break
			}
			s := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
			if s == nil {
				t.Fatalf("%s: amid the body came %v", tt.rule, m)
			}
			body, isEnd = append(body, s.GetBody()...), s.GetEndOfStream()
		}
		if string(body) != tt.ask.body {
			t.Errorf("%s: the body came back as %q", tt.rule, body)
		}
		if err := g.stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEndpointPickerRefusals: 503 where nobody is ready, 429 where all are at their limits.
func TestEndpointPickerRefusals(t *testing.T) {
	r := up(t, Config{})
	code := func() int {
		return int(r.gateway().ask(&gieAsk{method: "POST", path: "/v1/completions", body: gieBody}).GetImmediateResponse().GetStatus().GetCode())
	}
	if got := code(); got != 503 {
		t.Errorf("an empty pool: %d, want 503", got)
	}
	spec := &kvoraclev1.WorkerSpec{WorkerId: "w", Address: "10.0.0.1:80", Model: "demo", BlockSize: 16, MaxRequests: 1}
	if _, err := r.fleet.RegisterWorker(t.Context(), &kvoraclev1.RegisterWorkerRequest{Spec: spec}); err != nil {
		t.Fatal(err)
	}
	if got := code(); got != 0 {
		t.Errorf("a pool of one: %d, want a choice", got)
	}
	if got := code(); got != 429 {
		t.Errorf("at its limit: %d, want 429", got)
	}
	if _, err := r.fleet.DrainWorker(t.Context(), &kvoraclev1.DrainWorkerRequest{WorkerId: "w"}); err != nil {
		t.Fatal(err)
	}
	if got := code(); got != 503 {
		t.Errorf("drained: %d, want 503", got)
	}
}

// TestEndpointPickerHearsWhoServed: a gateway that had to retry says who has served, and the response passes as it is.
func TestEndpointPickerHearsWhoServed(t *testing.T) {
	r := up(t, Config{})
	r.pool()
	g := r.gateway()
	to := endpoints(t, g.ask(&gieAsk{method: "POST", path: "/v1/completions", body: gieBody}))
	if len(to) < 2 {
		t.Fatalf("chose %v, want some for retries", to)
	}
	for range gieBody {
		g.recv()
	}
	served, err := structpb.NewStruct(map[string]any{gieServed: to[1]})
	if err != nil {
		t.Fatal(err)
	}
	g.send(&extprocv3.ProcessingRequest{
		MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": served}},
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{
			Headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte("200")}, {Key: "content-type", RawValue: []byte("text/event-stream")}},
		}}},
	})
	if m := g.recv(); m.GetResponseHeaders() == nil || m.GetResponseHeaders().GetResponse() != nil {
		t.Errorf("the response's headers were answered with %v", m)
	}
	list, err := r.fleet.ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	booked := map[string]uint32{}
	for _, w := range list.GetWorkers() {
		if n := w.GetRanks()[0].GetBookedRequests(); n > 0 {
			booked[w.GetSpec().GetAddress()] = n
		}
	}
	if d := cmp.Diff(map[string]uint32{to[1]: 1}, booked); d != "" {
		t.Error(d)
	}
	for i, piece := range []string{"data: 1\n\n", "data: [DONE]\n\n"} {
		g.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
			ResponseBody: &extprocv3.HttpBody{Body: []byte(piece), EndOfStream: i == 1},
		}})
		s := g.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if string(s.GetBody()) != piece || s.GetEndOfStream() != (i == 1) {
			t.Errorf("a piece of the response came back as %v", s)
		}
	}
}

// TestEndpointPickerHealth: gateways and Kubernetes ask for these names.
func TestEndpointPickerHealth(t *testing.T) {
	r := up(t, Config{})
	r.pool()
	for _, name := range []string{"", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"} {
		for deadline := time.Now().Add(time.Minute); ; <-time.After(5 * time.Millisecond) {
			m, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			if err == nil && m.GetStatus() == healthpb.HealthCheckResponse_SERVING {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%q: %v, %v", name, m, err)
				break
			}
		}
	}
}
