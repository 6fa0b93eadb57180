package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

const blockSize = 4

// rig is a service over a real oracle and a real connection.
type rig struct {
	t      *testing.T
	o      *oracle.Oracle
	s      *Service
	client extprocv3.ExternalProcessorClient
	// isLogged says that requests end by the access log.
	isLogged bool
	steps    chan string // of bookings, and the predictions at their ends
	picked   chan Outcome
	sources  chan Source
	entries  chan Entry
	logs     accesslogv3.AccessLogServiceClient
}

// spy hears what becomes of bookings.
type spy struct {
	oracle.NopObserver
	*rig
}

func (s spy) Progress(step oracle.Step, outcome oracle.Outcome) {
	s.steps <- fmt.Sprintf("%v %v", step, outcome)
}

func (s spy) Prediction(matched, cached int) {
	s.steps <- fmt.Sprintf("matched %d cached %d", matched, cached)
}

func (r *rig) Picked(o Outcome)  { r.picked <- o }
func (r *rig) Prompted(s Source) { r.sources <- s }
func (r *rig) Unobserved()       { r.steps <- "unobserved" }
func (r *rig) Logged(e Entry)    { r.entries <- e }

// start makes a fleet of workers at 10.0.0.1:80 and on, of model m.
func start(t *testing.T, workers int, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, steps: make(chan string, 1000), picked: make(chan Outcome, 1000), sources: make(chan Source, 1000), entries: make(chan Entry, 1000)}
	r.o = oracle.New(oracle.Config{}, spy{rig: r})
	for i := range workers {
		r.register(i+1, 0)
	}
	cfg := Config{Oracle: r.o, Observer: r, Route: func(ctx context.Context, _ string, q *oracle.RouteRequest) (*oracle.Answer, error) {
		return r.o.Route(ctx, q, time.Now())
	}}
	if change != nil {
		change(&cfg)
	}
	r.s = New(cfg)
	lis := bufconn.Listen(1 << 20)
	g := grpc.NewServer(grpc.MaxRecvMsgSize(16<<20), grpc.WaitForHandlers(true))
	r.s.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:rig", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	r.client = extprocv3.NewExternalProcessorClient(conn)
	r.logs = accesslogv3.NewAccessLogServiceClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if n := r.o.Stats(time.Now()).Load.Bookings; n != 0 {
			t.Errorf("%d bookings have outlived their streams", n)
		}
		if n := len(r.s.lives) + len(r.s.byRequest) + len(r.s.dues); n != 0 {
			t.Errorf("%d lives are remembered after all streams have ended", n)
		}
	})
	return r
}

func (r *rig) register(i, maxRequests int) {
	r.t.Helper()
	spec := fleet.Spec{
		Worker: fmt.Sprintf("w%d", i), Address: at(i), Model: "m", BlockSize: blockSize, DPSize: 1, MaxRequests: maxRequests,
	}
	if _, err := r.o.Register(spec, time.Now()); err != nil {
		r.t.Fatal(err)
	}
}

func at(i int) string { return fmt.Sprintf("10.0.0.%d:80", i) }

// next is what is heard next, in time for any machine.
func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing was heard")
		return *new(T) // not reached
	}
}

// call is one request as Envoy would send it.
type call struct {
	*rig
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
	config *extprocv3.ProtocolConfiguration // for the first message
	meta   *corev3.Metadata                 // for the next
	hides  bool                             // it says that nothing is to be answered
}

func (r *rig) call(req, resp bodyMode) *call {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	if r.isLogged {
		ctx = metadata.AppendToOutgoingContext(ctx, keyEndsBy, byLog)
	}
	stream, err := r.client.Process(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(cancel)
	return &call{rig: r, stream: stream, cancel: cancel, config: &extprocv3.ProtocolConfiguration{RequestBodyMode: req, ResponseBodyMode: resp}}
}

// watch is an observer that has seen the headers of a streamed answer.
func (r *rig) watch(server, decision string) *call {
	r.t.Helper()
	look := r.call(none, none)
	look.hides = true
	look.meta = meta(r.t, spaceBalancer, map[string]any{keyDecision: decision, keyServed: server})
	look.seen(":status", ok, "content-type", streaming)
	return look
}

func (c *call) send(m *extprocv3.ProcessingRequest) {
	c.t.Helper()
	m.ProtocolConfig, m.MetadataContext, m.ObservabilityMode = c.config, c.meta, c.hides
	c.config, c.meta = nil, nil
	if err := c.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		c.t.Fatal(err)
	}
}

