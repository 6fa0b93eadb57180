package replica_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// pick is a request of Envoy's that a replica decides; the access log tells its end. It gives the decision's name.
func (r *rig) pick() string {
	r.t.Helper()
	words, err := structpb.NewStruct(map[string]any{"request.method": "POST", "request.path": "/v1/completions"})
	if err != nil {
		r.t.Fatal(err)
	}
	stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(metadata.AppendToOutgoingContext(r.t.Context(), "x-kvoracle-ends-by", "access-log"))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := stream.Send(&extprocv3.ProcessingRequest{
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: extprocfilterv3.ProcessingMode_BUFFERED},
		Attributes:     map[string]*structpb.Struct{"envoy.filters.http.ext_proc": words},
		Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{
			Body: []byte(`{"model":"demo","prompt":"` + strings.Repeat("Who is there? ", 50) + `"}`), EndOfStream: true,
		}},
	}); err != nil {
		r.t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	name := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-kvoracle-decision"].GetStringValue()
	if name == "" {
		r.t.Fatalf("not decided: %v", m)
	}
	return name
}

// log writes the ends of requests into a replica's access log, and waits until they were taken.
func (r *rig) log(names ...string) {
	r.t.Helper()
	stream, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	entries := &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{}
	for _, name := range names {
		words, err := structpb.NewStruct(map[string]any{"x-kvoracle-decision": name})
		if err != nil {
			r.t.Fatal(err)
		}
		entries.LogEntry = append(entries.LogEntry, &accesslogdatav3.HTTPAccessLogEntry{
			CommonProperties: &accesslogdatav3.AccessLogCommon{
				AccessLogType: accesslogdatav3.AccessLogType_DownstreamEnd,
				Metadata:      &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": words}},
			},
			Response: &accesslogdatav3.HTTPResponseProperties{ResponseCode: wrapperspb.UInt32(200)},
		})
	}
	if err := stream.Send(&accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{HttpLogs: entries}}); err != nil {
		r.t.Fatal(err)
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		r.t.Fatal(err)
	}
}

// TestAccessLogOfAll: Envoy asks either replica and writes its access log to one; the ends of all requests come to both.
func TestAccessLogOfAll(t *testing.T) {
	both := replicas(t, broker(t), "a", "b")
	for _, r := range both {
		r.register("w1", 0)
	}
	var names []string
	for i := range 10 {
		names = append(names, both[i%2].pick())
	}
	for _, r := range both {
		waitFor(t, "both know of all", func() bool { return r.booked("w1") == 10 })
	}
	both[1].log(names...)
	for _, r := range both {
		waitFor(t, "all ends have come", func() bool { return r.booked("w1") == 0 })
	}
}
