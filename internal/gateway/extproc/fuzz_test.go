package extproc

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// tape is a stream that was recorded.
type tape struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream's own
	in  []*extprocv3.ProcessingRequest
	out []*extprocv3.ProcessingResponse
}

func (t *tape) Context() context.Context { return t.ctx }

func (t *tape) Recv() (*extprocv3.ProcessingRequest, error) {
	if len(t.in) == 0 {
		return nil, io.EOF
	}
	m := t.in[0]
	t.in = t.in[1:]
	return m, nil
}

func (t *tape) Send(m *extprocv3.ProcessingResponse) error {
	t.out = append(t.out, m)
	return nil
}

// logTape is an access log that was recorded.
type logTape struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream's own
	in  []*accesslogv3.StreamAccessLogsMessage
}

func (t *logTape) Context() context.Context { return t.ctx }

func (t *logTape) SendAndClose(*accesslogv3.StreamAccessLogsResponse) error { return nil }

func (t *logTape) Recv() (*accesslogv3.StreamAccessLogsMessage, error) {
	if len(t.in) == 0 {
		return nil, io.EOF
	}
	m := t.in[0]
	t.in = t.in[1:]
	return m, nil
}

// FuzzLog sends any access log after three decisions whose streams have ended. Whatever it says, each booking ends once, and none
// is left when the silence is over.
func FuzzLog(f *testing.F) {
	for _, e := range []*accesslogdatav3.HTTPAccessLogEntry{
		entryOf("1", 1, 200), entryOf("2", 2, 503), entryOf("3", 1, 0), entryOf("9", 1, 200), {},
	} {
		for _, kind := range []accesslogdatav3.AccessLogType{accesslogdatav3.AccessLogType_DownstreamEnd, accesslogdatav3.AccessLogType_UpstreamPoolReady} {
			if c := e.GetCommonProperties(); c != nil {
				c.AccessLogType = kind
			}
			b, err := proto.Marshal(&accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
				HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: []*accesslogdatav3.HTTPAccessLogEntry{e, e}},
			}})
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &accesslogv3.StreamAccessLogsMessage{}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		ends := &endings{}
		o := oracle.New(oracle.Config{}, ends)
		for i := range 2 {
			spec := fleet.Spec{Worker: at(i + 1), Address: at(i + 1), Model: "m", BlockSize: 4, DPSize: 1}
			if _, err := o.Register(spec, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		s := New(Config{Oracle: o, FirstByteIsToken: true, Route: func(ctx context.Context, _ string, q *oracle.RouteRequest) (*oracle.Answer, error) {
			return o.Route(ctx, q, time.Now())
		}})
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(keyEndsBy, byLog))
		var names []string
		for range 3 {
			tp := &tape{ctx: ctx, in: []*extprocv3.ProcessingRequest{{
				Attributes:     attributesOf(t, textPath),
				ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: buffered},
				Request:        &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(question), EndOfStream: true}},
			}}}
			if err := s.Process(tp); err != nil {
				t.Fatal(err)
			}
			_, name := choice(t, tp.out[0])
			names = append(names, name)
		}
		for _, e := range m.GetHttpLogs().GetLogEntry() { // "1" to "3" are those
			words := e.GetCommonProperties().GetMetadata().GetFilterMetadata()[spaceBalancer].GetFields()
			if n := words[keyDecision].GetStringValue(); len(n) == 1 && n >= "1" && n <= "3" {
				words[keyDecision] = structpb.NewStringValue(names[n[0]-'1'])
			}
		}
		if err := s.readLog(&logTape{ctx: ctx, in: []*accesslogv3.StreamAccessLogsMessage{m}}); err != nil {
			t.Fatal(err)
		}
		s.Tick(time.Now().Add(2 * defaultLogSilence))
		if n := o.Stats(time.Now()).Load.Bookings; n != 0 || len(s.lives) != 0 || s.left != 0 {
			t.Errorf("%d bookings, %d lives, %d awaited are left", n, len(s.lives), s.left)
		}
		if ends.n != 3 {
			t.Errorf("%d ends of three bookings", ends.n)
		}
	})
}

// endings counts the ends of bookings.
type endings struct {
	oracle.NopObserver
	n int
}