func (c *call) recv() *extprocv3.ProcessingResponse {
	c.t.Helper()
	m, err := c.stream.Recv()
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	return m
}

func headersOf(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

func (c *call) headers(isEnd bool, pairs ...string) {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: headersOf(pairs...), EndOfStream: isEnd},
	}})
}

// post is the headers of a request with a prompt.
func (c *call) post(path string, pairs ...string) {
	c.t.Helper()
	c.headers(false, append([]string{":method", "POST", ":path", path}, pairs...)...)
}

func (c *call) body(b string, isEnd bool) {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: isEnd},
	}})
}

func (c *call) trailers() {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}})
}

func (c *call) answered(served string, isEnd bool, pairs ...string) {
	c.t.Helper()
	words := map[string]any{}
	if served != "" {
		words[keyServed] = served
	}
	c.meta = meta(c.t, spaceBalancer, words)
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headersOf(pairs...), EndOfStream: isEnd},
	}})
}

func (c *call) responded(b string, isEnd bool) {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: isEnd},
	}})
}

func meta(t *testing.T, space string, words map[string]any) *corev3.Metadata {
	t.Helper()
	s, err := structpb.NewStruct(words)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{space: s}}
}

// choice is the header and the metadata of an answer, which must be the same, and the decision's name.
func choice(t *testing.T, m *extprocv3.ProcessingResponse) (to []string, decision string) {
	t.Helper()
	common := m.GetRequestHeaders().GetResponse()
	if b := m.GetRequestBody(); b != nil {
		common = b.GetResponse()
	}
	header := headerIn(common.GetHeaderMutation(), keyChoice)
	words := m.GetDynamicMetadata().GetFields()[spaceBalancer].GetStructValue().GetFields()
	if got := words[keyChoice].GetStringValue(); got != header {
		t.Errorf("the header says %q, the metadata %q", header, got)
	}
	if header == "" {
		if !slices.Contains(common.GetHeaderMutation().GetRemoveHeaders(), keyChoice) {
			t.Error("without a choice a client's own header must go")
		}
		return nil, ""
	}
	return strings.Split(header, ","), words[keyDecision].GetStringValue()
}

func headerIn(m *extprocv3.HeaderMutation, key string) string {
	for _, h := range m.GetSetHeaders() {
		if h.GetHeader().GetKey() == key {
			return string(h.GetHeader().GetRawValue())
		}
	}
	return ""
}

// ask is a whole buffered request up to its choice.
func (r *rig) ask(path, body string) (*call, *extprocv3.ProcessingResponse) {
	r.t.Helper()
	c := r.call(buffered, none)
	c.post(path)
	if m := c.recv(); m.GetRequestHeaders() == nil || m.GetRequestHeaders().GetResponse().GetHeaderMutation() != nil {
		r.t.Fatalf("headers were answered with %v", m)
	}
	c.body(body, true)
	m := c.recv()
	return c, m
}

// over leaves a request as Envoy does, and waits until that is known.
func (c *call) over() {
	c.t.Helper()
	if err := c.stream.CloseSend(); err != nil {
		c.t.Fatal(err)
	}
	if m, err := c.stream.Recv(); !errors.Is(err, io.EOF) {
		c.t.Fatalf("after the end: %v, %v", m, err)
	}
}

// heard are the steps so far that are no mere signs of life.
func (r *rig) heard() []string {
	var out []string
	for {
		select {
		case s := <-r.steps:
			if s != "generating applied" {
				out = append(out, s)
			}
		default:
			return out
		}
	}
}

const (
	chatPath = "/v1/chat/completions"
	textPath = "/v1/completions"
)

func responseHeadersRequest(pairs ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headersOf(pairs...)},
	}}
}