func (e *endings) Progress(step oracle.Step, outcome oracle.Outcome) {
	if outcome == oracle.Applied && (step == oracle.Finished || step == oracle.Failed || step == oracle.Cancelled) {
		e.n++
	}
}

// FuzzProcess sends any messages in any order. However they come: what comes back of a duplex body is the body, in order;
// at most one answer to the headers; nothing after a refusal; and every booking ends with its stream.
func FuzzProcess(f *testing.F) {
	post := &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		Headers: headersOf(":method", "POST", ":path", textPath),
	}}
	chunkOf := func(s string, isEnd bool) *extprocv3.ProcessingRequest_RequestBody {
		return &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(s), EndOfStream: isEnd}}
	}
	for _, mode := range []bodyMode{none, streamed, buffered, partial, duplex} {
		var all []byte
		for _, m := range []*extprocv3.ProcessingRequest{
			{Request: post, ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: mode, ResponseBodyMode: mode}},
			{Request: chunkOf(question[:10], false)},
			{Request: chunkOf(question[10:], true)},
			responseHeadersRequest(":status", "200"),
			{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(events), EndOfStream: true}}},
			{Attributes: map[string]*structpb.Struct{attributes: {Fields: map[string]*structpb.Value{
				"request.path": structpb.NewStringValue(textPath), "request.headers['x-session-id']": structpb.NewStringValue("s"),
			}}}, Request: chunkOf(question, true)},
			{ObservabilityMode: true, Request: responseHeadersRequest().GetRequest()},
			{Request: &extprocv3.ProcessingRequest_RequestTrailers{}},
		} {
			b, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			all = append(append(all, byte(len(b)>>8), byte(len(b))), b...)
		}
		f.Add(all)
	}
	for _, isMixed := range []bool{false, true} { // a shadow, and one on a stream that was answered
		var all []byte
		for i, m := range []*extprocv3.ProcessingRequest{
			{Request: post},
			{Request: chunkOf(question[:10], false)},
			{Request: chunkOf(question[10:], true)},
			responseHeadersRequest(":status", "200"),
			{Request: post},
			{Request: chunkOf(question, true)},
			{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(events)}}},
		} {
			m.ObservabilityMode = i >= 3 || !isMixed
			switch {
			case isMixed && i == 1:
				m.Request = chunkOf(question, true)
			case isMixed && i == 3:
				m.Request = post
			}
			if i == 0 {
				m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: buffered, ResponseBodyMode: streamed}
			}
			b, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			all = append(append(all, byte(len(b)>>8), byte(len(b))), b...)
		}
		f.Add(all)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o := oracle.New(oracle.Config{}, nil)
		if _, err := o.Register(fleet.Spec{Worker: "w", Address: at(1), Model: "m", BlockSize: 4, DPSize: 1}, time.Now()); err != nil {
			t.Fatal(err)
		}
		s := New(Config{Oracle: o, MaxBody: 1000, Route: func(ctx context.Context, _ string, q *oracle.RouteRequest) (*oracle.Answer, error) {
			return o.Route(ctx, q, time.Now())
		}})
		tp := &tape{ctx: t.Context()}
		var sent []byte // of the request's body
		for len(data) > 2 {
			n := min(int(data[0])<<8|int(data[1]), len(data)-2)
			m := &extprocv3.ProcessingRequest{}
			if proto.Unmarshal(data[2:2+n], m) == nil {
				tp.in = append(tp.in, m)
				if b := m.GetRequestBody(); b != nil && !m.GetObservabilityMode() {
					sent = append(sent, b.GetBody()...)
				}
			}
			data = data[2+n:]
		}
		if err := s.Process(tp); err != nil && status.Code(err) != codes.InvalidArgument {
			t.Fatal(err)
		}
		var got []byte
		refused := false
		for _, m := range tp.out {
			if refused && (m.GetRequestHeaders() != nil || m.GetRequestBody() != nil) {
				t.Error("something of the request came after a refusal")
			}
			refused = refused || m.GetImmediateResponse() != nil
			got = append(got, m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()...)
		}
		if !bytes.HasPrefix(sent, got) {
			t.Errorf("of %q came back %q", sent, got)
		}
		if n := o.Stats(time.Now()).Load.Bookings; n != 0 {
			t.Errorf("%d bookings are left", n)
		}
		if len(s.lives) != 0 {
			t.Errorf("%d lives are left", len(s.lives))
		}
	})
}
